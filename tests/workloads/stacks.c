// SPDX-License-Identifier: Apache-2.0
/*
 * stacks - programs whose call stack is known at every instant, for the unwinder. Built without frame
 * pointers. Usage: stacks KIND [DEPTH] [SECONDS]; prints "ready PID" first.
 *	recursion	main > descend (DEPTH times) > spin
 *	callback	main > sort > qsort > compare > spin
 *	signal		main > spin_until > (signal) > handler > spin, on an alternate stack
 *	realign		main > realigned (AVX, variable-length array) > spin
 *	clone		a thread made by clone(2) without pthreads: runs thread_body > spin
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static double seconds = 1;
static struct timespec start;
static volatile uint64_t sink;

static int over(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 > seconds;
}

NOINLINE static uint64_t spin(uint64_t rounds)
{
	uint64_t x = rounds;

	for (uint64_t i = 0; i < rounds; i++)
		x = (x ^ x >> 29) * 6364136223846793005u;
	sink = x;
	return x;
}

NOINLINE static uint64_t descend(int depth)
{
	uint64_t result = 0;

	if (depth > 0) {
		result = descend(depth - 1);
		sink += result;	/* work after the call keeps the recursion from becoming a loop */
		return result;
	}
	while (!over())
		result += spin(20000);
	return result;
}

NOINLINE static int compare(const void *a, const void *b)
{
	spin(20000);
	return *(const int *)a - *(const int *)b;
}

NOINLINE static void sort(void)
{
	int values[512];

	while (!over()) {
		for (int i = 0; i < 512; i++)
			values[i] = i * 7919 % 512;
		qsort(values, 512, sizeof(values[0]), compare);
	}
}

NOINLINE static void handler(int number)
{
	(void)number;
	for (int i = 0; i < 40; i++)
		spin(20000);
}

NOINLINE static void spin_until(void)
{
	while (!over())
		sink++;
}

static void signals(void)
{
	struct itimerval every = { { 0, 2000 }, { 0, 2000 } };
	stack_t stack = { .ss_sp = malloc(1 << 18), .ss_size = 1 << 18 };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART };

	sigaltstack(&stack, NULL);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	spin_until();
}

typedef float vector __attribute__((vector_size(32)));

__attribute__((noinline, noclone, target("avx2"))) static uint64_t realigned(int n)
{
	vector v[2];
	char buffer[n];

	memset(v, n, sizeof(v));
	__asm__ volatile("" : : "r"(v), "r"(buffer) : "memory");
	while (!over())
		spin(20000);
	return (uint64_t)v[1][0] + (uint64_t)buffer[0];
}

NOINLINE static int thread_body(void *unused)
{
	(void)unused;
	while (!over())
		spin(20000);
	return 0;
}

static void cloned(void)
{
	size_t size = 1 << 18;
	char *stack = malloc(size);
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD;
	int pid = clone(thread_body, stack + size, flags, NULL);

	while (!over())
		spin(20000);
	waitpid(pid, NULL, 0);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	int depth = argc > 2 ? atoi(argv[2]) : 20;

	if (argc > 3)
		seconds = atof(argv[3]);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
	if (!strcmp(kind, "recursion"))
		sink += descend(depth);
	else if (!strcmp(kind, "callback"))
		sort();
	else if (!strcmp(kind, "signal"))
		signals();
	else if (!strcmp(kind, "realign"))
		sink += realigned(depth);
	else if (!strcmp(kind, "clone"))
		cloned();
	else
		return 2;
	return 0;
}
