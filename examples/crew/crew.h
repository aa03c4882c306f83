// SPDX-License-Identifier: Apache-2.0
/*
 * crew.h - a pool of threads in a header, as an example of a runtime that parprof does not know: docs/runtimes.md adds it in
 * one file, parprof_crew.py. crew_run() has a function run in all threads of the pool, the caller among them.
 */
#ifndef CREW_H
#define CREW_H

#include <pthread.h>

#define CREW_FUNCTION static __attribute__((noinline, unused))

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t given, done;
	void (*function)(void *, int);
	void *argument;
	long round;
	int threads, left;
} crew = { .mutex = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER };

/* What the threads of the pool run, for good. */
CREW_FUNCTION void *crew_serve(void *number)
{
	for (long round = 1;; round++) {
		pthread_mutex_lock(&crew.mutex);
		while (crew.round < round)
			pthread_cond_wait(&crew.given, &crew.mutex);
		pthread_mutex_unlock(&crew.mutex);
		crew.function(crew.argument, (int)(long)number);
		pthread_mutex_lock(&crew.mutex);
		if (!--crew.left)
			pthread_cond_signal(&crew.done);
		pthread_mutex_unlock(&crew.mutex);
	}
	return 0;
}

CREW_FUNCTION void crew_start(int threads)
{
	pthread_t thread;

	crew.threads = threads;
	for (long number = 1; number < threads; number++)
		pthread_create(&thread, 0, crew_serve, (void *)number);
}

/* Returns when all threads have returned from function(argument, number of the thread). */
CREW_FUNCTION void crew_run(void (*function)(void *, int), void *argument)
{
	pthread_mutex_lock(&crew.mutex);
	crew.function = function;
	crew.argument = argument;
	crew.left = crew.threads - 1;
	crew.round++;
	pthread_cond_broadcast(&crew.given);
	pthread_mutex_unlock(&crew.mutex);
	function(argument, 0);
	pthread_mutex_lock(&crew.mutex);
	while (crew.left)
		pthread_cond_wait(&crew.done, &crew.mutex);
	pthread_mutex_unlock(&crew.mutex);
}

#endif
