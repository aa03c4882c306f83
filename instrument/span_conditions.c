/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditions of POSIX. Who waited goes on with the path of a signal since then: with the shortest, as long as nothing
 * says which of them woke it, so that who came late to run is not ordered after all that was done meanwhile.
 *
 * Who finds what it would have waited for need not wait, and makes no call but for the mutex's. Whether it looked for
 * it at all, or for what, nobody knows: in general that is no order. But where threads take turns it is, and these look
 * like nothing else: between a thread's taking of the mutex and its signal no other comes as far as that, and none
 * signals twice without a wait, or another's signal, in between. As long as the threads of a mutex do so (all but one
 * in 16 times: the sides of a buffer, too, may go in step for long where a core is busy), who takes it and has waited
 * with it before goes on with the path of the last signal, and so does who was woken.
 *
 * A barrier is known by its broadcast: who makes it waits there in other rounds, all others do now, and in most rounds,
 * and those that are woken seldom wait again at once. Only the last one to come makes it, and need not have the longest
 * path: all go on with the longest of all.
 *
 * A signal, other than a broadcast, wakes any one of those that wait: who makes one where several have says that each
 * of them will do. What these take is an item (see span_begin_item), whenever they give the mutex back, unless they
 * signal the condition themselves, too, as where it is a lock. A broadcast says the same where those whom it woke take
 * what there is as they come: the first ones go on, and the others wait again. Where somebody goes on though another came
 * before it, and waited again, it is the one that was meant, as with a mailbox for each. A pool's tasks are made faster
 * than threads wake up: so that this is seen, who makes one of the first broadcasts lets them come as far.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "span.h"

#define CONDITIONS 1024 /* that are told apart */
#define GUARDS 256	/* mutexes with which threads wait */
#define DISTURBED 16	/* one in so many turns may be none */
#define OWN_CONDITIONS 4
#define CHOSEN 8 /* one in so many broadcasts of a queue may seem to be for somebody: what it tells is there before it */
#define FIRST_COME 6 /* of two mailboxes the right one may come first by chance */
#define AWAITED 8 /* broadcasts, of each condition */
#define AWAIT_NS 50000 /* at a time, and so many times for each of these */
#define AWAIT_TIMES 1000

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
	/* of those that the last broadcast woke: */
	uint32_t unshown; /* of how many is not known yet what they do */
	bool has_gone_on, has_waited_again; /* one of them */
	bool is_late;			    /* one waited again after another had gone on */
	bool is_passed_by;		    /* one went on after another had waited again */
	uint32_t first_come, chosen;	    /* so many broadcasts before went to who came first; and so many did not */
	_Atomic bool is_queue;		    /* most of them, and who waits does not signal */
	struct thread *caller;		    /* the last that made one and has never waited */
	uint32_t awaited, all_went_on;	/* so many broadcasts; so many of them without anybody that waited again */
};

static struct condition conditions[CONDITIONS];
static struct guard guards[GUARDS];
static _Atomic bool has_guards;
static __thread struct condition *own_conditions[OWN_CONDITIONS]; /* at which this thread has waited */
static __thread uint32_t own_condition_next;
static __thread struct condition *told_at; /* where it was woken last */
static __thread uint64_t told_total;
static __thread bool is_told; /* and has not given back the mutex since */
static __thread struct condition *awaited_at; /* those that it has woken there shall get on, once it has no mutex */
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
		condition->waiter = condition->caller = NULL;
		condition->is_shared = false;
		atomic_store(&condition->is_for_any, false);
		atomic_store(&condition->is_given_back, false);
		atomic_store(&condition->is_queue, false);
		condition->has_gone_on = condition->has_waited_again = false;
		condition->is_late = condition->is_passed_by = false;
		condition->first_come = condition->chosen = condition->unshown = 0;
		condition->awaited = condition->all_went_on = 0;
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
	return (atomic_load_explicit(&condition->is_for_any, memory_order_relaxed) ||
		atomic_load_explicit(&condition->is_queue, memory_order_relaxed)) &&
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

/* who of those that were woken goes on */

/* What the broadcast before has shown is known now. */
static void end_broadcast(struct condition *condition)
{
	condition->first_come += condition->is_late && !condition->is_passed_by;
	condition->chosen += condition->is_passed_by;
	condition->has_gone_on = condition->has_waited_again = condition->is_late = condition->is_passed_by = false;
	atomic_store_explicit(&condition->is_queue,
			      condition->first_come >= FIRST_COME && condition->chosen * CHOSEN < condition->first_come,
			      memory_order_relaxed);
}

/* This thread was woken and has given back the mutex. */
static void note_going_on(void)
{
	struct condition *condition = told_at;

	is_told = false;
	spin_lock(&condition->lock);
	condition->unshown -= condition->unshown > 0;
	condition->is_passed_by |= condition->has_waited_again;
	condition->has_gone_on = true;
	spin_unlock(&condition->lock);
}

/* It waits again without having done anything. */
static void wait_in_vain(struct condition *condition)
{
	condition->in_vain++;
	condition->has_waited_again |= is_told;
	condition->is_late |= is_told && condition->has_gone_on;
}

/* Whether all that the last broadcast woke have come (who comes after the next one says nothing of this), and all that
 * have ever waited are back: with one that waits nothing is to be seen. */
static bool has_shown(struct condition *condition)
{
	bool is_so;

	spin_lock(&condition->lock);
	is_so = !condition->unshown && condition->waiting >= condition->members;
	spin_unlock(&condition->lock);
	return is_so;
}

/* Not at the first one: who is kept comes late to a barrier, and would make the next one, too. */
static void await_for(struct condition *condition, struct thread *self)
{
	if (condition->caller == self) {
		condition->awaited++;
		awaited_at = condition;
	}
	condition->caller = self;
}

/* Those that the thread has woken shall get the mutex. If all of them go on twice nobody is kept again: once there was
 * something for each of them to take, since nobody was kept at the first broadcast. */
static void await_told(void)
{
	struct timespec nap = {0, AWAIT_NS};
	struct condition *condition = awaited_at;

	awaited_at = NULL;
	for (int i = 0; i < AWAIT_TIMES && !has_shown(condition); i++)
		syscall(SYS_nanosleep, &nap, NULL);
	spin_lock(&condition->lock);
	if (!condition->has_waited_again && ++condition->all_went_on > 1)
		condition->awaited = AWAITED;
	spin_unlock(&condition->lock);
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
	if (is_told && told_at->guard == guard)
		note_going_on();
	if (!guard->has_taken && has_items_with(guard))
		span_begin_item(self);
	spin_unlock(&guard->lock);
}

void span_guard_unlocked(struct thread *self)
{
	if (UNLIKELY(awaited_at != NULL) && !self->held_count)
		await_told();
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
		wait_in_vain(condition);
	condition->unshown -= is_told && told_at == condition && condition->unshown > 0;
	is_told = false;
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
	else if (is_for_all && condition->members > 1 && condition->awaited < AWAITED)
		await_for(condition, self);
	end_broadcast(condition);
	if (is_for_all)
		broadcast(condition, self->frame);
	condition->unshown = condition->waiting;
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
		is_told = is_signalled;
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
		span_guard_unlocked(self);                                                                            \
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
