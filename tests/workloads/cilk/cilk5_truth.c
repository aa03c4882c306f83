// SPDX-License-Identifier: Apache-2.0
/*
 * cilk5_truth - the phases of spawn_truth for the stand-in of MIT Cilk-5, lowered
 * by hand as cilk2c did: a fast and a slow clone of each procedure.
 * Results are checked: the exit code is 1 if any is wrong.
 */
#include "../phases.h"
#include "cilk5.h"

#define TREE_DEPTH 8
#define CHAIN_DEPTH 10
#define DEEP_DEPTH 150
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
TRUTH_WORK(deep_work)

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

/* Procedures that neither spawn nor have a frame. */
CILK5_OUT_OF_LINE static long region(struct worker_state *ws)
{
	(void)ws;
	region_work(2 * unit_ns);
	return 1;
}

CILK5_OUT_OF_LINE static long _cilk_region_import(struct worker_state *ws)
{
	return region(ws);
}

static void phase_region(void)
{
	expect("region", Cilk_start(_cilk_region_import, threads), 1);
}

CILK5_OUT_OF_LINE static long balanced_piece(struct worker_state *ws)
{
	(void)ws;
	balanced_work(3 * unit_ns);
	return 1;
}

struct balanced_frame {
	struct cilk_frame header;
	long pieces[MAX_THREADS];
	int i;
};

static slow_clone _cilk_balanced_slow;
static const struct proc_info balanced_sig[] = {
	{ .size = sizeof(struct balanced_frame), .inlet = _cilk_balanced_slow }
};

/* The author's procedure spawns threads - 1 pieces, does one itself, and syncs. */
CILK5_OUT_OF_LINE static long balanced(struct worker_state *ws)
{
	long sum = 0;
	CILK5_INIT(balanced);

	for (int i = 1; i < threads; i++) {
		f->i = i;
		CILK5_SPAWN(1, &f->pieces[i], balanced_piece(ws), 0);
	}
	balanced_work(3 * unit_ns);
	for (int i = 1; i < threads; i++)
		sum += f->pieces[i];
	Cilk_free_frame(ws, &f->header);
	return sum;
}

CILK5_OUT_OF_LINE static void _cilk_balanced_slow(struct worker_state *ws, struct cilk_frame *frame)
{
	struct balanced_frame *f = (struct balanced_frame *)frame;
	long sum = 0;

	if (frame->entry == 2)
		goto synced;
	for (int i = f->i + 1; i < threads; i++) {
		f->i = i;
		CILK5_SPAWN(1, &f->pieces[i], balanced_piece(ws), );
	}
	balanced_work(3 * unit_ns);
	CILK5_SYNC(2);
synced:
	for (int i = 1; i < threads; i++)
		sum += f->pieces[i];
	Cilk_set_result(ws, sum);
	Cilk_free_frame(ws, frame);
}

CILK5_OUT_OF_LINE static long _cilk_balanced_import(struct worker_state *ws)
{
	return balanced(ws);
}

static void phase_balanced(void)
{
	expect("balanced", Cilk_start(_cilk_balanced_import, threads), threads - 1);
}

CILK5_OUT_OF_LINE static long skewed_piece(struct worker_state *ws)
{
	(void)ws;
	skewed_long(6 * unit_ns);
	return 1;
}

struct skewed_frame {
	struct cilk_frame header;
	long piece;
};

static slow_clone _cilk_skewed_slow;
static const struct proc_info skewed_sig[] = {
	{ .size = sizeof(struct skewed_frame), .inlet = _cilk_skewed_slow }
};

CILK5_OUT_OF_LINE static long skewed(struct worker_state *ws)
{
	long piece;
	CILK5_INIT(skewed);

	CILK5_SPAWN(1, &f->piece, skewed_piece(ws), 0);
	skewed_short(2 * unit_ns);
	piece = f->piece;
	Cilk_free_frame(ws, &f->header);
	return piece;
}

CILK5_OUT_OF_LINE static void _cilk_skewed_slow(struct worker_state *ws, struct cilk_frame *frame)
{
	struct skewed_frame *f = (struct skewed_frame *)frame;

	if (frame->entry == 1) {
		skewed_short(2 * unit_ns);
		CILK5_SYNC(2);
	}
	Cilk_set_result(ws, f->piece);
	Cilk_free_frame(ws, frame);
}

