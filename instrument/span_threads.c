/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of POSIX, in programs without a runtime that is followed: from the first pthread_create on, until all such
 * threads are joined, they and the first thread are one phase. A thread is a task that starts with its creator's
 * path; who joins it, meets it at a barrier, or waits for its signal, goes on with the longer path of the two.
 *
 * A condition joins paths only where somebody waited in this run.
 */
#define _GNU_SOURCE
#include <time.h>

#include "span.h"

#define MEETINGS 1024 /* barriers and conditions that are told apart */

/* Where paths meet. Of a barrier two rounds: a fast thread may come back before a slow one has left. */
struct meeting {
	_Atomic uintptr_t key;
	uint32_t count, arrived, round;
	struct group rounds[2];
};

struct start {
	void *(*body)(void *);
	void *argument;
	struct frame *frame;
};

struct child {
	struct child *next;
	pthread_t thread;
	struct frame *frame;
};

static struct meeting meetings[MEETINGS];
static struct team threads_team;
static struct spin children_lock;
static struct child *children;
static uint32_t live; /* made, and not joined */
static _Atomic bool is_given_up;

static bool is_followed(struct thread *self)
{
	return self->is_open && self->frame->team == &threads_team;
}

/* The first thread's own code beside the others is called after where they were made and `address`. */
static void end_phase(struct thread *self, uintptr_t address)
{
	threads_team.until = address;
	span_member_end(self);
	span_team_end(self, &threads_team, &span_root, &span_root);
}

/* Runtimes make their threads inside calls that we wrap; a program of theirs is followed by its regions alone. */
void span_give_up_threads(struct thread *self, uintptr_t address)
{
	if (atomic_load_explicit(&is_given_up, memory_order_relaxed))
		return;
	atomic_store(&is_given_up, true);
	if (self->frame && self->frame->team == &threads_team && self == threads_team.creator) {
		live = 0;
		end_phase(self, address);
	}
}

static void begin_phase(struct thread *self, uintptr_t address)
{
	span_team_begin(self, &threads_team, NULL, NULL, address);
	span_member_begin(self, &threads_team);
	threads_team.is_posix = true;
	/* calls that began before go on */
	self->frame->work_done = span_root.work_done;
	self->frame->c_before = span_root.c_before + span_root.c;
	threads_team.size = span_record->threads ? span_record->threads : 1;
}

/* What the thread has done counts now: the program may end while it waits. */
static void flush(struct thread *self)
{
	spin_lock(&threads_team.lock);
	prof_union(&threads_team.phases[0].work, &self->implicit->work);
	prof_union(&threads_team.phases[0].holds, &self->implicit->holds);
	prof_clear(&self->implicit->work);
	prof_clear(&self->implicit->holds);
	threads_team.phases[0].called += self->implicit->called;
	self->implicit->called = 0;
	spin_unlock(&threads_team.lock);
	span_report(self->frame->group, self->frame);
}

/* At the process's end, by whichever thread: what others are just doing is missing. */
void span_end_threads(struct thread *self)
{
	struct frame *first = threads_team.members;

	if (!self->frame || self->frame->team != &threads_team)
		return;
	flush(self);
	if (first)
		span_report(first->group, first);
	threads_team.until = 0;
	span_team_end(self, &threads_team, &span_root, &span_root);
}

/* In the child of a fork there is one thread. */
void span_forget_threads(void)
{
	atomic_flag_clear(&children_lock.taken);
	atomic_flag_clear(&threads_team.lock.taken);
	children = NULL;
	live = 0;
}

static void thread_ends(void *argument)
{
	struct thread *self = &span_self;
	struct frame *frame = argument;

	span_end_strand(self);
	if (self->frame != frame)
		return;
	span_calls_leave(self, (struct calls_kept){{0, 0}, 0});
	if (!atomic_load(&is_given_up))
		flush(self);
	self->frame = NULL;
	span_calls_end_thread(self);
}

static void *thread_body(void *argument)
{
	struct start start = *(struct start *)argument;
	struct thread *self = &span_self;
	void *result;

	free(argument);
	self->frame = self->implicit = start.frame;
	self->context = start.frame->context;
	span_count(self, start.frame->site);
	/* pthread_exit and cancellation unwind through here */
	pthread_cleanup_push(thread_ends, start.frame);
	span_begin_strand(self);
	result = start.body(start.argument);
	pthread_cleanup_pop(1);
	return result;
}

