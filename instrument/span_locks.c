/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Critical sections, ordered regions and locks. Waiting for one is in no strand, so it would be lost: instead the
 * hold times of each lock are added up, and no phase is shorter than that sum.
 */
#define _GNU_SOURCE
#include "span.h"

#define NAMELESS ((uintptr_t)1) /* the key of the one critical section without a name */
#define ATOMIC ((uintptr_t)2)
#define ORDERED ((uintptr_t)3)

/* A thread that holds a lock, or waits for one, only counts inside a region. */
static bool is_observed(struct thread *self)
{
	return self->is_open && !self->frame->is_root;
}

#define TAKE(name, kind, parameters, key, ...)                                                                        \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		static void *real;                                                                                    \
		void(*call) parameters = (void(*) parameters)span_real(&real, #name);                                 \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_observed(self)) {                                                                             \
			call(__VA_ARGS__);                                                                            \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		call(__VA_ARGS__);                                                                                    \
		span_acquired(self, key, kind, CALLER);                                                               \
		span_begin_strand(self);                                                                              \
	}
#define GIVE(name, parameters, key, ...)                                                                              \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		static void *real;                                                                                    \
		void(*call) parameters = (void(*) parameters)span_real(&real, #name);                                 \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_observed(self)) {                                                                             \
			call(__VA_ARGS__);                                                                            \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		span_releasing(self, key);                                                                            \
		call(__VA_ARGS__);                                                                                    \
		span_begin_strand(self);                                                                              \
	}
/* Returns 0 where it did not get the lock; the nesting depth, or 1, where it did. */
#define TEST(name, kind)                                                                                              \
	EXPORT int name(void *lock)                                                                                   \
	{                                                                                                             \
		static void *real;                                                                                    \
		int (*call)(void *) = (int (*)(void *))span_real(&real, #name);                                       \
		struct thread *self = &span_self;                                                                     \
		int got;                                                                                              \
                                                                                                                      \
		if (!is_observed(self))                                                                               \
			return call(lock);                                                                            \
		span_end_strand(self);                                                                                \
		got = call(lock);                                                                                     \
		if (got)                                                                                              \
			span_acquired(self, (uintptr_t)lock, kind, CALLER);                                           \
		span_begin_strand(self);                                                                              \
		return got;                                                                                           \
	}

TAKE(GOMP_critical_start, SPAN_CRITICAL, (void), NAMELESS)
GIVE(GOMP_critical_end, (void), NAMELESS)
TAKE(GOMP_critical_name_start, SPAN_CRITICAL, (void **name), (uintptr_t)name, name)
GIVE(GOMP_critical_name_end, (void **name), (uintptr_t)name, name)
TAKE(GOMP_atomic_start, SPAN_CRITICAL, (void), ATOMIC)
GIVE(GOMP_atomic_end, (void), ATOMIC)
TAKE(GOMP_ordered_start, SPAN_ORDERED, (void), ORDERED)
GIVE(GOMP_ordered_end, (void), ORDERED)
TAKE(omp_set_lock, SPAN_CRITICAL, (void *lock), (uintptr_t)lock, lock)
GIVE(omp_unset_lock, (void *lock), (uintptr_t)lock, lock)
TAKE(omp_set_nest_lock, SPAN_CRITICAL, (void *lock), (uintptr_t)lock, lock)
GIVE(omp_unset_nest_lock, (void *lock), (uintptr_t)lock, lock)
TEST(omp_test_lock, SPAN_CRITICAL)
TEST(omp_test_nest_lock, SPAN_CRITICAL)

/* pthread mutexes in regions */

#define MUTEX_CALL(name, ...)                                                                                         \
	static void *real;                                                                                            \
	int (*call)(__VA_ARGS__) = (int (*)(__VA_ARGS__))span_real(&real, #name);                                     \
	struct thread *self = &span_self;                                                                             \
	int failure

EXPORT int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	MUTEX_CALL(pthread_mutex_lock, pthread_mutex_t *);

	if (!is_observed(self))
		return call(mutex);
	span_end_strand(self);
	failure = call(mutex);
	if (!failure)
		span_acquired(self, (uintptr_t)mutex, SPAN_CRITICAL, CALLER);
	span_begin_strand(self);
	return failure;
}

EXPORT int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
	MUTEX_CALL(pthread_mutex_trylock, pthread_mutex_t *);

	if (!is_observed(self))
		return call(mutex);
	span_end_strand(self);
	failure = call(mutex);
	if (!failure)
		span_acquired(self, (uintptr_t)mutex, SPAN_CRITICAL, CALLER);
	span_begin_strand(self);
	return failure;
}

EXPORT int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	MUTEX_CALL(pthread_mutex_unlock, pthread_mutex_t *);

	if (!is_observed(self))
		return call(mutex);
	span_end_strand(self);
	span_releasing(self, (uintptr_t)mutex);
	failure = call(mutex);
	span_begin_strand(self);
	return failure;
}
