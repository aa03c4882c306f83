/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GNU libgomp: wrappers of its entry points for regions, barriers, loops and sections. Which those are, the hooks
 * in daemon/parprof/runtimes/libgomp.py say; tests/unit/test_scale_wrappers.py holds the two together.
 *
 * A wrapper ends the strand, calls the real function, and begins the next one: what the runtime itself takes, and
 * all waiting in it, is in no strand. Integers and pointers are passed on as `long`, which is how they travel.
 */
#define _GNU_SOURCE
#include "span.h"

/* Whether the calling thread's own code is a member's, which is where these constructs bind. */
static bool is_gomp_member(struct thread *self)
{
	return self->frame && self->frame->is_implicit && !self->frame->team->is_posix;
}

/* regions */

static void *gomp_team_size; /* libgomp's omp_get_num_threads */

/* What runs in place of a region's body. */
static void gomp_member(void *argument)
{
	struct team *team = argument;
	struct calls_kept kept =
		span_member_enter(&span_self, team, (size_of_team *)gomp_team_size);

	team->body(team->data);
	span_member_leave(&span_self, kept);
}

/* REGION(return type, name, parameters after the body and its data, the same as arguments) */
#define REGION(type, name, parameters, ...)                                                                           \
	EXPORT type name parameters                                                                                   \
	{                                                                                                             \
		REAL(type, name, parameters);                                                                         \
		struct region region __attribute__((aligned(64)));                                                    \
		unsigned long result = 0;                                                                             \
                                                                                                                      \
		if (!span_region_begin(&region, body, data, CALLER))                                                       \
			return call(body, data, __VA_ARGS__);                                                         \
		span_beside(&gomp_team_size, (void *)call, "omp_get_num_threads");                                         \
		RESULT_##type call(gomp_member, &region.team, __VA_ARGS__);                                           \
		span_region_end(&region);                                                                                  \
		return (type)result;                                                                                  \
	}
#define BODY void (*body)(void *), void *data

REGION(void, GOMP_parallel, (BODY, long n, long flags), n, flags)
REGION(void, GOMP_parallel_sections, (BODY, long n, long count, long flags), n, count, flags)
#define REGION_LOOP(name)                                                                                             \
	REGION(void, name, (BODY, long n, long from, long to, long by, long chunk, long flags), n, from, to, by,      \
	       chunk, flags)
#define REGION_LOOP_RUNTIME(name)                                                                                     \
	REGION(void, name, (BODY, long n, long from, long to, long by, long flags), n, from, to, by, flags)
REGION_LOOP(GOMP_parallel_loop_static)
REGION_LOOP(GOMP_parallel_loop_dynamic)
REGION_LOOP(GOMP_parallel_loop_guided)
REGION_LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)
REGION_LOOP(GOMP_parallel_loop_nonmonotonic_guided)
REGION_LOOP_RUNTIME(GOMP_parallel_loop_runtime)
REGION_LOOP_RUNTIME(GOMP_parallel_loop_nonmonotonic_runtime)
REGION_LOOP_RUNTIME(GOMP_parallel_loop_maybe_nonmonotonic_runtime)

/* The runtime looks for the reductions at the begin of what it takes for the body's data. */
struct reductions_data {
	void *reductions;
	struct team *team;
};

static void reductions_member(void *argument)
{
	gomp_member(((struct reductions_data *)argument)->team);
}

EXPORT unsigned GOMP_parallel_reductions(BODY, long n, long flags)
{
	REAL(unsigned, GOMP_parallel_reductions, (BODY, long, long));
	struct region region __attribute__((aligned(64)));
	struct reductions_data ours = {*(void **)data, &region.team};
	unsigned result;

	if (!span_region_begin(&region, body, data, CALLER))
		return call(body, data, n, flags);
	span_beside(&gomp_team_size, (void *)call, "omp_get_num_threads");
	result = call(reductions_member, &ours, n, flags);
	span_region_end(&region);
	return result;
}

/* Teams on the host run one after the other, each in the calling thread: its strand goes on in them. */
EXPORT void GOMP_teams_reg(BODY, long teams, long limit, long flags)
{
	REAL(void, GOMP_teams_reg, (BODY, long, long, long));

	call(body, data, teams, limit, flags);
}

