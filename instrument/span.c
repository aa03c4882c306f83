/* SPDX-License-Identifier: Apache-2.0 */
/* Strands, frames, and the longest paths of frames: see span.h. */
#define _GNU_SOURCE
#include "span.h"

#define MAX_FREE_FRAMES 512

__thread struct thread span_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

static __thread uint32_t free_count;

/* For programs of tests, which say themselves how long they work: with PARPROF_SPAN_CLOCK=test. */
EXPORT void parprof_span_work(uint64_t cycles)
{
	span_self.clock.ticks += cycles;
}

/* strands */

void span_book(struct thread *self, struct frame *frame, uint64_t cycles)
{
	struct frame *implicit = self->implicit;

	if (UNLIKELY(span_has_calls)) {
		span_calls_book(self, frame, cycles);
		cycles += self->unbooked;
		self->unbooked = 0;
		frame->work_done += cycles;
	}
	self->total += cycles;
	implicit->busy += cycles;
	implicit->worked += cycles;
	frame->c += cycles;
	if (frame->is_root) {
		struct span_site *site = &span_record->sites[frame->site];

		site->work += cycles;
		site->span += cycles;
		site->bound += cycles;
		return;
	}
	prof_add_next(&frame->prof, frame->site, cycles, self->begun);
	prof_add_next(&implicit->work, frame->site, cycles, self->begun);
	self->begun = 0;
}

static inline void end_strand(struct thread *self, uint64_t most_waiting)
{
	struct clock_stop stop;
	uint64_t cycles;

	if (!self->is_open)
		return;
	self->is_open = false;
	self->ended_by = TASK_END_OTHER;
	stop = clock_stop(&self->clock);
	span_hooks_replay(self);
	cycles = clock_end_by(&self->clock, stop);
	span_book(self, self->frame, cycles > most_waiting ? cycles : 0);
	if (UNLIKELY(span_has_calls))
		span_calls_settle(self, self->frame);
}

/* What the thread executed since the last strand began is done, and counts for its frame. */
void span_end_strand(struct thread *self)
{
	end_strand(self, 0);
}

/* The same of a strand that is none, if it is that short: the thread only waited. */
void span_end_wait(struct thread *self, uint64_t most)
{
	end_strand(self, most);
}

/* A site's code begins once more, on the current path. */
void span_count(struct thread *self, uint32_t site)
{
	if (self->frame->is_root) {
		span_record->sites[site].count++;
		span_record->sites[site].span_count++;
		return;
	}
	prof_add(&self->frame->prof, site, 0, 1);
	prof_add(&self->implicit->work, site, 0, 1);
}

/* frames and paths */

/* Its profs are empty from now on, whenever it is not in use. */
static void init_frame(struct frame *frame)
{
	memset(frame, 0, sizeof(*frame));
	prof_init(&frame->prof);
	prof_init(&frame->longest_prof);
	prof_init(&frame->share.before);
	prof_init(&frame->share.total_prof);
	prof_init(&frame->share.longest_prof);
	prof_init(&frame->share.taken_prof);
	prof_init(&frame->work);
	prof_init(&frame->holds);
}

struct frame *span_new_frame(struct thread *self)
{
	struct frame *frame = self->free_frames;

	if (frame) {
		self->free_frames = frame->parent;
		free_count--;
	} else {
		frame = aligned_alloc(_Alignof(struct frame), sizeof(*frame));
		if (!frame)
			abort();
		init_frame(frame);
	}
	clear_begin(frame, offsetof(struct frame, prof));
	atomic_init(&frame->references, 1);
	frame->site = SITE_PENDING;
	return frame;
}

static void dispose_calls(struct frame *frame)
{
	span_path_clear(&frame->path);
	span_segment_keep(&frame->longest_calls, NULL);
	span_segment_keep(&frame->item_calls, NULL);
	span_calls_forget_children(frame);
	if (frame->is_implicit) {
		span_path_clear(&frame->share.calls_before);
		call_prof_clear(&frame->share.rest_calls);
		call_prof_clear(&frame->share.longest_calls);
		span_segment_keep(&frame->share.taken_calls, NULL);
	}
}

/* Its profs are empty. */
static void keep_for_later(struct thread *self, struct frame *frame)
{
	if (free_count == MAX_FREE_FRAMES) {
		free(frame->children.by_depth);
		free(frame);
		return;
	}
	frame->parent = self->free_frames;
	self->free_frames = frame;
	free_count++;
}

