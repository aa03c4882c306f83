/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work and span by call site (schardl-2015 sec. 4 and 6), for programs built with hooks at the begin and the end of
 * each function. Changed from the paper's so that it runs in parallel: a path's amounts are a prof of its own, and a
 * chain of *segments* before it, which it shares with the paths that began with it. Where a task is made, what its
 * parent's path has so far becomes such a segment: nothing is copied. A segment that nobody else refers to any more
 * is taken into the one after it (UNION).
 */
#ifndef PARPROF_SPAN_CALLS_H
#define PARPROF_SPAN_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "span_prof_calls.h"
#include "span_record.h"

struct thread;
struct frame;
struct calls;

/* What a path has in common with others; it does not change while others refer to it. */
struct segment {
	atomic_int references;
	struct segment *before;
	struct call_prof prof;
};

/* The amounts by call site of a path from the start of its phase. */
struct call_path {
	struct call_prof prof; /* since `before` */
	struct segment *before;
};

/* Where code was called from: the call that it belongs to, and the set of call sites that are above it. */
struct call_context {
	uint32_t call, state;
};

/* What a frame's children did that ended, by the depth of the call that made them. */
struct children_calls {
	uint32_t room, used; /* used: one more than the largest depth */
	struct {
		uint64_t work, called;
	} * by_depth;
};

/* What the begin or the end of a function says. */
struct hook {
	uint64_t at;
	uintptr_t function;
	uintptr_t address, stack; /* of its call; 0 at its end */
};

struct calls_kept {
	struct call_context context;
	uint32_t base;
};

extern bool span_has_calls __attribute__((visibility("hidden"))); /* a hook was called */

/* paths (span_segments.c) */
void span_path_fork(struct call_path *path, struct call_path *child);
struct segment *span_path_freeze(struct call_path *path);
void span_path_take(struct call_path *path, struct segment *segment);
bool span_path_is_long(const struct call_path *path);
void span_path_flatten(struct call_path *path, struct call_prof *into);
void span_path_add_rest(struct call_path *path, const struct segment *begin, struct call_prof *into);
void span_path_clear(struct call_path *path);
void span_segment_keep(struct segment **kept, struct segment *segment);
void span_segment_keep_own(struct segment **kept, struct segment *segment);
void span_calls_union(struct call_prof *into, struct call_prof *from);
void span_calls_scale(struct call_prof *prof, uint64_t wanted, uint64_t total);

/* call sites (span_call_sites.c) */

/* Those that every record begins with. */
enum { CALL_OUTSIDE, CALL_OTHER, FIRST_CALL };

extern _Atomic uint32_t span_call_count __attribute__((visibility("hidden")));

/* A call site that is called where a set of others is above it. */
struct transition {
	uintptr_t address, function;
	uint32_t state, call, next;
	bool is_top_site, is_top_caller;
};

static inline uint32_t span_known_calls(void)
{
	return atomic_load_explicit(&span_call_count, memory_order_relaxed);
}

static inline uint32_t span_hash_call(uint32_t state, uintptr_t address, uintptr_t function)
{
	uint64_t mixed = ((address * 31 + function) * 31 + state) * 0x9e3779b97f4a7c15ull;

	return (uint32_t)(mixed >> 32);
}

static inline bool is_transition(const struct transition *one, uint32_t state, uintptr_t address, uintptr_t function)
{
	return one->state == state && one->address == address && one->function == function;
}

const struct transition *span_find_transition(struct call_context context, uintptr_t address, uintptr_t function);
void span_reset_call_sites(struct span_record *record);

/* threads */
void span_calls_book(struct thread *self, struct frame *frame, uint64_t cycles);
void span_calls_hook(struct thread *self, const struct hook *hook, uint64_t cycles);
void span_calls_replay(struct thread *self, const struct hook *hook, uint32_t count);
void span_calls_settle(struct thread *self, struct frame *frame);
struct calls_kept span_calls_enter(struct thread *self, struct call_context context);
void span_calls_leave(struct thread *self, struct calls_kept kept);
void span_calls_called(struct thread *self, uint64_t work);
uint32_t span_calls_depth(struct thread *self);
void span_calls_end_child(struct frame *parent, struct frame *child);
void span_calls_take_children(struct thread *self, struct frame *frame);
uint64_t span_calls_forget_children(struct frame *frame);
void span_calls_end_thread(struct thread *self);

/* the process */
void span_calls_reset(struct span_record *record);
void span_calls_end(struct thread *self);

#endif
