// SPDX-License-Identifier: Apache-2.0
/*
 * spawn_truth - Cilk phases of known idleness, for the stand-ins of OpenCilk and
 * Cilk Plus (CILK_ABI says which). README.md has the truth of each phase.
 * Results are checked: the exit code is 1 if any is wrong.
 */
#include "../phases.h"
#include "spawn.h"

#ifdef PARPROF_SPAN
/* work is not done, but said to the library: so the results are exact */
extern void parprof_span_work(unsigned long ns) __attribute__((weak));

static void work_or_say(u64 cpu_ns)
{
	if (parprof_span_work)
		parprof_span_work(cpu_ns);
	else
		burn(cpu_ns);
}
#define burn work_or_say
#endif

#define TREE_DEPTH 8
#define CHAIN_DEPTH 10
#define FAN 7
#define STRESS_DEPTH 18

TRUTH_WORK(serial_work)
TRUTH_WORK(region_work)
TRUTH_WORK(balanced_work)
TRUTH_WORK(skewed_long)
TRUTH_WORK(skewed_short)
TRUTH_WORK(fan_work)
TRUTH_WORK(tree_leaf)
TRUTH_WORK(chain_work)

static bool all_right = true;

static void expect(const char *what, long found, long right)
{
	if (found != right) {
		fprintf(stderr, "%s: %ld instead of %ld\n", what, found, right);
		all_right = false;
	}
}

static void phase_serial(void)
{
	serial_work(2 * unit_ns);
}

CILK_FUNCTION(void, region_serial, (void))
{
	CILK_ENTER;
	region_work(2 * unit_ns);
	CILK_LEAVE;
}

CILK_HELPER(balanced, balanced_helper, (long *done))
{
	HELPER_ENTER;
	balanced_work(3 * unit_ns);
	*done = 1;
	HELPER_LEAVE;
}

CILK_FUNCTION(void, balanced, (void))
{
	long pieces[MAX_THREADS] = { 0 }, sum = 0;
	int i;

	CILK_ENTER;
	for (i = 1; i < threads; i++)
		CILK_SPAWN(balanced_helper, &pieces[i], 0, 0);
	balanced_work(3 * unit_ns);
	CILK_SYNC;
	for (i = 1; i < threads; i++)
		sum += pieces[i];
	CILK_LEAVE;
	expect("balanced", sum, threads - 1);
}

CILK_HELPER(skewed, skewed_helper, (long *done))
{
	HELPER_ENTER;
	skewed_long(6 * unit_ns);
	*done = 1;
	HELPER_LEAVE;
}

CILK_FUNCTION(void, skewed, (void))
{
	long done = 0;

	CILK_ENTER;
	CILK_SPAWN(skewed_helper, &done, 0, 0);
	skewed_short(2 * unit_ns);
	CILK_SYNC;
	CILK_LEAVE;
	expect("skewed", done, 1);
}

CILK_HELPER(fan, fan_helper, (long *done, long value))
{
	HELPER_ENTER;
	fan_work(unit_ns);
	*done = value;
	HELPER_LEAVE;
}

/* One frame that is stolen again and again. */
CILK_FUNCTION(void, fan, (void))
{
	long pieces[FAN] = { 0 }, sum = 0;
	int i;

	CILK_ENTER;
	for (i = 0; i < FAN; i++)
		CILK_SPAWN(fan_helper, &pieces[i], 1l << 4 * i, 0);
	CILK_SYNC;
	for (i = 0; i < FAN; i++)
		sum += pieces[i];
	CILK_LEAVE;
	expect("fan", sum, 0x1111111);
}

/* A value that is wrong when a piece is lost, done twice or mixed up with its sibling. */
static long mixed(int n, long left, long right)
{
	return (3 * left + 5 * right + n) % 1000003;
}

static long tree_value(int n)
{
	return n < 2 ? n + 1 : mixed(n, tree_value(n - 1), tree_value(n - 2));
}

CILK_FUNCTION(long, tree, (int n));

CILK_HELPER(tree, tree_helper, (long *result, int n))
{
	HELPER_ENTER;
	*result = tree(n);
	HELPER_LEAVE;
}

/* Doubly recursive; one half spawned, the other called. */
CILK_FUNCTION(long, tree, (int n))
{
	long left = -1, right, sum = n + 1;

	CILK_ENTER;
	if (n < 2) {
		tree_leaf(unit_ns);
	} else {
		CILK_SPAWN(tree_helper, &left, n - 1, 0);
		right = tree(n - 2);
		CILK_SYNC;
		sum = mixed(n, *(volatile long *)&left, right);
	}
	CILK_LEAVE;
	return sum;
}

static void phase_tree(void)
{
	expect("tree", tree(TREE_DEPTH), tree_value(TREE_DEPTH));
}

/* Frames of three kinds on one path: spawned, called, and a plain C function in between. */
CILK_FUNCTION(long, chain, (int n));
TRUTH_NOINLINE static long chain_link(int n)
{
	return chain(n - 1) + 1;
}

CILK_HELPER(chain, chain_helper, (long *result, int n))
{
	HELPER_ENTER;
	*result = chain_link(n);
	HELPER_LEAVE;
}

CILK_FUNCTION(long, chain, (int n))
{
	long depth = 0;

	CILK_ENTER;
	if (n > 0)
		CILK_SPAWN(chain_helper, &depth, n, 0);
	chain_work(unit_ns);
	CILK_SYNC;
	CILK_LEAVE;
	return depth;
}

static void phase_chain(void)
{
	expect("chain", chain(CHAIN_DEPTH), CHAIN_DEPTH);
}

/* Fine-grained and not logged: for the runtime, not for the profiler. */
CILK_FUNCTION(long, stress, (int n));

CILK_HELPER(stress, stress_helper, (long *result, int n))
{
	HELPER_ENTER;
	*result = stress(n);
	HELPER_LEAVE;
}

CILK_FUNCTION(long, stress, (int n))
{
	long left = -1, right, sum = n + 1;

	CILK_ENTER;
	if (n >= 2) {
		CILK_SPAWN(stress_helper, &left, n - 1, 0);
		right = stress(n - 2);
		CILK_SYNC;
		sum = mixed(n, *(volatile long *)&left, right);
	}
	CILK_LEAVE;
	return sum;
}

static void phase_stress(void)
{
	expect("stress", stress(STRESS_DEPTH), tree_value(STRESS_DEPTH));
}

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
		{ "serial", phase_serial },
		{ "region", region_serial },
		{ "balanced", balanced },
		{ "skewed", skewed },
		{ "fan", fan },
		{ "tree", phase_tree },
		{ "chain", phase_chain },
		{ "stress", phase_stress },
		{ NULL, NULL },
	};
	char text[16];

	/* the number of workers must be known before the first region */
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], "--threads"))
			threads = (int)phases_number(argv[i + 1], 1, MAX_THREADS / 2);
	snprintf(text, sizeof(text), "%d", threads);
	setenv("CILK_NWORKERS", text, 1);
	if (phases_main(argc, argv, phases))
		return 1;
	printf("steals %lu\n", cilk_standin_steals());
	return all_right ? 0 : 1;
}
