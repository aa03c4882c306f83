// SPDX-License-Identifier: Apache-2.0
/* tbb_work - the C half of tbb_truth: options, main loop and log, whose headers are C. */
#include "phases.h"

#define WORK(name) TRUTH_WORK(name)
#include "tbb_works.h"
#undef WORK

/* the addresses, for a call through them is no further frame */
#define WORK(name) void (*name)(u64 cpu_ns);
struct works {
#include "tbb_works.h"
};
#undef WORK
#define WORK(name) .name = name,
extern const struct works works;
const struct works works = {
#include "tbb_works.h"
};

extern u64 tbb_unit_ns;
extern int tbb_threads;
u64 tbb_unit_ns;
int tbb_threads;

#define PHASE(name)                                                                \
	extern void tbb_##name(void);                                              \
	static void phase_##name(void)                                             \
	{                                                                          \
		tbb_unit_ns = unit_ns;                                             \
		tbb_threads = threads;                                             \
		tbb_##name();                                                      \
	}

#ifdef _OPENMP
#include <omp.h>

TRUTH_WORK(team_long)
TRUTH_WORK(team_short)

/* What threads of TBB have no part in: each thread of an OpenMP team waits for the other in turn. */
static void phase_team(void)
{
#pragma omp parallel num_threads(threads)
	for (int round = 0; round < 4; round++) {
		if (omp_get_thread_num() == round % threads)
			team_long(2 * unit_ns);
		else
			team_short(unit_ns);
#pragma omp barrier
	}
}
#endif

PHASE(serial)
PHASE(balanced)
PHASE(skewed)
PHASE(dynamic)
PHASE(group)
PHASE(nested)
PHASE(pipeline)

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
#ifdef _OPENMP
		{ "team", phase_team },
#endif
		{ "serial", phase_serial },
		{ "balanced", phase_balanced },
		{ "skewed", phase_skewed },
		{ "dynamic", phase_dynamic },
		{ "group", phase_group },
		{ "nested", phase_nested },
		{ "pipeline", phase_pipeline },
		{ NULL, NULL },
	};

	return phases_main(argc, argv, phases);
}
