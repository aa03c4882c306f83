// SPDX-License-Identifier: Apache-2.0
/*
 * Programs whose speed-up is a formula, for `parprof scale`: span_forms FORM N. Work is done (UNIT multiplications
 * each), or, with PARPROF_SPAN_CLOCK=test, only said to the library: then the results are exact.
 *
 * tests/unit/scale_programs.py has the formulas.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "work_us.h"

extern void parprof_span_work(unsigned long units) __attribute__((weak));

static int is_test_clock;
static volatile double sink;

static __attribute__((noinline)) void work(long units)
{
	double x = 1;

	if (is_test_clock) {
		parprof_span_work((unsigned long)units);
		return;
	}
	for (long i = 0; i < units; i++)
		x = x * 1.0000001 + 0.5;
	sink = x;
}

/* Serial part; a static triangular loop; then an even one, a single, and a triangular one dealt out in turn. */
static void triangle(long n)
{
	work(n * n / 20);
#pragma omp parallel for schedule(static)
	for (long i = 0; i < n; i++)
		work(i);
#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (long i = 0; i < n; i++)
			work(n / 2);
#pragma omp single
		work(n * n / 40);
#pragma omp for schedule(static, 1)
		for (long i = 0; i < n; i++)
			work(i);
	}
}

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A dynamic loop of n chunks, of which one is as long as n / 16 others: it says how long that was, in CPU time and by the clock. */
static void large_chunk(long n)
{
	double cpu = 0, wall = 0;

#pragma omp parallel for schedule(dynamic, 1)
	for (long i = 0; i < n; i++) {
		if (i == n / 2) {
			wall = seconds(CLOCK_MONOTONIC);
			cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
			work(1000 * n / 16);
			cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
			wall = seconds(CLOCK_MONOTONIC) - wall;
		} else {
			work(1000);
		}
	}
	if (!is_test_clock)
		printf("cpu %.9f wall %.9f\n", cpu, wall);
}

/* Tests a lock in vain n times, with next to nothing in between, and works 100 n. */
static void tests(long n)
{
	omp_lock_t lock;

	omp_init_lock(&lock);
#pragma omp parallel
#pragma omp single
	{
		omp_set_lock(&lock);
		for (long i = 0; i < n; i++) {
			omp_test_lock(&lock);
			work(1);
		}
		work(100 * n);
		omp_unset_lock(&lock);
	}
}

/* One member has 100 n to do alone first, while the others begin with a loop of 720 n: 20 n are one chunk. */
static void nowait(long n)
{
#pragma omp parallel
	{
#pragma omp single nowait
		work(100 * n);
#pragma omp for schedule(dynamic, 1)
		for (long i = 0; i < 7 * n; i++)
			work(i ? 100 : 20 * n + 100);
	}
}

static void guided(long n)
{
#pragma omp parallel for schedule(guided)
	for (long i = 0; i < n; i++)
		work(1000);
}

/* The same; it says how long all threads worked by their own clocks, and for how long the one that did most. */
static void timed_guided(long n)
{
	double all = 0, most = 0;

#pragma omp parallel reduction(+ : all) reduction(max : most)
	{
		double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);

#pragma omp for schedule(guided) nowait
		for (long i = 0; i < n; i++)
			work(1000);
		all = most = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
	}
	printf("all %.9f most %.9f\n", all, most);
}

/* Each iteration holds the lock for a quarter of its time. */
static void critical(long n)
{
#pragma omp parallel for schedule(static)
	for (long i = 0; i < n; i++) {
		work(3000);
#pragma omp critical(counter)
		work(1000);
	}
}

