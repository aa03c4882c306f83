// SPDX-License-Identifier: Apache-2.0
/*
 * ping_pong - two threads on one core send a byte to and fro through two pipes and do nothing else: the dearest that
 * context switches and wake-ups can be. A unit is a round trip: two switches, two wake-ups. cpu_ns and
 * window_cpu_ns are CLOCK_PROCESS_CPUTIME_ID. --cpu -1 lets the scheduler place them. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

#include <pthread.h>
#include <sched.h>

static int to_pong[2], to_ping[2];

static void *pong(void *unused)
{
	char byte;

	while (read(to_pong[0], &byte, 1) == 1 && byte)
		if (write(to_ping[1], &byte, 1) != 1)
			abort();
	return unused;
}

static void round_trips(const struct windows *w, u64 count)
{
	char byte = 1;

	for (u64 i = 0; i < count; i++) {
		if (w->iterations)
			work(w->iterations);
		if (write(to_pong[1], &byte, 1) != 1 || read(to_ping[0], &byte, 1) != 1)
			abort();
	}
}

/* To @cpu; -2 is the last one allowed, as CPU 0 takes most interrupts. */
static void pin(int cpu)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	for (int last = CPU_SETSIZE - 1; cpu == -2 && last >= 0; last--)
		if (CPU_ISSET(last, &set))
			cpu = last;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("--cpu");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "cpu", required_argument, NULL, 'c' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "ping_pong", .unit = "round_trip", .threads = 2, .event = "switch",
			     .events = 2, .count = 60, .work_us = 0, .seconds = 2 };
	int opt, cpu = -2;
	char quit = 0;
	pthread_t partner;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'c') {
			cpu = (int)number(optarg, -1, CPU_SETSIZE - 1);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--cpu N] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	if (cpu != -1)
		pin(cpu);
	if (pipe(to_pong) || pipe(to_ping) || pthread_create(&partner, NULL, pong, NULL)) {
		perror("ping_pong");
		return 1;
	}
	run_windows(&w, round_trips);
	if (write(to_pong[1], &quit, 1) != 1)
		abort();
	pthread_join(partner, NULL);
	return 0;
}
