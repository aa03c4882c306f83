/* SPDX-License-Identifier: Apache-2.0 */
/* Where core time goes, as the program and the kernel know it: `identity MODE [NUMBER]` prints `name seconds` lines:
 * cpu and waited (runnable without a CPU; not of children) by /proc/thread-self/schedstat and wait4, before (both, of this
 * process before main, and of what became this program), stalled (all slept) and elapsed by its own clock. Threads are a team's where it is built with OpenMP. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

struct totals { _Atomic long long cpu_ns, waited_ns; };

static struct totals *totals;
static double begun[MOST], woken[MOST], stalled;
static int threads = 2;
static pthread_barrier_t start;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static int turn;
static volatile unsigned long sink;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void compute(double seconds)
{
	double end = now() + seconds;

	while (now() < end)
		for (int i = 0; i < 5000; i++)
			sink += i;
}

static void sleeps(double seconds)
{
	struct timespec t = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };

	nanosleep(&t, 0);
}

/* Adds what this thread has had to the totals, or takes it away: what was before main. */
static void add(int sign)
{
	long long cpu_ns, waited_ns;
	FILE *file = fopen("/proc/thread-self/schedstat", "r");

	if (!file || fscanf(file, "%lld %lld", &cpu_ns, &waited_ns) != 2)
		abort();
	fclose(file);
	totals->cpu_ns += sign * cpu_ns;
	totals->waited_ns += sign * waited_ns;
}

static void leave(void)
{
	add(1);
}

/* One holds the lock for as long as it works, the other waits for it, and works then. */
static void locked(int self)
{
	if (!self)
		pthread_mutex_lock(&lock);
	pthread_barrier_wait(&start);
	if (self)
		pthread_mutex_lock(&lock);
	compute(0.5);
	pthread_mutex_unlock(&lock);
}

/* All work, and then all sleep. */
static void once(int self)
{
	pthread_barrier_wait(&start);
	compute(0.4);
	begun[self] = now();
	sleeps(0.5);
	woken[self] = now();
	compute(0.1);
}

/* One works at a time. */
static void in_turn(int self)
{
	pthread_barrier_wait(&start);
	for (int i = 0; i < 15; i++) {
		pthread_mutex_lock(&lock);
		while (turn != self)
			pthread_cond_wait(&passed, &lock);
		pthread_mutex_unlock(&lock);
		compute(0.03);
		pthread_mutex_lock(&lock);
		turn = (self + 1) % threads;
		pthread_cond_broadcast(&passed);
		pthread_mutex_unlock(&lock);
	}
}

static void many(int self)
{
	(void)self;
	pthread_barrier_wait(&start);
	compute(1.0);
}

static void (*body)(int);

static void *runs(void *self)
{
	body((int)(long)self);
	if (self)
		leave();
	return 0;
}

static void run(void)
{
	pthread_barrier_init(&start, 0, threads);
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
	for (int i = 0; i < threads; i++)
		runs((void *)(long)i);
#else
	pthread_t made[MOST];

	for (long i = 1; i < threads; i++)
		pthread_create(&made[i], 0, runs, (void *)i);
	runs(0);
	for (int i = 1; i < threads; i++)
		pthread_join(made[i], 0);
#endif
}

static void children(int number)
{
	for (int i = 0; i < number; i++) {
		struct rusage used;

		if (!fork()) {
			compute(0.001);
			_exit(0);
		}
		/* with what its end took, which it cannot know itself */
		wait4(-1, 0, 0, &used);
		totals->cpu_ns += 1000000000LL * (used.ru_utime.tv_sec + used.ru_stime.tv_sec);
		totals->cpu_ns += 1000LL * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
	}
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*body)(int); } modes[] = {
		{ "lock", locked }, { "once", once }, { "turn", in_turn }, { "many", many }, { "children", 0 },
	};
	double from = now(), slept = 0.0, up = 1e18, before;
	size_t mode = 0;

	while (mode < sizeof(modes) / sizeof(*modes) && (argc < 2 || strcmp(argv[1], modes[mode].name)))
		mode++;
	if (mode == sizeof(modes) / sizeof(*modes)) {
		fprintf(stderr, "usage: %s lock|once|turn|many|children [NUMBER]\n", argv[0]);
		return 2;
	}
	totals = mmap(0, sizeof(*totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	add(-1);
	before = -(totals->cpu_ns + totals->waited_ns) * 1e-9;
	body = modes[mode].body;
	if (body) {
		threads = argc > 2 ? atoi(argv[2]) : 2;
		if (threads < 1 || threads > MOST)
			return 2;
		run();
		for (int i = 0; i < threads && body == once; i++) {
			slept = begun[i] > slept ? begun[i] : slept;
			up = woken[i] < up ? woken[i] : up;
		}
		stalled = body == once ? up - slept : 0.0;
	} else {
		children(argc > 2 ? atoi(argv[2]) : 1000);
	}
	leave();
	printf("cpu %.6f\nbefore %.6f\nstalled %.6f\nelapsed %.6f\n", totals->cpu_ns * 1e-9, before, stalled, now() - from);
	if (body)
		printf("waited %.6f\n", totals->waited_ns * 1e-9);
	return 0;
}