static struct frame *new_thread_frame(struct thread *self, uintptr_t address)
{
	struct frame *parent = self->frame, *frame = span_new_frame(self);

	span_init_implicit(frame, &threads_team);
	frame->parent = NULL;
	frame->group = &threads_team.phases[0].group;
	span_begin_path(frame, parent);
	frame->context = self->context;
	frame->site = span_site(SPAN_THREAD, address, 0);
	return frame;
}

typedef int create_call(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
	static void *real;
	create_call *call = (create_call *)span_real(&real, "pthread_create");
	struct thread *self = &span_self;
	struct start *start;
	struct child *child;
	int failure;

	span_load();
	if (!self->is_open || atomic_load(&is_given_up) || (self->frame != &span_root && !is_followed(self)) ||
	    (self->frame == &span_root && live))
		return call(thread, attributes, body, argument);
	span_end_strand(self);
	start = malloc(sizeof(*start));
	child = malloc(sizeof(*child));
	if (!start || !child)
		abort();
	if (self->frame == &span_root)
		begin_phase(self, CALLER);
	*start = (struct start){body, argument, new_thread_frame(self, CALLER)};
	child->frame = start->frame;
	failure = call(thread, attributes, thread_body, start);
	if (failure) {
		free(start);
		free(child);
		if (!live)
			end_phase(self, CALLER);
	} else {
		spin_lock(&children_lock);
		child->thread = *thread;
		child->next = children;
		children = child;
		live++;
		spin_unlock(&children_lock);
	}
	span_begin_strand(self);
	return failure;
}

static struct frame *take_child(pthread_t thread, bool *is_last)
{
	struct frame *frame = NULL;

	spin_lock(&children_lock);
	for (struct child **at = &children; *at; at = &(*at)->next) {
		if (pthread_equal((*at)->thread, thread)) {
			struct child *found = *at;

			frame = found->frame;
			*at = found->next;
			free(found);
			*is_last = --live == 0;
			break;
		}
	}
	spin_unlock(&children_lock);
	return frame;
}

EXPORT int pthread_join(pthread_t thread, void **result)
{
	REAL(int, pthread_join, (pthread_t, void **));
	struct thread *self = &span_self;
	struct frame *frame;
	bool is_last = false;
	int failure;

	if (!is_followed(self))
		return call(thread, result);
	span_end_strand(self);
	failure = call(thread, result);
	frame = failure ? NULL : take_child(thread, &is_last);
	if (frame) {
		span_take_path(self->frame, frame->c, &frame->prof, span_path_freeze(&frame->path));
		span_release(self, frame);
	}
	if (is_last && self == threads_team.creator)
		end_phase(self, CALLER);
	span_begin_strand(self);
	return failure;
}

/* barriers and conditions */

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
	struct meeting *meeting = span_record && !atomic_load(&is_given_up) ? meeting_of(barrier) : NULL;

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

	if (!is_followed(self) || !(meeting = meeting_of(barrier)) || !meeting->count)
		return call(barrier);
	span_end_strand(self);
	round = arrive(meeting, self->frame);
	flush(self);
	result = call(barrier);
	span_take_path(self->frame, round->best, &round->best_prof, round->best_calls);
	span_begin_strand(self);
	return result;
}

static void signal_path(struct thread *self, void *condition)
{
	struct meeting *meeting = meeting_of(condition);

	if (!meeting)
		return;
	spin_lock(&meeting->rounds[1].lock);
	ensure_prof(&meeting->rounds[0]);
	spin_unlock(&meeting->rounds[1].lock);
	span_report(&meeting->rounds[0], self->frame);
}

static void take_signal(struct thread *self, void *condition)
{
	struct meeting *meeting = meeting_of(condition);

	if (!meeting || !meeting->rounds[0].best_prof.room)
		return;
	spin_lock(&meeting->rounds[0].lock);
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
		if (!is_followed(self))                                                                               \
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
		if (!is_followed(self))                                                                               \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		flush(self);                                                                                          \
		result = call(__VA_ARGS__);                                                                           \
		if (!result)                                                                                          \
			take_signal(self, condition);                                                                 \
		span_begin_strand(self);                                                                              \
		return result;                                                                                        \
	}
COND_WAIT(pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex), condition, mutex)
COND_WAIT(pthread_cond_timedwait,
	  (pthread_cond_t * condition, pthread_mutex_t *mutex, const struct timespec *until), condition, mutex, until)
COND_WAIT(pthread_cond_clockwait,
	  (pthread_cond_t * condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until), condition,
	  mutex, clock, until)