/* Cells of an n x n grid, each after the one above it and the one to its left. */
static void wavefront_of(long n, void (*do_work)(long), long amount)
{
	char *cells = calloc((size_t)(n + 1) * (size_t)(n + 1), 1);

#pragma omp parallel
#pragma omp single
	for (long i = 1; i <= n; i++) {
		for (long j = 1; j <= n; j++) {
			char *above = &cells[(i - 1) * (n + 1) + j], *left = &cells[i * (n + 1) + j - 1];
			char *cell = &cells[i * (n + 1) + j];

#pragma omp task depend(in : *above, *left) depend(out : *cell) firstprivate(cell, amount)
			do_work(amount + (cell == NULL));
		}
	}
	free(cells);
}

static void wavefront(long n)
{
	wavefront_of(n, work, 100000);
}

/* For the clock: the longest of very many paths is the one whose cells took longest, and a core is slower while others
 * use what it shares with them. So all take as long by their thread's clock; an interrupt is little of cells so long. */
static void long_wavefront(long n)
{
	wavefront_of(n, work_us, 3200);
}

/* The same grid as a loop: rows are dealt out in turn, and wait for the one above. Cells are as those. */
static void doacross(long n)
{
#pragma omp parallel for ordered(2) schedule(static, 1)
	for (long i = 0; i < n; i++) {
		for (long j = 0; j < n; j++) {
#pragma omp ordered depend(sink : i - 1, j)
			work_us(320);
#pragma omp ordered depend(source)
		}
	}
}

/* Four stages for n items: each stage in the order of items, each item through all stages. */
static void pipeline(long n)
{
	char stage[4] = {0}, *item = calloc((size_t)n, 1);

#pragma omp parallel
#pragma omp single
	for (long i = 0; i < n; i++) {
		for (int s = 0; s < 4; s++) {
			char *mine = &item[i], *turn = &stage[s];

#pragma omp task depend(inout : *mine, *turn) firstprivate(mine)
			work(10000 + (mine == NULL));
		}
	}
	free(item);
}

static void sixteen_tasks(long n)
{
	for (int i = 0; i < 16; i++) {
#pragma omp task
		work(n);
	}
}

/* Three times, code of one thread and then sixteen tasks. */
static void stages(long n)
{
#pragma omp parallel
#pragma omp single
	{
		work(n);
		sixteen_tasks(n);
#pragma omp taskwait
		work(n);
#pragma omp taskgroup
		sixteen_tasks(n);
#pragma omp task if (0)
		work(n);
		sixteen_tasks(n);
	}
}

/* Tasks are made beside other code of the region, which is behind none of them. */
static void no_stages(long n)
{
#pragma omp parallel
	{
#pragma omp single nowait
		{
			work(n);
			sixteen_tasks(n);
		}
		work(4 * n);
	}
}

static long fib(long n)
{
	long one, other;

	if (n < 2) {
		work(10);
		return n;
	}
#pragma omp task shared(one)
	one = fib(n - 1);
	other = fib(n - 2);
#pragma omp taskwait
	return one + other;
}

/* Multiplies by eight halves, in two phases of four: a base case is on the critical path 2^levels times. */
static void multiply(long size)
{
	if (size == 1) {
		work(1000);
		return;
	}
	for (int phase = 0; phase < 2; phase++) {
		for (int part = 0; part < 4; part++) {
#pragma omp task
			multiply(size / 2);
		}
#pragma omp taskwait
	}
}

static void sort(long *values, long count)
{
	long pivot, low = 0, high = count - 1;

	if (count < 32) {
		for (long i = 1; i < count; i++) {
			long value = values[i], j = i;

			for (; j > 0 && values[j - 1] > value; j--)
				values[j] = values[j - 1];
			values[j] = value;
		}
		if (is_test_clock)
			work(count * 10);
		return;
	}
	if (is_test_clock)
		work(count);
	pivot = values[count / 2];
	while (low <= high) {
		while (values[low] < pivot)
			low++;
		while (values[high] > pivot)
			high--;
		if (low <= high) {
			long kept = values[low];

			values[low++] = values[high];
			values[high--] = kept;
		}
	}
#pragma omp task
	sort(values, high + 1);
	sort(values + low, count - low);
#pragma omp taskwait
}

