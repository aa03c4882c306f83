/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of one thread: pure functions on struct thread, no maps, no helpers. Unit-tested with gcc.
 *
 * A thread works when its innermost known frame is user work (or, with no known frame, when its base state
 * is), it was not found spinning, and it is not blocked in the kernel. Frames are told apart by the stack pointer at their entry, so
 * entries and returns need not balance: any later event whose stack pointer shows that a frame is gone
 * (longjmp, tail call, missed return) removes it. Frames are counted without branches because the
 * verifier would follow each combination of them.
 */
#ifndef PARPROF_THREAD_STATE_H
#define PARPROF_THREAD_STATE_H

#include "wire.h"

/* Far above any thread's stack: beyond it the thread runs on another one (sigaltstack, coroutine). */
#define STACK_SPAN (64ULL << 20)
#define MAX_DROPPED 8

/* Values of `spins` but 0. Both are odd: see in_work. */
#define SPINS 1		/* found in a loop that waits for others, until its next edge, sleep or sample elsewhere */
#define GAVE_UP 3	/* gave up its CPU to wait for others, until it has one again */

/* The same value, of which the compiler knows nothing: it makes branches of what it understands, each of which the
 * verifier follows, in a loop again at every turn. That is most of what starting costs. */
static inline __attribute__((always_inline)) u64 opaque(u64 value)
{
	asm volatile("" : "+r"(value));
	return value;
}

/* 1 if a < b; both below 2^63, as user addresses are. */
static inline __attribute__((always_inline)) u64 below(u64 a, u64 b)
{
	return opaque((opaque(a) - b) >> 63);
}

/* An index that the verifier can prove: clang would drop a mask that it thinks redundant. */
static inline __attribute__((always_inline)) u64 slot(u64 index)
{
	asm volatile("" : "+r"(index));
	return index & (MAX_NESTING - 1);
}

/* Drop the frames that began below `sp`: nearly always none or one. At most MAX_DROPPED at once, the rest at
 * the next events: they are only so many after a longjmp or missed returns. */
static inline __attribute__((always_inline)) void drop_below(struct thread *t, u64 sp)
{
	u64 depth = t->depth;
	u64 dead = 0;

	if (depth == 0 || depth > MAX_NESTING || t->sp[slot(depth - 1)] >= sp)
		return;
#pragma unroll
	for (u64 i = 0; i < MAX_DROPPED; i++)
		dead += below(i, depth) & below(t->sp[slot(depth - 1 - i)], sp);
	t->depth = depth - dead;
}

/* Somebody waits in the region that the innermost frame started, if it is one, though no work of it was seen to begin: its
 * body has no probe, as nobody knew it to be one. Then the region's frame stands for its work. */
static inline __attribute__((always_inline)) void region_works(struct thread *t)
{
	u64 depth = t->depth;

	t->work_bits |= t->region_bits & (below(0, depth) << ((depth - 1) & 63));
}

/* A function was entered with stack pointer `sp`. Returns 0 when the nesting is too deep to remember. */
static inline __attribute__((always_inline)) int frame_enter(struct thread *t, u64 sp, int work)
{
	u64 top = t->depth - 1ULL, inherited = 0;
	u32 depth;

	t->caught_working = t->spins = 0;
	if (t->depth && t->depth <= MAX_NESTING && t->sp[slot(top)] == sp && (t->context_bits >> (top & 63) & 1))
		inherited = t->context[slot(top)];
	drop_below(t, sp + 1);	/* a frame that began at this very sp is dead too: tail call */
	depth = t->depth;
	if (depth >= MAX_NESTING)
		return 0;
	if (!work)	/* a barrier of the body, or that at the region's end, after which it hardly matters */
		region_works(t);
	t->sp[slot(depth)] = sp;
	if (work)
		t->work_bits |= 1ULL << (depth & 63);
	else
		t->work_bits &= ~(1ULL << (depth & 63));
	t->region_bits &= ~(1ULL << (depth & 63));
	t->barrier_bits &= ~(1ULL << (depth & 63));
	t->context_bits &= ~(1ULL << (depth & 63));
	if (inherited) {	/* what a function calls last of all is still part of the work that it is */
		t->context_bits |= 1ULL << (depth & 63);
		t->context[slot(depth)] = inherited;
	}
	t->depth = depth + 1;
	return 1;
}

/* 1 if work may have begun of which no probe told: nothing is known that would be around it but the region, if that. */
static inline __attribute__((always_inline)) int awaits_body(const struct thread *t)
{
	u64 depth = t->depth;

	return (below(0, depth) ^ 1) | (t->region_bits >> ((depth - 1) & 63) & 1);
}

