// SPDX-License-Identifier: Apache-2.0
/*
 * storms.c - programs that do what a profiler watches for a million times a second, as real ones do.
 *
 *	storms tasks DEPTH SECONDS	one thread makes 100 tiny tasks at a time, below DEPTH calls
 *	storms tree DEPTH STEPS		0.3 s of serial CPU time, then a tree of tasks with 2^DEPTH leaves of STEPS steps
 *	storms late			1.5 s of tiny tasks, then a thread that burns, made by make_pool()
 *	storms bursts COUNT		so often: 0.1 s of serial CPU time, then 0.2 s of tiny tasks
 *	storms many THREADS		so many threads, each of which makes tasks of its own, at once
 *	storms shares SECONDS		often() makes three tasks for each one that seldom() makes, through one function,
 *					which waits for each; so many seconds of CPU time
 *	storms pingpong SECONDS		two threads on one core send a byte to and fro, without work
 *	storms locks SECONDS		two threads take a named critical section as fast as they can
 *	storms creator COUNT		so many threads, one after the other
 *
 * At its end each prints one line: wall, CPU and run delay of the whole process in seconds, and what it counted.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noipa))
#endif

static volatile long sink;
static double began;

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

NOINLINE void burn_cpu(double seconds)
{
	double end = now(CLOCK_THREAD_CPUTIME_ID) + seconds;

	while (now(CLOCK_THREAD_CPUTIME_ID) < end)
		for (int i = 0; i < 20000; i++)
			sink += i;
}

NOINLINE void serial_part(double seconds)
{
	burn_cpu(seconds);
	sink++;
}

NOINLINE void small(void)
{
	for (int i = 0; i < 200; i++)
		sink++;
}

NOINLINE int deep(int depth)
{
	if (depth)
		return deep(depth - 1) + depth;
	for (int i = 0; i < 100; i++) {
#pragma omp task
		small();
	}
#pragma omp taskwait
	return 1;
}

static long storm(int depth, double seconds)
{
	long tasks = 0;

#pragma omp parallel
#pragma omp single
	for (double end = now(CLOCK_MONOTONIC) + seconds; now(CLOCK_MONOTONIC) < end; tasks += 100)
		deep(depth);
	return tasks;
}

NOINLINE void leaf(long steps)
{
	volatile long x = 0;

	for (long i = 0; i < steps; i++)
		x += i;
	sink = x;
}

NOINLINE void tree(int depth, long steps)
{
	if (!depth) {
		leaf(steps);
		return;
	}
#pragma omp task
	tree(depth - 1, steps);
#pragma omp task
	tree(depth - 1, steps);
#pragma omp taskwait
}

NOINLINE void *burn_alone(void *argument)
{
	burn_cpu(0.4);
	return argument;
}

NOINLINE void make_pool(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, burn_alone, NULL) == 0)
		pthread_join(thread, NULL);
	sink++;
}

static pthread_barrier_t all_here;

static void *maker(void *argument)
{
	pthread_barrier_wait(&all_here);
#pragma omp parallel num_threads(1)
	for (int i = 0; i < 200; i++) {
#pragma omp task
		small();
	}
	return argument;
}

static void many(int count)
{
	pthread_t *threads = calloc((size_t)count, sizeof(*threads));
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 1 << 17);
	pthread_barrier_init(&all_here, NULL, (unsigned)count);
	for (int i = 0; i < count; i++)
		if (pthread_create(&threads[i], &attributes, maker, NULL))
			exit(1);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	free(threads);
}

/* Not all alike: samples, which come in even steps, would run in step with them. */
NOINLINE void shared_work(void)
{
	static __thread unsigned long seed = 42;

	seed = seed * 6364136223846793005ul + 1442695040888963407ul;
	leaf(30000 + (long)(seed >> 33) % 60000);
}

NOINLINE void make_task(void)
{
#pragma omp task
	shared_work();
#pragma omp taskwait
	sink++;
}

NOINLINE void often(void)
{
	for (int i = 0; i < 3; i++)
		make_task();
	sink++;
}

NOINLINE void seldom(void)
{
	make_task();
	sink++;
}

static void shares(double seconds)
{
#pragma omp parallel
#pragma omp single
	for (double end = now(CLOCK_PROCESS_CPUTIME_ID) + seconds; now(CLOCK_PROCESS_CPUTIME_ID) < end;) {
		often();
		seldom();
	}
}

static int there[2], back[2];
static void *answer(void *argument)
{
	char byte;

	while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
		;
	return argument;
}

static long pingpong(double seconds)
{
	cpu_set_t one;
	pthread_t thread;
	char byte = 0;
	long trips = 0;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (pipe(there) || pipe(back) || pthread_create(&thread, NULL, answer, NULL))
		exit(1);
	for (double end = now(CLOCK_MONOTONIC) + seconds; now(CLOCK_MONOTONIC) < end; trips++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			exit(1);
	close(there[1]);
	pthread_join(thread, NULL);
	return trips;
}

static long locks(double seconds)
{
	long sections = 0;

#pragma omp parallel
	for (double end = now(CLOCK_MONOTONIC) + seconds; now(CLOCK_MONOTONIC) < end;) {
		for (int i = 0; i < 100; i++) {
#pragma omp critical(sum)
			sections++;
		}
	}
	return sections;
}

static void *nothing(void *argument)
{
	return argument;
}

static long creator(long count)
{
	for (long i = 0; i < count; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, nothing, NULL))
			exit(1);
		pthread_join(thread, NULL);
	}
	return count;
}

/* Time that the threads which live now were ready and had no CPU. */
static double run_delay(void)
{
	DIR *tasks = opendir("/proc/self/task");
	double sum = 0;

	for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
		char path[300];
		unsigned long long ran, waited;
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (file && fscanf(file, "%llu %llu", &ran, &waited) == 2)
			sum += (double)waited * 1e-9;
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return sum;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	double number = argc > 2 ? atof(argv[2]) : 0, second = argc > 3 ? atof(argv[3]) : 1;
	long counted = 0;
	struct rusage usage;

	began = now(CLOCK_MONOTONIC);
	if (!strcmp(what, "tasks")) {
		counted = storm((int)number, second);
	} else if (!strcmp(what, "tree")) {
		serial_part(0.3);
#pragma omp parallel
#pragma omp single
		tree((int)number, (long)second);
	} else if (!strcmp(what, "late")) {
		counted = storm(0, number);
		make_pool();
	} else if (!strcmp(what, "bursts")) {
		for (int i = 0; i < (int)number; i++) {
			serial_part(0.1);
			counted += storm(0, 0.2);
		}
	} else if (!strcmp(what, "many")) {
		many((int)number);
	} else if (!strcmp(what, "shares")) {
		shares(number);
	} else if (!strcmp(what, "pingpong")) {
		counted = pingpong(number);
	} else if (!strcmp(what, "locks")) {
		counted = locks(number);
	} else if (!strcmp(what, "creator")) {
		counted = creator((long)number);
	} else {
		fprintf(stderr, "usage: storms WHAT NUMBER [NUMBER]: see storms.c\n");
		return 2;
	}
	getrusage(RUSAGE_SELF, &usage);
	printf("wall %.6f cpu %.6f delay %.6f counted %ld\n", now(CLOCK_MONOTONIC) - began,
	       (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6,
	       run_delay(), counted);
	return 0;
}
