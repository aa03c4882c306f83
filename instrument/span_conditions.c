/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditions of POSIX. Who waited goes on with the path of a signal since then: with the shortest, as long as nothing
 * says which of them woke it, so that who came late to run is not ordered after all that was done meanwhile.
 *
 * Who finds what it would have waited for need not wait, and makes no call but for the mutex's. Whether it looked for
 * it at all, or for what, nobody knows: in general that is no order. But where threads take turns it is, and these look
 * like nothing else: between a thread's taking of the mutex and its signal no other comes as far as that, and none
 * signals twice without a wait, or another's signal, in between. As long as the threads of a mutex do so (all but one
 * in 32 times: the sides of a buffer, too, may go in step for long where a core is busy), who takes it and has waited
 * with it before goes on with the path of the last signal, and so does who was woken.
 *
 * A barrier is known by its broadcast: who makes it waits there in other rounds, all others do now, and in most rounds,
 * and those that are woken seldom wait again at once. Only the last one to come makes it, and need not have the longest
 * path: all go on with the longest of all.
 *
 * A signal, other than a broadcast, wakes any one of those that wait: who makes one where several have says that each
 * of them will do. What these take is an item (see span_begin_item), whenever they give the mutex back, unless they
 * signal the condition themselves, too, as where it is a lock.
 */
#define _GNU_SOURCE
#include <time.h>

#include "span.h"

#define CONDITIONS 1024 /* that are told apart */
#define GUARDS 256	/* mutexes with which threads wait */
#define DISTURBED 32	/* one in so many turns may be none */
#define OWN_CONDITIONS 4

/* A mutex with which threads wait for conditions. */
struct guard {
	_Atomic uintptr_t key;
	struct spin lock;
	uint32_t computation; /* that the path is of */
	struct group signalled; /* the longest path that was signalled */
	struct thread *signaller; /* the last, and it has not waited since */
	struct thread *inside; /* the last that took the mutex, did not wait, and has not signalled since */
	bool has_signalled, has_taken; /* who has the mutex */
	uint32_t turns, disturbed;
};

struct condition {
	_Atomic uintptr_t key;
	struct spin lock;
	uint32_t computation; /* that the paths are of */
	uint32_t waiting;
	struct tokens signals; /* for those that wait */
	struct guard *guard;
	struct thread *waiter;	    /* the first that waited */
	bool is_shared;		    /* others did, too */
	_Atomic bool is_for_any;    /* and then one was signalled, not all */
	_Atomic bool is_given_back; /* who waits for it signals it, too */
	struct group asleep;	    /* the longest path of those that wait */
	uint32_t members;	    /* so many have waited */
	uint32_t broadcasts, in_vain;
	uint32_t unheard; /* so many broadcasts came while some of the members did not wait */
};

static struct condition conditions[CONDITIONS];
static struct guard guards[GUARDS];
static _Atomic bool has_guards;
static __thread struct condition *own_conditions[OWN_CONDITIONS]; /* at which this thread has waited */
static __thread uint32_t own_condition_next;
static __thread struct condition *told_at; /* where it was woken last */
static __thread uint64_t told_total;
static __thread uint64_t slept_order; /* of the last signal before this thread began to wait */

static struct condition *condition_of(pthread_cond_t *key, bool is_made)
{
	struct condition *condition = span_entry_of(conditions, sizeof(*conditions), CONDITIONS, key, is_made);

	if (!condition)
		return NULL;
	spin_lock(&condition->lock);
	if (!span_tokens_init(&condition->signals)) {
		spin_unlock(&condition->lock);
		return NULL;
	}
	if (condition->computation != span_posix_computation()) {
		condition->computation = span_posix_computation();
		condition->waiting = 0;
		condition->guard = NULL;
		condition->waiter = NULL;
		condition->is_shared = false;
		atomic_store(&condition->is_for_any, false);
		atomic_store(&condition->is_given_back, false);
		if (!condition->asleep.best_prof.room)
			prof_init(&condition->asleep.best_prof);
		condition->members = condition->broadcasts = condition->in_vain = 0;
		span_tokens_clear(&condition->signals, 0);
	}
	return condition;
}

static struct guard *guard_of(pthread_mutex_t *key, bool is_made)
{
	struct guard *guard = span_entry_of(guards, sizeof(*guards), GUARDS, key, is_made);

