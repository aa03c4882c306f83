/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worksharing loops whose chunks the runtime gives out, and sections: each chunk is a path of its own. What a loop
 * takes, whoever got which chunk, is known when its phase ends.
 */
#define _GNU_SOURCE
#include "span.h"

/* A loop (or sections) begins for a member, whether or not it gets a chunk. */
void span_loop_begin(struct thread *self, uint32_t site)
{
	struct share *share = &self->implicit->share;

	span_loop_end(self);
	share->is_open = true;
	share->index = self->implicit->loops++;
	share->site = site;
	share->came = self->implicit->c - self->implicit->loop_began;
	self->implicit->loop_began = self->implicit->c;
	share->total = share->longest = 0;
	call_prof_clear(&share->rest_calls);
	call_prof_clear(&share->longest_calls);
	prof_clear(&share->total_prof);
	prof_clear(&share->longest_prof);
}

static void swap_profs(struct prof *one, struct prof *other)
{
	struct prof kept = *one;

	*one = *other;
	*other = kept;
}

/* The member got a chunk: a path of its own until the chunk ends. */
void span_chunk_begin(struct thread *self)
{
	struct frame *frame = self->implicit;
	struct share *share = &frame->share;

	share->in_chunk = true;
	share->start = frame->c;
	share->taken = 0;
	share->site_before = frame->site;
	swap_profs(&share->before, &frame->prof);
	prof_clear(&frame->prof);
	frame->site = share->site;
	share->calls_before = frame->path;
	memset(&frame->path, 0, sizeof(frame->path));
	if (share->doacross) { /* its members are counted, each one */
		span_doacross_chunk_begin(self);
		return;
	}
	prof_add(&frame->prof, share->site, 0, 1);
	prof_add(&frame->work, share->site, 0, 1);
}

/* What the member itself executed of the chunk since its path was last another's. */
static void keep_own(struct frame *frame)
{
	struct share *share = &frame->share;

	share->total += frame->c - share->start - share->taken;
	if (!share->taken) {
		prof_union(&share->total_prof, &frame->prof);
		return;
	}
	prof_union_rest(&share->total_prof, &frame->prof, &share->taken_prof);
}

/* A chunk of a doacross loop is about to go on with another's path, which is longer than its own. */
void span_chunk_interrupt(struct frame *frame)
{
	struct share *share = &frame->share;

	if (!share->in_chunk)
		return;
	keep_own(frame);
	if (UNLIKELY(span_has_calls))
		span_path_add_rest(&frame->path, share->taken_calls, &share->rest_calls);
}

void span_chunk_resume(struct frame *frame)
{
	struct share *share = &frame->share;

	if (!share->in_chunk)
		return;
	share->taken = frame->c - share->start;
	prof_copy(&share->taken_prof, &frame->prof);
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&share->taken_calls, frame->path.before);
}

/* The chunk's path goes to the others'; the longest is kept apart. */
static void keep_chunk_calls(struct share *share, struct call_path *path, bool is_longest)
{
	if (share->doacross) {
		span_path_add_rest(path, share->taken_calls, &share->rest_calls);
		span_segment_keep(&share->taken_calls, NULL);
		if (is_longest) {
			call_prof_clear(&share->longest_calls);
			span_path_flatten(path, &share->longest_calls);
		}
		span_path_clear(path);
	} else if (is_longest) {
		span_calls_union(&share->rest_calls, &share->longest_calls);
		span_path_flatten(path, &share->longest_calls);
	} else {
		span_path_flatten(path, &share->rest_calls);
	}
	*path = share->calls_before;
	memset(&share->calls_before, 0, sizeof(share->calls_before));
}

void span_chunk_end(struct frame *frame)
{
	struct share *share = &frame->share;
	uint64_t length = frame->c - share->start;

	if (!share->in_chunk)
		return;
	if (share->doacross)
		span_doacross_chunk_end(frame);
	keep_own(frame);
	share->in_chunk = false;
	if (UNLIKELY(span_has_calls))
		keep_chunk_calls(share, &frame->path, length > share->longest);
	if (length > share->longest) {
		share->longest = length;
		swap_profs(&share->longest_prof, &frame->prof);
	}
	swap_profs(&frame->prof, &share->before);
	frame->c = share->start;
	frame->site = share->site_before;
}

