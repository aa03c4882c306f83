// SPDX-License-Identifier: Apache-2.0
/*
 * A doacross loop over a grid, for `parprof scale`: span_doacross PATTERN SCHEDULE CHUNK ROWS COLUMNS WEIGHT...
 *
 * PATTERN says which iterations each one waits for; SCHEDULE is static, dynamic or guided. Iteration (i, j) works
 * w(3 k), waits, works w(3 k + 1), posts and works w(3 k + 2), where k is i * COLUMNS + j and w goes round the
 * weights. Before the loop the member with number t works t times the first weight. Work is only said to the library,
 * whose clock is the test's own: tests/unit/test_scale_doacross.py knows the truth.
 */
#include <omp.h>
#include <stdlib.h>

extern void parprof_span_work(unsigned long units);

static long rows, columns, weight_count;
static char **weights;

static void work(long at)
{
	parprof_span_work(strtoul(weights[at % weight_count], NULL, 10));
}

static long place(long i, long j)
{
	return 3 * (i * columns + j);
}

static void wait_above(void)
{
#pragma omp for ordered(2) schedule(runtime)
	for (long i = 0; i < rows; i++) {
		for (long j = 0; j < columns; j++) {
			work(place(i, j));
#pragma omp ordered depend(sink : i - 1, j)
			work(place(i, j) + 1);
#pragma omp ordered depend(source)
			work(place(i, j) + 2);
		}
	}
}

/* Numbers that are not those of the iterations, and a sum behind the loop that needs no barrier of its own. */
static void wait_twice(void)
{
#pragma omp for ordered(2) schedule(runtime) nowait
	for (unsigned long i = 7; i < 7 + 2 * (unsigned long)rows; i += 2) {
		for (unsigned long j = 3; j < 3 + (unsigned long)columns; j++) {
			long at = place((long)(i - 7) / 2, (long)j - 3);

			work(at);
#pragma omp ordered depend(sink : i - 4, j) depend(sink : i - 2, j - 1)
			work(at + 1);
#pragma omp ordered depend(source)
			work(at + 2);
		}
	}
}

/* A chain: one loop, the columns are part of the iteration. */
static void wait_before(void)
{
#pragma omp for ordered(1) schedule(runtime)
	for (long i = 0; i < rows; i++) {
		for (long j = 0; j < columns; j++)
			work(place(i, j));
#pragma omp ordered depend(sink : i - 1)
		work(place(i, 0) + 1);
#pragma omp ordered depend(source)
		work(place(i, 0) + 2);
	}
}

/* The two outer loops are one. */
static void wait_collapsed(void)
{
#pragma omp for collapse(2) ordered(3) schedule(runtime)
	for (long i = 0; i < rows; i++) {
		for (long j = 0; j < columns; j++) {
			for (long k = 0; k < 2; k++) {
				work(place(i, j) + k);
#pragma omp ordered depend(sink : i - 1, j, k) depend(sink : i, j - 1, k)
				work(place(i, j) + k + 1);
#pragma omp ordered depend(source)
			}
		}
	}
}

/* As a chain, after work under a lock. */
static void wait_locked(void)
{
#pragma omp for ordered(1) schedule(runtime)
	for (long i = 0; i < rows; i++) {
#pragma omp critical
		work(0);
		work(1);
#pragma omp ordered depend(sink : i - 1)
		work(2);
#pragma omp ordered depend(source)
	}
}

static void (*const patterns[])(void) = {wait_above, wait_twice, wait_before, wait_collapsed, wait_locked};

int main(int count, char **arguments)
{
	omp_sched_t schedule;

	if (count < 7 || (size_t)atoi(arguments[1]) >= sizeof(patterns) / sizeof(*patterns))
		return 2;
	schedule = arguments[2][0] == 's' ? omp_sched_static : arguments[2][0] == 'd' ? omp_sched_dynamic : omp_sched_guided;
	omp_set_schedule(schedule, atoi(arguments[3]));
	rows = atol(arguments[4]);
	columns = atol(arguments[5]);
	weights = arguments + 6;
	weight_count = count - 6;
#pragma omp parallel
	{
		parprof_span_work((unsigned long)omp_get_thread_num() * strtoul(weights[0], NULL, 10));
		patterns[atoi(arguments[1])]();
		work(0);
	}
	return 0;
}
