/* SPDX-License-Identifier: Apache-2.0 */
/* A team of two of which one computes in a `single` while the other waits, and then both do: `singles [TURNS]` prints `name
 * seconds` lines. `alone` is the CPU time that a thread had while the other waited for it at a barrier, as told by the clocks
 * of both; so a busy machine makes nothing wrong. `cpu`: of all work, not of the waiting; `elapsed`: of all turns. */
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST 1000
#define BARRIERS 2	/* of a turn */

static clockid_t clocks[2];
static double own[MOST * BARRIERS][2], seen[MOST * BARRIERS][2], worked[2];
static volatile unsigned long sink;

static double at(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* So much CPU time, whoever has the machine. */
__attribute__((noinline)) static void compute(int self, double seconds)
{
	double begun = at(CLOCK_THREAD_CPUTIME_ID), now = begun;

	while (now < begun + seconds) {
		for (int i = 0; i < 5000; i++)
			sink += i;
		now = at(CLOCK_THREAD_CPUTIME_ID);
	}
	worked[self] += now - begun;
}

#define NAMED(name, seconds) \
	__attribute__((noinline)) static void name(int self) { compute(self, seconds); __asm__ volatile(""); /* no tail call */ }
NAMED(alone, 0.03)
NAMED(together, 0.01)

/* Which barrier it comes to, and what both have computed by then. */
static void arrive(int self, int barrier)
{
	own[barrier][self] = at(clocks[self]);
	seen[barrier][self] = at(clocks[!self]);
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 20;
	double begun = at(CLOCK_MONOTONIC), waited_for = 0;

	if (turns < 1 || turns > MOST)
		return 2;
#pragma omp parallel num_threads(2)
	{
		int self = omp_get_thread_num();

		pthread_getcpuclockid(pthread_self(), &clocks[self]);
#pragma omp barrier
		for (int turn = 0; turn < turns; turn++) {
#pragma omp single nowait
			alone(self);
			arrive(self, BARRIERS * turn);
#pragma omp barrier
			together(self);
			arrive(self, BARRIERS * turn + 1);
#pragma omp barrier
		}
	}
	for (int barrier = 0; barrier < BARRIERS * turns; barrier++)
		for (int self = 0; self < 2; self++)	/* what the other did after this one had come */
			if (own[barrier][!self] > seen[barrier][self])
				waited_for += own[barrier][!self] - seen[barrier][self];
	printf("alone %.6f\ncpu %.6f\nelapsed %.6f\n", waited_for, worked[0] + worked[1], at(CLOCK_MONOTONIC) - begun);
	return 0;
}
