/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of POSIX: all go on with the longest path. */
#define _GNU_SOURCE
#include "span.h"

#define MEETINGS 1024 /* barriers that are told apart */

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
