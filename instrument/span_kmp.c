/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LLVM libomp and Intel libiomp5: wrappers of their entry points for regions, barriers, loops, single and masked.
 * Which those are, the hooks in daemon/parprof/runtimes/libomp.py say; tests/unit/test_scale_wrappers.py holds the
 * two together. Programs of gcc on this runtime call its GOMP_ entries: span_gomp.c.
 *
 * OMPT, the tool interface of that runtime, would tell the same but for the chunks of loops, which version 14 never
 * reports. Its callbacks come from inside the runtime, though, whose own time would then be in the strands.
 */
#define _GNU_SOURCE
#include <stdarg.h>

#include "span_kmp.h"

/* regions */

typedef void outlined();

struct kmp_region {
	struct region region;
	struct kmp_region *outer;
	bool is_followed;
	outlined *body;
	int count;
	void **arguments;
};

#define A(n) a[n]
#define A4(n) A(n), A(n + 1), A(n + 2), A(n + 3)
#define A16(n) A4(n), A4(n + 4), A4(n + 8), A4(n + 12)
enum { FEW = 4, MANY = 32 };

/* A function may be called with more arguments than it takes: the caller clears them away. */
static void call_outlined(const struct kmp_region *region, int *thread, int *member)
{
	static void *real;
	void **a = region->arguments, *exit_frame;

	if (region->count <= FEW)
		region->body(thread, member, A4(0));
	else if (region->count <= MANY)
		region->body(thread, member, A16(0), A16(16));
	else
		((int (*)(outlined *, int, int, int, void **, void **))span_real(&real, "__kmp_invoke_microtask"))(
			region->body, *thread, *member, region->count, a, &exit_frame);
}

/* What the runtime calls in place of the body that the compiler outlined. */
static void member(int *thread, int *number, struct kmp_region *region)
{
	struct thread *self = &span_self;
	struct calls_kept kept;

	if (!region->is_followed) {
		call_outlined(region, thread, number);
		return;
	}
	/* no size: asking this runtime for it takes as long as reading the TSC does */
	kept = span_member_enter(self, &region->region.team, NULL);
	call_outlined(region, thread, number);
	span_member_leave(self, kept);
}

/* A thread that is not followed has no frame; one that has, but no strand, is inside the runtime. */
static void kmp_region_begin(struct kmp_region *region, outlined *body, int count, void **arguments, uintptr_t caller)
{
	struct thread *self = &span_self;

	region->body = body;
	region->count = count;
	region->arguments = arguments;
	region->is_followed =
		(self->is_open || !self->frame) && span_region_begin(&region->region, NULL, NULL, caller);
}

static void kmp_region_end(struct kmp_region *region)
{
	if (region->is_followed)
		span_region_end(&region->region);
}

static int room_of(int count)
{
	return count <= FEW ? FEW : count <= MANY ? MANY : count;
}

/* The body's arguments are variable in number; all of them are pointers, or as large. */
#define FORK(name)                                                                                                    \
	EXPORT void name(void *place, int count, outlined *body, ...)                                                 \
	{                                                                                                             \
		REAL(void, name, (void *, int, void (*)(), ...));                                                     \
		void *arguments[room_of(count)];                                                                     \
		struct kmp_region region;                                                                             \
		va_list list;                                                                                         \
                                                                                                                      \
		va_start(list, body);                                                                                 \
		for (int i = 0; i < room_of(count); i++)                                                             \
			arguments[i] = i < count ? va_arg(list, void *) : NULL;                                       \
		va_end(list);                                                                                         \
		kmp_region_begin(&region, body, count, arguments, CALLER);                                            \
		call(place, 1, (void (*)())member, &region);                                                          \
		kmp_region_end(&region);                                                                              \
	}
FORK(__kmpc_fork_call)
FORK(__kmpc_fork_teams)

