// SPDX-License-Identifier: Apache-2.0
/*
 * naps.c - sleeps so often that to follow its context switches takes more than any budget, in one place and then in another.
 *
 *	naps THREADS FIRST THEN REST	so many threads work for 60 us and sleep for 20 us, for FIRST seconds, in naps_first;
 *					then for THEN seconds, work for 60 us and wait for 60 us for a futex in naps_then; at
 *					last they sleep for REST seconds, all at once, in rests
 *
 * The main thread waits for these. At its end it prints for each place how long the first of them slept there by its own
 * clock, as `name seconds` lines, and how often, as `name_times count`.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noipa))

struct slept {
	double seconds;
	long times;
};

static double first_s, then_s, rest_s;
static struct slept told_first, told_then, told_rest;
static pthread_barrier_t all;
static unsigned never;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

NOINLINE void works(double seconds)
{
	double end = now() + seconds;

	while (now() < end)
		;
}

static struct timespec of(double seconds)
{
	return (struct timespec){ (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
}

NOINLINE void naps_first(struct slept *slept, double seconds)
{
	struct timespec time = of(seconds);
	double begun = now();

	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
	slept->seconds += now() - begun;
	slept->times++;
}

NOINLINE void naps_then(struct slept *slept, double seconds)
{
	struct timespec time = of(seconds);
	double begun = now();

	syscall(SYS_futex, &never, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
	slept->seconds += now() - begun;
	slept->times += 1;
}

NOINLINE void rests(struct slept *slept, double seconds)
{
	struct timespec time = of(seconds);
	double begun = now();

	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
	slept->seconds = now() - begun;
	slept->times = 1;
}

static void *run(void *is_first)
{
	struct slept first = { 0 }, then = { 0 }, rest = { 0 };
	double begun;

	prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
	pthread_barrier_wait(&all);
	begun = now();
	while (now() < begun + first_s) {
		works(60e-6);
		naps_first(&first, 20e-6);
	}
	while (now() < begun + first_s + then_s) {
		works(60e-6);
		naps_then(&then, 60e-6);
	}
	if (rest_s > 0)
		rests(&rest, rest_s);
	if (is_first) {
		told_first = first;
		told_then = then;
		told_rest = rest;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc == 5 ? atoi(argv[1]) : 0;
	pthread_t nappers[16];

	if (threads < 1 || threads > 16) {
		fprintf(stderr, "usage: naps THREADS FIRST THEN REST: see naps.c\n");
		return 2;
	}
	first_s = atof(argv[2]);
	then_s = atof(argv[3]);
	rest_s = atof(argv[4]);
	pthread_barrier_init(&all, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&nappers[i], NULL, run, i ? NULL : &told_first))
			return 1;
	for (int i = 0; i < threads; i++)
		pthread_join(nappers[i], NULL);
	printf("naps_first %.6f\nnaps_first_times %ld\n", told_first.seconds, told_first.times);
	printf("naps_then %.6f\nnaps_then_times %ld\n", told_then.seconds, told_then.times);
	printf("rests %.6f\nrests_times %ld\n", told_rest.seconds, told_rest.times);
	return 0;
}
