// SPDX-License-Identifier: Apache-2.0
/*
 * openmp.c - problems of OpenMP programs, each in a function of its own; the command line names those to have.
 * `sweep` runs beside them, in parallel and well balanced: nobody should blame it.
 */
#include "burn.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static volatile unsigned long sink;

APART static void sweep(void)
{
	unsigned long sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
	for (int i = 0; i < 1000; i++)
		sum += burn(i, 200 * US);
	sink = sum;
}

APART static void sum_serially(void)
{
	unsigned long x = 1;

	for (int i = 0; i < 300; i++)
		x = burn(x, 1000 * US);
	sink = x;
}

APART static void triangle(void)
{
	unsigned long sum = 0;

	for (int round = 0; round < 3; round++) {
#pragma omp parallel for schedule(static) reduction(+ : sum)
		for (int i = 0; i < 400; i++)
			sum += burn(i, 2 * i * US);
	}
	sink = sum;
}

APART static void guarded_total(void)
{
	static unsigned long total;

#pragma omp parallel for schedule(static)
	for (int i = 0; i < 8000; i++) {
		unsigned long mine = burn(i, 10 * US);

#pragma omp critical(total)
		total += burn(mine, 50 * US);
	}
	sink = total;
}

APART static void locked_list(void)
{
	static unsigned long total;
	omp_lock_t lock;

	omp_init_lock(&lock);
#pragma omp parallel for schedule(dynamic)
	for (int i = 0; i < 400; i++) {
		omp_set_lock(&lock);
		total += burn(i, 900 * US);
		omp_unset_lock(&lock);
		sink = burn(i, 100 * US);
	}
	omp_destroy_lock(&lock);
}

APART static unsigned long crumbs(int n)
{
	unsigned long a, b;

	if (n < 2)
		return burn(n, 50);
#pragma omp task shared(a)
	a = crumbs(n - 1);
#pragma omp task shared(b)
	b = crumbs(n - 2);
#pragma omp taskwait
	return a + b;
}

APART static void tiny_tasks(void)
{
#pragma omp parallel
#pragma omp single
	sink = crumbs(23);
}

APART static void tiny_regions(void)
{
	for (int round = 0; round < 30000; round++) {
#pragma omp parallel
		sink = burn(round, 500);
	}
}

APART static void tiny_chunks(void)
{
#pragma omp parallel for schedule(dynamic, 1)
	for (int i = 0; i < 15000000; i++)
		sink = burn(i, 4);
}

APART static void set_up_once(void)
{
#pragma omp parallel
	{
#pragma omp single
		sink = burn(7, 300000 * US);
		sink = burn(8, 50000 * US);
	}
}

APART static void big_section(void)
{
	sink = burn(1, 280000 * US);
}

APART static void small_section(void)
{
	sink = burn(2, 40000 * US);
}

APART static void two_sections(void)
{
#pragma omp parallel sections
	{
#pragma omp section
		big_section();
#pragma omp section
		small_section();
	}
}

APART static void chained_tasks(void)
{
	static int order;

#pragma omp parallel
#pragma omp single
	for (int i = 0; i < 60; i++) {
#pragma omp task depend(inout : order)
		sink = burn(i + order, 5000 * US);
	}
}

APART static int downwards(const void *a, const void *b)
{
	sink = burn(1, 100);
	return (*(const int *)a < *(const int *)b) - (*(const int *)a > *(const int *)b);
}

APART static void sort_keys(void)
{
	enum { N = 60000 };
	int *keys = malloc(N * sizeof(*keys));

	for (int i = 0; i < N; i++)
		keys[i] = (int)(burn(i, 3) >> 33);
	qsort(keys, N, sizeof(*keys), downwards);
	sink = keys[0];
	free(keys);
}

APART static void format_rows(void)
{
	char row[400];

	for (int i = 0; i < 200000; i++)
		sink = snprintf(row, sizeof(row), "%d %f %g %s", i, i / 3.0, i * 1e9, "name");
}

/* a child feeds it slowly, through a pipe */
APART static void read_slowly(void)
{
	int ends[2];
	char byte;

	if (pipe(ends))
		abort();
	pid_t child = fork();
	if (child == 0) {
		struct timespec pause = {.tv_nsec = 10000000};

		close(ends[0]);
		for (int i = 0; i < 40; i++) {
			nanosleep(&pause, NULL);
			if (write(ends[1], "x", 1) != 1)
				_exit(1);
		}
		_exit(0);
	}
	close(ends[1]);
	while (read(ends[0], &byte, 1) == 1)
		sink = burn(byte, 500 * US);
	close(ends[0]);
}

/* more threads than cores, with barriers between them */
/* One thread too many for two rounds of equal pieces: all others wait for the third. */
APART static void crowd(void)
{
#pragma omp parallel num_threads(2 * omp_get_num_procs() + 1)
	for (int round = 0; round < 100; round++) {
		sink = burn(round, 2000 * US);
#pragma omp barrier
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} PROBLEMS[] = {
	{"serial", sum_serially}, {"imbalance", triangle},	  {"critical", guarded_total},
	{"lock", locked_list},	  {"tasks", tiny_tasks},	  {"regions", tiny_regions},
	{"chunks", tiny_chunks},  {"single", set_up_once},	  {"sections", two_sections},
	{"chain", chained_tasks}, {"sort", sort_keys},		  {"format", format_rows},
	{"read", read_slowly},	  {"crowd", crowd},		  {"sweep", sweep},
};

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		size_t at = 0;

		while (at < sizeof(PROBLEMS) / sizeof(*PROBLEMS) && strcmp(argv[i], PROBLEMS[at].name))
			at++;
		if (at == sizeof(PROBLEMS) / sizeof(*PROBLEMS)) {
			fprintf(stderr, "%s: no such problem\n", argv[i]);
			return 2;
		}
		sweep();
		PROBLEMS[at].run();
	}
	sweep();
	return 0;
}
