// SPDX-License-Identifier: Apache-2.0
/*
 * Phases of known shares, for ever: span_phases FORM UNITS. With T threads, in UNITS of work:
 * coarse: serial 1/2; each thread t its t + 1; a barrier; each thread 1. tests/e2e/test_attach_span.py has the formula.
 * timed: the same, a unit being a microsecond of the thread's CPU clock: cores are not equally fast at all times.
 * tasks: one thread makes 12 tasks of 1 unit, which all execute at the barrier of the single.
 * nested: a region within each thread of a region.
 * within: two threads do 1 each; then one of them 2 with another thread beside it, in a region of two.
 * beside: two threads, each with regions of its own.
 */
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "work_us.h"

static volatile double sink;

static void work(long units)
{
	double x = 1;

	for (long i = 0; i < units; i++)
		x = x * 1.0000001 + 0.5;
	sink = x;
}

static void phases(long units, void (*do_work)(long))
{
	do_work(units / 2);
#pragma omp parallel
	{
		do_work(units * (omp_get_thread_num() + 1));
#pragma omp barrier
		do_work(units);
	}
}

static void coarse(long units)
{
	phases(units, work);
}

static void tasks(long units)
{
#pragma omp parallel
	{
#pragma omp single
		for (int i = 0; i < 12; i++) {
#pragma omp task
			work(units);
		}
	}
}

static void nested(long units)
{
#pragma omp parallel
	{
#pragma omp parallel num_threads(2)
		work(units);
	}
}

static void within(long units)
{
#pragma omp parallel num_threads(2)
	{
		work(units);
		if (omp_get_thread_num() == 0) {
#pragma omp parallel num_threads(2)
			work(2 * units);
		}
	}
}

static void *begin_regions(void *units)
{
	for (;;)
		coarse(*(long *)units);
	return NULL;
}

static void beside(long units)
{
	pthread_t other;

	if (!pthread_create(&other, NULL, begin_regions, &units))
		begin_regions(&units);
}

int main(int count, char **arguments)
{
	long units;

	if (count != 3)
		return 2;
	units = atol(arguments[2]);
	omp_set_max_active_levels(2);
	for (;;) {
		if (!strcmp(arguments[1], "coarse"))
			coarse(units);
		else if (!strcmp(arguments[1], "timed"))
			phases(units, work_us);
		else if (!strcmp(arguments[1], "tasks"))
			tasks(units);
		else if (!strcmp(arguments[1], "within"))
			within(units);
		else if (!strcmp(arguments[1], "beside"))
			beside(units);
		else
			nested(units);
	}
}
