// SPDX-License-Identifier: Apache-2.0
/*
 * tbb_truth - oneTBB phases of known idleness. README.md has the truth of each; tbb_work.c logs it.
 * At most --threads threads, and no more than there are CPUs.
 *
 * Which thread runs what is TBB's choice. Where the truth needs two bodies at the same time, both wait until
 * all have begun; that wait is not logged, and it is short: the others only have to steal.
 */
#include <atomic>
#include <cstdint>
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/partitioner.h>
#include <tbb/task_group.h>

#define WORK(name) void (*name)(uint64_t cpu_ns);
extern "C" {
extern uint64_t tbb_unit_ns;
extern int tbb_threads;
extern const struct works {
#include "tbb_works.h"
} works;
void tbb_serial(), tbb_balanced(), tbb_skewed(), tbb_dynamic(), tbb_group(), tbb_nested(), tbb_pipeline();
}

static void limit_threads()
{
	static tbb::global_control limit(tbb::global_control::max_allowed_parallelism, tbb_threads);
}

static void all_begin(std::atomic<int> &begun, int count)
{
	begun++;
	while (begun < count)
		;
}

void tbb_serial()
{
	works.serial_work(2 * tbb_unit_ns);
}

void tbb_balanced()
{
	std::atomic<int> begun{ 0 };

	limit_threads();
	tbb::parallel_for(
		0, tbb_threads,
		[&](int) {
			all_begin(begun, tbb_threads);
			works.balanced_work(3 * tbb_unit_ns);
		},
		tbb::simple_partitioner());
}

void tbb_skewed()
{
	std::atomic<int> begun{ 0 };

	limit_threads();
	tbb::parallel_for(
		0, tbb_threads,
		[&](int i) {
			all_begin(begun, tbb_threads);
			if (i == 0)
				works.skewed_long(6 * tbb_unit_ns);
			else
				works.skewed_short(2 * tbb_unit_ns);
		},
		tbb::simple_partitioner());
}

/* blocks of one item: whoever is free takes one */
void tbb_dynamic()
{
	limit_threads();
	tbb::parallel_for(
		tbb::blocked_range<int>(0, 3 * tbb_threads + 1, 1),
		[](const tbb::blocked_range<int> &range) {
			for (int i = range.begin(); i < range.end(); i++)
				works.dynamic_work(tbb_unit_ns);
		},
		tbb::simple_partitioner());
}

/* The parent works alone, takes part in its children, then works alone again. */
void tbb_group()
{
	tbb::task_group group;

	limit_threads();
	works.group_parent(tbb_unit_ns);
	for (int i = 0; i < tbb_threads; i++)
		group.run([] { works.group_child(2 * tbb_unit_ns); });
	group.wait();
	works.group_parent(tbb_unit_ns);
}

void tbb_nested()
{
	limit_threads();
	tbb::parallel_for(
		0, 2,
		[](int) {
			works.nested_outer_work(tbb_unit_ns);
			tbb::parallel_for(
				0, 2, [](int) { works.nested_work(2 * tbb_unit_ns); },
				tbb::simple_partitioner());
		},
		tbb::simple_partitioner());
}

/* A serial stage that is the bottleneck feeds a parallel one. */
void tbb_pipeline()
{
	int left = 2 * tbb_threads;

	limit_threads();
	tbb::parallel_pipeline(
		2 * tbb_threads,
		tbb::make_filter<void, int>(tbb::filter_mode::serial_in_order,
					    [&](tbb::flow_control &flow) {
						    if (left-- > 0)
							    works.source_work(2 * tbb_unit_ns);
						    else
							    flow.stop();
						    return 1;
					    }) &
			tbb::make_filter<int, void>(tbb::filter_mode::parallel, [](int) {
				works.stage_work(tbb_unit_ns);
			}));
}
