// SPDX-License-Identifier: Apache-2.0
/*
 * calls_times - calls whose times are known: the program logs each one itself. The timing problems of malony-1987
 * sec. 3.3.3, the recursions of sec. 4.4.1, and calls that end otherwise than by returning: README.md. Prints one line
 * for each call that ended: routine, thread, begin, end (CLOCK_MONOTONIC) and CPU time, in nanoseconds.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PLAIN __attribute__((noinline, noclone))
#define MOST_CALLS 65536

struct call {
	const char *routine;
	long thread, begin_ns, end_ns, cpu_ns;
};

static struct call calls[MOST_CALLS];
static int called;
static volatile long sink;

static long clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static struct call begun(const char *routine)
{
	return (struct call){ routine, gettid(), clock_ns(CLOCK_MONOTONIC), 0, clock_ns(CLOCK_THREAD_CPUTIME_ID) };
}

static void ended(struct call call)
{
	int index = __atomic_fetch_add(&called, 1, __ATOMIC_SEQ_CST);

	call.end_ns = clock_ns(CLOCK_MONOTONIC);
	call.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - call.cpu_ns;
	if (index < MOST_CALLS)
		calls[index] = call;
}

/* Uses so much CPU time. */
static void busy(long ms)
{
	long end_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) + ms * 1000000;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)
		sink++;
}

static void nap(long ms)
{
	usleep(ms * 1000);
}

/* Both threads are here at once, and run. */
static void meet(int *arrived)
{
	__atomic_fetch_add(arrived, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(arrived, __ATOMIC_SEQ_CST) < 2)
		sink++;
}

static int before[16];
static pthread_t start(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	if (pthread_create(&thread, 0, run, argument))
		abort();
	return thread;
}

/* One after the other. */
static PLAIN void serial(long ms)
{
	struct call call = begun("serial");

	busy(ms);
	nap(ms / 2);
	ended(call);
}

/* Problem 1: concurrent with itself. `mixed` is called sequentially before that. */
static PLAIN void mixed(long ms)
{
	struct call call = begun("mixed");

	busy(ms);
	ended(call);
}

static void *mixed_in_thread(void *ms)
{
	meet(&before[0]);
	mixed((long)ms);
	return 0;
}

/* Problems 2 and 4: two routines that one called, at once. */
static PLAIN void left(void)
{
	struct call call = begun("left");

	busy(120);
	ended(call);
}

static PLAIN void right(void)
{
	struct call call = begun("right");

	busy(60);
	ended(call);
}

static void *right_in_thread(void *unused)
{
	meet(&before[1]);
	right();
	return unused;
}

static PLAIN void forks(void)
{
	struct call call = begun("forks");
	pthread_t thread = start(right_in_thread, 0);

	meet(&before[1]);
	left();
	pthread_join(thread, 0);
	ended(call);
}

/* Problem 3: a routine works beside one that it had called in another thread. */
static PLAIN void callee(void)
{
	struct call call = begun("callee");

	busy(80);
	ended(call);
}

static void *callee_in_thread(void *unused)
{
	meet(&before[2]);
	callee();
	return unused;
}

static PLAIN void caller(void)
{
	struct call call = begun("caller");
	pthread_t thread = start(callee_in_thread, 0);

	meet(&before[2]);
	busy(150);
	pthread_join(thread, 0);
	ended(call);
}

/* Sec. 4.4.1. (1): recursion of one thread, here on the way `level` deep; (2): which ends on another CPU. */
static PLAIN long again(long level, int moves)
{
	struct call call = begun("again");
	cpu_set_t one, all;

	if (moves && !level && !sched_getaffinity(0, sizeof(all), &all)) {
		for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			if (!CPU_ISSET(cpu, &all) || cpu == sched_getcpu())
				continue;
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof(one), &one);
			break;
		}
	}
	busy(40);
	if (level)
		sink += again(level - 1, moves);
	ended(call);
	return sink;
}

static PLAIN void recurses(long in_threads);

static void *recurses_in_thread(void *unused)
{
	meet(&before[3]);
	recurses(0);
	return unused;
}

static void *recurses_beside(void *unused)
{
	meet(&before[4]);
	recurses(0);
	return unused;
}

/* (3): the inner call is another thread's; (4): both inner calls are, at once. */
static PLAIN void recurses(long in_threads)
{
	struct call call = begun("recurses");
	pthread_t first, second;

	if (in_threads == 1) {
		first = start(recurses_beside, 0);
		meet(&before[4]);
		busy(120);
		pthread_join(first, 0);
	} else if (in_threads) {
		first = start(recurses_in_thread, 0);
		second = start(recurses_in_thread, 0);
		pthread_join(first, 0);
		pthread_join(second, 0);
	} else {
		busy(60);
	}
	ended(call);
}

