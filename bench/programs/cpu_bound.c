// SPDX-License-Identifier: Apache-2.0
/*
 * cpu_bound - eight programs that only compute, in one: cpu_bound NAME [ROUNDS]. Prints the CPU seconds that it used.
 * From few long calls (matrix, sieve) to nothing but short ones (fib, hash): what a profiler by probes in each function
 * (gprof) and one by samples cost. Built with and without -pg: bench/gprof.py.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALL __attribute__((noinline))

static volatile double sink;

static CALL long fib(long n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

static void run_fib(void)
{
	sink += fib(29);
}

static double a[160][160], b[160][160], c[160][160];

static void run_matrix(void)
{
	for (int i = 0; i < 160; i++)
		for (int j = 0; j < 160; j++) {
			double sum = 0;

			for (int k = 0; k < 160; k++)
				sum += a[i][k] * b[k][j] + i;
			c[i][j] = sum;
		}
	sink += c[3][5];
}

static CALL int compare(const void *x, const void *y)
{
	int one = *(const int *)x, other = *(const int *)y;

	return (one > other) - (one < other);
}

static void run_sort(void)
{
	static int values[60000];
	uint32_t seed = 1;

	for (int i = 0; i < 60000; i++)
		values[i] = (seed = seed * 1664525 + 1013904223) >> 8;
	qsort(values, 60000, sizeof(int), compare);
	sink += values[7];
}

static void run_sieve(void)
{
	static char composite[2000000];
	long primes = 0;

	memset(composite, 0, sizeof(composite));
	for (long i = 2; i < 2000000; i++) {
		if (composite[i])
			continue;
		primes++;
		for (long j = i * 2; j < 2000000; j += i)
			composite[j] = 1;
	}
	sink += primes;
}

static CALL uint32_t hash(const char *text)
{
	uint32_t value = 2166136261u;

	while (*text)
		value = (value ^ (unsigned char)*text++) * 16777619u;
	return value;
}

static void run_hash(void)
{
	char key[16] = "key-000000";
	uint32_t all = 0;

	for (int i = 0; i < 400000; i++) {
		key[4 + i % 6] = '0' + i % 10;
		all ^= hash(key);
	}
	sink += all;
}

static CALL double force(double x, double y)
{
	return 1 / sqrt(x * x + y * y + 0.01);
}

static void run_bodies(void)
{
	double total = 0;

	for (int i = 0; i < 700; i++)
		for (int j = 0; j < 700; j++)
			total += force(i - j, i + j);
	sink += total;
}

static CALL int escapes(double x, double y)
{
	double u = 0, v = 0;
	int n = 0;

	for (; n < 200 && u * u + v * v < 4; n++) {
		double next = u * u - v * v + x;

		v = 2 * u * v + y;
		u = next;
	}
	return n;
}

static void run_fractal(void)
{
	long all = 0;

	for (int i = 0; i < 200; i++)
		for (int j = 0; j < 200; j++)
			all += escapes(i / 100.0 - 1.5, j / 100.0 - 1);
	sink += all;
}

struct node {
	struct node *left, *right;
};

static CALL struct node *grow(int depth)
{
	struct node *n = malloc(sizeof(*n));

	n->left = depth ? grow(depth - 1) : 0;
	n->right = depth ? grow(depth - 1) : 0;
	return n;
}

static CALL long fell(struct node *n)
{
	long nodes = 1;

	if (n->left)
		nodes += fell(n->left) + fell(n->right);
	free(n);
	return nodes;
}

static void run_trees(void)
{
	sink += fell(grow(15));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} programs[] = {
		{ "fib", run_fib }, { "matrix", run_matrix }, { "sort", run_sort }, { "sieve", run_sieve },
		{ "hash", run_hash }, { "bodies", run_bodies }, { "fractal", run_fractal }, { "trees", run_trees },
	};
	struct timespec used;
	long rounds = argc > 2 ? atol(argv[2]) : 100;

	for (size_t i = 0; argc > 1 && i < sizeof(programs) / sizeof(*programs); i++)
		for (long n = 0; !strcmp(argv[1], programs[i].name) && n < rounds; n++)
			programs[i].run();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	printf("%.6f\n", used.tv_sec + used.tv_nsec * 1e-9);
	return 0;
}
