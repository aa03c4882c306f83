// SPDX-License-Identifier: Apache-2.0
/*
 * thread_churn - one thread after the other that works for --work-us and ends: what does it cost to watch
 * pthread_create? A unit is one thread, made and joined; the default makes about 20,000 a second. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

#include <pthread.h>

static void *run(void *argument)
{
	work(*(const u64 *)argument);
	return NULL;
}

static void threads(const struct windows *w, u64 count)
{
	u64 iterations = w->iterations;
	pthread_t thread;

	for (u64 i = 0; i < count; i++) {
		if (pthread_create(&thread, NULL, run, &iterations)) {
			perror("pthread_create");
			exit(1);
		}
		pthread_join(thread, NULL);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = { WINDOWS_OPTIONS, { NULL, 0, NULL, 0 } };
	struct windows w = { .program = "thread_churn", .unit = "thread", .threads = 1, .event = "thread",
			     .events = 1, .count = 60, .work_us = 38, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	run_windows(&w, threads);
	return 0;
}
