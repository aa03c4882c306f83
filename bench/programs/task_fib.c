// SPDX-License-Identifier: Apache-2.0
/*
 * task_fib - Fibonacci numbers by OpenMP tasks without cut-off, each call a task: what does it cost to watch the
 * creation of a million tasks a second? A unit is one parallel region that computes fib(--n), after --serial
 * iterations of serial() on one thread. --work-us is work in each task: 0, the default, makes tasks as fast as the
 * runtime can. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

static int n = 18;
static u64 serial_iterations;
static volatile long result;

/* As work(), under a name of its own; compilers would make one function of two with the same numbers. */
__attribute__((noinline)) static void serial(u64 iterations)
{
	u64 x = iterations + 1;

	for (u64 i = 0; i < iterations; i++)
		x = (x ^ x >> 29) * 2862933555777941757u;
	__asm__ volatile("" : "+r"(x));
}

__attribute__((noinline)) static long fib(int number, u64 iterations)
{
	long a, b;

	if (iterations)
		work(iterations);
	if (number < 2)
		return number;
#pragma omp task shared(a) firstprivate(number, iterations)
	a = fib(number - 1, iterations);
#pragma omp task shared(b) firstprivate(number, iterations)
	b = fib(number - 2, iterations);
#pragma omp taskwait
	return a + b;
}

static void regions(const struct windows *w, u64 count)
{
	for (u64 i = 0; i < count; i++) {
		if (serial_iterations)
			serial(serial_iterations);
#pragma omp parallel num_threads(w->threads)
#pragma omp single
		result = fib(n, w->iterations);
	}
}

/* How many calls fib(@number) makes beside the first: each is a task. */
static u64 tasks(int number)
{
	u64 one = 1, next = 1;

	for (; number > 0; number--) {
		u64 sum = one + next + 1;

		one = next;
		next = sum;
	}
	return one - 1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "n", required_argument, NULL, 'N' },
		{ "serial", required_argument, NULL, 'S' },
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "task_fib", .unit = "region", .threads = 2, .event = "task",
			     .count = 60, .work_us = 0, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'N') {
			n = (int)number(optarg, 2, 40);
		} else if (opt == 'S') {
			serial_iterations = (u64)number(optarg, 0, 1e12);
		} else if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--n N] [--serial ITERATIONS] [--threads T] " WINDOWS_USAGE "\n",
				argv[0]);
			return 2;
		}
	}
	w.events = tasks(n);
	run_windows(&w, regions);
	return 0;
}