static struct loop *loop_of_phase(struct phase *phase, uint32_t index, uint32_t site)
{
	struct loop *loop;

	for (loop = phase->loops; loop; loop = loop->next) {
		if (loop->index == index)
			return loop;
	}
	loop = calloc(1, sizeof(*loop));
	if (!loop)
		return NULL;
	prof_init(&loop->total_prof);
	prof_init(&loop->longest_prof);
	loop->index = index;
	loop->site = site;
	loop->next = phase->loops;
	phase->loops = loop;
	return loop;
}

static void add_member(struct loop *loop, uint64_t came)
{
	if (!loop->members++ || came < loop->least_before)
		loop->least_before = came;
	if (came > loop->most_before)
		loop->most_before = came;
	loop->before += came;
}

/* The member is through with its loop, if it is in one. */
void span_loop_end(struct thread *self)
{
	struct frame *frame = self->implicit;
	struct share *share = &frame->share;
	struct phase *phase;
	struct loop *loop;

	if (!share->is_open)
		return;
	span_chunk_end(frame);
	share->is_open = false;
	frame->c_before += share->total;
	phase = phase_of(frame);
	spin_lock(&phase->group.lock);
	loop = loop_of_phase(phase, share->index, share->site);
	if (loop) {
		loop->total += share->total;
		add_member(loop, share->came);
		loop->has_waits |= share->doacross != NULL;
		prof_union(&loop->total_prof, &share->total_prof);
		span_calls_union(&loop->rest_calls, &share->rest_calls);
		if (!loop->has_waits)
			span_calls_union(&loop->rest_calls, share->longest > loop->longest ? &loop->longest_calls
											   : &share->longest_calls);
		if (share->longest > loop->longest) {
			call_prof_assign(&loop->longest_calls, &share->longest_calls);
			loop->longest = share->longest;
			prof_copy(&loop->longest_prof, &share->longest_prof);
		}
	}
	spin_unlock(&phase->group.lock);
}

static void add_loop_calls(struct phase *phase, struct loop *loop, bool is_uneven, uint64_t length)
{
	if (!is_uneven) {
		if (loop->has_waits) /* the longest is of what several executed, which are in the rest, all of them */
			call_prof_clear(&loop->longest_calls);
		span_calls_union(&loop->longest_calls, &loop->rest_calls);
		span_calls_scale(&loop->longest_calls, length, loop->total);
	} else if (length < loop->longest) {
		span_calls_scale(&loop->longest_calls, length, loop->longest);
	}
	span_calls_union(&phase->loop_calls, &loop->longest_calls);
}

static uint64_t without(uint64_t length, uint64_t other)
{
	return length > other ? length - other : 0;
}

/* Members that come to a loop early take the more of it, so it ends that much earlier after the last one has come: that
 * one's path, which is in the phase's, is longer than theirs. */
static uint64_t spared(const struct loop *loop, bool by_the_first)
{
	if (loop->has_waits || !loop->members)
		return 0;
	return loop->most_before - (by_the_first ? loop->least_before : loop->before / loop->members);
}

/* The length of a phase's loops, whose amounts join its path. Each takes at least its longest chunk and its work divided
 * by the team: the bound of any schedule. A thread that is alone because the run is serial stands for a team without
 * limit. */
uint64_t span_loops_add(struct phase *phase, uint32_t size)
{
	uint64_t length = 0;

	for (struct loop *loop = phase->loops; loop; loop = loop->next) {
		uint64_t even = span_is_serial && size == 1 ? 0 : loop->total / size;
		uint64_t chunk = without(loop->longest, spared(loop, true));
		uint64_t share = without(even, spared(loop, false));
		bool is_uneven = chunk > share;
		struct prof *prof = is_uneven ? &loop->longest_prof : &loop->total_prof;

		prof_scale(prof, is_uneven ? chunk : share);
		length += is_uneven ? chunk : share;
		add_loop_calls(phase, loop, is_uneven, is_uneven ? chunk : share);
		prof_union(&phase->group.best_prof, prof);
	}
	return length;
}

void span_loops_forget(struct phase *phase)
{
	struct loop *loop;

	while ((loop = phase->loops)) {
		phase->loops = loop->next;
		call_prof_clear(&loop->rest_calls);
		call_prof_clear(&loop->longest_calls);
		prof_free(&loop->total_prof);
		prof_free(&loop->longest_prof);
		free(loop);
	}
}
