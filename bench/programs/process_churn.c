// SPDX-License-Identifier: Apache-2.0
/*
 * process_churn - a build: processes of --work-us each, --jobs at a time, one after the other. What does it cost to
 * watch a process from its exec to its end? A unit is one round of jobs; CPU times are those of all processes.
 * Output: windows.h.
 */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/time.h>

static unsigned long long own_and_children_ns(void)
{
	unsigned long long sum = 0;
	struct rusage u;

	for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) { /* -1 and 0 */
		getrusage(who, &u);
		sum += (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000ull +
		       (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000ull;
	}
	return sum;
}
#define CPU_NS own_and_children_ns
#include "windows.h"

#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#define MAX_JOBS 64

extern char **environ;
static int jobs = 2;

static void rounds(const struct windows *w, u64 count)
{
	char iterations[32];
	char *argv[] = { "process_churn", "job", iterations, NULL };
	pid_t pids[MAX_JOBS];

	snprintf(iterations, sizeof(iterations), "%" PRIu64, w->iterations);
	for (u64 i = 0; i < count; i++) {
		for (int j = 0; j < jobs; j++) {
			if (posix_spawn(&pids[j], "/proc/self/exe", NULL, NULL, argv, environ)) {
				perror("posix_spawn");
				exit(1);
			}
		}
		for (int j = 0; j < jobs; j++)
			waitpid(pids[j], NULL, 0);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = { WINDOWS_OPTIONS, { "jobs", required_argument, NULL, 'j' },
						 { NULL, 0, NULL, 0 } };
	struct windows w = { .program = "process_churn", .unit = "round", .event = "process", .count = 30,
			     .work_us = 10000, .seconds = 2 };
	int opt;

	if (argc == 3 && !strcmp(argv[1], "job")) {
		work(strtoull(argv[2], NULL, 10));
		return 0;
	}
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'j') {
			jobs = (int)number(optarg, 1, MAX_JOBS);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--jobs N] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	w.threads = w.events = jobs;
	run_windows(&w, rounds);
	return 0;
}
