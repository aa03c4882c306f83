// SPDX-License-Identifier: Apache-2.0
/*
 * threads.c - problems of programs with threads of their own, each in a function of its own; the command line names
 * those to have. `share` runs beside them, in parallel and well balanced: nobody should blame it.
 */
#include "burn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
#define THREADS 2

static volatile unsigned long sink;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static void in_threads(void *(*run)(void *))
{
	pthread_t threads[THREADS];

	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, run, (void *)i))
			abort();
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

APART static void *share(void *unused)
{
	(void)unused;
	sink = burn(1, 200000 * US);
	return NULL;
}

APART static void *prepare(void)
{
	sink = burn(1, 300000 * US);
	return NULL;
}

APART static void update_table(long i)
{
	pthread_mutex_lock(&table_lock);
	sink = burn(i, 3000 * US);
	pthread_mutex_unlock(&table_lock);
}

APART static void *updater(void *start)
{
	for (long i = (long)start; i < 60; i++) {
		update_table(i);
		sink = burn(i, 300 * US);
	}
	return NULL;
}

APART static void count_one(long i)
{
	pthread_mutex_lock(&table_lock);
	sink = burn(i, 5);
	pthread_mutex_unlock(&table_lock);
}

APART static void *counter(void *start)
{
	for (long i = (long)start; i < 3000000; i++)
		count_one(i);
	return NULL;
}

APART static void *uneven(void *number)
{
	sink = burn(1, ((long)number ? 300000 : 60000) * US);
	return NULL;
}

static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int queued, over;

APART static void parse_item(int i)
{
	sink = burn(i, 4000 * US);
}

APART static void handle_item(void)
{
	sink = burn(3, 700 * US);
}

APART static void *consumer(void *unused)
{
	(void)unused;
	for (;;) {
		pthread_mutex_lock(&table_lock);
		while (!queued && !over)
			pthread_cond_wait(&filled, &table_lock);
		if (!queued) {
			pthread_mutex_unlock(&table_lock);
			return NULL;
		}
		queued--;
		pthread_mutex_unlock(&table_lock);
		handle_item();
	}
}

/* one thread has too much to do for the two that wait for it */
APART static void pipeline(void)
{
	pthread_t threads[THREADS];

	over = 0;
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, consumer, NULL))
			abort();
	for (int i = 0; i < 80; i++) {
		parse_item(i);
		pthread_mutex_lock(&table_lock);
		queued++;
		pthread_cond_signal(&filled);
		pthread_mutex_unlock(&table_lock);
	}
	pthread_mutex_lock(&table_lock);
	over = 1;
	pthread_cond_broadcast(&filled);
	pthread_mutex_unlock(&table_lock);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

APART static void *brief(void *unused)
{
	(void)unused;
	sink = burn(1, 20 * US);
	return NULL;
}

APART static void spawn_often(void)
{
	for (int i = 0; i < 4000; i++)
		in_threads(brief);
}

APART static void sleep_often(void)
{
	struct timespec pause = {.tv_nsec = 5000000};

	for (int i = 0; i < 60; i++) {
		nanosleep(&pause, NULL);
		sink = burn(i, 300 * US);
	}
}

static void all_share(void) { in_threads(share); }
static void prepare_alone(void) { prepare(); }
static void all_update(void) { in_threads(updater); }
static void all_count(void) { in_threads(counter); }
static void unevenly(void) { in_threads(uneven); }

static const struct {
	const char *name;
	void (*run)(void);
} PROBLEMS[] = {
	{"serial", prepare_alone}, {"mutex", all_update},   {"hot_mutex", all_count}, {"imbalance", unevenly},
	{"pipeline", pipeline},	   {"spawn", spawn_often}, {"sleep", sleep_often},   {"share", all_share},
};

int main(int argc, char **argv)
{
	if (argc == 1) { /* one thread does it all */
		prepare();
		sink = burn(2, 200000 * US);
		return 0;
	}
	for (int i = 1; i < argc; i++) {
		size_t at = 0;

		while (at < sizeof(PROBLEMS) / sizeof(*PROBLEMS) && strcmp(argv[i], PROBLEMS[at].name))
			at++;
		if (at == sizeof(PROBLEMS) / sizeof(*PROBLEMS)) {
			fprintf(stderr, "%s: no such problem\n", argv[i]);
			return 2;
		}
		all_share();
		PROBLEMS[at].run();
	}
	all_share();
	return 0;
}
