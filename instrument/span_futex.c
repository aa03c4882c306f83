/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of POSIX that wait in the kernel by `syscall(SYS_futex, ...)`, which is libc's: Rust's standard library
 * (locks, conditions, channels, parking), what waits in C++20 (atomics, latches, semaphores, barriers), C++'s futures.
 * Who slept goes on with the path of who woke it, if that is longer. Where nobody slept there is no call, and nothing
 * is known: so sleeping comes early (sched_yield), and who wakes another gets on first (see let_on).
 *
 * A lock is no order: who had it before is chance. What is known of it are the times for which it was held by threads
 * that had slept for it; those keep it a little longer, so that others come to sleep for it, too. Who gives it back to
 * others that sleep, and had not slept for it, has had it for as long as those on average. C++20's semaphores are locks
 * where those who were woken wake the next, in four of five cases at least: a pool's threads go on to wait. Rust's
 * locks for readers and writers are told by the word beside that at which writers wait. What has a lock's word, but is
 * not given back by those who slept for it before they work and wait again, is none, and no order either: oneTBB's
 * threads are called so.
 *
 * Of a barrier only the last one to come calls, and it need not have the longest path: what all do both, wait and wake
 * all others, is taken for one, and who slept at it goes on with the longest path of all who did.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "span.h"

#define BUCKETS 1024
#define WORDS 4 /* in each, that are told apart */
#define THREAD_SLOTS 256
#define LET_ON 16   /* yields */
#define YIELDS 8    /* after a wait, which do nothing: Rust and libstdc++ yield some four times before they sleep */
#define NAP_NS 50000 /* while a lock is kept */
#define NAPS 20
#define NAPS_IN_VAIN 200
#define USED 50000 /* less than one in so many parts of a second is no use of a token: C++'s threads spin first */
#define SEEN 3 /* so many times a semaphore must have been a lock */
#define WAITED_FOR 2 /* the value of a lock's word while threads wait for it: Drepper, Futexes are tricky, 2005 */
/* Rust's locks for readers and writers: flags of their state, and what it is below these where a writer has it */
#define READERS_WAIT 0x40000000u
#define WRITERS_WAIT 0x80000000u
#define WRITTEN 0x3fffffffu
#define MOST_READERS 4096

struct word {
	uintptr_t key;
	uint32_t waiting;
	uint32_t computation; /* that the path is of */
	bool is_old;	      /* the path was left before those came that wait now */
	bool is_single;	      /* who left it woke one thread only */
	bool is_lock, is_no_lock; /* the second: threads have waited for another value than that of a lock */
	bool is_writers;	  /* writers of a lock for readers, too, wait here */
	uint32_t waker, waker_waits;
	const struct frame *woken_by; /* no longer there, maybe */
	struct group woken;
	/* barriers: */
	struct group slept; /* the longest path of those that wait */
	uint64_t members;   /* who has waited, by slot */
	uint32_t wakes, in_vain;
	/* locks: */
	uint32_t taken, naps_in_vain;
	uint64_t held; /* by those of whom it is known */
	uint32_t holds, site;
	uint32_t unknown; /* that are not booked yet */
	uint32_t unreturned; /* so many waited again, after they had worked, without having given it back */
	/* semaphores, whose value is 0 while threads wait: */
	bool is_other;		   /* but not here */
	uint32_t given_back, kept; /* tokens, by those who were woken */
};

struct bucket {
	struct spin lock;
	struct word words[WORDS];
};

typedef long system_call(long, ...);

static struct bucket buckets[BUCKETS];
static void *real_syscall, *real_yield;
static _Atomic uint32_t slots, waits[THREAD_SLOTS];
static __thread uint32_t slot; /* one more than its index */
static __thread uint32_t yields;
static __thread uint64_t yielded_at; /* the thread's total then */
static __thread uintptr_t woken_at;
static __thread uint64_t woken_total;
static __thread uintptr_t token_of; /* the semaphore of which the thread may have one */
static __thread uint64_t token_total;

/* Calls from within the library, in which the process may be in any state. */
void span_prepare_waits(void)
{
	span_real(&real_syscall, "syscall");
	span_real(&real_yield, "sched_yield");
}

void span_yield(void)
{
	((int (*)(void))span_real(&real_yield, "sched_yield"))();
}

/* The thread is about to wait, or ends. */
void span_count_wait(void)
{
	if (!slot)
		slot = atomic_fetch_add_explicit(&slots, 1, memory_order_relaxed) % THREAD_SLOTS + 1;
	atomic_fetch_add_explicit(&waits[slot - 1], 1, memory_order_relaxed);
	yields = 0;
}

