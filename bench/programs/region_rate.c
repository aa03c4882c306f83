// SPDX-License-Identifier: Apache-2.0
/*
 * region_rate - nearly empty OpenMP parallel regions, one after the other: what
 * does it cost to watch them? --work-us sets the rate: 1600 is coarse, 82 gives
 * 12,000 regions/s, 10 about 100,000/s, 0 as many as the runtime can do.
 * Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

static void regions(const struct windows *w, u64 count)
{
	for (u64 i = 0; i < count; i++) {
#pragma omp parallel num_threads(w->threads)
		work(w->iterations);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "regions", required_argument, NULL, 'u' },
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "region_rate", .unit = "region", .threads = 2,
			     .count = 60, .work_us = 82, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--threads T] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	run_windows(&w, regions);
	return 0;
}