/* The program's own code was found to run at `sp`, while the known frames say that the thread waits: it is in work whose
 * beginning has no probe (yet). Where that awaits a body, it is until the stack is shorter than that; elsewhere it may be
 * what the runtime itself calls, and is until the thread's next edge. */
static inline __attribute__((always_inline)) void frame_caught(struct thread *t, u64 sp)
{
	if (awaits_body(t))
		frame_enter(t, sp, 1);
	t->caught_working = 1;
}

/* The frame entered last starts a region, whose body is `function`. */
static inline __attribute__((always_inline)) void frame_is_region(struct thread *t, u64 function)
{
	t->region_bits |= 1ULL << ((t->depth - 1ULL) & 63);
	t->region_function = function;
}

/* The frame entered last waits until all of the team are there. */
static inline __attribute__((always_inline)) void frame_is_barrier(struct thread *t)
{
	t->barrier_bits |= 1ULL << ((t->depth - 1ULL) & 63);
}

/* The frame entered last is work that was created in `context`. */
static inline __attribute__((always_inline)) void frame_has_context(struct thread *t, u64 context)
{
	u64 top = t->depth - 1ULL;

	t->context_bits |= 1ULL << (top & 63);
	t->context[slot(top)] = context;
}

/* 1 if the frame entered last is the body of the region that the frame below it, of this thread, started. */
static inline __attribute__((always_inline)) int is_own_region(const struct thread *t, u64 function)
{
	u64 below_top = t->depth - 2ULL;

	return t->depth >= 2 && (t->region_bits >> (below_top & 63) & 1) && t->region_function == function;
}

/* The innermost frame with a context; MAX_NESTING if there is none. */
static inline __attribute__((always_inline)) u64 context_frame(const struct thread *t)
{
	u64 depth = t->depth, bits = t->context_bits, top = 0, more;

	if (depth < MAX_NESTING)
		bits &= (1ULL << (depth & 63)) - 1;
	if (!bits)
		return MAX_NESTING;
#pragma unroll
	for (u64 step = 32; step; step >>= 1) {
		more = below(0, bits >> step);
		top += more * step;
		bits >>= more * step;
	}
	return top;
}

/* The thread works, or waits, from here on: what it did before is on no stack of its own. */
static inline __attribute__((always_inline)) void begin_or_end(struct thread *t, int work)
{
	t->depth = 0;
	t->base_work = work;
	t->caught_working = t->spins = 0;
}

/* A function returned: everything that began below `sp` is gone. */
static inline __attribute__((always_inline)) void frame_leave(struct thread *t, u64 sp)
{
	t->caught_working = t->spins = 0;
	drop_below(t, sp);
}

/* A sample was taken at `sp`, which may belong to another stack. */
static inline __attribute__((always_inline)) void frame_observe(struct thread *t, u64 sp)
{
	u32 depth = t->depth;

	if (depth && depth <= MAX_NESTING && sp - t->sp[slot(depth - 1)] < STACK_SPAN)
		drop_below(t, sp);
}

/* 1 if the known frames say that the thread is in user work. */
static inline __attribute__((always_inline)) int frames_say_work(const struct thread *t)
{
	u64 depth = t->depth, known = below(0, depth), work = t->work_bits >> ((depth - 1) & 63) & 1;

	return (known & work) | ((known ^ 1) & below(0, t->base_work));
}

/* 1 if the thread waits for its team: at a barrier, at the end of its region, or for the next one. */
static inline __attribute__((always_inline)) int waits_for_team(const struct thread *t)
{
	u64 depth = t->depth, known = below(0, depth), innermost = (t->barrier_bits | t->region_bits) >> ((depth - 1) & 63) & 1;

	return ((known & innermost) | (known ^ 1)) & ~(frames_say_work(t) | t->caught_working) & 1;
}

/* 1 if the thread's own code is user work, whether or not it is blocked. */
static inline __attribute__((always_inline)) int in_work(const struct thread *t)
{
	return (frames_say_work(t) | t->caught_working) & ~t->spins & 1;
}

/* 1 if the thread counts as working now. */
static inline __attribute__((always_inline)) int is_working(const struct thread *t)
{
	return in_work(t) & below(t->blocked, 1);
}

/* A frame of kind `work` begins in a thread with no known frame: what that says about its base state.
 * `region`: the frame starts a parallel region. Returns 1 when the state is no longer a guess. */
static inline __attribute__((always_inline)) int learn_base(struct thread *t, int work, int region)
{
	if (!t->unknown || t->depth)
		return 0;
	t->base_work = !work;
	/* A worker's next piece of work proves that it was waiting. The main thread proves nothing by
	 * waiting, because it may be inside a region that began before we came; a new region does. */
	return work || (region && t->is_main);
}

#endif