static struct bucket *bucket_of(uintptr_t key)
{
	return &buckets[span_place_of(key, BUCKETS)];
}

/* Under the bucket's lock. Null where it is not known, and either shall not be or has no room. */
static struct word *word_of(struct bucket *bucket, uintptr_t key, bool is_made)
{
	struct word *spare = NULL;

	for (uint32_t i = 0; i < WORDS; i++) {
		struct word *word = &bucket->words[i];

		if (word->key == key)
			return word;
		if (!word->waiting && (!spare || !word->key))
			spare = word;
	}
	if (!is_made || !spare)
		return NULL;
	if (!spare->key) {
		prof_init(&spare->woken.best_prof);
		prof_init(&spare->slept.best_prof);
	}
	spare->key = key;
	spare->is_single = spare->is_lock = spare->is_no_lock = spare->is_writers = false;
	spare->woken_by = NULL;
	spare->members = spare->waker = 0;
	spare->computation = 0;
	spare->wakes = spare->in_vain = spare->naps_in_vain = 0;
	spare->held = 0;
	spare->holds = spare->unknown = spare->unreturned = 0;
	spare->is_other = false;
	spare->given_back = spare->kept = 0;
	return spare;
}

static void keep_path(struct group *group, struct frame *frame)
{
	atomic_store(&group->best, frame->c);
	prof_copy(&group->best_prof, &frame->prof);
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&group->best_calls, span_path_freeze(&frame->path));
}

static uint64_t own_bit(void)
{
	return slot ? 1ull << slot % 64 : 0;
}

/* Where threads wait their turn most find that it is another's, and where they wait for tasks many find none. */
static bool is_barrier(const struct word *word, uint32_t woken)
{
	return woken > 1 && word->waiting > 1 && (word->members & own_bit()) && word->in_vain <= word->wakes / 4 &&
	       2 * (word->waiting + 1) > (uint32_t)__builtin_popcountll(word->members);
}

static bool is_semaphore_lock(const struct word *word)
{
	return !word->is_other && word->given_back >= SEEN && word->kept <= word->given_back / 4;
}

/* Whether nobody gives it back: who waits at it is called, and has nothing that others could want. */
static bool is_bell(const struct word *word)
{
	return word->unreturned > 1 && word->unreturned > word->holds;
}

static bool is_lock_of(const struct word *word, uint32_t expected)
{
	if (word->is_writers)
		return true;
	return expected == WAITED_FOR ? word->is_lock : !expected && is_semaphore_lock(word);
}

/* Whether writers wait at a word: the state of their lock is before it. (The page is the word's own.) */
static bool are_writers(uintptr_t key)
{
	uint32_t state, has;

	if (key % 4096 == 0)
		return false;
	state = __atomic_load_n((uint32_t *)key - 1, __ATOMIC_RELAXED);
	has = state & WRITTEN;
	return (state & WRITERS_WAIT) && state != UINT32_MAX && (has == WRITTEN || (has && has < MOST_READERS));
}

/* Whether a semaphore's tokens are given back by those who took them. */
static void note_token_left(struct word *word)
{
	word->given_back += token_of == word->key;
	token_of = 0;
}

static void note_token_kept(struct thread *self, struct word *word, uint32_t expected)
{
	word->is_other |= expected != 0;
	if (token_of == word->key) {
		word->kept += self->total - token_total > span_record->cycles_per_second / USED; /* else it did not get it */
		token_of = 0;
	}
}

/* The thread gives a lock back: it had it for so long, or, if that is not known, for as long as others. */
static void note_hold(struct thread *self, uintptr_t key, uint64_t held, uint32_t site)
{
	struct bucket *bucket = bucket_of(key);
	uint64_t unknown = 0;
	struct word *word;

	spin_lock(&bucket->lock);
	word = word_of(bucket, key, false);
	if (word && held) {
		word->held += held;
		word->holds++;
		word->site = site;
		__atomic_fetch_or(&span_record->flags, SPAN_FUTEX_LOCKS, __ATOMIC_RELAXED);
	} else if (word) {
		word->unknown++;
	}
	if (word && word->holds && (word->is_lock || word->is_writers || is_semaphore_lock(word))) {
		unknown = word->unknown * (word->held / word->holds);
		word->unknown = 0;
		site = word->site;
	}
	spin_unlock(&bucket->lock);
	if (unknown && !self->frame->is_root)
		prof_add(&self->implicit->holds, span_site(SPAN_LOCK, key, site), unknown, 0);
}

