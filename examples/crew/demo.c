// SPDX-License-Identifier: Apache-2.0
/*
 * demo SECONDS - two phases on a crew of two threads: `even`, where both have as much to do, and `skewed`, where the second
 * has a third of what the first has. So a sixth of the time of both cores is idle, all of it in `skewed`.
 */
#include "crew.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void __attribute__((noinline)) burn(double seconds)
{
	struct timespec t;
	volatile double x = 1;
	double end;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	end = t.tv_sec + 1e-9 * t.tv_nsec + seconds;
	do {
		for (int i = 0; i < 10000; i++)
			x = x * 1.0000001;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	} while (t.tv_sec + 1e-9 * t.tv_nsec < end);
}

static void __attribute__((noinline)) even_part(void *seconds, int thread)
{
	burn(*(double *)seconds);
	(void)thread;
	__asm__ volatile("");	/* what comes before is no tail call */
}

static void __attribute__((noinline)) skewed_part(void *seconds, int thread)
{
	burn(thread ? *(double *)seconds / 3 : *(double *)seconds);
	__asm__ volatile("");
}

static void __attribute__((noinline)) even(double seconds)
{
	crew_run(even_part, &seconds);
	__asm__ volatile("");
}

static void __attribute__((noinline)) skewed(double seconds)
{
	crew_run(skewed_part, &seconds);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 2;

	crew_start(2);
	for (int i = 0; i < 40; i++) {
		even(seconds / 80);
		skewed(seconds / 80);
	}
	return 0;
}
