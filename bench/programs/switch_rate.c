// SPDX-License-Identifier: Apache-2.0
/*
 * switch_rate - two threads hand a token back and forth, through a futex or two
 * pipes, with work in between: what does it cost to watch context switches?
 * A unit is a round trip: two hand-overs, two context switches; the default
 * makes about 50,000 switches/s. Both threads share one CPU: a hand-over is then
 * one sched_switch, not two by way of the idle task, and no wake-up of a sleeping
 * CPU blurs the timing. --cpu -1 lets the scheduler place them instead.
 * Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>

enum { PING, PONG, QUIT };

static bool by_pipe;
static _Atomic int turn; /* whose move it is, or QUIT */
static int pipes[2][2];
static u64 iterations;

static void hand_to(int side)
{
	char token = (char)side;

	if (by_pipe) {
		if (write(pipes[side == QUIT ? PONG : side][1], &token, 1) != 1)
			abort();
		return;
	}
	atomic_store(&turn, side);
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Waits for the move of @me; false if it is time to quit. */
static bool wait_for(int me)
{
	int now = 0;
	char token;

	if (by_pipe)
		return read(pipes[me][0], &token, 1) == 1 && token == me;
	while ((now = atomic_load(&turn)) != me && now != QUIT)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
	return now == me;
}

static void *pong(void *unused)
{
	while (wait_for(PONG)) {
		work(iterations);
		hand_to(PING);
	}
	return unused;
}

static void ping(const struct windows *w, u64 count)
{
	iterations = w->iterations;
	for (u64 i = 0; i < count; i++) {
		work(iterations);
		hand_to(PONG);
		wait_for(PING);
	}
}

static void pin(int cpu)
{
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	for (int last = 0; cpu == -2 && last < CPU_SETSIZE; last++)
		if (CPU_ISSET(CPU_SETSIZE - 1 - last, &set))
			cpu = CPU_SETSIZE - 1 - last;
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
		{ "pipe", no_argument, NULL, 'p' },
		{ "cpu", required_argument, NULL, 'c' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "switch_rate", .unit = "round_trip", .threads = 2,
			     .count = 60, .work_us = 18, .seconds = 2 };
	int opt, cpu = -2; /* -2: the last one allowed; CPU 0 takes most interrupts */
	pthread_t partner;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'p') {
			by_pipe = true;
		} else if (opt == 'c') {
			cpu = (int)number(optarg, -1, CPU_SETSIZE - 1);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--pipe] [--cpu N] " WINDOWS_USAGE "\n", argv[0]);
			return 2;
		}
	}
	if (cpu != -1)
		pin(cpu);
	if (pipe(pipes[PING]) || pipe(pipes[PONG]) || pthread_create(&partner, NULL, pong, NULL)) {
		perror("switch_rate");
		return 1;
	}
	run_windows(&w, ping);
	hand_to(QUIT);
	pthread_join(partner, NULL);
	return 0;
}
