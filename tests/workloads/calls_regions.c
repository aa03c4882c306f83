// SPDX-License-Identifier: Apache-2.0
/*
 * calls_regions - calls outside of a region of OpenMP and in it, whose number is known: `leaf` 211 times by the main
 * thread alone, and 307 times by each of the region's two threads, which meet before and after, spinning. All of it
 * three times, each part after it has worked for a while, so that samples have seen it.
 */
#include <time.h>

#define PLAIN __attribute__((noinline, noclone))

static volatile long sink;
static volatile int arrived;
static _Thread_local volatile long stored;

static PLAIN void leaf(long x)
{
	sink = x * 3;
}

static PLAIN void work(long ms)
{
	struct timespec t;
	long end, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	end = t.tv_sec * 1000000000L + t.tv_nsec + ms * 1000000L;
	do {
		for (int i = 0; i < 10000; i++)
			stored++;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
		now = t.tv_sec * 1000000000L + t.tv_nsec;
	} while (now < end);
}

static void meet(void)
{
	int mine = __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST), all = (mine + 1) / 2 * 2;

	while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < all)
		stored++;	/* a loop that stores nothing would be known to wait */
}

static PLAIN void alone(void)
{
	work(40);
	for (long i = 0; i < 211; i++)
		leaf(i);
	sink++;
}

static PLAIN void together(void)
{
	work(20);
	meet();
	work(20);
	for (long i = 0; i < 307; i++)
		leaf(i);
	meet();
}

int main(void)
{
	for (int round = 0; round < 3; round++) {
		alone();
#pragma omp parallel num_threads(2)
		together();
	}
	return 0;
}