/* gcc before 4.9: the region's first thread calls the body itself, between two calls of the runtime. */
static void legacy_begin(struct region *region)
{
	span_member_begin(region->self, &region->team);
	span_begin_strand(region->self);
}

static __thread struct region *legacy;
static __thread struct region *legacy_outer[8];
static __thread uint32_t legacy_depth;

#define LEGACY(name, parameters, ...)                                                                                 \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		REAL(void, name, parameters);                                                                         \
		struct region *region = legacy_depth < 8 ? malloc(sizeof(*region)) : NULL;                            \
                                                                                                                      \
		legacy_outer[legacy_depth++ % 8] = legacy;                                                            \
		legacy = region;                                                                                      \
		if (!region || !span_region_begin(region, body, data, CALLER)) {                                           \
			free(region);                                                                                 \
			legacy = NULL;                                                                                \
			call(body, data, __VA_ARGS__);                                                                \
			return;                                                                                       \
		}                                                                                                     \
		call(gomp_member, &region->team, __VA_ARGS__);                                                        \
		legacy_begin(region);                                                                                 \
	}
LEGACY(GOMP_parallel_start, (BODY, long n), n)
LEGACY(GOMP_parallel_sections_start, (BODY, long n, long count), n, count)
LEGACY(GOMP_parallel_loop_static_start, (BODY, long n, long from, long to, long by, long chunk), n, from, to, by, chunk)
LEGACY(GOMP_parallel_loop_dynamic_start, (BODY, long n, long from, long to, long by, long chunk), n, from, to, by,
       chunk)
LEGACY(GOMP_parallel_loop_guided_start, (BODY, long n, long from, long to, long by, long chunk), n, from, to, by, chunk)
LEGACY(GOMP_parallel_loop_runtime_start, (BODY, long n, long from, long to, long by), n, from, to, by)

EXPORT void GOMP_parallel_end(void)
{
	REAL(void, GOMP_parallel_end, (void));
	struct region *region = legacy;

	legacy = legacy_depth ? legacy_outer[--legacy_depth % 8] : NULL;
	if (!region) {
		call();
		return;
	}
	span_end_strand(region->self);
	span_member_end(region->self);
	call();
	span_region_end(region);
	free(region);
}

/* barriers */

BARRIER(is_gomp_member, void, GOMP_barrier, (void))
BARRIER(is_gomp_member, bool, GOMP_barrier_cancel, (void))
BARRIER(is_gomp_member, void, GOMP_loop_end, (void))
BARRIER(is_gomp_member, bool, GOMP_loop_end_cancel, (void))
BARRIER(is_gomp_member, void, GOMP_sections_end, (void))
BARRIER(is_gomp_member, bool, GOMP_sections_end_cancel, (void))
BARRIER(is_gomp_member, void, GOMP_single_copy_end, (void *data), data)

EXPORT void GOMP_workshare_task_reduction_unregister(bool is_cancelled)
{
	REAL(void, GOMP_workshare_task_reduction_unregister, (bool));
	struct thread *self = &span_self;

	if (!is_gomp_member(self)) {
		call(is_cancelled);
		return;
	}
	span_end_strand(self);
	if (!is_cancelled) /* otherwise there is no barrier in it */
		span_before_barrier(self);
	call(is_cancelled);
	if (!is_cancelled)
		span_after_barrier(self, CALLER);
	span_begin_strand(self);
}

/* single: the code of the one that gets it, up to the barrier that follows */

EXPORT bool GOMP_single_start(void)
{
	REAL(bool, GOMP_single_start, (void));
	struct thread *self = &span_self;
	bool is_mine;

	if (!is_gomp_member(self))
		return call();
	span_end_strand(self);
	is_mine = call();
	if (is_mine) {
		self->frame->site = span_site(SPAN_SINGLE, CALLER, 0);
		span_count(self, self->frame->site);
	}
	span_begin_strand(self);
	return is_mine;
}

