// SPDX-License-Identifier: Apache-2.0
/*
 * critical - a hot OpenMP critical section with next to nothing in it: what does it cost to watch its lock? A unit
 * is 1,000 sections, shared by all threads; one parallel loop has the units of a window. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

enum { SECTIONS = 1000 };

static volatile double sums[8];

__attribute__((noinline)) static void add(u64 i)
{
#pragma omp critical(sum)
	for (int k = 0; k < 8; k++)
		sums[k] = sums[k] + (double)i * 0.5;
}

static void sections(const struct windows *w, u64 count)
{
#pragma omp parallel for schedule(static) num_threads(w->threads)
	for (u64 i = 0; i < count * SECTIONS; i++) {
		if (w->iterations)
			work(w->iterations);
		add(i);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "critical", .unit = "thousand", .threads = 2, .event = "section",
			     .events = SECTIONS, .count = 60, .work_us = 0, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--threads T] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	run_windows(&w, sections);
	return 0;
}
