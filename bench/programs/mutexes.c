// SPDX-License-Identifier: Apache-2.0
/*
 * mutexes - contended mutexes, as `sysbench threads` has them: each of 4 threads picks one of 8 mutexes and then,
 * 1,000 times, locks it, yields the CPU and unlocks it. What does it cost to watch threads that wait for locks? A
 * unit is one such thousand for each thread. The threads live as long as the program. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

#include <pthread.h>
#include <sched.h>

enum { YIELDS = 1000, MUTEXES = 8, MAX_THREADS = 64 };

static pthread_mutex_t mutexes[MUTEXES];
static pthread_barrier_t start, finish;
static u64 units_to_do, iterations;

__attribute__((noinline)) static void thousand(pthread_mutex_t *mutex)
{
	for (int i = 0; i < YIELDS; i++) {
		pthread_mutex_lock(mutex);
		if (iterations)
			work(iterations);
		sched_yield();
		pthread_mutex_unlock(mutex);
	}
}

static void *run(void *argument)
{
	u64 x = (u64)(uintptr_t)argument;

	for (;;) {
		pthread_barrier_wait(&start);
		if (!units_to_do)
			return NULL;
		for (u64 i = 0; i < units_to_do; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			thousand(&mutexes[(x >> 33) % MUTEXES]);
		}
		pthread_barrier_wait(&finish);
	}
}

static void units(const struct windows *w, u64 count)
{
	iterations = w->iterations;
	units_to_do = count;
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&finish);
}

/* Starts the threads, has them do what @w asks for, and ends them. */
static void with_threads(struct windows *w)
{
	pthread_t threads[MAX_THREADS];

	pthread_barrier_init(&start, NULL, (unsigned)w->threads + 1);
	pthread_barrier_init(&finish, NULL, (unsigned)w->threads + 1);
	for (int i = 0; i < w->threads; i++) {
		if (pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)(i + 1))) {
			perror("pthread_create");
			exit(1);
		}
	}
	run_windows(w, units);
	units_to_do = 0;
	pthread_barrier_wait(&start);
	for (int i = 0; i < w->threads; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "mutexes", .unit = "thousand", .threads = 4, .event = "lock",
			     .count = 60, .work_us = 0, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 't') {
			w.threads = (int)number(optarg, 1, MAX_THREADS);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--threads T] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	for (int i = 0; i < MUTEXES; i++)
		pthread_mutex_init(&mutexes[i], NULL);
	w.events = (u64)w.threads * YIELDS;
	with_threads(&w);
	return 0;
}
