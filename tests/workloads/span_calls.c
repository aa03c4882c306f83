// SPDX-License-Identifier: Apache-2.0
/*
 * The paper's examples (schardl-2015 figures 1, 5 and 8) and others, for the call sites of `parprof scale`:
 * span_calls FORM N, built by `parprof cc --scale`. Work is done, or with PARPROF_SPAN_CLOCK=test only said to the
 * library: then the results are exact. tests/unit/test_scale_calls.py has the formulas.
 */
#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern void parprof_span_work(unsigned long units) __attribute__((weak));

#define NO_HOOKS __attribute__((no_instrument_function, noinline))
#define FUNCTION __attribute__((noinline))

static int is_test_clock;
static volatile double sink;

NO_HOOKS static void work(long units)
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

FUNCTION static long fib(long n)
{
	long one, other;

	work(10);
	if (n < 2)
		return n;
#pragma omp task shared(one)
	one = fib(n - 1); /* the spawned */
	other = fib(n - 2); /* the called */
#pragma omp taskwait
	return one + other;
}

FUNCTION static long partition(long *values, long count, long *middle)
{
	long pivot = values[count / 2], low = 0, high = count - 1;

	if (is_test_clock)
		work(count);
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
	*middle = low;
	return high + 1;
}

FUNCTION static void insertion_sort(long *values, long count)
{
	for (long i = 1; i < count; i++) {
		long value = values[i], j = i;

		for (; j > 0 && values[j - 1] > value; j--)
			values[j] = values[j - 1];
		values[j] = value;
	}
	if (is_test_clock)
		work(count * 4);
}

FUNCTION static void sort(long *values, long count)
{
	long left, middle;

	if (count < 32) {
		insertion_sort(values, count);
		return;
	}
	left = partition(values, count, &middle);
#pragma omp task
	sort(values, left);
	sort(values + middle, count - middle);
#pragma omp taskwait
}

NO_HOOKS static void quicksort(long count)
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

FUNCTION static void base(void)
{
	work(1000);
}

/* By eight halves, in two phases of four: a base case is on the critical path 2^levels times. */
FUNCTION static void multiply(long size)
{
	if (size == 1) {
		base();
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

FUNCTION static void item(long i, long n)
{
	work(i == n / 2 ? 1000 * n / 16 : 1000);
}

/* One long chunk: what a loop with few cores has on its critical path is its even share, with many that chunk. */
FUNCTION static void loop(long n)
{
#pragma omp parallel for schedule(dynamic, 1)
	for (long i = 0; i < n; i++)
		item(i, n);
}

FUNCTION static void step(long n)
{
	work(n);
}

/* Each member's call spans a barrier: n, then 2 n in the last. */
FUNCTION static void phases(long n)
{
	step(n);
#pragma omp barrier
	step(omp_get_thread_num() == omp_get_num_threads() - 1 ? 2 * n : n);
}

NO_HOOKS static void barriers(long n)
{
#pragma omp parallel
	phases(n);
}

static jmp_buf back;

FUNCTION static void thrown(long n)
{
	work(n);
	longjmp(back, 1);
}

FUNCTION static void catches(long n)
{
	if (!setjmp(back))
		thrown(n);
	work(n);
}

FUNCTION static void jumps(long n)
{
	for (int i = 0; i < 10; i++)
		catches(n);
}

static long thread_size;

FUNCTION static void *thread_body(void *argument)
{
	step(thread_size * (long)argument);
	return NULL;
}

FUNCTION static void threads(long n)
{
	pthread_t made[4];

	thread_size = n;
	step(n);
	for (long i = 0; i < 4; i++)
		pthread_create(&made[i], NULL, thread_body, (void *)(i + 1));
	for (int i = 0; i < 4; i++)
		pthread_join(made[i], NULL);
	step(n);
}

NO_HOOKS static void call_fib(long n)
{
#pragma omp parallel
#pragma omp single
	printf("%ld\n", fib(n));
}

NO_HOOKS static void call_multiply(long size)
{
#pragma omp parallel
#pragma omp single
	multiply(size);
}

/* Ever new stack frames: the record of calls under way is as deep as the stack. */
FUNCTION static long deep(long n)
{
	long below;

	work(1);
	below = n ? deep(n - 1) : 0;
	return below + 1;
}

NO_HOOKS static void call_deep(long n)
{
	printf("%ld\n", deep(n));
}

FUNCTION static void in_child(long n)
{
	work(n);
}

/* The process forks in a call that has made no call yet, nor has the runtime been called in it. */
FUNCTION static void forks(long n)
{
	work(n);
	if (!fork())
		in_child(2 * n);
	else
		wait(NULL);
}

static const struct {
	const char *name;
	void (*body)(long);
} forms[] = {
	{"fib", call_fib}, {"quicksort", quicksort}, {"multiply", call_multiply}, {"loop", loop},
	{"barriers", barriers}, {"jumps", jumps}, {"threads", threads}, {"deep", call_deep},
	{"forks", forks},
};

int main(int count, char **arguments)
{
	const char *clock = getenv("PARPROF_SPAN_CLOCK");

	is_test_clock = parprof_span_work && clock && !strcmp(clock, "test");
	for (size_t i = 0; count == 3 && i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (!strcmp(arguments[1], forms[i].name)) {
			forms[i].body(atol(arguments[2]));
			return 0;
		}
	}
	fprintf(stderr, "span_calls FORM N\n");
	return 2;
}