CILK5_OUT_OF_LINE static long _cilk_skewed_import(struct worker_state *ws)
{
	return skewed(ws);
}

static void phase_skewed(void)
{
	expect("skewed", Cilk_start(_cilk_skewed_import, threads), 1);
}

/* One frame that is stolen again and again. */
CILK5_OUT_OF_LINE static long fan_piece(struct worker_state *ws, int i)
{
	(void)ws;
	fan_work(unit_ns);
	return 1l << 4 * i;
}

struct fan_frame {
	struct cilk_frame header;
	long pieces[FAN];
	int i;
};

static slow_clone _cilk_fan_slow;
static const struct proc_info fan_sig[] = { { .size = sizeof(struct fan_frame), .inlet = _cilk_fan_slow } };

static long fan_sum(const struct fan_frame *f)
{
	long sum = 0;

	for (int i = 0; i < FAN; i++)
		sum += f->pieces[i];
	return sum;
}

CILK5_OUT_OF_LINE static long fan(struct worker_state *ws)
{
	long sum;
	CILK5_INIT(fan);

	for (int i = 0; i < FAN; i++) {
		f->i = i;
		CILK5_SPAWN(1, &f->pieces[i], fan_piece(ws, i), 0);
	}
	sum = fan_sum(f);
	Cilk_free_frame(ws, &f->header);
	return sum;
}

CILK5_OUT_OF_LINE static void _cilk_fan_slow(struct worker_state *ws, struct cilk_frame *frame)
{
	struct fan_frame *f = (struct fan_frame *)frame;

	if (frame->entry == 1) {
		for (int i = f->i + 1; i < FAN; i++) {
			f->i = i;
			CILK5_SPAWN(1, &f->pieces[i], fan_piece(ws, i), );
		}
		CILK5_SYNC(2);
	}
	Cilk_set_result(ws, fan_sum(f));
	Cilk_free_frame(ws, frame);
}

CILK5_OUT_OF_LINE static long _cilk_fan_import(struct worker_state *ws)
{
	return fan(ws);
}

static void phase_fan(void)
{
	expect("fan", Cilk_start(_cilk_fan_import, threads), 0x1111111);
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

/* The clones of a doubly recursive procedure: long NAME(int n), with LEAF at n < 2. */
#define RECURSIVE(name, leaf)                                                                      \
	struct name##_frame {                                                                      \
		struct cilk_frame header;                                                          \
		long left, right;                                                                  \
		int n;                                                                             \
	};                                                                                         \
                                                                                                   \
	static slow_clone _cilk_##name##_slow;                                                     \
	static const struct proc_info name##_sig[] = {                                             \
		{ .size = sizeof(struct name##_frame), .inlet = _cilk_##name##_slow }              \
	};                                                                                         \
                                                                                                   \
	CILK5_OUT_OF_LINE static long name(struct worker_state *ws, int n)                         \
	{                                                                                          \
		long sum = n + 1;                                                                  \
		CILK5_INIT(name);                                                                  \
                                                                                                   \
		f->n = n;                                                                          \
		if (n < 2) {                                                                       \
			leaf;                                                                      \
		} else {                                                                           \
			CILK5_SPAWN(1, &f->left, name(ws, n - 1), 0);                              \
			CILK5_SPAWN(2, &f->right, name(ws, n - 2), 0);                             \
			sum = mixed(f->n, f->left, f->right);                                      \
		}                                                                                  \
		Cilk_free_frame(ws, &f->header);                                                   \
		return sum;                                                                        \
	}                                                                                          \
                                                                                                   \
	CILK5_OUT_OF_LINE static void _cilk_##name##_slow(struct worker_state *ws,                 \
							  struct cilk_frame *frame)                \
	{                                                                                          \
		struct name##_frame *f = (struct name##_frame *)frame;                             \
                                                                                                   \
		if (frame->entry == 1)                                                             \
			CILK5_SPAWN(2, &f->right, name(ws, f->n - 2), );                           \
		if (frame->entry < 3)                                                              \
			CILK5_SYNC(3);                                                             \
		Cilk_set_result(ws, mixed(f->n, f->left, f->right));                               \
		Cilk_free_frame(ws, frame);                                                        \
	}

