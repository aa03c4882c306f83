// SPDX-License-Identifier: Apache-2.0
/*
 * omp_locks - more OpenMP threads than cores take --locks locks in turn (8 threads, 4 locks): what does it cost to
 * watch omp_set_lock? --work-us is work under a lock, and as much without one. A unit is 100 locks of each thread;
 * one parallel region has the units of a window. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

#include <omp.h>

enum { BATCH = 100, MAX_LOCKS = 64 };

static omp_lock_t locks[MAX_LOCKS];
static int lock_count = 4;

__attribute__((noinline)) static void locked(omp_lock_t *lock, u64 iterations)
{
	omp_set_lock(lock);
	work(iterations);
	omp_unset_lock(lock);
}

static void batches(const struct windows *w, u64 count)
{
#pragma omp parallel num_threads(w->threads)
	{
		u64 x = (u64)omp_get_thread_num() + 1;

		for (u64 i = 0; i < count * BATCH; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			locked(&locks[(x >> 33) % (u64)lock_count], w->iterations);
			work(w->iterations);
		}
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "locks", required_argument, NULL, 'l' },
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "omp_locks", .unit = "batch", .threads = 8, .event = "lock",
			     .count = 60, .work_us = 0.2, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'l') {
			lock_count = (int)number(optarg, 1, MAX_LOCKS);
		} else if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--locks L] [--threads T] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	for (int i = 0; i < lock_count; i++)
		omp_init_lock(&locks[i]);
	w.events = (u64)w.threads * BATCH;
	run_windows(&w, batches);
	return 0;
}
