/* SPDX-License-Identifier: Apache-2.0
 *
 * A process of many threads that each work a little: many_threads THREADS WORK_US PERIOD_US SECONDS
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long work_ns, period_us;
static double end_s;

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void __attribute__((noinline)) burn(double until_s)
{
	while (now_s(CLOCK_THREAD_CPUTIME_ID) < until_s)
		;
}

static void *run(void *argument)
{
	while (now_s(CLOCK_MONOTONIC) < end_s) {
		burn(now_s(CLOCK_THREAD_CPUTIME_ID) + work_ns * 1e-9);
		usleep(period_us + (long)argument * 37 % 1000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[1024];
	long count = argc > 4 ? atol(argv[1]) : 5;

	work_ns = argc > 4 ? atol(argv[2]) * 1000 : 1000000;
	period_us = argc > 4 ? atol(argv[3]) : 1000000;
	end_s = now_s(CLOCK_MONOTONIC) + (argc > 4 ? atof(argv[4]) : 10);
	for (long i = 0; i < count && i < 1024; i++)
		pthread_create(&threads[i], NULL, run, (void *)i);
	for (long i = 0; i < count && i < 1024; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