RECURSIVE(tree, tree_leaf(unit_ns))
RECURSIVE(stress, (void)0)

CILK5_OUT_OF_LINE static long _cilk_tree_import(struct worker_state *ws)
{
	return tree(ws, TREE_DEPTH);
}

static void phase_tree(void)
{
	expect("tree", Cilk_start(_cilk_tree_import, threads), tree_value(TREE_DEPTH));
}

/* The clones of a procedure each level of which spawns the next one and works itself meanwhile: long NAME(int n). */
#define DESCENDING(name, work)                                                                     \
	struct name##_frame {                                                                      \
		struct cilk_frame header;                                                          \
		long depth;                                                                        \
	};                                                                                         \
                                                                                                   \
	static slow_clone _cilk_##name##_slow;                                                     \
	static const struct proc_info name##_sig[] = {                                             \
		{ .size = sizeof(struct name##_frame), .inlet = _cilk_##name##_slow }              \
	};                                                                                         \
                                                                                                   \
	CILK5_OUT_OF_LINE static long name(struct worker_state *ws, int n)                         \
	{                                                                                          \
		long depth;                                                                        \
		CILK5_INIT(name);                                                                  \
                                                                                                   \
		if (n > 0)                                                                         \
			CILK5_SPAWN(1, &f->depth, name(ws, n - 1), 0);                             \
		work;                                                                              \
		depth = n > 0 ? f->depth + 1 : 0;                                                  \
		Cilk_free_frame(ws, &f->header);                                                   \
		return depth;                                                                      \
	}                                                                                          \
                                                                                                   \
	CILK5_OUT_OF_LINE static void _cilk_##name##_slow(struct worker_state *ws,                 \
							  struct cilk_frame *frame)                \
	{                                                                                          \
		struct name##_frame *f = (struct name##_frame *)frame;                             \
                                                                                                   \
		if (frame->entry == 1) {                                                           \
			work;                                                                      \
			CILK5_SYNC(2);                                                             \
		}                                                                                  \
		Cilk_set_result(ws, f->depth + 1);                                                 \
		Cilk_free_frame(ws, frame);                                                        \
	}

DESCENDING(chain, chain_work(unit_ns))
DESCENDING(deep, deep_work(unit_ns / 10))

CILK5_OUT_OF_LINE static long _cilk_chain_import(struct worker_state *ws)
{
	return chain(ws, CHAIN_DEPTH);
}

static void phase_chain(void)
{
	expect("chain", Cilk_start(_cilk_chain_import, threads), CHAIN_DEPTH);
}

static int deep_depth(void)
{
	const char *text = getenv("DEEP_DEPTH");

	return text ? (int)phases_number(text, 1, 4000) : DEEP_DEPTH;
}

CILK5_OUT_OF_LINE static long _cilk_deep_import(struct worker_state *ws)
{
	return deep(ws, deep_depth());
}

static void phase_deep(void)
{
	expect("deep", Cilk_start(_cilk_deep_import, threads), deep_depth());
}

/* Fine-grained and not logged: for the runtime, not for the profiler. */
CILK5_OUT_OF_LINE static long _cilk_stress_import(struct worker_state *ws)
{
	return stress(ws, STRESS_DEPTH);
}

static void phase_stress(void)
{
	expect("stress", Cilk_start(_cilk_stress_import, threads), tree_value(STRESS_DEPTH));
}

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
		{ "serial", phase_serial },
		{ "region", phase_region },
		{ "balanced", phase_balanced },
		{ "skewed", phase_skewed },
		{ "fan", phase_fan },
		{ "tree", phase_tree },
		{ "chain", phase_chain },
		{ "deep", phase_deep },
		{ "stress", phase_stress },
		{ NULL, NULL },
	};

	if (phases_main(argc, argv, phases))
		return 1;
	printf("steals %lu\n", cilk_standin_steals());
	return all_right ? 0 : 1;
}
