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
#define TAKE(name, kind, parameters, key, ...)                                                                        \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		REAL(void, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_inside(self)) {                                                                               \
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
		REAL(void, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_inside(self)) {                                                                               \
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
		REAL(int, name, (void *));                                                                            \
		struct thread *self = &span_self;                                                                     \
		int got;                                                                                              \
                                                                                                                      \
		if (!is_inside(self))                                                                                 \
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
/* Fortran's */
TAKE(omp_set_lock_, SPAN_CRITICAL, (void *lock), (uintptr_t)lock, lock)
GIVE(omp_unset_lock_, (void *lock), (uintptr_t)lock, lock)
TAKE(omp_set_nest_lock_, SPAN_CRITICAL, (void *lock), (uintptr_t)lock, lock)
GIVE(omp_unset_nest_lock_, (void *lock), (uintptr_t)lock, lock)
TEST(omp_test_lock_, SPAN_CRITICAL)
TEST(omp_test_nest_lock_, SPAN_CRITICAL)

/* LLVM's runtime: in front of each lock are the place in the source, and the thread's number */
#define PLACED void *place, int thread, void *lock
TAKE(__kmpc_critical, SPAN_CRITICAL, (PLACED), (uintptr_t)lock, place, thread, lock)
TAKE(__kmpc_critical_with_hint, SPAN_CRITICAL, (PLACED, long hint), (uintptr_t)lock, place, thread, lock, hint)
GIVE(__kmpc_end_critical, (PLACED), (uintptr_t)lock, place, thread, lock)
TAKE(__kmpc_set_lock, SPAN_CRITICAL, (PLACED), (uintptr_t)lock, place, thread, lock)
GIVE(__kmpc_unset_lock, (PLACED), (uintptr_t)lock, place, thread, lock)
TAKE(__kmpc_set_nest_lock, SPAN_CRITICAL, (PLACED), (uintptr_t)lock, place, thread, lock)
GIVE(__kmpc_unset_nest_lock, (PLACED), (uintptr_t)lock, place, thread, lock)
TAKE(__kmpc_ordered, SPAN_ORDERED, (void *place, int thread), ORDERED, place, thread)
GIVE(__kmpc_end_ordered, (void *place, int thread), ORDERED, place, thread)
TAKE(__kmpc_atomic_start, SPAN_CRITICAL, (void), ATOMIC)
GIVE(__kmpc_atomic_end, (void), ATOMIC)

/* pthread mutexes in regions */

#define MUTEX_CALL(name)                                                                                              \
	REAL(int, name, (pthread_mutex_t *));                                                                         \
	struct thread *self = &span_self;                                                                             \
	int failure
#define TAKE_MUTEX(name)                                                                                              \
	EXPORT int name(pthread_mutex_t *mutex)                                                                       \
	{                                                                                                             \
		MUTEX_CALL(name);                                                                                     \
                                                                                                                      \
		if (!is_inside(self))                                                                                 \
			return call(mutex);                                                                           \
		span_end_strand(self);                                                                                \
		failure = call(mutex);                                                                                \
		if (!failure) {                                                                                       \
			span_acquired(self, (uintptr_t)mutex, SPAN_CRITICAL, CALLER);                                 \
			span_guard_locked(self, mutex);                                                               \
		}                                                                                                     \
		span_begin_strand(self);                                                                              \
		return failure;                                                                                       \
	}

TAKE_MUTEX(pthread_mutex_lock)
TAKE_MUTEX(pthread_mutex_trylock)

EXPORT int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	MUTEX_CALL(pthread_mutex_unlock);

	if (!is_inside(self))
		return call(mutex);
	span_end_strand(self);
	span_releasing(self, (uintptr_t)mutex);
	span_guard_unlocking(self, mutex);
	failure = call(mutex);
	span_after_unlock(self);
	span_begin_strand(self);
	return failure;
}