/* (5): entered concurrently, and again by the same thread. */
static PLAIN long beside(long level)
{
	struct call call = begun("beside");

	busy(40);
	if (level)
		sink += beside(level - 1);
	ended(call);
	return sink;
}

static void *beside_in_thread(void *unused)
{
	meet(&before[5]);
	beside(1);
	return unused;
}

/* It ends where it jumps to another function, whose time is none of its own. */
static PLAIN void last(long ms)
{
	struct call call = begun("last");

	busy(ms);
	ended(call);
}

static PLAIN void tail(long ms)
{
	struct call call = begun("tail");

	busy(ms);
	ended(call);
	last(ms);
}

static jmp_buf back;

static PLAIN void jumps(long ms)
{
	struct call call = begun("jumps");

	busy(ms);
	ended(call);
	longjmp(back, 1);
}

static PLAIN void *leaves_thread(void *unused)
{
	busy(5);
	pthread_exit(unused);
}

static PLAIN long choose(long x)
{
	struct call call = begun("choose");

	switch (x) {
	case 0: busy(1); sink += 7; break;
	case 1: busy(2); sink -= 1; break;
	case 2: busy(1); sink ^= x; break;
	case 3: busy(2); sink *= 3; break;
	case 4: ended(call); return sink + 9;
	case 5: busy(1); sink |= 8; break;
	default: sink = x;
	}
	ended(call);
	return sink;
}

static PLAIN void quick(long x)
{
	sink = x;
}

static void handle(int unused)
{
	quick(unused);
}

static PLAIN void interrupted(void)
{
	struct call call = begun("interrupted");

	busy(5);
	raise(SIGUSR1);
	busy(5);
	ended(call);
}

/* Its handler's stack is the main thread's, far above its own. */
static void *interrupted_in_thread(void *stack)
{
	stack_t other = { .ss_sp = stack, .ss_size = SIGSTKSZ };

	sigaltstack(&other, 0);
	interrupted();
	return 0;
}

static void in_handler(void)
{
	char *stack = alloca(SIGSTKSZ);
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK };

	sigaction(SIGUSR1, &action, 0);
	pthread_join(start(interrupted_in_thread, stack), 0);
}

static void run(const char *phase)
{
	pthread_t thread;

	if (!strcmp(phase, "serial")) {
		for (int i = 0; i < 7; i++)
			serial(20);
	} else if (!strcmp(phase, "mixed")) {
		mixed(100);
		thread = start(mixed_in_thread, (void *)150);
		meet(&before[0]);
		mixed(100);
		pthread_join(thread, 0);
	} else if (!strcmp(phase, "forks")) {
		forks();
	} else if (!strcmp(phase, "caller")) {
		caller();
	} else if (!strcmp(phase, "again")) {
		again(4, 0);
	} else if (!strcmp(phase, "moves")) {
		again(4, 1);
	} else if (!strcmp(phase, "enters-elsewhere")) {
		recurses(1);
	} else if (!strcmp(phase, "concurrent-recursion")) {
		recurses(2);
	} else if (!strcmp(phase, "beside")) {
		thread = start(beside_in_thread, 0);
		meet(&before[5]);
		busy(120);
		pthread_join(thread, 0);
	} else if (!strcmp(phase, "tail")) {
		for (int i = 0; i < 13; i++)
			tail(3);
	} else if (!strcmp(phase, "jumps")) {
		for (volatile int i = 0; i < 11; i++)
			if (!setjmp(back))
				jumps(4);
		nap(50);
	} else if (!strcmp(phase, "leaves-thread")) {
		pthread_join(start(leaves_thread, 0), 0);
	} else if (!strcmp(phase, "handler")) {
		in_handler();
	} else if (!strcmp(phase, "choose")) {
		for (int i = 0; i < 23; i++)
			sink = choose(i % 7);
	} else if (!strcmp(phase, "quick")) {
		for (int i = 0; i < 2003; i++)
			quick(i);
	} else {
		fprintf(stderr, "no phase %s\n", phase);
		exit(2);
	}
}

int main(int count, char **arguments)
{
	for (int i = 1; i < count; i++)
		run(arguments[i]);
	for (int i = 0; i < called; i++)
		printf("%s %ld %ld %ld %ld\n", calls[i].routine, calls[i].thread, calls[i].begin_ns, calls[i].end_ns,
		       calls[i].cpu_ns);
	return 0;
}
