// SPDX-License-Identifier: Apache-2.0
/*
 * calls_truth - calls of functions whose number is known: README.md says how many of each phase.
 * Where threads call at once, they meet before and after, spinning: all of them work at each call.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PLAIN __attribute__((noinline, noclone))
#define CLONED __attribute__((noinline))

static volatile long sink;

/* Begins with a mov: dear to probe, called directly only. */
static PLAIN void leaf(long x)
{
	sink = x * 3;
}

/* Begins with a push, or not: the compiler's choice; exported, so other files might call it. */
PLAIN void exported(long x)
{
	leaf(x);
	sink += x;
}

/* Reached through a pointer, and directly. */
static PLAIN long pointed(long x)
{
	return x ^ sink;
}

/* The compiler makes a copy of it for the constant argument, and one for the others. */
static CLONED long scaled(long x, long by)
{
	for (long i = 0; i < by; i++)
		sink += x;
	return sink;
}

static PLAIN long deep(long depth)
{
	if (!depth)
		return 1;
	return deep(depth - 1) + (sink & 1);
}

/* As compilers begin functions for tracers: a nop of five bytes. */
void nopped(void);
__asm__(".text\n.type nopped, @function\nnopped: .byte 0x0f, 0x1f, 0x44, 0, 0\nret\n.size nopped, . - nopped\n");

/* Begins as pthread_spin_lock does, with an instruction on which the kernel refuses a probe. */
void locked(void);
__asm__(".text\n.type locked, @function\nlocked: lock incq sink(%rip)\nret\n.size locked, . - locked\n");
void (*volatile through_locked)(void) = locked;

/* Begins with a mov, and its address is taken: the kernel has to execute that mov elsewhere, in each call. */
static PLAIN void stepped(long x)
{
	sink = x;
}

static void (*volatile through_stepped)(long) = stepped;

static PLAIN void set_up(void)
{
	for (long i = 0; i < 1009; i++)
		leaf(i);
}

static volatile int arrived[2];
static _Thread_local volatile long stored;

static void meet(int number)
{
	__atomic_fetch_add(&arrived[number], 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&arrived[number], __ATOMIC_SEQ_CST) % 2)
		stored++;	/* a loop that stores nothing would be known to wait */
}

static PLAIN void *sweep(void *unused)
{
	meet(0);
	for (long i = 0; i < 503; i++)
		leaf(i);
	meet(1);
	return unused;
}

static void in_two_threads(void)
{
	pthread_t thread;

	pthread_create(&thread, 0, sweep, 0);
	sweep(0);
	pthread_join(thread, 0);
}

static long (*volatile through)(long) = pointed;

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Millions of calls a second; prints how many. */
static PLAIN void storm(double seconds)
{
	double begun_s = now_s(), end_s = begun_s + seconds, s;
	long calls = 0;

	do {
		for (int i = 0; i < 1000; i++) {
			leaf(i);
			for (volatile int wait = 0; wait < 1000; wait++)
				;
		}
		calls += 1000;
		s = now_s();
	} while (s < end_s);
	printf("%.0f\n", calls / (s - begun_s));
	fflush(stdout);
}

/* In the middle of a call for good. */
static PLAIN void endless(void)
{
	for (;;)
		sink++;
}

/* Becomes itself anew, as a script does that ends in `exec PROGRAM`: the same file, with the same functions in it. */
static PLAIN void replace(void)
{
	for (long i = 0; i < 127; i++)
		exported(i);
	execl("/proc/self/exe", "calls_truth", "exported", (char *)0);
}

static void run(const char *phase)
{
	if (!strcmp(phase, "sequential")) {
		set_up();
	} else if (!strcmp(phase, "concurrent")) {
		in_two_threads();
	} else if (!strcmp(phase, "pointer")) {
		for (long i = 0; i < 211; i++)
			sink = through(i);
		for (long i = 0; i < 101; i++)
			sink = pointed(i);
	} else if (!strcmp(phase, "clones")) {
		for (long i = 0; i < 307; i++)
			scaled(i, 2);
		for (long i = 0; i < 401; i++)
			scaled(i, sink & 3);
	} else if (!strcmp(phase, "deep")) {
		sink = deep(100000);
	} else if (!strcmp(phase, "nop")) {
		for (long i = 0; i < 223; i++)
			nopped();
	} else if (!strcmp(phase, "locked")) {
		through_locked();
	} else if (!strcmp(phase, "stepped")) {
		for (long i = 0; i < 20011; i++)
			through_stepped(i);
	} else if (!strcmp(phase, "exported")) {
		for (long i = 0; i < 601; i++)
			exported(i);
	} else if (!strcmp(phase, "exec")) {
		replace();
	} else if (!strncmp(phase, "storm=", 6)) {
		storm(atof(phase + 6));
	} else if (!strcmp(phase, "endless")) {
		endless();
	} else if (!strcmp(phase, "exit")) {
		_exit(3);
	} else if (!strcmp(phase, "wait")) {
		puts("ready");
		fflush(stdout);
		getchar();
	} else {
		fprintf(stderr, "no phase %s\n", phase);
		exit(2);
	}
}

int main(int count, char **arguments)
{
	for (int i = 1; i < count; i++)
		run(arguments[i]);
	return 0;
}
