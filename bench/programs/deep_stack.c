// SPDX-License-Identifier: Apache-2.0
/*
 * deep_stack - fixed work at the end of a recursion of --depth calls (default 100), on one thread: what do
 * samples of deep stacks cost? Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

static int depth = 100;
static volatile u64 sink;

__attribute__((noinline, noclone)) static void descend(const struct windows *w, u64 count, int left)
{
	if (left > 0) {
		descend(w, count, left - 1);
		sink++;	/* work after the call keeps the recursion from becoming a loop */
		return;
	}
	for (u64 i = 0; i < count; i++)
		work(w->iterations);
}

static void units(const struct windows *w, u64 count)
{
	descend(w, count, depth);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "units", required_argument, NULL, 'u' },
		{ "depth", required_argument, NULL, 'd' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "deep_stack", .unit = "unit", .threads = 1,
			     .count = 60, .work_us = 82, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'd') {
			depth = (int)number(optarg, 1, 100000);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--depth D] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	run_windows(&w, units);
	return 0;
}
