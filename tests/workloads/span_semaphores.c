// SPDX-License-Identifier: Apache-2.0
/*
 * Threads of POSIX that hand on by semaphores, whose work and span are known, for `parprof scale`: span_semaphores FORM
 * N THREADS. In forms up to `pool` the clock is the test's, as in span_threads.c; in the others N are microseconds of
 * work by the clock.
 */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "work_us.h"

extern void parprof_span_work(unsigned long units);

#define MAX_THREADS 64
#define PLACES 4
#define ITEMS 40
#define ROUNDS 640 /* of all threads together */

static sem_t turn_of[MAX_THREADS], places, items, lock;
static sem_t *named;
static long n, threads;

static void work(long units)
{
	parprof_span_work((unsigned long)units);
}

/* One after the other, n each, round and round: all semaphores are posted before their thread comes, or not, as it falls
 * out. */
static void *turns(void *number)
{
	long i = (long)number;

	for (int round = 0; round < 3; round++) {
		sem_wait(&turn_of[i]);
		work(n);
		sem_post(&turn_of[(i + 1) % threads]);
	}
	return NULL;
}

/* The last is through before the first begins to wait: nobody ever sleeps. */
static void *early(void *number)
{
	if (!number) {
		work(3 * n);
		sem_post(&items);
		return NULL;
	}
	usleep(200000);
	sem_wait(&items);
	work(n);
	return NULL;
}

/* Thread 0 makes items, n each; thread 1 uses them, 2 n each. Both look at their watches. */
static void *buffer(void *number)
{
	struct timespec until;

	for (int i = 0; (long)number < 2 && i < ITEMS; i++) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 60;
		if (!number) {
			sem_timedwait(&places, &until);
			work(n);
			sem_post(&items);
		} else {
			while (sem_trywait(&items))
				usleep(100);
			sem_post(&places);
			work(2 * n);
		}
	}
	return NULL;
}

/* n beside the others, and 2 n with the lock. */
static void *locked(void *number)
{
	for (int round = 0; round < 3; round++) {
		work(n + 0 * (long)number);
		sem_wait(&lock);
		work(2 * n);
		sem_post(&lock);
	}
	return NULL;
}

/* The same with two that may hold it at once. */
static void *two_at_once(void *number)
{
	return locked(number);
}

/* A named one that one thread posts and the other waits for. */
static void *follows(void *number)
{
	if (number)
		sem_wait(named);
	work(n);
	if ((long)number + 1 < threads)
		sem_post(named);
	return NULL;
}

static void post_items(int signal)
{
	(void)signal;
	sem_post(&items);
}

/* A handler posts: what its thread did until then comes before. */
static void *handler(void *number)
{
	if (!number) {
		work(3 * n);
		raise(SIGUSR1);
	} else if ((long)number == 1) {
		sem_wait(&items);
		work(n);
	}
	return NULL;
}

/* Items are tasks, each of which makes the next: who takes one makes two to begin with, so that it is no lock. */
static void *pool(void *number)
{
	static _Atomic long begun;

	(void)number;
	for (;;) {
		long task;

		sem_wait(&items);
		task = ++begun;
		if (task > 8) {
			sem_post(&items);
			return NULL;
		}
		work(n);
		if (task == 1)
			sem_post(&items);
		sem_post(&items);
	}
}

/* The first thread makes tasks, n each; thread 1 takes most of them, since the others are late. */
static void *late_tasks(void *number)
{
	static _Atomic long left = ITEMS;

	if (!number)
		usleep(200000); /* the others wait by then */
	for (int task = 0; !number && task < ITEMS + threads; task++)
		sem_post(&items);
	while (number) {
		sem_wait(&items);
		if (--left < 0)
			return NULL;
		if ((long)number > 1)
			usleep(50000);
		work(n);
	}
	return NULL;
}

/* by the clock */

static void *ring(void *number)
{
	long i = (long)number;

	for (long round = 0; round < ROUNDS / threads; round++) {
		sem_wait(&turn_of[i]);
		work_us(n);
		sem_post(&turn_of[(i + 1) % threads]);
	}
	return NULL;
}

static void *half_locked(void *number)
{
	for (long round = 0; round < ROUNDS / threads; round++) {
		work_us(n + 0 * (long)number);
		sem_wait(&lock);
		work_us(n);
		sem_post(&lock);
	}
	return NULL;
}

/* A line of threads with a buffer between each two; of each three stages one takes three times as long. */
static sem_t stage_places[MAX_THREADS], stage_items[MAX_THREADS];

static void *stages(void *number)
{
	long i = (long)number;

	for (long item = 0; item < 200; item++) {
		if (i)
			sem_wait(&stage_items[i]);
		work_us(i % 3 == 1 ? 3 * n : n);
		if (i)
			sem_post(&stage_places[i]);
		if (i + 1 < threads) {
			sem_wait(&stage_places[i + 1]);
			sem_post(&stage_items[i + 1]);
		}
	}
	return NULL;
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void *(*body)(void *);
		unsigned lock;
	} forms[] = {
		{"turns", turns, 1}, {"early", early, 1},	{"buffer", buffer, 1}, {"locked", locked, 1},
		{"two", two_at_once, 2}, {"named", follows, 1}, {"handler", handler, 1}, {"pool", pool, 1}, {"late_tasks", late_tasks, 1},
		{"ring", ring, 1},	{"half_locked", half_locked, 1}, {"stages", stages, 1},
	};
	void *(*body)(void *) = NULL;
	pthread_t all[MAX_THREADS];
	char name[64];

	if (count != 4)
		return 2;
	n = atol(arguments[2]);
	threads = atol(arguments[3]);
	snprintf(name, sizeof(name), "/span_semaphores.%d", (int)getpid());
	named = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
	if (named == SEM_FAILED || threads < 2 || threads > MAX_THREADS)
		return 2;
	sem_unlink(name);
	signal(SIGUSR1, post_items);
	sem_init(&places, 0, PLACES);
	sem_init(&items, 0, 0);
	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++)
		if (!strcmp(arguments[1], forms[i].name)) {
			body = forms[i].body;
			sem_init(&lock, 0, forms[i].lock);
		}
	if (!body)
		return 2;
	for (long i = 0; i < threads; i++) {
		sem_init(&turn_of[i], 0, !i);
		sem_init(&stage_places[i], 0, PLACES);
		sem_init(&stage_items[i], 0, 0);
	}
	for (long i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, body, (void *)i);
	if (body == pool)
		sem_post(&items);
	for (long i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	return 0;
}
