/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Critical sections, ordered regions and locks. Waiting for one is in no strand, so it would be lost: instead the
 * hold times of each lock are added up, and no phase is shorter than that sum.
 */
#define _GNU_SOURCE
#include <time.h>

#include "span.h"

#define NAMELESS ((uintptr_t)1) /* the key of the one critical section without a name */
#define ATOMIC ((uintptr_t)2)
#define ORDERED ((uintptr_t)3)
#define SPUN_CYCLES 1000 /* no more is between two tests of who only waits */

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

/* Who tests a lock in vain, and again at once, waits for it: that is no work. */
static void end_between_tests(struct thread *self, uintptr_t lock)
{
	if (self->tested == lock)
		span_end_wait(self, SPUN_CYCLES);
	else
		span_end_strand(self);
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
		end_between_tests(self, (uintptr_t)lock);                                                             \
		got = call(lock);                                                                                     \
		self->tested = got ? 0 : (uintptr_t)lock;                                                             \
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

/* locks of POSIX */

#define LOCK_CALL(name, parameters)                                                                                   \
	REAL(int, name, parameters);                                                                                  \
	struct thread *self = &span_self;                                                                             \
	int failure
/* Returns 0 where it got the lock. `acquired` says how the thread has it then. */
#define TAKE_LOCK(name, acquired, parameters, key, ...)                                                               \
	EXPORT int name parameters                                                                                    \
	{                                                                                                             \
		LOCK_CALL(name, parameters);                                                                          \
		uint64_t since_ns;                                                                                    \
                                                                                                                      \
		if (!is_inside(self))                                                                                 \
			return call(__VA_ARGS__);                                                                     \
		end_between_tests(self, (uintptr_t)(key));                                                            \
		since_ns = span_crew_waits(self->frame);                                                              \
		failure = call(__VA_ARGS__);                                                                          \
		span_crew_waited(self->frame, since_ns);                                                              \
		self->tested = failure ? (uintptr_t)(key) : 0;                                                        \
		if (!failure)                                                                                         \
			acquired(self, key, CALLER);                                                                  \
		span_begin_strand(self);                                                                              \
		return failure;                                                                                       \
	}
#define GIVE_LOCK(name, type, before, after)                                                                                \
	EXPORT int name(type *lock)                                                                                   \
	{                                                                                                             \
		LOCK_CALL(name, (type *));                                                                            \
                                                                                                                      \
		if (!is_inside(self))                                                                                 \
			return call(lock);                                                                            \
		span_end_strand(self);                                                                                \
		span_releasing(self, (uintptr_t)lock);                                                                \
		before;                                                                                               \
		failure = call(lock);                                                                                 \
		span_after_unlock(self);                                                                              \
		after;                                                                                                \
		span_begin_strand(self);                                                                              \
		return failure;                                                                                       \
	}

static void has_taken_mutex(struct thread *self, pthread_mutex_t *mutex, uintptr_t caller)
{
	span_acquired(self, (uintptr_t)mutex, SPAN_CRITICAL, caller);
	span_guard_locked(self, mutex);
}

static void excludes_others(struct thread *self, const volatile void *lock, uintptr_t caller)
{
	span_acquired(self, (uintptr_t)lock, SPAN_CRITICAL, caller);
}

static void reads_beside_others(struct thread *self, pthread_rwlock_t *lock, uintptr_t caller)
{
	span_acquired_with_others(self, (uintptr_t)lock, SPAN_CRITICAL, caller);
}

#define UNTIL const struct timespec *until
#define BY_CLOCK clockid_t clock, const struct timespec *until

TAKE_LOCK(pthread_mutex_lock, has_taken_mutex, (pthread_mutex_t * mutex), mutex, mutex)
TAKE_LOCK(pthread_mutex_trylock, has_taken_mutex, (pthread_mutex_t * mutex), mutex, mutex)
TAKE_LOCK(pthread_mutex_timedlock, has_taken_mutex, (pthread_mutex_t * mutex, UNTIL), mutex, mutex, until)
TAKE_LOCK(pthread_mutex_clocklock, has_taken_mutex, (pthread_mutex_t * mutex, BY_CLOCK), mutex, mutex, clock, until)
GIVE_LOCK(pthread_mutex_unlock, pthread_mutex_t, span_guard_unlocking(self, lock), span_guard_unlocked(self))

TAKE_LOCK(pthread_spin_lock, excludes_others, (pthread_spinlock_t * lock), lock, lock)
TAKE_LOCK(pthread_spin_trylock, excludes_others, (pthread_spinlock_t * lock), lock, lock)
GIVE_LOCK(pthread_spin_unlock, pthread_spinlock_t, (void)0, (void)0)

#define READ(name, ...) TAKE_LOCK(name, reads_beside_others, __VA_ARGS__)
#define WRITE(name, ...) TAKE_LOCK(name, excludes_others, __VA_ARGS__)
READ(pthread_rwlock_rdlock, (pthread_rwlock_t * lock), lock, lock)
READ(pthread_rwlock_tryrdlock, (pthread_rwlock_t * lock), lock, lock)
READ(pthread_rwlock_timedrdlock, (pthread_rwlock_t * lock, UNTIL), lock, lock, until)
READ(pthread_rwlock_clockrdlock, (pthread_rwlock_t * lock, BY_CLOCK), lock, lock, clock, until)
WRITE(pthread_rwlock_wrlock, (pthread_rwlock_t * lock), lock, lock)
WRITE(pthread_rwlock_trywrlock, (pthread_rwlock_t * lock), lock, lock)
WRITE(pthread_rwlock_timedwrlock, (pthread_rwlock_t * lock, UNTIL), lock, lock, until)
WRITE(pthread_rwlock_clockwrlock, (pthread_rwlock_t * lock, BY_CLOCK), lock, lock, clock, until)
GIVE_LOCK(pthread_rwlock_unlock, pthread_rwlock_t, (void)0, (void)0)