/* LLVM 16: one argument for all, and a condition. */
EXPORT void __kmpc_fork_call_if(void *place, int count, outlined *body, int condition, void *argument)
{
	REAL(void, __kmpc_fork_call_if, (void *, int, void (*)(), int, void *));
	void *arguments[FEW] = {argument};
	struct kmp_region region;

	kmp_region_begin(&region, body, count < FEW ? count : FEW, arguments, CALLER);
	call(place, 1, (void (*)())member, condition, &region);
	kmp_region_end(&region);
}

/* The clause `if` was false: the program calls the body itself, between two calls of the runtime. */

static __thread struct kmp_region *serialized;

EXPORT void __kmpc_serialized_parallel(PLACE)
{
	REAL(void, __kmpc_serialized_parallel, (PLACE));
	struct thread *self = &span_self;
	struct kmp_region *region;

	if (!is_program(self) || !(region = calloc(1, sizeof(*region)))) {
		call(place, thread);
		return;
	}
	kmp_region_begin(region, NULL, 0, NULL, CALLER);
	region->outer = serialized;
	serialized = region;
	call(place, thread);
	span_member_begin(self, &region->region.team);
	span_begin_strand(self);
}

EXPORT void __kmpc_end_serialized_parallel(PLACE)
{
	REAL(void, __kmpc_end_serialized_parallel, (PLACE));
	struct thread *self = &span_self;
	struct kmp_region *region = serialized;

	if (!is_program(self) || !region || self->frame->team != &region->region.team) {
		call(place, thread);
		return;
	}
	span_end_strand(self);
	span_member_end(self);
	call(place, thread);
	serialized = region->outer;
	kmp_region_end(region);
	free(region);
}

/* the runtime's start: with the first calls of these it gets ready, in two steps, which takes it a millisecond */

static void *look_up_once(void **where, const char *name)
{
	void *found = __atomic_load_n(where, __ATOMIC_RELAXED);

	return LIKELY(found) ? found : span_look_up(where, name);
}

