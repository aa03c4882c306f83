// SPDX-License-Identifier: Apache-2.0
/*
 * Threads of POSIX that meet by a mutex and conditions, and find now and then that they need not wait; whose work and
 * span are known, for `parprof scale`: span_conditions FORM N THREADS. N are microseconds of work by the clock.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "work_us.h"

#define MAX_THREADS 64
#define PLACES 4
#define ROUNDS 1280 /* of all threads together */
#define ITEMS 400

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
static pthread_cond_t turn_of[MAX_THREADS];
static long n, threads, turn, queued, made, held;

/* One after the other, each with the mutex while it works. */
static void *turns_inside(void *number)
{
	long i = (long)number;

	for (long round = 0; round < ROUNDS / threads; round++) {
		pthread_mutex_lock(&mutex);
		while (turn % threads != i)
			pthread_cond_wait(&changed, &mutex);
		work_us(n);
		turn++;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* The same without the mutex while it works. */
static void *turns(void *number)
{
	long i = (long)number;

	for (long round = 0; round < ROUNDS / threads; round++) {
		pthread_mutex_lock(&mutex);
		while (turn % threads != i)
			pthread_cond_wait(&changed, &mutex);
		pthread_mutex_unlock(&mutex);
		work_us(n);
		pthread_mutex_lock(&mutex);
		turn++;
		pthread_mutex_unlock(&mutex);
		pthread_cond_broadcast(&changed);
	}
	return NULL;
}

/* The same with a condition for each. */
static void *turns_by_name(void *number)
{
	long i = (long)number;

	for (long round = 0; round < ROUNDS / threads; round++) {
		pthread_mutex_lock(&mutex);
		while (turn % threads != i)
			pthread_cond_wait(&turn_of[i], &mutex);
		pthread_mutex_unlock(&mutex);
		work_us(n);
		pthread_mutex_lock(&mutex);
		turn++;
		pthread_cond_signal(&turn_of[(i + 1) % threads]);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* Thread 0 makes items for all others, who have an equal share of them and work threads - 1 times as long on each: all
 * have as much to do. */
static void *hand_over(void *number, pthread_cond_t *full, pthread_cond_t *empty, int (*tell)(pthread_cond_t *))
{
	long share = ITEMS / (threads - 1);

	for (long item = 0; !number && item < share * (threads - 1); item++) {
		work_us(n);
		pthread_mutex_lock(&mutex);
		while (queued == PLACES * threads)
			pthread_cond_wait(full, &mutex);
		queued++;
		tell(empty);
		pthread_mutex_unlock(&mutex);
	}
	for (long item = 0; number && item < share; item++) {
		pthread_mutex_lock(&mutex);
		while (!queued)
			pthread_cond_wait(empty, &mutex);
		queued--;
		tell(full);
		pthread_mutex_unlock(&mutex);
		work_us((threads - 1) * n);
	}
	return NULL;
}

static void *buffer(void *number)
{
	return hand_over(number, &not_full, &changed, pthread_cond_signal);
}

/* The same with one condition for all. */
static void *loud_buffer(void *number)
{
	return hand_over(number, &changed, &changed, pthread_cond_broadcast);
}

/* A lock made of a condition: who had it before is chance, and it is held for half of the work. */
static void *half_locked(void *number)
{
	for (long round = 0; round < ROUNDS / threads; round++) {
		work_us(n + 0 * (long)number);
		pthread_mutex_lock(&mutex);
		while (held)
			pthread_cond_wait(&changed, &mutex);
		held = 1;
		pthread_mutex_unlock(&mutex);
		work_us(n);
		pthread_mutex_lock(&mutex);
		held = 0;
		pthread_cond_signal(&changed);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* The first thread makes tasks that are there before anybody waits; the others have an equal share, and say when each is
 * done. */
static void *pool(void *number)
{
	long share = ROUNDS / (threads - 1);

	if (!number) {
		pthread_mutex_lock(&mutex);
		queued = share * (threads - 1);
		pthread_cond_broadcast(&changed);
		while (made < share * (threads - 1))
			pthread_cond_wait(&not_full, &mutex);
		pthread_mutex_unlock(&mutex);
	}
	for (long task = 0; number && task < share; task++) {
		pthread_mutex_lock(&mutex);
		while (!queued)
			pthread_cond_wait(&changed, &mutex);
		queued--;
		pthread_mutex_unlock(&mutex);
		work_us(n);
		pthread_mutex_lock(&mutex);
		made++;
		pthread_cond_signal(&not_full);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* The first thread makes tasks; of the others, who take them as they come, all but one are late, so that it has most of
 * them. Who is free takes the next: all could have as much to do. */
static void *late_pool(void *number)
{
	if (!number) {
		usleep(200000); /* the others wait by then */
		for (long task = 0; task < ITEMS; task++) {
			pthread_mutex_lock(&mutex);
			queued++;
			pthread_cond_signal(&changed);
			pthread_mutex_unlock(&mutex);
		}
		pthread_mutex_lock(&mutex);
		while (made < ITEMS)
			pthread_cond_wait(&not_full, &mutex);
		held = 1;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mutex);
		return NULL;
	}
	for (;;) {
		pthread_mutex_lock(&mutex);
		while (!queued && !held)
			pthread_cond_wait(&changed, &mutex);
		if (!queued) {
			pthread_mutex_unlock(&mutex);
			return NULL;
		}
		queued--;
		pthread_mutex_unlock(&mutex);
		if ((long)number > 1 && made < ITEMS / 2)
			usleep(100000);
		work_us(n);
		pthread_mutex_lock(&mutex);
		if (++made == ITEMS)
			pthread_cond_signal(&not_full);
		pthread_mutex_unlock(&mutex);
	}
}

/* The first thread makes tasks, and wakes all others for each; who is free takes the next. All but one are late. */
static void *called_pool(void *number)
{
	if (!number)
		usleep(200000); /* the others wait by then */
	for (long task = 0; !number && task < 2 * ITEMS; task++) {
		pthread_mutex_lock(&mutex);
		queued++;
		held = task == 2 * ITEMS - 1;
		pthread_mutex_unlock(&mutex);
		pthread_cond_broadcast(&changed);
	}
	while (number) {
		pthread_mutex_lock(&mutex);
		while (!queued && !held)
			pthread_cond_wait(&changed, &mutex);
		if (!queued) {
			pthread_mutex_unlock(&mutex);
			return NULL;
		}
		queued--;
		pthread_mutex_unlock(&mutex);
		if ((long)number > 1 && queued > ITEMS)
			usleep(100000);
		work_us(n);
	}
	return NULL;
}

/* The first thread gives each of the others tasks of its own, of which the second has as many as all others together, and
 * wakes all for each. */
static void *mailboxes(void *number)
{
	static long given[MAX_THREADS];

	if (!number)
		usleep(200000);
	for (long task = 0; !number && task < ITEMS; task++) {
		pthread_mutex_lock(&mutex);
		given[task % 2 ? 1 : 2 + task / 2 % (threads - 2)]++;
		held = task == ITEMS - 1;
		pthread_mutex_unlock(&mutex);
		pthread_cond_broadcast(&changed);
	}
	while (number) {
		pthread_mutex_lock(&mutex);
		while (!given[(long)number] && !held)
			pthread_cond_wait(&changed, &mutex);
		if (!given[(long)number]) {
			pthread_mutex_unlock(&mutex);
			return NULL;
		}
		given[(long)number]--;
		pthread_mutex_unlock(&mutex);
		work_us(n);
	}
	return NULL;
}

/* The same as of the late pool, ten times: after each tenth the first thread works alone for as long as two tasks take. */
static void *late_batches(void *number)
{
	for (long batch = 1; !number && batch <= 10; batch++) {
		pthread_mutex_lock(&mutex);
		queued += ITEMS / 10;
		for (long task = 0; task < ITEMS / 10; task++)
			pthread_cond_signal(&changed);
		while (made < batch * ITEMS / 10)
			pthread_cond_wait(&not_full, &mutex);
		held = batch == 10;
		if (held)
			pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mutex);
		work_us(2 * n);
	}
	while (number) {
		pthread_mutex_lock(&mutex);
		while (!queued && !held)
			pthread_cond_wait(&changed, &mutex);
		if (!queued) {
			pthread_mutex_unlock(&mutex);
			return NULL;
		}
		queued--;
		pthread_mutex_unlock(&mutex);
		work_us(n);
		pthread_mutex_lock(&mutex);
		if (++made % (ITEMS / 10) == 0)
			pthread_cond_signal(&not_full);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* A barrier: the last one to come wakes all others. In each round another thread has ten times the others' work. */
static void *barrier(void *number)
{
	for (long round = 0; round < ROUNDS / MAX_THREADS; round++) {
		long mine;

		work_us(round % threads == (long)number ? 10 * n : n);
		pthread_mutex_lock(&mutex);
		mine = turn;
		if (++held == threads) {
			held = 0;
			turn++;
			pthread_cond_broadcast(&changed);
		}
		while (turn == mine)
			pthread_cond_wait(&changed, &mutex);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/* No barrier: the first thread works, and tells all others, which then work, too, while it goes on. */
static void *announced(void *number)
{
	for (long round = 1; round <= ROUNDS / MAX_THREADS; round++) {
		if (!number) {
			work_us(n);
			pthread_mutex_lock(&mutex);
			made++;
			pthread_cond_broadcast(&changed);
			pthread_mutex_unlock(&mutex);
			continue;
		}
		pthread_mutex_lock(&mutex);
		while (made < round)
			pthread_cond_wait(&changed, &mutex);
		pthread_mutex_unlock(&mutex);
		work_us(n);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void *(*body)(void *);
	} forms[] = {
		{"turns_inside", turns_inside}, {"turns", turns}, {"turns_by_name", turns_by_name},
		{"buffer", buffer}, {"loud_buffer", loud_buffer}, {"half_locked", half_locked}, {"pool", pool},
		{"late_pool", late_pool}, {"late_batches", late_batches},
		{"called_pool", called_pool}, {"mailboxes", mailboxes},
		{"barrier", barrier}, {"announced", announced},
	};
	void *(*body)(void *) = NULL;
	pthread_t all[MAX_THREADS];

	if (count != 4)
		return 2;
	n = atol(arguments[2]);
	threads = atol(arguments[3]);
	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++)
		if (!strcmp(arguments[1], forms[i].name))
			body = forms[i].body;
	if (!body || threads < 2 || threads > MAX_THREADS)
		return 2;
	for (long i = 0; i < threads; i++)
		pthread_cond_init(&turn_of[i], NULL);
	for (long i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, body, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	return 0;
}
