// SPDX-License-Identifier: Apache-2.0
/*
 * contention - what a counter costs that many CPUs change.
 *
 *   contention atomics            ns of an atomic addition, and of reading a counter that another CPU changes:
 *                                 one line for each case
 *   contention switches CPU...    two threads on each of these CPUs send a byte to and fro through two pipes,
 *                                 until killed; "ready" when they do
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 2000, BURSTS = 101, TRIES = 3000, LINE = 128 };

static struct {
	_Alignas(LINE) _Atomic long value;
} counters[3];
static _Atomic int started, ended;
static _Atomic long *const progress = &counters[2].value; /* of the other thread, in hundreds of additions */

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("contention: cannot run on that CPU");
		exit(1);
	}
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return 1e9 * t.tv_sec + t.tv_nsec;
}

/* Changes a counter on CPU 1 until it is told to end. */
static void *other(void *counter)
{
	_Atomic long *value = counter;

	pin(1);
	started = 1;
	while (!ended) {
		for (int i = 0; i < 100; i++)
			atomic_fetch_add(value, i & 1 ? -1 : 1);
		atomic_fetch_add(progress, 1);
	}
	return NULL;
}

static void add(void)
{
	for (int i = 0; i < BURST; i++)
		atomic_fetch_add(&counters[0].value, i & 1 ? -1 : 1);
}

/* With enough between two looks that the other CPU has it back by then. */
static void look(void)
{
	for (int i = 0; i < BURST; i++) {
		atomic_load(&counters[0].value);
		for (volatile int j = 0; j < 100; j++)
			;
	}
}

static int compare(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Of one time, the median of short bursts: with company, of those in which the other thread ran all the time. On a busy
 * machine there are few. */
static double measure(void (*burst)(void), int company)
{
	double took[BURSTS], began, ns;
	long before;
	int found = 0;

	for (int i = 0; i < TRIES && found < BURSTS; i++) {
		before = *progress;
		began = now_ns();
		burst();
		ns = now_ns() - began;
		if (!company || (*progress - before) * 100 > BURST / 2)
			took[found++] = ns / BURST;
	}
	qsort(took, found, sizeof(took[0]), compare);
	return found ? took[found / 2] : 0;
}

static double beside(int counter, void (*burst)(void))
{
	pthread_t thread;
	double ns;

	started = ended = 0;
	if (pthread_create(&thread, NULL, other, &counters[counter].value))
		exit(1);
	while (!started)
		sched_yield();	/* it begins on this CPU */
	ns = measure(burst, 1);
	ended = 1;
	pthread_join(thread, NULL);
	return ns;
}

static int measure_atomics(void)
{
	alarm(30);
	pin(0);
	printf("alone %.2f\n", measure(add, 0));
	printf("apart %.2f\n", beside(1, add));
	printf("shared %.2f\n", beside(0, add));
	printf("read %.2f\n", beside(0, look) - measure(look, 0));
	return 0;
}

struct pair {
	int cpu, to_pong[2], to_ping[2];
};

static void *bounce(void *of)
{
	struct pair *pair = of;
	char byte = 1;

	pin(pair->cpu);
	while (read(pair->to_pong[0], &byte, 1) == 1 && write(pair->to_ping[1], &byte, 1) == 1)
		;
	return NULL;
}

static void *drive(void *of)
{
	struct pair *pair = of;
	char byte = 1;

	pin(pair->cpu);
	while (write(pair->to_pong[1], &byte, 1) == 1 && read(pair->to_ping[0], &byte, 1) == 1)
		;
	return NULL;
}

static int switch_threads(int count, char **cpus)
{
	pthread_t thread;

	for (int i = 0; i < count; i++) {
		struct pair *pair = calloc(1, sizeof(*pair));

		if (!pair || pipe(pair->to_pong) || pipe(pair->to_ping))
			return 1;
		pair->cpu = atoi(cpus[i]);
		if (pthread_create(&thread, NULL, bounce, pair) || pthread_create(&thread, NULL, drive, pair))
			return 1;
	}
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "atomics"))
		return measure_atomics();
	if (argc > 2 && !strcmp(argv[1], "switches"))
		return switch_threads(argc - 2, argv + 2);
	fprintf(stderr, "usage: contention atomics | switches CPU...\n");
	return 2;
}
