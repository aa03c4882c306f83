// SPDX-License-Identifier: Apache-2.0
/*
 * omp_truth - OpenMP phases of known idleness. README.md has the truth of each;
 * truth.h says what is logged. OMP_NUM_THREADS is ignored: --threads rules.
 */
#include "phases.h"

#include <omp.h>

TRUTH_WORK(serial_work)
TRUTH_WORK(balanced_work)
TRUTH_WORK(skewed_long)
TRUTH_WORK(skewed_short)
TRUTH_WORK(barrier_long)
TRUTH_WORK(barrier_short)
TRUTH_WORK(dynamic_work)
TRUTH_WORK(critical_work)
TRUTH_WORK(outside_critical_work)
TRUTH_WORK(locked_work)
TRUTH_WORK(unlocked_work)
TRUTH_WORK(single_work)
TRUTH_WORK(after_single_work)
TRUTH_WORK(task_work)
TRUTH_WORK(taskwait_parent)
TRUTH_WORK(taskwait_child)
TRUTH_WORK(nested_outer_work)
TRUTH_WORK(nested_work)
TRUTH_WORK(oversubscribed_work)

static void phase_serial(void)
{
	serial_work(2 * unit_ns);
}

static void phase_balanced(void)
{
#pragma omp parallel num_threads(threads)
	balanced_work(3 * unit_ns);
}

static void phase_skewed(void)
{
#pragma omp parallel num_threads(threads)
	{
		if (omp_get_thread_num() == 0)
			skewed_long(6 * unit_ns);
		else
			skewed_short(2 * unit_ns);
	}
}

static void phase_barrier(void)
{
#pragma omp parallel num_threads(threads)
	for (int round = 0; round < 2; round++) {
		if (omp_get_thread_num() == round % threads)
			barrier_long(3 * unit_ns);
		else
			barrier_short(unit_ns);
#pragma omp barrier
	}
}

static void phase_dynamic(void)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
	for (int i = 0; i < 3 * threads + 1; i++)
		dynamic_work(unit_ns);
}

static void phase_critical(void)
{
#pragma omp parallel num_threads(threads)
	for (int round = 0; round < 3; round++) {
		outside_critical_work(unit_ns / 2);
#pragma omp critical
		critical_work(unit_ns);
	}
}

static void phase_lock(void)
{
	omp_lock_t lock;

	omp_init_lock(&lock);
#pragma omp parallel num_threads(threads)
	for (int round = 0; round < 3; round++) {
		unlocked_work(unit_ns / 2);
		omp_set_lock(&lock);
		locked_work(3 * unit_ns / 2);
		omp_unset_lock(&lock);
	}
	omp_destroy_lock(&lock);
}

static void phase_single(void)
{
#pragma omp parallel num_threads(threads)
	{
#pragma omp single
		single_work(2 * unit_ns);
		after_single_work(unit_ns);
	}
}

/* One thread creates; the others take the tasks while in the single's barrier. */
static void phase_tasks(void)
{
#pragma omp parallel num_threads(threads)
#pragma omp single
	for (int i = 0; i < 2 * threads + 1; i++) {
#pragma omp task
		task_work(unit_ns);
	}
}

/* The master works alone, takes part in its children, then works alone again. */
static void phase_taskwait(void)
{
#pragma omp parallel num_threads(threads)
#pragma omp master
	{
		taskwait_parent(unit_ns);
		for (int i = 0; i < threads; i++) {
#pragma omp task
			taskwait_child(2 * unit_ns);
		}
#pragma omp taskwait
		taskwait_parent(unit_ns);
	}
}

static void phase_nested(void)
{
	omp_set_max_active_levels(2);
#pragma omp parallel num_threads(2)
	{
#pragma omp master
		nested_outer_work(2 * unit_ns);
#pragma omp barrier
#pragma omp parallel num_threads(2)
		nested_work(4 * unit_ns);
	}
	omp_set_max_active_levels(1);
}

static void phase_oversubscribed(void)
{
#pragma omp parallel num_threads(2 * threads)
	oversubscribed_work(4 * unit_ns);
}

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
		{ "serial", phase_serial },
		{ "balanced", phase_balanced },
		{ "skewed", phase_skewed },
		{ "barrier", phase_barrier },
		{ "dynamic", phase_dynamic },
		{ "critical", phase_critical },
		{ "lock", phase_lock },
		{ "single", phase_single },
		{ "tasks", phase_tasks },
		{ "taskwait", phase_taskwait },
		/* last: the threads they add may spin on into the next phase */
		{ "nested", phase_nested },
		{ "oversubscribed", phase_oversubscribed },
		{ NULL, NULL },
	};

	omp_set_dynamic(0);
	return phases_main(argc, argv, phases);
}
