/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Semaphores of POSIX: a wait takes a token, and what was done up to the post that left it comes before what follows
 * the wait, whether or not anybody slept. Tokens are alike, so of those that are there the one with the shortest path
 * is taken: a wait comes after as many posts as it needs, whoever posted. Those of the initial value are no order.
 *
 * Where a thread posts what it has taken itself, the semaphore is a lock, and who had it before is chance: that is no
 * order, but a time for which a token was held, and of as many tokens as there are each is a bound by its part of
 * those times. A thread that waits and then posts more often than it waited hands something on (as with the work of a
 * pool whose tasks make more): from then on all posts at that semaphore are order.
 *
 * Where several threads wait, and none of them posts, each can take what comes: an item (see span_begin_item).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <semaphore.h>
#include <time.h>

#include "span.h"

#define SEMAPHORE_BUCKETS 256
#define SEMAPHORES 8 /* in each, that are told apart */
#define OWN_SEMAPHORES 32

struct semaphore {
	uintptr_t key;
	uint32_t computation; /* that the tokens' paths are of; 0: forgotten */
	uint32_t generation;  /* of all that any address has had */
	uint32_t capacity;    /* tokens that there were, but for those that came back */
	bool is_lock;	      /* tokens came back */
	bool is_signal;	      /* threads that wait post more than they took */
	bool is_shared;	      /* several threads wait */
	struct thread *taker; /* the first */
	struct tokens tokens;
};

struct semaphore_bucket {
	struct spin lock;
	struct semaphore semaphores[SEMAPHORES];
};

/* What the thread has taken, and not posted. */
struct own_semaphore {
	uintptr_t key;
	uint32_t generation;
	uint32_t taken;
	uint64_t since; /* the thread's total at the last wait */
	uint32_t site;
	bool has_site; /* and the frame, too, since then */
};

static struct semaphore_bucket semaphore_buckets[SEMAPHORE_BUCKETS];
static uint32_t _Atomic semaphore_generations;
static __thread struct own_semaphore own_semaphores[OWN_SEMAPHORES];
static __thread uint32_t own_semaphore_next;

static struct semaphore_bucket *semaphore_bucket(const sem_t *key)
{
	return &semaphore_buckets[span_place_of((uintptr_t)key, SEMAPHORE_BUCKETS)];
}

static void begin_semaphore(struct semaphore *semaphore, sem_t *key)
{
	int value = 0;

	sem_getvalue(key, &value);
	semaphore->computation = span_posix_computation();
	semaphore->generation = atomic_fetch_add_explicit(&semaphore_generations, 1, memory_order_relaxed) + 1;
	semaphore->capacity = value > 0 ? (uint32_t)value : 0;
	semaphore->is_lock = semaphore->is_signal = semaphore->is_shared = false;
	semaphore->taker = NULL;
	span_tokens_clear(&semaphore->tokens, semaphore->capacity);
}

/* Under the bucket's lock, and before the call itself: from then on all tokens that there can be are known. Null where
 * there is no room. */
static struct semaphore *semaphore_of(struct semaphore_bucket *bucket, sem_t *key)
{
	struct semaphore *spare = NULL;

	for (int i = 0; i < SEMAPHORES; i++) {
		struct semaphore *semaphore = &bucket->semaphores[i];

		if (semaphore->key == (uintptr_t)key) {
			spare = semaphore;
			break;
		}
		if (!spare && semaphore->computation != span_posix_computation())
			spare = semaphore;
	}
	if (!spare || !span_tokens_init(&spare->tokens))
		return NULL;
	if (spare->key != (uintptr_t)key || spare->computation != span_posix_computation()) {
		spare->key = (uintptr_t)key;
		begin_semaphore(spare, key);
	}
	return spare;
}

static struct own_semaphore *own_of(const struct semaphore *semaphore)
{
	for (int i = 0; i < OWN_SEMAPHORES; i++) {
		struct own_semaphore *one = &own_semaphores[i];

		if (one->key == semaphore->key && one->generation == semaphore->generation)
			return one;
	}
	return NULL;
}

static struct own_semaphore *make_own(const struct semaphore *semaphore)
{
	struct own_semaphore *one = own_of(semaphore);

	if (one)
		return one;
	for (int i = 0; i < OWN_SEMAPHORES && (!one || one->taken); i++)
		one = &own_semaphores[own_semaphore_next++ % OWN_SEMAPHORES];
	*one = (struct own_semaphore){.key = semaphore->key, .generation = semaphore->generation};
	return one;
}

/* A token came back: for how long it was held. */
static void end_hold(struct thread *self, struct semaphore *semaphore, struct own_semaphore *own)
{
	if (own->has_site)
		span_forget_hold(self, semaphore->key); /* it is booked here, in part */
	own->has_site = false;
	prof_add(&self->implicit->holds, span_site(SPAN_LOCK, semaphore->key, own->site),
		 (self->total - own->since) / (semaphore->capacity ? semaphore->capacity : 1), 1);
}

