/* SPDX-License-Identifier: Apache-2.0
 *
 * A few threads that work among very many that sleep: `sleepers THREADS SERIAL_S PARALLEL_S [--wait]`.
 *
 * So many threads sleep from the start to the end. One thread computes for so much CPU time of its own, then two do, each.
 * `ready N` is printed when N threads sleep (fewer than asked for where the system allows no more); with --wait a line on
 * standard input starts the phases. At the end: what each function took of CPU time, as `name seconds` lines, how long
 * both phases took, and for how long threads slept in all.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long asleep;
static int is_over;
static double slept_s;
static volatile unsigned long sink;

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static NOINLINE void burn(double seconds)
{
	double end = now_s(CLOCK_THREAD_CPUTIME_ID) + seconds;

	while (now_s(CLOCK_THREAD_CPUTIME_ID) < end)
		for (int i = 0; i < 20000; i++)
			sink += i;
}

static NOINLINE void serial_here(double seconds)
{
	burn(seconds);
	sink++;
}

static NOINLINE void parallel_here(double seconds)
{
	burn(seconds);
	sink += 2;
}

static NOINLINE void sleeps_among_many(void)
{
	double begun = now_s(CLOCK_MONOTONIC);

	asleep++;
	while (!is_over)
		pthread_cond_wait(&changed, &guard);
	slept_s += now_s(CLOCK_MONOTONIC) - begun;
}

static void *sleeps(void *unused)
{
	pthread_mutex_lock(&guard);
	sleeps_among_many();
	pthread_mutex_unlock(&guard);
	return unused;
}

static void *works(void *seconds)
{
	parallel_here(*(double *)seconds);
	return 0;
}

static void await_sleepers(long count)
{
	struct timespec moment = { 0, 1000000 };
	long now;

	do {
		pthread_mutex_lock(&guard);
		now = asleep;
		pthread_mutex_unlock(&guard);
		if (now < count)
			nanosleep(&moment, 0);
	} while (now < count);
}

static long start(pthread_t *threads, long wanted)
{
	pthread_attr_t small;
	long count = 0;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	while (count < wanted && !pthread_create(&threads[count], &small, sleeps, 0))
		count++;
	return count;
}

int main(int argc, char **argv)
{
	double serial_s = argc > 2 ? atof(argv[2]) : 0.5, parallel_s = argc > 3 ? atof(argv[3]) : 0.5, begun;
	long wanted = argc > 1 ? atol(argv[1]) : 1000, count;
	pthread_t *threads = calloc(wanted + 1, sizeof(*threads)), second;
	char line[16];

	if (!threads)
		return 1;
	count = start(threads, wanted);
	await_sleepers(count);
	printf("ready %ld\n", count);
	fflush(stdout);
	if (argc > 4 && !strcmp(argv[4], "--wait") && !fgets(line, sizeof(line), stdin))
		return 1;
	begun = now_s(CLOCK_MONOTONIC);
	serial_here(serial_s);
	if (pthread_create(&second, 0, works, &parallel_s))
		return 1;
	parallel_here(parallel_s);
	pthread_join(second, 0);
	printf("serial_here %.6f\nparallel_here %.6f\n", serial_s, 2 * parallel_s);
	printf("phases %.6f\n", now_s(CLOCK_MONOTONIC) - begun);
	pthread_mutex_lock(&guard);
	is_over = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&guard);
	for (long i = 0; i < count; i++)
		pthread_join(threads[i], 0);
	printf("sleeps_among_many %.6f\n", slept_s);
	return 0;
}
