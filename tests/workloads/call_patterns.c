// SPDX-License-Identifier: Apache-2.0
/*
 * call_patterns - what samples alone cannot tell: how often the functions were called that took the time.
 *
 *   call_patterns figure1       figure 1 of froyd-2005: `a` calls `c` twice, `b` four times for half of the work each
 *   call_patterns few_many      `few` calls `step` 3 times, `many` calls it 3,001 times: half of the time each
 *   call_patterns recursion     two recursions of different depths in turn, 40 and 300, 23 times each
 *   call_patterns threads       13 threads, one after the other, each of which calls `c` once
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PLAIN __attribute__((noinline, noclone))
#define CALLS_MANY 3001
#define CALLS_FEW 3

/* Work is so much CPU time, whatever a core does in it from one moment to the next. */
#ifndef UNIT_NS
#define UNIT_NS 200000000L
#endif
#define STEPS 4000	/* between two looks at the clock */

static volatile long sink;

static inline long used_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static PLAIN void d(void)
{
	__asm__ volatile("");
}

static PLAIN void c(long n)
{
	long end = used_ns() + UNIT_NS / n;

	while (used_ns() < end)
		for (int i = 0; i < STEPS; i++)
			d();
	sink++;	/* no tail call */
}

static PLAIN void b(void (*f)(long))
{
	f(2);
	f(2);
	f(2);
	f(2);
	sink++;
}

static PLAIN void a(void (*f)(long))
{
	f(1);
	f(1);
	sink++;
}

static inline void use(long ns)
{
	long end = used_ns() + ns;

	while (used_ns() < end)
		for (volatile int i = 0; i < STEPS; i++)
			;
}

static PLAIN void spin(long ns)
{
	use(ns);
}

static PLAIN void step(long ns)
{
	spin(ns);
	sink++;
}

static PLAIN void few(long work)
{
	step(work / CALLS_FEW);
	step(work / CALLS_FEW);
	step(work / CALLS_FEW);
	sink++;
}

/* A fifth of its time is its own, as where a loop does something with what it calls. */
static PLAIN void many(long work)
{
	for (int i = 0; i < CALLS_MANY; i++) {
		step(work / CALLS_MANY);
		use(work / CALLS_MANY / 4);
	}
	sink++;
}

static PLAIN long deep(long depth, long work)
{
	if (!depth) {
		spin(work);
		return 1;
	}
	return deep(depth - 1, work) + (sink & 1);
}

static PLAIN void recursion(long work)
{
	for (int i = 0; i < 23; i++) {
		sink += deep(40, work);
		sink += deep(300, work);
	}
}

static void *thread(void *unused)
{
	c(8);
	sink++;
	return unused;
}

static PLAIN void threads(void)
{
	pthread_t one;

	for (int i = 0; i < 13; i++) {
		pthread_create(&one, 0, thread, 0);
		pthread_join(one, 0);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "figure1")) {
		a(c);
		b(c);
	} else if (!strcmp(what, "few_many")) {
		few(UNIT_NS * 3);
		many(UNIT_NS * 3);
	} else if (!strcmp(what, "recursion")) {
		recursion(UNIT_NS / 10);
	} else if (!strcmp(what, "threads")) {
		threads();
	} else {
		fprintf(stderr, "call_patterns: figure1, few_many, recursion or threads\n");
		return 2;
	}
	return 0;
}
