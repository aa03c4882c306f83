// SPDX-License-Identifier: Apache-2.0
/*
 * sqpoll SECONDS - works so long, alone, while the kernel's thread polls its io_uring (IORING_SETUP_SQPOLL) all the time;
 * ends with 77 where the kernel lets nobody have that.
 */
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double used_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

__attribute__((noinline)) static void work(double seconds)
{
	double end = used_s() + seconds;

	while (used_s() < end)
		for (volatile int i = 0; i < 20000; i++)
			;
}

int main(int argc, char **argv)
{
	struct io_uring_params wanted = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 60000 };
	long ring = syscall(SYS_io_uring_setup, 8, &wanted);

	if (ring < 0)
		return 77;
	for (double left = argc > 1 ? atof(argv[1]) : 1; left > 0; left -= 0.01) {
		/* before it sleeps for the first time it is not to be woken, and it sleeps at once */
		syscall(SYS_io_uring_enter, ring, 0, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
		work(0.01);
	}
	return 0;
}
