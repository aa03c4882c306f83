// SPDX-License-Identifier: Apache-2.0
/*
 * task_deps - small OpenMP tasks with depend clauses, made --depth calls deep (default 60): what does it cost to
 * keep the context of their creation? A unit is a batch of 100 tasks, four chains of 25. One parallel region has
 * the batches of a window. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

enum { BATCH = 100, CHAINS = 4 };

static int depth = 60;
static volatile u64 sink;

__attribute__((noinline)) static void small(u64 iterations)
{
	work(iterations);
	__asm__ volatile("");
}

__attribute__((noinline)) static void descend(u64 iterations, int left)
{
	char chains[CHAINS] = { 0 };

	if (left > 0) {
		descend(iterations, left - 1);
		sink++; /* work after the call keeps the recursion from becoming a loop */
		return;
	}
	for (int i = 0; i < BATCH; i++) {
		char *chain = &chains[i % CHAINS];

		(void)chain; /* a clause is no use of it to compilers */
#pragma omp task depend(inout : chain[0]) firstprivate(iterations)
		small(iterations);
	}
#pragma omp taskwait
}

static void batches(const struct windows *w, u64 count)
{
#pragma omp parallel num_threads(w->threads)
#pragma omp single
	for (u64 i = 0; i < count; i++)
		descend(w->iterations, depth);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "depth", required_argument, NULL, 'd' },
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "task_deps", .unit = "batch", .threads = 2, .event = "task", .events = BATCH,
			     .count = 60, .work_us = 0.3, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'd') {
			depth = (int)number(optarg, 0, 10000);
		} else if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--depth D] [--threads T] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	run_windows(&w, batches);
	return 0;
}