/* Null for the one that executes it; the others meet it here at the barrier that it reaches in GOMP_single_copy_end. */
EXPORT void *GOMP_single_copy_start(void)
{
	REAL(void *, GOMP_single_copy_start, (void));
	struct thread *self = &span_self;
	void *data;

	if (!is_gomp_member(self))
		return call();
	span_end_strand(self);
	span_before_barrier(self);
	data = call();
	if (data) {
		span_after_barrier(self, CALLER);
	} else {
		self->frame->site = span_site(SPAN_SINGLE, CALLER, 0);
		span_count(self, self->frame->site);
	}
	span_begin_strand(self);
	return data;
}

/* loops whose chunks the runtime gives out */

enum schedule { BY_RUNTIME, BY_STATIC, BY_DYNAMIC, BY_GUIDED, BY_AUTO };

/* Chunks of a static schedule belong to threads; those of all others to the loop. */
static bool is_shared_by_gomp(long schedule)
{
	static void *real;
	int kind = (int)(schedule & 0xff), size;

	if (kind == BY_RUNTIME)
		((void (*)(int *, int *))span_real(&real, "omp_get_schedule"))(&kind, &size);
	return (kind & 0xff) != BY_STATIC && (kind & 0xff) != BY_AUTO;
}

static bool after_start(struct thread *self, enum span_kind kind, bool is_shared_loop, bool has_chunk, uintptr_t caller)
{
	if (is_shared_loop) {
		span_loop_begin(self, span_site(kind, caller, 0));
		if (has_chunk)
			span_chunk_begin(self);
	}
	span_chunk_asked(self);
	span_begin_strand(self);
	return has_chunk;
}

static bool after_next(struct thread *self, enum span_kind kind, bool is_shared_loop, bool has_chunk, uintptr_t caller)
{
	if (is_shared_loop) {
		if (!self->implicit->share.is_open) /* the loop began with the region */
			span_loop_begin(self, span_site(kind, caller, 0));
		if (has_chunk)
			span_chunk_begin(self);
	}
	span_chunk_asked(self);
	span_begin_strand(self);
	return has_chunk;
}

/* the entry points that begin a loop of a kind, and what is to be done before they are called */
#define STARTED(kind, before, name, schedule, parameters, ...)                                                        \
	EXPORT bool name parameters                                                                                   \
	{                                                                                                             \
		REAL(bool, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_gomp_member(self))                                                                            \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		before;                                                                                               \
		return after_start(self, kind, is_shared_by_gomp(schedule), call(__VA_ARGS__), CALLER);               \
	}
#define START(name, ...) STARTED(SPAN_LOOP, (void)0, name, __VA_ARGS__)
#define NEXT(name, schedule)                                                                                          \
	EXPORT bool name(void *from, void *to)                                                                        \
	{                                                                                                             \
		REAL(bool, name, (void *, void *));                                                                   \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_gomp_member(self))                                                                                 \
			return call(from, to);                                                                        \
		span_end_strand(self);                                                                                \
		span_chunk_end(self->implicit);                                                                       \
		span_chunk_ask(self);                                                                                 \
		return after_next(self, SPAN_LOOP, is_shared_by_gomp(schedule), call(from, to), CALLER);                      \
	}
#define START_CHUNKED(name, schedule)                                                                                 \
	START(name, schedule, (long from, long to, long by, long chunk, void *first, void *last), from, to, by,       \
	      chunk, first, last)
#define START_PLAIN(name, schedule)                                                                                   \
	START(name, schedule, (long from, long to, long by, void *first, void *last), from, to, by, first, last)
#define START_GENERAL(name)                                                                                           \
	START(name, schedule,                                                                                         \
	      (long from, long to, long by, long schedule, long chunk, void *first, void *last, void *reductions,     \
	       void *memory),                                                                                         \
	      from, to, by, schedule, chunk, first, last, reductions, memory)
#define START_ULL_CHUNKED(name, schedule)                                                                             \
	START(name, schedule, (bool up, long from, long to, long by, long chunk, void *first, void *last), up, from,  \
	      to, by, chunk, first, last)
#define START_ULL_PLAIN(name, schedule)                                                                               \
	START(name, schedule, (bool up, long from, long to, long by, void *first, void *last), up, from, to, by,      \
	      first, last)
#define START_ULL_GENERAL(name)                                                                                       \
	START(name, schedule,                                                                                         \
	      (bool up, long from, long to, long by, long schedule, long chunk, void *first, void *last,              \
	       void *reductions, void *memory),                                                                       \
	      up, from, to, by, schedule, chunk, first, last, reductions, memory)