static void dispose(struct thread *self, struct frame *frame)
{
	if (UNLIKELY(span_has_calls))
		dispose_calls(frame);
	prof_empty(&frame->prof);
	prof_empty(&frame->longest_prof);
	if (frame->is_implicit) {
		prof_empty(&frame->work);
		prof_empty(&frame->holds);
		prof_empty(&frame->share.before);
		prof_empty(&frame->share.total_prof);
		prof_empty(&frame->share.longest_prof);
		prof_empty(&frame->share.taken_prof);
	}
	keep_for_later(self, frame);
}

/* Give a reference back; a frame without any gives back its parent's. */
void span_release(struct thread *self, struct frame *frame)
{
	while (frame && !frame->is_root) {
		struct frame *parent = frame->parent;

		if (!is_last_reference(&frame->references))
			return;
		if (UNLIKELY(frame->dependences))
			span_forget_dependences(self, frame);
		dispose(self, frame);
		frame = parent;
	}
}

/* Give the last reference back to the frame of a plain region: of its profs two have one entry each, and the others none. */
void span_release_plain(struct thread *self, struct frame *frame)
{
	prof_clear(&frame->prof);
	prof_clear(&frame->work);
	keep_for_later(self, frame);
}

/* Another path joins a frame's: the longer one goes on. */
void span_take_path(struct frame *frame, uint64_t c, struct prof *prof, struct segment *calls)
{
	if (c > frame->c) {
		frame->c = c;
		prof_copy(&frame->prof, prof);
		if (UNLIKELY(span_has_calls))
			span_path_take(&frame->path, calls);
	}
}

/* The child goes on where its parent is now. */
void span_begin_path(struct frame *child, struct frame *parent)
{
	child->c = parent->c;
	prof_copy(&child->prof, &parent->prof);
	if (UNLIKELY(span_has_calls))
		span_path_fork(&parent->path, &child->path);
}

/* All children have ended. */
void span_take_children(struct frame *frame)
{
	if (UNLIKELY(span_has_calls))
		span_calls_take_children(&span_self, frame);
	if (atomic_load_explicit(&frame->longest, memory_order_relaxed) == 0)
		return;
	/* no lock: nobody else reports to it */
	span_take_path(frame, frame->longest, &frame->longest_prof, frame->longest_calls);
	span_segment_keep(&frame->longest_calls, NULL);
	atomic_store_explicit(&frame->longest, 0, memory_order_relaxed);
}

/* Of another thread's frame the path by call site is not to be had: it may be changing. */
static struct segment *calls_of_own(struct frame *frame)
{
	if (LIKELY(!span_has_calls) || (frame != span_self.frame && frame != span_self.implicit))
		return NULL;
	return span_path_freeze(&frame->path);
}

/* Of two that are equal, the later one: it may be the other with the calls ended that are around it. */
static bool is_longer(uint64_t c, _Atomic uint64_t *best)
{
	return c > atomic_load_explicit(best, memory_order_relaxed) - (UNLIKELY(span_has_calls) && *best);
}

static void copy_longest(_Atomic uint64_t *best, struct prof *best_prof, struct segment **best_calls,
			 struct frame *frame, struct segment *calls)
{
	prof_copy(best_prof, &frame->prof);
	span_segment_keep_own(best_calls, calls);
	atomic_store_explicit(best, frame->c, memory_order_relaxed);
}

void span_report(struct group *group, struct frame *frame)
{
	if (!is_longer(frame->c, &group->best))
		return;
	spin_lock(&group->lock);
	if (is_longer(frame->c, &group->best))
		copy_longest(&group->best, &group->best_prof, &group->best_calls, frame, calls_of_own(frame));
	spin_unlock(&group->lock);
}

/* Of a member of a team that is over: its path does not change any more, and nobody else reports one. */
void span_report_last(struct group *group, struct frame *frame)
{
	if (is_longer(frame->c, &group->best))
		copy_longest(&group->best, &group->best_prof, &group->best_calls, frame,
			     UNLIKELY(span_has_calls) ? span_path_freeze(&frame->path) : NULL);
}

/* The frame will begin another path, and go on with the longer of the two when both are over. */
void span_keep_own_path(struct frame *frame)
{
	if (is_longer(frame->c, &frame->longest))
		copy_longest(&frame->longest, &frame->longest_prof, &frame->longest_calls, frame, calls_of_own(frame));
}

void span_report_child(struct frame *parent, struct frame *child)
{
	if (LIKELY(!span_has_calls) && !is_longer(child->c, &parent->longest))
		return;
	spin_lock(&parent->lock);
	if (is_longer(child->c, &parent->longest))
		copy_longest(&parent->longest, &parent->longest_prof, &parent->longest_calls, child, calls_of_own(child));
	if (UNLIKELY(span_has_calls))
		span_calls_end_child(parent, child);
	spin_unlock(&parent->lock);
}