	if (!guard)
		return NULL;
	spin_lock(&guard->lock);
	if (guard->computation != span_posix_computation()) {
		guard->computation = span_posix_computation();
		if (!guard->signalled.best_prof.room)
			prof_init(&guard->signalled.best_prof);
		atomic_store(&guard->signalled.best, 0);
		guard->signaller = guard->inside = NULL;
		guard->has_signalled = false;
		guard->turns = guard->disturbed = 0;
	}
	return guard;
}

static bool is_by_turns(const struct guard *guard)
{
	return guard->disturbed * DISTURBED <= guard->turns;
}

static void take_last_signal(struct guard *guard, struct frame *frame)
{
	if (is_by_turns(guard))
		span_take_path(frame, guard->signalled.best, &guard->signalled.best_prof, guard->signalled.best_calls);
}

static bool has_waited_at(const struct condition *condition)
{
	for (int i = 0; i < OWN_CONDITIONS; i++) {
		if (own_conditions[i] == condition)
			return true;
	}
	return false;
}

static bool has_waited_with(const struct guard *guard)
{
	for (int i = 0; i < OWN_CONDITIONS; i++) {
		if (own_conditions[i] && own_conditions[i]->guard == guard)
			return true;
	}
	return false;
}

static bool has_items(const struct condition *condition)
{
	return atomic_load_explicit(&condition->is_for_any, memory_order_relaxed) &&
	       !atomic_load_explicit(&condition->is_given_back, memory_order_relaxed);
}

static bool has_items_with(const struct guard *guard)
{
	for (int i = 0; i < OWN_CONDITIONS; i++) {
		if (own_conditions[i] && own_conditions[i]->guard == guard && has_items(own_conditions[i]))
			return true;
	}
	return false;
}

/* The thread has the mutex. */
void span_guard_locked(struct thread *self, pthread_mutex_t *mutex)
{
	struct guard *guard;

	if (LIKELY(!atomic_load_explicit(&has_guards, memory_order_relaxed)) || !span_has_strand_of_posix(self) ||
	    !(guard = guard_of(mutex, false)))
		return;
	guard->has_signalled = guard->has_taken = false;
	if (has_waited_with(guard))
		take_last_signal(guard, self->frame);
	spin_unlock(&guard->lock);
	span_after_wait(self);
}

/* It is about to give it back: if it has not signalled it will, where threads take turns, and until then it is alone. */
void span_guard_unlocking(struct thread *self, pthread_mutex_t *mutex)
{
	struct guard *guard;

	if (LIKELY(!atomic_load_explicit(&has_guards, memory_order_relaxed)) || !span_has_strand_of_posix(self) ||
	    !(guard = guard_of(mutex, false)))
		return;
	if (!guard->has_signalled) {
		if (guard->inside && guard->inside != self)
			guard->disturbed++;
		guard->inside = self;
	}
	if (!guard->has_taken && has_items_with(guard))
		span_begin_item(self);
	spin_unlock(&guard->lock);
}

static void signal_guard(struct thread *self, struct guard *guard)
{
	spin_lock(&guard->lock);
	if (guard->inside == self)
		guard->inside = NULL;
	if (guard->signaller == self)
		guard->disturbed += !guard->has_signalled;
	else
		guard->turns++;
	guard->has_signalled = true;
	guard->signaller = self;
	span_crew_order(self->frame);
	span_report(&guard->signalled, self->frame);
	spin_unlock(&guard->lock);
}

/* So many wait, and nobody has signalled for them. Who was told and waits for a core still counts as one that waits: with
 * few cores that may take as long as the whole time until those who told it wait themselves. */
static uint32_t untold(const struct condition *condition)
{
	uint32_t told = condition->signals.count;

	return condition->waiting > told ? condition->waiting - told : 0;
}

/* Where threads wait their turn, or for something to do, most find that it is another's, and wait again; and one side of
 * a buffer tells the other also while that works, or has been told already. */
static bool is_barrier_of(const struct condition *condition)
{
	return untold(condition) && untold(condition) + 1 >= condition->members && has_waited_at(condition) &&
	       condition->in_vain + condition->unheard <= condition->broadcasts / 4;
}

static void broadcast(struct condition *condition, struct frame *frame)
{
	struct group *asleep = &condition->asleep;

	condition->unheard += !untold(condition) || untold(condition) + 1 < condition->members;
	if (is_barrier_of(condition))
		span_take_path(frame, asleep->best, &asleep->best_prof, asleep->best_calls);
	atomic_store(&asleep->best, 0);
	condition->broadcasts++;
}