#define LOOP_KIND(prefix, start_chunked, start_plain)                                                                 \
	start_chunked(prefix##dynamic_start, BY_DYNAMIC) start_chunked(prefix##guided_start, BY_GUIDED)               \
	start_plain(prefix##runtime_start, BY_RUNTIME)                                                                \
	NEXT(prefix##dynamic_next, BY_DYNAMIC) NEXT(prefix##guided_next, BY_GUIDED) NEXT(prefix##runtime_next, BY_RUNTIME)

LOOP_KIND(GOMP_loop_, START_CHUNKED, START_PLAIN)
LOOP_KIND(GOMP_loop_nonmonotonic_, START_CHUNKED, START_PLAIN)
LOOP_KIND(GOMP_loop_ordered_, START_CHUNKED, START_PLAIN)
LOOP_KIND(GOMP_loop_ull_, START_ULL_CHUNKED, START_ULL_PLAIN)
LOOP_KIND(GOMP_loop_ull_nonmonotonic_, START_ULL_CHUNKED, START_ULL_PLAIN)
LOOP_KIND(GOMP_loop_ull_ordered_, START_ULL_CHUNKED, START_ULL_PLAIN)
START_PLAIN(GOMP_loop_maybe_nonmonotonic_runtime_start, BY_RUNTIME)
NEXT(GOMP_loop_maybe_nonmonotonic_runtime_next, BY_RUNTIME)
START_ULL_PLAIN(GOMP_loop_ull_maybe_nonmonotonic_runtime_start, BY_RUNTIME)
NEXT(GOMP_loop_ull_maybe_nonmonotonic_runtime_next, BY_RUNTIME)
START_CHUNKED(GOMP_loop_static_start, BY_STATIC)
NEXT(GOMP_loop_static_next, BY_STATIC)
START_CHUNKED(GOMP_loop_ordered_static_start, BY_STATIC)
NEXT(GOMP_loop_ordered_static_next, BY_STATIC)
START_ULL_CHUNKED(GOMP_loop_ull_static_start, BY_STATIC)
NEXT(GOMP_loop_ull_static_next, BY_STATIC)
START_ULL_CHUNKED(GOMP_loop_ull_ordered_static_start, BY_STATIC)
NEXT(GOMP_loop_ull_ordered_static_next, BY_STATIC)
START_GENERAL(GOMP_loop_start)
START_GENERAL(GOMP_loop_ordered_start)
START_ULL_GENERAL(GOMP_loop_ull_start)
START_ULL_GENERAL(GOMP_loop_ull_ordered_start)

/* A loop's end without a barrier. */
#define LOOP_LEAVE(name)                                                                                              \
	EXPORT void name(void)                                                                                        \
	{                                                                                                             \
		REAL(void, name, (void));                                                                             \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_gomp_member(self)) {                                                                               \
			call();                                                                                       \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		span_loop_end(self);                                                                                  \
		span_doacross_end(self);                                                                              \
		call();                                                                                               \
		span_begin_strand(self);                                                                              \
	}
LOOP_LEAVE(GOMP_loop_end_nowait)
LOOP_LEAVE(GOMP_sections_end_nowait)

/* sections: chunks of one section each; 0 stands for "no more" */

EXPORT unsigned GOMP_sections_start(unsigned count)
{
	REAL(unsigned, GOMP_sections_start, (unsigned));
	struct thread *self = &span_self;
	unsigned section;

	if (!is_gomp_member(self))
		return call(count);
	span_end_strand(self);
	section = call(count);
	after_start(self, SPAN_SECTIONS, true, section != 0, CALLER);
	return section;
}

EXPORT unsigned GOMP_sections2_start(unsigned count, void *reductions, void *memory)
{
	REAL(unsigned, GOMP_sections2_start, (unsigned, void *, void *));
	struct thread *self = &span_self;
	unsigned section;

	if (!is_gomp_member(self))
		return call(count, reductions, memory);
	span_end_strand(self);
	section = call(count, reductions, memory);
	after_start(self, SPAN_SECTIONS, true, section != 0, CALLER);
	return section;
}

EXPORT unsigned GOMP_sections_next(void)
{
	REAL(unsigned, GOMP_sections_next, (void));
	struct thread *self = &span_self;
	unsigned section;

	if (!is_gomp_member(self))
		return call();
	span_end_strand(self);
	span_chunk_end(self->implicit);
	section = call();
	after_next(self, SPAN_SECTIONS, true, section != 0, CALLER);
	return section;
}

/* doacross loops: of their n loops those that are collapsed with the first count as one */

static void before_doacross_start(struct thread *self, unsigned dimensions, const int64_t *counts, uintptr_t caller)
{
	struct span_bounds bounds[MAX_DOACROSS];

	for (unsigned i = 0; i < dimensions && i < MAX_DOACROSS; i++)
		bounds[i] = (struct span_bounds){0, counts[i] - 1, 1};
	span_doacross_begin(self, span_site(SPAN_DOACROSS, caller, 0), dimensions, bounds);
	span_chunk_ask(self);
}

#define DOACROSS_START(name, ...) \
	STARTED(SPAN_DOACROSS, before_doacross_start(self, n, counts, CALLER), name, __VA_ARGS__)
#define DOACROSS_STARTS(prefix)                                                                                       \
	DOACROSS_START(prefix##static_start, BY_STATIC,                                                               \
		       (unsigned n, int64_t *counts, long chunk, void *first, void *last), n, counts, chunk,          \
		       first, last)                                                                                   \
	DOACROSS_START(prefix##dynamic_start, BY_DYNAMIC,                                                             \
		       (unsigned n, int64_t *counts, long chunk, void *first, void *last), n, counts, chunk,          \
		       first, last)                                                                                   \
	DOACROSS_START(prefix##guided_start, BY_GUIDED,                                                               \
		       (unsigned n, int64_t *counts, long chunk, void *first, void *last), n, counts, chunk,          \
		       first, last)                                                                                   \
	DOACROSS_START(prefix##runtime_start, BY_RUNTIME, (unsigned n, int64_t *counts, void *first, void *last), n,  \
		       counts, first, last)                                                                           \
	DOACROSS_START(prefix##start, schedule,                                                                       \
		       (unsigned n, int64_t *counts, long schedule, long chunk, void *first, void *last,              \
			void *reductions, void *memory),                                                              \
		       n, counts, schedule, chunk, first, last, reductions, memory)
DOACROSS_STARTS(GOMP_loop_doacross_)
DOACROSS_STARTS(GOMP_loop_ull_doacross_)

#define DOACROSS_POST(name)                                                                                           \
	EXPORT void name(int64_t *iteration)                                                                         \
	{                                                                                                             \
		REAL(void, name, (int64_t *));                                                                       \
		struct thread *self = &span_self;                                                                     \
		void *awaited;                                                                                        \
                                                                                                                      \
		if (!is_gomp_member(self)) {                                                                          \
			call(iteration);                                                                              \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		awaited = span_doacross_post(self, iteration);                                                        \
		call(iteration);                                                                                      \
		span_doacross_posted(awaited);                                                                        \
		span_begin_strand(self);                                                                              \
	}
DOACROSS_POST(GOMP_doacross_post)
DOACROSS_POST(GOMP_doacross_ull_post)

/* Variadic: as many counters as the loop has. More than eight are not followed, nor passed on. */
#define DOACROSS_WAIT(name)                                                                                           \
	EXPORT void name(int64_t first, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f,      \
			 int64_t g)                                                                                  \
	{                                                                                                             \
		REAL(void, name, (int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t));   \
		struct thread *self = &span_self;                                                                     \
		const int64_t iteration[MAX_DOACROSS] = {first, a, b, c, d, e, f, g};                                \
                                                                                                                      \
		if (!is_gomp_member(self)) {                                                                          \
			call(first, a, b, c, d, e, f, g);                                                             \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		span_doacross_await(self, iteration);                                                                 \
		call(first, a, b, c, d, e, f, g);                                                                     \
		span_doacross_waited(self, iteration);                                                                \
		span_begin_strand(self);                                                                              \
	}
DOACROSS_WAIT(GOMP_doacross_wait)
DOACROSS_WAIT(GOMP_doacross_ull_wait)
