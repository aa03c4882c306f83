// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that share work out themselves, and such that have parts of their own, for `parprof scale`: span_crews FORM N.
 * The clock is the test's, as in span_tree.c. Who takes what is not left to chance here, so that it is known: threads
 * take turns, by looking, which makes no call that orders them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern void parprof_span_work(unsigned long units);

#define THREADS 4
#define STEPS 40

static atomic_long step;
static unsigned long n;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool has_lock;

/* Of ten steps the first takes seven, the others one each. */
static long owner_of(long taken)
{
	return taken % 10 < 7 ? 0 : taken % 10 - 6;
}

static void work(void)
{
	if (has_lock)
		pthread_mutex_lock(&mutex);
	parprof_span_work(n);
	if (has_lock)
		pthread_mutex_unlock(&mutex);
}

/* All are through when there is nothing left: 28 n, and 4 n each of the others. */
static void *dealt(void *number)
{
	long next;

	while ((next = atomic_load(&step)) < STEPS) {
		if (owner_of(next) == (long)number) {
			work();
			atomic_fetch_add(&step, 1);
		} else {
			sched_yield();
		}
	}
	return NULL;
}

/* The last item takes as long as 20 others, and they do not wait for it. */
static void *ends_late(void *number)
{
	time_t end;

	dealt(number);
	if (number)
		return NULL;
	for (end = time(NULL) + 2; time(NULL) < end;) /* the clock stands still: the others are through */
		sched_yield();
	parprof_span_work(20 * n);
	return NULL;
}

/* As much, but who has done its part is through. */
static void *chosen(void *number)
{
	long part = number ? 4 : 28;

	for (long next, done = 0; done < part;) {
		next = atomic_load(&step);
		if (next % THREADS == (long)number || next >= 4 * THREADS) {
			work();
			done++;
			atomic_fetch_add(&step, 1);
		} else {
			sched_yield();
		}
	}
	return NULL;
}

/* Only one works, and the others look now and then whether it has done. */
static void *looks(void *number)
{
	if (!number) {
		usleep(20000);
		parprof_span_work(STEPS * n);
		atomic_store(&step, STEPS);
	}
	while (atomic_load(&step) < STEPS)
		usleep(1000);
	return NULL;
}

/* As C++'s library does from where a vector has room, and from where it grows. */
__attribute__((noinline)) static int make_elsewhere(pthread_t *thread, void *(*body)(void *), long number)
{
	return pthread_create(thread, NULL, body, (void *)number) ? 1 : 0;
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void *(*body)(void *);
		bool has_lock, takes_part, leaves, has_places;
	} forms[] = {
		{"dealt", dealt, false, false, false, false},	 {"locked", dealt, true, false, false, false},
		{"maker", dealt, false, true, false, false},	 {"leaves", dealt, false, false, true, false},
		{"ends_late", ends_late, false, false, false, false}, {"chosen", chosen, false, false, false, false},
		{"looks", looks, false, false, false, false},	 {"places", dealt, false, false, false, true},
	};
	pthread_t threads[THREADS];

	for (size_t i = 0; count == 3 && i < sizeof(forms) / sizeof(*forms); i++) {
		if (strcmp(arguments[1], forms[i].name))
			continue;
		n = strtoul(arguments[2], NULL, 10);
		has_lock = forms[i].has_lock;
		parprof_span_work(n);
		for (long thread = forms[i].takes_part; thread < THREADS; thread++)
			if (forms[i].has_places && thread % 2)
				make_elsewhere(&threads[thread], forms[i].body, thread);
			else
				pthread_create(&threads[thread], NULL, forms[i].body, (void *)thread);
		if (forms[i].takes_part)
			forms[i].body(NULL);
		pthread_join(threads[1], NULL);
		parprof_span_work(n); /* beside others, which may be through */
		if (forms[i].leaves)
			exit(0);
		pthread_join(threads[2], NULL);
		pthread_join(threads[3], NULL);
		if (!forms[i].takes_part)
			pthread_join(threads[0], NULL);
		parprof_span_work(n);
		return 0;
	}
	return 2;
}