/* The thread's strand has ended, and the token is about to be there. */
static void before_post(struct thread *self, sem_t *key)
{
	struct semaphore_bucket *bucket = semaphore_bucket(key);
	struct semaphore *semaphore;
	struct own_semaphore *own;

	spin_lock(&bucket->lock);
	semaphore = semaphore_of(bucket, key);
	if (semaphore) {
		own = own_of(semaphore);
		if (own && !own->taken)
			semaphore->is_signal = true;
		if (own && own->taken) {
			own->taken--;
			semaphore->is_lock = true;
			if (!semaphore->is_signal)
				end_hold(self, semaphore, own);
		} else {
			own = NULL;
			semaphore->capacity++;
		}
		if (own && !semaphore->is_signal)
			span_tokens_leave_orderless(&semaphore->tokens);
		else
			span_tokens_leave(&semaphore->tokens, self->frame, 1);
	}
	spin_unlock(&bucket->lock);
}

static void before_wait(struct thread *self, sem_t *key)
{
	struct semaphore_bucket *bucket = semaphore_bucket(key);
	struct semaphore *semaphore;

	spin_lock(&bucket->lock);
	semaphore = semaphore_of(bucket, key);
	if (semaphore) {
		semaphore->taker = semaphore->taker ? semaphore->taker : self;
		semaphore->is_shared |= semaphore->taker != self;
	}
	spin_unlock(&bucket->lock);
}

static void after_wait(struct thread *self, sem_t *key, uintptr_t caller)
{
	struct semaphore_bucket *bucket = semaphore_bucket(key);
	struct semaphore *semaphore;
	struct own_semaphore *own;

	spin_lock(&bucket->lock);
	semaphore = semaphore_of(bucket, key);
	if (semaphore) {
		if (semaphore->is_shared && !semaphore->is_lock && !semaphore->is_signal)
			span_begin_item(self);
		/* there is none where a thread posted that is not followed, or another process */
		if (!span_tokens_take(&semaphore->tokens, self->frame, 0))
			semaphore->capacity++;
		own = make_own(semaphore);
		own->since = self->total;
		own->site = span_site(SPAN_CRITICAL, caller, 0);
		if (!own->taken++ && semaphore->is_lock && !semaphore->is_signal && semaphore->capacity == 1) {
			span_acquired(self, semaphore->key, SPAN_CRITICAL, caller);
			own->has_site = true;
		}
	}
	spin_unlock(&bucket->lock);
}

EXPORT int sem_post(sem_t *semaphore)
{
	REAL(int, sem_post, (sem_t *));
	struct thread *self = &span_self;
	int result;

	if (!span_is_posix(self))
		return call(semaphore);
	span_end_strand(self);
	before_post(self, semaphore);
	result = call(semaphore);
	span_after_unlock(self);
	span_begin_strand(self);
	return result;
}

EXPORT int sem_trywait(sem_t *semaphore)
{
	REAL(int, sem_trywait, (sem_t *));
	struct thread *self = &span_self;
	int failure, error;

	if (!span_is_posix(self))
		return call(semaphore);
	span_end_strand(self);
	before_wait(self, semaphore);
	failure = call(semaphore);
	error = errno;
	if (!failure)
		after_wait(self, semaphore, CALLER);
	span_begin_strand(self);
	errno = error;
	return failure;
}

/* Who need not sleep leaves no account. */
#define SEMAPHORE_WAIT(name, parameters, ...)                                                                         \
	EXPORT int name parameters                                                                                    \
	{                                                                                                             \
		static void *real_try;                                                                                \
		REAL(int, name, parameters);                                                                          \
		struct thread *self = &span_self;                                                                     \
		int failure, error;                                                                                   \
                                                                                                                      \
		if (!span_is_posix(self))                                                                             \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		before_wait(self, semaphore);                                                                         \
		failure = ((int (*)(sem_t *))span_real(&real_try, "sem_trywait"))(semaphore);                         \
		if (failure) {                                                                                        \
			span_leave_account(self);                                                                     \
			failure = call(__VA_ARGS__);                                                                  \
		}                                                                                                     \
		error = errno;                                                                                        \
		if (!failure)                                                                                         \
			after_wait(self, semaphore, CALLER);                                                          \
		span_after_wait(self);                                                                                \
		span_begin_strand(self);                                                                              \
		errno = error;                                                                                        \
		return failure;                                                                                       \
	}
SEMAPHORE_WAIT(sem_wait, (sem_t * semaphore), semaphore)
SEMAPHORE_WAIT(sem_timedwait, (sem_t * semaphore, const struct timespec *until), semaphore, until)
SEMAPHORE_WAIT(sem_clockwait, (sem_t * semaphore, clockid_t clock, const struct timespec *until), semaphore, clock, until)

/* Another semaphore is at that address from now on. */
static void forget_semaphore(sem_t *key)
{
	struct semaphore_bucket *bucket = semaphore_bucket(key);

	if (!span_has_posix())
		return;
	spin_lock(&bucket->lock);
	for (int i = 0; i < SEMAPHORES; i++) {
		if (bucket->semaphores[i].key == (uintptr_t)key)
			bucket->semaphores[i].computation = 0;
	}
	spin_unlock(&bucket->lock);
}

EXPORT int sem_init(sem_t *semaphore, int is_shared, unsigned value)
{
	REAL(int, sem_init, (sem_t *, int, unsigned));

	forget_semaphore(semaphore);
	return call(semaphore, is_shared, value);
}

EXPORT int sem_close(sem_t *semaphore)
{
	REAL(int, sem_close, (sem_t *));

	forget_semaphore(semaphore);
	return call(semaphore);
}
