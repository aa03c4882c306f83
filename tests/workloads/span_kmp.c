// SPDX-License-Identifier: Apache-2.0
/*
 * What clang asks of its runtime in ways of its own, for `parprof scale`: span_kmp FORM N. Work is only said to the
 * library, whose clock is the test's; tests/unit/test_scale_kmp.py has the formulas.
 */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

extern void parprof_span_work(unsigned long units);

#define work(units) parprof_span_work((unsigned long)(units))

char one, other; /* what depend clauses name is never read */

/* An untied task is handed over again wherever it may move. */
static void untied(long n)
{
#pragma omp parallel
#pragma omp single
	for (int i = 0; i < 8; i++) {
#pragma omp task untied
		{
			work(n);
#pragma omp task
			work(5 * n);
#pragma omp taskyield
			work(n);
#pragma omp taskwait
			work(n);
		}
	}
}

/* A task that is executed at once is a part of its parent's path. */
static void undeferred(long n)
{
#pragma omp parallel
#pragma omp single
	{
		work(n);
#pragma omp task if (n < 0)
		{
			work(2 * n);
#pragma omp task
			work(10 * n);
		}
		work(3 * n);
#pragma omp task final(n > 0)
		{
#pragma omp task
			work(n);
#pragma omp task
			work(n);
			work(n);
		}
	}
}

/* A region of one thread, in which barriers and singles are its own. */
static void serialized(long n)
{
#pragma omp parallel if (n < 0)
	{
		work(n);
#pragma omp barrier
#pragma omp single
		work(2 * n);
	}
#pragma omp parallel
	{
		work(n);
#pragma omp parallel if (n < 0)
		{
			work(n);
#pragma omp barrier
			work(n * omp_get_ancestor_thread_num(1));
		}
#pragma omp barrier
		work(n);
	}
}

/* Masked code is one thread's; the others go on. */
static void masked(long n)
{
#pragma omp parallel
	{
#pragma omp master
		work(3 * n);
		work(n);
	}
}

static void copied(long n)
{
	long value;

#pragma omp parallel private(value)
	{
		work(n);
#pragma omp single copyprivate(value)
		{
			work(4 * n);
			value = n;
		}
		if (value != n)
			abort();
		work(value * (1 + omp_get_thread_num()));
	}
}

static void reduced(long n)
{
	long sum = 0, most = 0;

#pragma omp parallel for reduction(+ : sum)
	for (long i = 0; i < 64; i++) {
		work(n);
		sum += i;
	}
#pragma omp parallel
	{
#pragma omp for reduction(max : most) schedule(dynamic, 1)
		for (long i = 0; i < 64; i++) {
			work(n);
			most = i > most ? i : most;
		}
		work(n);
	}
	if (sum != 64 * 63 / 2 || most != 63)
		abort();
}

static void awaited(long n)
{
#pragma omp parallel
#pragma omp single
	{
#pragma omp task depend(out : one)
		work(5 * n);
#pragma omp task depend(out : other)
		work(9 * n);
		work(n);
#pragma omp taskwait depend(in : one)
		work(n);
	}
}

/* An undeferred task waits for what it depends on. */
static void chained(long n)
{
#pragma omp parallel
#pragma omp single
	{
#pragma omp task depend(out : one)
		work(5 * n);
#pragma omp task depend(in : one) if (n < 0)
		work(n);
		work(n);
	}
}

/* More variables than a call has registers for. */
static void many(long n)
{
	long v[40], a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8, i = 9, j = 10, k = 11, l = 12, m = 13;
	long a1 = 1, b1 = 2, c1 = 3, d1 = 4, e1 = 5, f1 = 6, g1 = 7, h1 = 8, i1 = 9, j1 = 10, k1 = 11, l1 = 12;
	long a2 = 1, b2 = 2, c2 = 3, d2 = 4, e2 = 5, f2 = 6, g2 = 7, h2 = 8, i2 = 9, j2 = 10, k2 = 11, l2 = 12;

#pragma omp parallel firstprivate(a, b, c, d, e, f, g, h, i, j, k, l, m)
	if (a + b + c + d + e + f + g + h + i + j + k + l + m != 91)
		abort();
	memset(v, 0, sizeof(v));
#pragma omp parallel
	{
#pragma omp atomic
		v[0] += a + b + c + d + e + f + g + h + i + j + k + l + m;
#pragma omp atomic
		v[1] += a1 + b1 + c1 + d1 + e1 + f1 + g1 + h1 + i1 + j1 + k1 + l1;
#pragma omp atomic
		v[2] += a2 + b2 + c2 + d2 + e2 + f2 + g2 + h2 + i2 + j2 + k2 + l2;
		work(n);
	}
	if (v[0] != 91 * omp_get_max_threads() || v[1] != 78 * omp_get_max_threads() || v[1] != v[2])
		abort();
}

static void locked(long n)
{
	omp_nest_lock_t lock;

	omp_init_nest_lock(&lock);
#pragma omp parallel for schedule(static)
	for (long i = 0; i < 64; i++) {
		work(n);
		omp_set_nest_lock(&lock);
		work(n);
		omp_unset_nest_lock(&lock);
	}
	omp_destroy_nest_lock(&lock);
}

static void cancelled(long n)
{
#pragma omp parallel
	{
		work(n);
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
		for (long i = 0; i < 8; i++) {
			work(n);
#pragma omp cancellation point for
		}
		work(n);
	}
}

static void leagues(long n)
{
#pragma omp teams num_teams(2)
	{
		work(n);
#pragma omp parallel
		work(n * (1 + omp_get_thread_num()));
	}
}

static void sized(long n)
{
#pragma omp parallel
	{
#pragma omp for schedule(static) ordered
		for (long i = 0; i < 8; i++) {
			work(n);
#pragma omp ordered
			work(n);
		}
#pragma omp for schedule(guided) nowait
		for (unsigned long i = 0; i < 512; i++)
			work(n);
#pragma omp for schedule(runtime)
		for (unsigned i = 0; i < 64; i++)
			work(n);
	}
}

static const struct {
	const char *name;
	void (*run)(long);
} forms[] = {
	{"untied", untied}, {"undeferred", undeferred}, {"serialized", serialized}, {"masked", masked},
	{"copied", copied}, {"reduced", reduced},	{"awaited", awaited},	    {"chained", chained},
	{"many", many},	    {"locked", locked},		{"cancelled", cancelled},   {"leagues", leagues},
	{"sized", sized},
};

int main(int count, char **arguments)
{
	for (size_t i = 0; count == 3 && i < sizeof(forms) / sizeof(*forms); i++) {
		if (!strcmp(arguments[1], forms[i].name)) {
			forms[i].run(atol(arguments[2]));
			return 0;
		}
	}
	return 2;
}
