/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where threads of POSIX meet: at a barrier all go on with the longest path, at a condition who waited with the path of
 * who signalled, if that is longer. A condition joins paths only where somebody waited in this run.
 */
#define _GNU_SOURCE
#include <time.h>

#include "span.h"

#define MEETINGS 1024 /* barriers and conditions that are told apart */

/* Where paths meet. Of a barrier two rounds: a fast thread may come back before a slow one has left. */
struct meeting {
	_Atomic uintptr_t key;
	uint32_t count, arrived, round;
	uint32_t computation; /* that its paths are of */
	struct group rounds[2];
};

static struct meeting meetings[MEETINGS];

static struct meeting *meeting_of(void *key)
{
	uint32_t at = (uint32_t)(((uintptr_t)key * 0x9e3779b97f4a7c15ull) >> 40) % MEETINGS;

	for (uint32_t tries = 0; tries < MEETINGS; tries++, at = (at + 1) % MEETINGS) {
		uintptr_t found = atomic_load(&meetings[at].key);

		if (!found && atomic_compare_exchange_strong(&meetings[at].key, &found, (uintptr_t)key))
			return &meetings[at];
		if (found == (uintptr_t)key)
			return &meetings[at];
	}
	return NULL;
}

static void reset_round(struct group *round)
{
	atomic_store(&round->best, 0);
	prof_clear(&round->best_prof);
	span_segment_keep(&round->best_calls, NULL);
}

static void ensure_prof(struct group *round)
{
	if (!round->best_prof.room)
		prof_init(&round->best_prof);
}

EXPORT int pthread_barrier_init(pthread_barrier_t *barrier, const pthread_barrierattr_t *attributes, unsigned count)
{
	REAL(int, pthread_barrier_init, (pthread_barrier_t *, const pthread_barrierattr_t *, unsigned));
	struct meeting *meeting = span_has_posix() ? meeting_of(barrier) : NULL;

	if (meeting) {
		meeting->count = count;
		meeting->arrived = meeting->round = 0;
		for (int i = 0; i < 2; i++) {
			ensure_prof(&meeting->rounds[i]);
			reset_round(&meeting->rounds[i]);
		}
	}
	return call(barrier, attributes, count);
}

/* Returns the round that this thread's path is in now. */
static struct group *arrive(struct meeting *meeting, struct frame *frame)
{
	struct group *round;

	spin_lock(&meeting->rounds[0].lock);
	round = &meeting->rounds[meeting->round & 1];
	if (frame->c > round->best) {
		atomic_store(&round->best, frame->c);
		prof_copy(&round->best_prof, &frame->prof);
		if (UNLIKELY(span_has_calls))
			span_segment_keep(&round->best_calls, span_path_freeze(&frame->path));
	}
	if (++meeting->arrived >= meeting->count) {
		meeting->arrived = 0;
		meeting->round++;
		reset_round(&meeting->rounds[meeting->round & 1]);
	}
	spin_unlock(&meeting->rounds[0].lock);
	return round;
}

EXPORT int pthread_barrier_wait(pthread_barrier_t *barrier)
{
	REAL(int, pthread_barrier_wait, (pthread_barrier_t *));
	struct thread *self = &span_self;
	struct meeting *meeting;
	struct group *round;
	int result;

	if (!span_is_posix(self) || !(meeting = meeting_of(barrier)) || !meeting->count)
		return call(barrier);
	span_end_strand(self);
	round = arrive(meeting, self->frame);
	span_leave_account(self);
	result = call(barrier);
	span_take_path(self->frame, round->best, &round->best_prof, round->best_calls);
	span_after_wait(self);
	span_begin_strand(self);
	return result;
}

static void signal_path(struct thread *self, void *condition)
{
	struct meeting *meeting = meeting_of(condition);

	if (!meeting)
		return;
	spin_lock(&meeting->rounds[0].lock);
	ensure_prof(&meeting->rounds[0]);
	if (meeting->computation != span_posix_computation()) {
		meeting->computation = span_posix_computation();
		reset_round(&meeting->rounds[0]); /* of whose paths none goes on */
	}
	spin_unlock(&meeting->rounds[0].lock);
	span_report(&meeting->rounds[0], self->frame);
}

static void take_signal(struct thread *self, void *condition)
{
	struct meeting *meeting = meeting_of(condition);

	if (!meeting)
		return;
	spin_lock(&meeting->rounds[0].lock);
	if (meeting->computation == span_posix_computation())
		span_take_path(self->frame, meeting->rounds[0].best, &meeting->rounds[0].best_prof,
			       meeting->rounds[0].best_calls);
	spin_unlock(&meeting->rounds[0].lock);
}

#define SIGNAL(name)                                                                                                  \
	EXPORT int name(pthread_cond_t *condition)                                                                    \
	{                                                                                                             \
		REAL(int, name, (pthread_cond_t *));                                                                  \
		struct thread *self = &span_self;                                                                     \
		int result;                                                                                           \
                                                                                                                      \
		if (!span_is_posix(self))                                                                               \
			return call(condition);                                                                       \
		span_end_strand(self);                                                                                \
		signal_path(self, condition);                                                                         \
		result = call(condition);                                                                             \
		span_begin_strand(self);                                                                              \
		return result;                                                                                        \
	}
SIGNAL(pthread_cond_signal)
SIGNAL(pthread_cond_broadcast)

/* The strand ends before the wait, and what woke the thread joins its path; the mutex is its own again by then. */
#define COND_WAIT(name, parameters, ...)                                                                              \
	EXPORT int name parameters                                                                                    \
	{                                                                                                             \
		REAL(int, name, parameters);                                                                          \
		struct thread *self = &span_self;                                                                     \
		int result;                                                                                           \
                                                                                                                      \
		if (!span_is_posix(self))                                                                               \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		span_leave_account(self);                                                                                          \
		result = call(__VA_ARGS__);                                                                           \
		if (!result)                                                                                          \
			take_signal(self, condition);                                                                 \
		span_after_wait(self);                                                                                \
		span_begin_strand(self);                                                                              \
		return result;                                                                                        \
	}
COND_WAIT(pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex), condition, mutex)
COND_WAIT(pthread_cond_timedwait,
	  (pthread_cond_t * condition, pthread_mutex_t *mutex, const struct timespec *until), condition, mutex, until)
COND_WAIT(pthread_cond_clockwait,
	  (pthread_cond_t * condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until), condition,
	  mutex, clock, until)
