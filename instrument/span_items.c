/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of POSIX that take what comes next, and who took what is chance: what one does with an *item* comes after what
 * it did before it took its first, or what has woken it since, but not after the items before.
 */
#define _GNU_SOURCE
#include "span.h"

/* The thread takes one: it goes on where it took its first. */
void span_begin_item(struct thread *self)
{
	struct frame *frame = self->frame;

	if (!frame->has_items) {
		span_begin_items_here(self);
		return;
	}
	if (frame->c <= frame->item_start)
		return;
	span_keep_own_path(frame);
	span_report(frame->group, frame);
	frame->c_before += frame->c - frame->item_start;
	frame->c = frame->item_start;
	prof_copy(&frame->prof, &frame->share.before);
	if (UNLIKELY(span_has_calls))
		span_path_take(&frame->path, frame->item_calls);
}

/* All that it will take comes after this path: there was nothing to take when it came. */
void span_begin_items_here(struct thread *self)
{
	struct frame *frame = self->frame;

	frame->has_items = true;
	frame->item_start = frame->c;
	prof_copy(&frame->share.before, &frame->prof);
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&frame->item_calls, span_path_freeze(&frame->path));
}

/* Who joins the thread waits for all of them. */
void span_items_end(struct frame *frame)
{
	if (frame->has_items)
		span_take_path(frame, frame->longest, &frame->longest_prof, frame->longest_calls);
}