static void begin_sleep(struct condition *condition, struct thread *self)
{
	if (!condition->waiting++)
		atomic_store(&condition->asleep.best, 0);
	if (told_at == condition && self->total - told_total < SPAN_LOOK_CYCLES)
		condition->in_vain++;
	slept_order = condition->signals.last_order;
	span_report(&condition->asleep, self->frame);
}

static void signal_path(struct thread *self, pthread_cond_t *key, bool is_for_all)
{
	struct condition *condition = condition_of(key, false);
	struct guard *guard;

	if (!condition)
		return;
	guard = condition->guard;
	if (has_waited_at(condition))
		atomic_store_explicit(&condition->is_given_back, true, memory_order_relaxed);
	else if (!is_for_all && condition->is_shared)
		atomic_store_explicit(&condition->is_for_any, true, memory_order_relaxed);
	if (is_for_all)
		broadcast(condition, self->frame);
	if (untold(condition))
		span_tokens_leave(&condition->signals, self->frame, is_for_all ? untold(condition) : 1);
	spin_unlock(&condition->lock);
	if (guard)
		signal_guard(self, guard);
}

static void begin_cond_wait(struct thread *self, pthread_cond_t *key, pthread_mutex_t *mutex)
{
	struct condition *condition = condition_of(key, true);
	struct guard *guard;

	atomic_store_explicit(&has_guards, true, memory_order_relaxed);
	guard = guard_of(mutex, true);
	if (guard) {
		if (guard->inside == self)
			guard->inside = NULL;
		if (guard->signaller == self)
			guard->signaller = NULL;
		spin_unlock(&guard->lock);
	}
	if (condition) {
		begin_sleep(condition, self);
		condition->guard = guard;
		condition->waiter = condition->waiter ? condition->waiter : self;
		condition->is_shared |= condition->waiter != self;
		if (!has_waited_at(condition)) {
			own_conditions[own_condition_next++ % OWN_CONDITIONS] = condition;
			condition->members++;
		}
		spin_unlock(&condition->lock);
	}
}

/* It has the mutex again. */
static void end_cond_wait(struct thread *self, pthread_cond_t *key, pthread_mutex_t *mutex, bool is_signalled)
{
	struct condition *condition = condition_of(key, false);
	struct guard *guard;
	bool has_taken = false;

	if (condition) {
		has_taken = has_items(condition);
		if (has_taken)
			span_begin_item(self);
		if (is_signalled && span_tokens_take(&condition->signals, self->frame, slept_order) && has_taken)
			span_begin_items_here(self);
		condition->waiting -= condition->waiting > 0;
		told_at = condition;
		told_total = self->total;
		spin_unlock(&condition->lock);
	}
	guard = guard_of(mutex, false);
	if (guard) {
		guard->has_signalled = false;
		guard->has_taken = has_taken;
		if (is_signalled)
			take_last_signal(guard, self->frame);
		spin_unlock(&guard->lock);
	}
}

#define SIGNAL(name, is_for_all)                                                                                      \
	EXPORT int name(pthread_cond_t *condition)                                                                    \
	{                                                                                                             \
		REAL(int, name, (pthread_cond_t *));                                                                  \
		struct thread *self = &span_self;                                                                     \
		int result;                                                                                           \
                                                                                                                      \
		if (!span_is_posix(self))                                                                             \
			return call(condition);                                                                       \
		span_end_strand(self);                                                                                \
		signal_path(self, condition, is_for_all);                                                             \
		result = call(condition);                                                                             \
		span_begin_strand(self);                                                                              \
		return result;                                                                                        \
	}
SIGNAL(pthread_cond_signal, false)
SIGNAL(pthread_cond_broadcast, true)

/* The strand ends before the wait, and what woke the thread joins its path; the mutex is its own again by then. */
#define COND_WAIT(name, parameters, ...)                                                                              \
	EXPORT int name parameters                                                                                    \
	{                                                                                                             \
		REAL(int, name, parameters);                                                                          \
		struct thread *self = &span_self;                                                                     \
		int result;                                                                                           \
                                                                                                                      \
		if (!span_is_posix(self))                                                                             \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		span_leave_account(self);                                                                             \
		begin_cond_wait(self, condition, mutex);                                                              \
		result = call(__VA_ARGS__);                                                                           \
		end_cond_wait(self, condition, mutex, !result);                                                       \
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