/* What was done up to now comes before what those do who wait at the word, and are woken. */
static void leave_woken(struct thread *self, uintptr_t key, uint32_t woken)
{
	struct bucket *bucket = bucket_of(key);
	struct frame *frame = self->frame;
	struct word *word;

	spin_lock(&bucket->lock);
	word = word_of(bucket, key, false);
	if (word)
		note_token_left(word);
	if (word && !is_semaphore_lock(word)) {
		if (word->is_no_lock)
			span_crew_order(frame);
		word->woken_by = frame;
		if (!word->waiting || word->is_old || word->computation != span_posix_computation() ||
		    frame->c > word->woken.best) {
			keep_path(&word->woken, frame);
		}
		if (is_barrier(word, woken) && word->slept.best > frame->c && word->computation == span_posix_computation()) {
			span_take_path(frame, word->slept.best, &word->slept.best_prof, word->slept.best_calls);
			keep_path(&word->woken, frame);
		}
		atomic_store(&word->slept.best, 0);
		word->wakes++;
		word->computation = span_posix_computation();
		word->is_old = false;
		word->is_single = woken == 1;
		word->waker = slot;
		word->waker_waits = slot ? atomic_load_explicit(&waits[slot - 1], memory_order_relaxed) : 0;
	}
	spin_unlock(&bucket->lock);
}

/* The kernel likes to run who was woken in place of who woke it. If that one is about to wait for an answer it would
 * find it there, and nobody would know that it had to wait. */
static void let_on(uint32_t waker, uint32_t waker_waits)
{
	for (int i = 0; waker && i < LET_ON; i++) {
		if (atomic_load_explicit(&waits[waker - 1], memory_order_relaxed) != waker_waits)
			return;
		span_yield();
	}
}

/* `had`: for how long the thread would have had the lock, that it has not given back. */
static void begin_wait(struct thread *self, uintptr_t key, uint32_t expected, uint64_t had)
{
	struct bucket *bucket = bucket_of(key);
	struct word *word;

	spin_lock(&bucket->lock);
	word = word_of(bucket, key, true);
	if (word) {
		note_token_kept(self, word, expected);
		/* with less work than that it was another's after all */
		word->unreturned += expected == WAITED_FOR && had > span_record->cycles_per_second / USED;
		word->is_writers |= expected != WAITED_FOR && are_writers(key);
		word->is_no_lock |= expected != WAITED_FOR && !word->is_writers;
		if (!word->waiting++)
			word->is_old = true;
		if (word->computation != span_posix_computation()) {
			atomic_store(&word->slept.best, 0);
			atomic_store(&word->woken.best, 0);
		}
		word->computation = span_posix_computation();
		if (woken_at == key && self->total - woken_total < SPAN_LOOK_CYCLES)
			word->in_vain++;
		word->members |= own_bit();
		if (self->frame->c > word->slept.best)
			keep_path(&word->slept, self->frame);
	}
	spin_unlock(&bucket->lock);
}

/* Whether threads sleep for the lock, or it is of no use to wait for any. */
static bool has_waiting(struct bucket *bucket, uintptr_t key, bool has_napped)
{
	struct word *word;
	bool is_so;

	spin_lock(&bucket->lock);
	word = word_of(bucket, key, false);
	is_so = !word || word->waiting || word->naps_in_vain >= NAPS_IN_VAIN;
	if (word && has_napped)
		word->naps_in_vain = word->waiting ? 0 : word->naps_in_vain + 1;
	spin_unlock(&bucket->lock);
	return is_so;
}

/* With few cores threads seldom meet at a lock. While the one that has it sleeps the others get as far as that. */
static void keep_lock(struct bucket *bucket, uintptr_t key)
{
	struct timespec nap = {0, NAP_NS};

	for (int i = 0; i < NAPS && !has_waiting(bucket, key, i > 0); i++)
		syscall(SYS_nanosleep, &nap, NULL);
}

static uint32_t times_taken(uintptr_t key)
{
	struct bucket *bucket = bucket_of(key);
	struct word *word;
	uint32_t taken;

	spin_lock(&bucket->lock);
	word = word_of(bucket, key, false);
	taken = word ? word->taken : 0;
	spin_unlock(&bucket->lock);
	return taken;
}

/* Nor do they where who gives a lock back has it again before the one that was woken is on a CPU. */
static void hand_lock_over(uintptr_t key, uint32_t taken)
{
	struct timespec nap = {0, NAP_NS};

	for (int i = 0; i < NAPS && times_taken(key) == taken; i++) {
		if (i < YIELDS)
			span_yield();
		else
			syscall(SYS_nanosleep, &nap, NULL);
	}
}

