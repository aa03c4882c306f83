/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of POSIX: all go on with the longest path. What is to be done once: all go on with that of who did it. */
#define _GNU_SOURCE
#include "span.h"

#define MEETINGS 1024 /* barriers that are told apart */
#define PREPARATIONS 256 /* controls of pthread_once */
#define ONCE_DONE 2	 /* in glibc's: nobody will wait */

/* Where paths meet. Of a barrier two rounds: a fast thread may come back before a slow one has left. */
struct meeting {
	_Atomic uintptr_t key;
	uint32_t count, arrived, round;
	struct group rounds[2];
};

static struct meeting meetings[MEETINGS];

static struct meeting *meeting_of(void *key)
{
	return span_entry_of(meetings, sizeof(*meetings), MEETINGS, key, true);
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

/* pthread_once */

struct preparation {
	_Atomic uintptr_t key;
	uint32_t computation; /* that it was done in, by one of its threads */
	struct group done;
};

struct running {
	pthread_once_t *control;
	void (*routine)(void);
};

static struct preparation preparations[PREPARATIONS];
static __thread struct running running;

static struct preparation *preparation_of(pthread_once_t *control, bool is_made)
{
	return span_entry_of(preparations, sizeof(*preparations), PREPARATIONS, control, is_made);
}

static void keep_done(struct preparation *preparation, struct frame *frame)
{
	spin_lock(&preparation->done.lock);
	ensure_prof(&preparation->done);
	reset_round(&preparation->done);
	atomic_store(&preparation->done.best, frame->c);
	prof_copy(&preparation->done.best_prof, &frame->prof);
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&preparation->done.best_calls, span_path_freeze(&frame->path));
	preparation->computation = span_posix_computation();
	spin_unlock(&preparation->done.lock);
}

/* In the thread that does it: the others wait, or are yet to come. */
static void run_once(void)
{
	struct thread *self = &span_self;
	struct running own = running;
	struct preparation *preparation;

	span_begin_strand(self);
	own.routine();
	span_end_strand(self);
	preparation = preparation_of(own.control, true);
	if (preparation)
		keep_done(preparation, self->frame);
}

static bool is_done_before(const struct frame *frame, const struct preparation *preparation)
{
	return !preparation || preparation->computation != span_posix_computation() ||
	       atomic_load(&preparation->done.best) <= frame->c;
}

EXPORT int pthread_once(pthread_once_t *control, void (*routine)(void))
{
	REAL(int, pthread_once, (pthread_once_t *, void (*)(void)));
	struct thread *self = &span_self;
	struct running outer = running;
	struct preparation *preparation;
	bool is_done;
	int result;

	if (!span_is_posix(self))
		return call(control, routine);
	is_done = __atomic_load_n((int *)control, __ATOMIC_ACQUIRE) == ONCE_DONE;
	if (is_done && is_done_before(self->frame, preparation_of(control, false)))
		return call(control, routine);
	span_end_strand(self);
	if (!is_done)
		span_leave_account(self);
	running = (struct running){control, routine};
	result = call(control, run_once);
	running = outer;
	preparation = preparation_of(control, false);
	if (!is_done_before(self->frame, preparation)) {
		span_take_path(self->frame, preparation->done.best, &preparation->done.best_prof,
			       preparation->done.best_calls);
	}
	span_after_wait(self);
	span_begin_strand(self);
	return result;
}
