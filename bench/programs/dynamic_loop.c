// SPDX-License-Identifier: Apache-2.0
/*
 * dynamic_loop - OpenMP loops with schedule(dynamic, 1) and tiny bodies: what does it cost to watch the runtime give
 * out the iterations? A unit is one parallel loop of --loop iterations (default 10,000) with --work-us in each,
 * after --serial iterations of serial() on one thread. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

static u64 serial_iterations, length = 10000;

/* As work(), under a name of its own; compilers would make one function of two with the same numbers. */
__attribute__((noinline)) static void serial(u64 iterations)
{
	u64 x = iterations + 1;

	for (u64 i = 0; i < iterations; i++)
		x = (x ^ x >> 29) * 2862933555777941757u;
	__asm__ volatile("" : "+r"(x));
}

static void loops(const struct windows *w, u64 count)
{
	for (u64 i = 0; i < count; i++) {
		if (serial_iterations)
			serial(serial_iterations);
#pragma omp parallel for schedule(dynamic, 1) num_threads(w->threads)
		for (u64 k = 0; k < length; k++)
			work(w->iterations);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "loop", required_argument, NULL, 'l' },
		{ "serial", required_argument, NULL, 'S' },
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "dynamic_loop", .unit = "loop", .threads = 2, .event = "chunk",
			     .count = 60, .work_us = 0.1, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'l') {
			length = (u64)number(optarg, 1, 1e9);
		} else if (opt == 'S') {
			serial_iterations = (u64)number(optarg, 0, 1e12);
		} else if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--loop N] [--serial ITERATIONS] [--threads T] " WINDOWS_USAGE "\n",
				argv[0]);
			return 2;
		}
	}
	w.events = length;
	run_windows(&w, loops);
	return 0;
}