#define FIRST(type, name, parameters, ...)                                                                            \
	EXPORT type name parameters                                                                                   \
	{                                                                                                             \
		static void *real;                                                                                    \
		static _Atomic bool was_called;                                                                       \
		type(*call) parameters = (type(*) parameters)look_up_once(&real, #name);                              \
		struct thread *self = &span_self;                                                                     \
		unsigned long result = 1;                                                                             \
                                                                                                                      \
		if (UNLIKELY(!call)) /* the program asks whether there is a runtime by whether this has an address */ \
			return (type)result;                                                                          \
		if (LIKELY(atomic_load_explicit(&was_called, memory_order_relaxed)) || !is_program(self))             \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		RESULT_##type call(__VA_ARGS__);                                                                      \
		atomic_store(&was_called, true);                                                                      \
		span_begin_strand(self);                                                                              \
		return (type)result;                                                                                  \
	}
FIRST(int, __kmpc_global_thread_num, (void *place), place)
FIRST(void, __kmpc_push_num_teams, (PLACE, int teams, int threads), place, thread, teams, threads)
FIRST(int, omp_get_max_threads, (void))
FIRST(void, omp_set_num_threads, (int count), count)
FIRST(void, omp_init_lock, (void *lock), lock)
FIRST(void, omp_init_nest_lock, (void *lock), lock)

/* barriers */

BARRIER(is_kmp_member, void, __kmpc_barrier, (PLACE), place, thread)
BARRIER(is_kmp_member, int, __kmpc_cancel_barrier, (PLACE), place, thread)
BARRIER(is_kmp_member, void, __kmpc_copyprivate, (PLACE, size_t size, void *data, void (*copy)(void *, void *), int is_mine), place,
	thread, size, data, copy, is_mine)

/* In these not all members meet, or not at the same call. A loop's reduction is followed by a barrier of its own. */
PAUSE(int, __kmpc_barrier_master, (PLACE), place, thread)
PAUSE(void, __kmpc_end_barrier_master, (PLACE), place, thread)
PAUSE(int, __kmpc_barrier_master_nowait, (PLACE), place, thread)
#define REDUCTION PLACE, int count, size_t size, void *data, void (*reduce)(void *, void *), void *lock
PAUSE(int, __kmpc_reduce, (REDUCTION), place, thread, count, size, data, reduce, lock)
PAUSE(int, __kmpc_reduce_nowait, (REDUCTION), place, thread, count, size, data, reduce, lock)
PAUSE(void, __kmpc_end_reduce, (PLACE, void *lock), place, thread, lock)
PAUSE(void, __kmpc_end_reduce_nowait, (PLACE, void *lock), place, thread, lock)

/* code of one thread: single, masked */

static int alone_begin(struct thread *self, int is_mine, enum span_kind kind, uintptr_t caller)
{
	if (!is_mine || !is_inside(self))
		return is_mine;
	span_end_strand(self);
	self->frame->site_before = self->frame->site;
	self->frame->site = span_site(kind, caller, 0);
	span_count(self, self->frame->site);
	span_begin_strand(self);
	return is_mine;
}

static void alone_end(struct thread *self)
{
	if (!is_inside(self) || !self->frame->site_before)
		return;
	span_end_strand(self);
	self->frame->site = self->frame->site_before;
	self->frame->site_before = 0;
	span_begin_strand(self);
}

#define ALONE(name, kind, parameters, ...)                                                                            \
	EXPORT int name parameters                                                                                    \
	{                                                                                                             \
		REAL(int, name, parameters);                                                                          \
                                                                                                                      \
		return alone_begin(&span_self, call(__VA_ARGS__), kind, CALLER);                                      \
	}
#define END_ALONE(name)                                                                                               \
	EXPORT void name(PLACE)                                                                                       \
	{                                                                                                             \
		static void *real;                                                                                    \
                                                                                                                      \
		alone_end(&span_self);                                                                                \
		((void (*)(PLACE))span_real(&real, #name))(place, thread);                                            \
	}
ALONE(__kmpc_single, SPAN_SINGLE, (PLACE), place, thread)
END_ALONE(__kmpc_end_single)
ALONE(__kmpc_master, SPAN_MASKED, (PLACE), place, thread)
END_ALONE(__kmpc_end_master)
ALONE(__kmpc_masked, SPAN_MASKED, (PLACE, int filter), place, thread, filter)
END_ALONE(__kmpc_end_masked)

/* loops whose chunks the runtime gives out */

enum { STATIC_CHUNKED = 1, STATIC = 2, RUNTIME = 5, STATIC_GREEDY = 8, STATIC_BALANCED = 9, STATIC_BALANCED_CHUNKED = 13 };

/* Chunks of a static schedule belong to threads; those of all others, "auto" too, to the loop. kmp.h: an ordered
 * schedule is 32 more, one with the bounds unmerged 128 more; above these are modifiers. */
static bool is_shared_by_kmp(int schedule)
{
	static void *real;
	int kind = schedule & 31, size;

	if (kind == RUNTIME) {
		((void (*)(int *, int *))span_real(&real, "omp_get_schedule"))(&kind, &size);
		return (kind & 0xff) != 1;
	}
	return kind != STATIC_CHUNKED && kind != STATIC && kind != STATIC_GREEDY && kind != STATIC_BALANCED &&
	       kind != STATIC_BALANCED_CHUNKED;
}

static void loop_begins(struct thread *self, int schedule, uintptr_t caller)
{
	if (is_shared_by_kmp(schedule))
		span_loop_begin(self, self->implicit->share.doacross ? self->implicit->site : span_site(SPAN_LOOP, caller, 0));
	else
		span_loop_end(self);
}

#define LOOP(name, parameters, ...)                                                                                   \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		REAL(void, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_kmp_member(self)) {                                                                               \
			call(__VA_ARGS__);                                                                            \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		call(__VA_ARGS__);                                                                                    \
		loop_begins(self, schedule, CALLER);                                                                  \
		span_begin_strand(self);                                                                              \
	}
#define CHUNK(name)                                                                                                   \
	EXPORT int name(PLACE, void *last, void *from, void *to, void *by)                                            \
	{                                                                                                             \
		REAL(int, name, (PLACE, void *, void *, void *, void *));                                             \
		struct thread *self = &span_self;                                                                     \
		int has_chunk;                                                                                        \
                                                                                                                      \
		if (!is_kmp_member(self))                                                                                 \
			return call(place, thread, last, from, to, by);                                               \
		span_end_strand(self);                                                                                \
		span_chunk_end(self->implicit);                                                                       \
		span_chunk_ask(self);                                                                                 \
		has_chunk = call(place, thread, last, from, to, by);                                                  \
		if (!has_chunk)                                                                                       \
			span_loop_end(self);                                                                          \
		else if (self->implicit->share.is_open)                                                               \
			span_chunk_begin(self);                                                                       \
		span_chunk_asked(self);                                                                               \
		span_begin_strand(self);                                                                              \
		return has_chunk;                                                                                     \
	}
#define LOOPS(suffix, bound, step)                                                                                    \
	LOOP(__kmpc_dispatch_init_##suffix, (PLACE, int schedule, bound from, bound to, step by, step chunk), place,  \
	     thread, schedule, from, to, by, chunk)                                                                   \
	LOOP(__kmpc_dist_dispatch_init_##suffix,                                                                      \
	     (PLACE, int schedule, void *last, bound from, bound to, step by, step chunk), place, thread, schedule,   \
	     last, from, to, by, chunk)                                                                               \
	CHUNK(__kmpc_dispatch_next_##suffix)
LOOPS(4, int, int)
LOOPS(4u, unsigned, int)
LOOPS(8, long, long)
LOOPS(8u, unsigned long, long)

/* doacross loops */

EXPORT void __kmpc_doacross_init(PLACE, int dimensions, const struct span_bounds *bounds)
{
	REAL(void, __kmpc_doacross_init, (PLACE, int, const struct span_bounds *));
	struct thread *self = &span_self;

	if (!is_kmp_member(self)) {
		call(place, thread, dimensions, bounds);
		return;
	}
	span_end_strand(self);
	call(place, thread, dimensions, bounds);
	span_doacross_begin(self, span_site(SPAN_DOACROSS, CALLER, 0), (uint32_t)dimensions, bounds);
	span_begin_strand(self);
}

EXPORT void __kmpc_doacross_fini(PLACE)
{
	REAL(void, __kmpc_doacross_fini, (PLACE));
	struct thread *self = &span_self;

	if (!is_kmp_member(self)) {
		call(place, thread);
		return;
	}
	span_end_strand(self);
	span_loop_end(self);
	span_doacross_end(self);
	call(place, thread);
	span_begin_strand(self);
}

EXPORT void __kmpc_doacross_post(PLACE, const int64_t *iteration)
{
	REAL(void, __kmpc_doacross_post, (PLACE, const int64_t *));
	struct thread *self = &span_self;
	void *awaited;

	if (!is_kmp_member(self)) {
		call(place, thread, iteration);
		return;
	}
	span_end_strand(self);
	awaited = span_doacross_post(self, iteration);
	call(place, thread, iteration);
	span_doacross_posted(awaited);
	span_begin_strand(self);
}

EXPORT void __kmpc_doacross_wait(PLACE, const int64_t *iteration)
{
	REAL(void, __kmpc_doacross_wait, (PLACE, const int64_t *));
	struct thread *self = &span_self;

	if (!is_kmp_member(self)) {
		call(place, thread, iteration);
		return;
	}
	span_end_strand(self);
	span_doacross_await(self, iteration);
	call(place, thread, iteration);
	span_doacross_waited(self, iteration);
	span_begin_strand(self);
}