static void quicksort(long count)
{
	long *values = malloc((size_t)count * sizeof(*values));
	unsigned long seed = 42;

	for (long i = 0; i < count; i++) {
		seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		values[i] = (long)(seed >> 33);
	}
#pragma omp parallel
#pragma omp single
	sort(values, count);
	for (long i = 1; i < count; i++)
		if (values[i - 1] > values[i])
			abort();
	free(values);
}

static void sections(long n)
{
#pragma omp parallel sections
	{
		work(n);
#pragma omp section
		work(2 * n);
#pragma omp section
		work(3 * n);
	}
}

static void taskloop(long n)
{
	long sum = 0;

#pragma omp parallel
#pragma omp single
	{
#pragma omp taskloop grainsize(1) reduction(+ : sum)
		for (long i = 0; i < n; i++) {
			work(i == 3 ? 5000 : 1000);
			sum += i;
		}
		work(7);
	}
	if (sum != n * (n - 1) / 2)
		abort();
}

static void nested(long n)
{
	omp_set_max_active_levels(2);
#pragma omp parallel num_threads(2)
	{
		work(n);
#pragma omp parallel num_threads(4)
		work(10 * n * (1 + omp_get_thread_num()));
#pragma omp barrier
		work(omp_get_thread_num() * n);
	}
}

static void ordered(long n)
{
#pragma omp parallel for ordered schedule(dynamic)
	for (long i = 0; i < n; i++) {
		work(1000);
#pragma omp ordered
		work(500);
	}
}

static void exits(long n)
{
	work(n);
#pragma omp parallel for schedule(static)
	for (long i = 0; i < 64; i++)
		work(n);
#pragma omp parallel
#pragma omp single
	{
#pragma omp task
		{
			work(n);
			exit(3);
		}
	}
}

static void waits(long n)
{
	work(n);
#pragma omp parallel for schedule(static)
	for (long i = 0; i < 64; i++)
		work(n);
	puts("ready");
	fflush(stdout);
	for (;;)
		;
}

static void procs(long n)
{
	printf("%d %ld\n", omp_get_num_procs(), n);
	work(n);
}

static void region_rate(long n)
{
	for (long i = 0; i < n; i++) {
#pragma omp parallel
		sink += 1;
	}
}

static void call_fib(long n)
{
#pragma omp parallel
#pragma omp single
	printf("%ld\n", fib(n));
}

static void call_multiply(long n)
{
#pragma omp parallel
#pragma omp single
	multiply(n);
}

static const struct {
	const char *name;
	void (*run)(long);
} forms[] = {
	{"triangle", triangle},	  {"large_chunk", large_chunk}, {"guided", guided},	  {"timed_guided", timed_guided}, {"nowait", nowait},	  {"tests", tests},	  {"critical", critical},
	{"wavefront", wavefront}, {"pipeline", pipeline},	{"fib", call_fib},	  {"multiply", call_multiply},
	{"quicksort", quicksort}, {"sections", sections},	{"taskloop", taskloop},	  {"nested", nested},
	{"ordered", ordered},	  {"exits", exits},		{"waits", waits},	  {"procs", procs},
	{"region_rate", region_rate}, {"long_wavefront", long_wavefront}, {"doacross", doacross},
	{"stages", stages},	  {"no_stages", no_stages},
};

int main(int count, char **arguments)
{
	const char *clock = getenv("PARPROF_SPAN_CLOCK");

	is_test_clock = parprof_span_work && clock && !strcmp(clock, "test");
	for (size_t i = 0; count == 3 && i < sizeof(forms) / sizeof(*forms); i++) {
		if (!strcmp(arguments[1], forms[i].name)) {
			forms[i].run(atol(arguments[2]));
			return 0;
		}
	}
	fprintf(stderr, "usage: span_forms FORM N\n");
	return 2;
}