/* `slept`: it was woken, and did not find the word changed. Returns whether it may have a lock, whose word that is. */
static bool end_wait(struct thread *self, uintptr_t key, uint32_t expected, bool is_over, bool slept, bool *is_called)
{
	struct bucket *bucket = bucket_of(key);
	uint32_t waker = 0, waker_waits = 0;
	struct word *word;
	bool is_lock = false;

	spin_lock(&bucket->lock);
	word = word_of(bucket, key, false);
	if (word && word->waiting)
		word->waiting--;
	if (word && is_over && word->computation == span_posix_computation()) {
		/* the thread is about to look at the word, so it is there */
		if (expected == WAITED_FOR && slept && word->is_single)
			word->is_lock = __atomic_load_n((uint32_t *)key, __ATOMIC_RELAXED) <= WAITED_FOR;
		is_lock = is_lock_of(word, expected);
		if (!expected) {
			token_of = key;
			token_total = self->total;
		}
		word->taken += is_lock;
		if (!is_lock) {
			span_crew_woken(self->frame, word->woken_by);
			span_take_path(self->frame, word->woken.best, &word->woken.best_prof, word->woken.best_calls);
			waker = slept ? word->waker : 0;
			waker_waits = word->waker_waits;
		}
		*is_called = is_lock && is_bell(word);
	}
	spin_unlock(&bucket->lock);
	let_on(waker, waker_waits);
	if (is_lock && expected && !*is_called) /* who wakes for a semaphore wakes all, of whom all but one wait again */
		keep_lock(bucket, key);
	woken_at = key;
	woken_total = self->total;
	return is_lock;
}

static bool is_order(uint32_t expected)
{
	return !(expected & READERS_WAIT) || expected == UINT32_MAX; /* that is a parked thread's */
}

static long wait_for(struct thread *self, system_call *call, const long *of, uintptr_t caller)
{
	uintptr_t key = (uintptr_t)of[0];
	uint32_t expected = (uint32_t)of[2];
	bool is_lock = false, is_called = false;
	uint64_t since_ns, had;
	uint32_t site;
	long result;
	int error;

	span_end_strand(self);
	had = span_held(self, key, &site);
	span_forget_hold(self, key); /* it did not get it */
	span_leave_account_unordered(self);
	begin_wait(self, key, expected, had);
	since_ns = span_crew_waits(self->frame);
	result = call(SYS_futex, of[0], of[1], of[2], of[3], of[4], of[5]);
	error = errno;
	is_lock = end_wait(self, key, expected, is_order(expected) && (!result || error == EAGAIN), !result, &is_called);
	if (is_lock) {
		span_crew_waited(self->frame, since_ns);
		if (!is_called)
			span_acquired(self, key, SPAN_CRITICAL, span_chain(caller));
	}
	span_after_wait(self);
	span_begin_strand(self);
	errno = error;
	return result;
}

static long wake(struct thread *self, system_call *call, const long *of)
{
	uintptr_t key = (uintptr_t)of[0];
	uint32_t taken, site = 0;
	uint64_t held;
	bool was_lock;
	long result;

	span_end_strand(self);
	held = span_held(self, key, &site);
	was_lock = span_releasing(self, key);
	note_hold(self, key, held, site);
	taken = times_taken(key);
	leave_woken(self, key, (uint32_t)of[2]);
	result = call(SYS_futex, of[0], of[1], of[2], of[3], of[4], of[5]);
	if (was_lock && result > 0)
		hand_lock_over(key, taken);
	span_begin_strand(self);
	return result;
}

EXPORT long syscall(long number, ...)
{
	system_call *call = (system_call *)span_real(&real_syscall, "syscall");
	struct thread *self = &span_self;
	long of[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		of[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_futex && span_is_posix(self)) {
		switch ((int)of[1] & FUTEX_CMD_MASK) {
		case FUTEX_WAIT:
		case FUTEX_WAIT_BITSET:
			return wait_for(self, call, of, CALLER);
		case FUTEX_WAKE:
		case FUTEX_WAKE_BITSET:
			return wake(self, call, of);
		}
	}
	return call(number, of[0], of[1], of[2], of[3], of[4], of[5]);
}

/* Who yields waits for others, mostly. The first times do nothing, so that the thread goes to sleep soon, which is seen,
 * and does not find without a call what it waits for; the others do, for those that never sleep. */
EXPORT int sched_yield(void)
{
	struct thread *self = &span_self;
	int result = 0;

	if (!span_is_posix(self))
		return ((int (*)(void))span_real(&real_yield, "sched_yield"))();
	span_end_strand(self);
	if (self->total - yielded_at > span_record->cycles_per_second / 1000) /* which is no waiting */
		yields = 0;
	yielded_at = self->total;
	if (++yields > YIELDS)
		result = ((int (*)(void))span_real(&real_yield, "sched_yield"))();
	span_begin_strand(self);
	return result;
}
