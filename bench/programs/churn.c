/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts and ends processes at a steady rate, each of which runs a program that works a little:
 * churn RATE WORK_US SECONDS. At the end it prints how many there were.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stopped;

static void stop(int signal_number)
{
	(void)signal_number;
	stopped = 1;
}

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int work(long work_us)
{
	double until_s = now_s(CLOCK_THREAD_CPUTIME_ID) + work_us * 1e-6;

	while (now_s(CLOCK_THREAD_CPUTIME_ID) < until_s)
		;
	return 0;
}

int main(int argc, char **argv)
{
	double rate, end_s, start_s;
	long started = 0, ended = 0;
	struct sigaction action = { .sa_handler = stop };

	if (argc == 3 && !strcmp(argv[1], "--work"))
		return work(atol(argv[2]));
	if (argc != 4) {
		fprintf(stderr, "usage: %s RATE WORK_US SECONDS\n", argv[0]);
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	rate = atof(argv[1]);
	start_s = now_s(CLOCK_MONOTONIC);
	end_s = start_s + atof(argv[3]);
	while (!stopped && now_s(CLOCK_MONOTONIC) < end_s) {
		long due = (long)((now_s(CLOCK_MONOTONIC) - start_s) * rate);

		if (due - started > 1000)	/* the machine cannot keep up: do not pile it up */
			start_s += (due - started) / rate;
		for (; started < due && !stopped; started++) {
			pid_t pid = vfork();

			if (pid == 0) {
				execl("/proc/self/exe", argv[0], "--work", argv[2], NULL);
				_exit(127);
			}
			if (pid < 0)
				break;
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			ended++;
		usleep(1000);
	}
	while (waitpid(-1, NULL, 0) > 0)
		ended++;
	printf("{\"started\": %ld, \"ended\": %ld}\n", started, ended);
	return 0;
}
