// SPDX-License-Identifier: Apache-2.0
/*
 * vforks - starts children as make and shells do, by vfork: the C library then keeps the return address in a register,
 * and the parent sleeps until its child calls exec, or ends. Each child works for 0.2 s before that.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

static void __attribute__((noinline)) child_works(void)
{
	double end_s = now_s() + 0.2;

	while (now_s() < end_s)
		;
}

static void __attribute__((noinline)) start_child(void)
{
	pid_t child = vfork();

	if (!child) {
		child_works();
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

int main(void)
{
	for (int i = 0; i < 4; i++)
		start_child();
	return 0;
}
