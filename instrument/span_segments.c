/* SPDX-License-Identifier: Apache-2.0 */
/* Paths' amounts by call site, and the segments that paths have in common: see span_calls.h. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "span_calls.h"

static void release(struct segment *segment)
{
	while (segment && atomic_fetch_sub_explicit(&segment->references, 1, memory_order_acq_rel) == 1) {
		struct segment *before = segment->before;

		call_prof_clear(&segment->prof);
		free(segment);
		segment = before;
	}
}

static struct segment *refer(struct segment *segment)
{
	if (segment)
		atomic_fetch_add_explicit(&segment->references, 1, memory_order_relaxed);
	return segment;
}

/* Segments that only this path refers to are part of it. */
static void absorb(struct call_path *path)
{
	struct segment *segment;

	while ((segment = path->before) && atomic_load_explicit(&segment->references, memory_order_acquire) == 1) {
		path->before = segment->before;
		call_prof_union(&path->prof, &segment->prof, span_known_calls());
		free(segment);
	}
}

/* The path as a segment that others may refer to; the reference stays the path's. One that was frozen is not changed
 * by this: tasks of a taskloop share it. */
struct segment *span_path_freeze(struct call_path *path)
{
	struct segment *segment;

	if (call_prof_is_empty(&path->prof))
		return path->before;
	absorb(path);
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		abort();
	atomic_init(&segment->references, 1);
	segment->before = path->before;
	call_prof_assign(&segment->prof, &path->prof);
	path->before = segment;
	return segment;
}

void span_path_clear(struct call_path *path)
{
	call_prof_clear(&path->prof);
	release(path->before);
	path->before = NULL;
}

/* The child's path begins with the parent's. */
void span_path_fork(struct call_path *path, struct call_path *child)
{
	child->before = refer(span_path_freeze(path));
}

/* Another path is longer: it goes on here. */
void span_path_take(struct call_path *path, struct segment *segment)
{
	refer(segment);
	span_path_clear(path);
	path->before = segment;
}

void span_segment_keep(struct segment **kept, struct segment *segment)
{
	refer(segment);
	release(*kept);
	*kept = segment;
}

/* The whole path's amounts move; segments that others have, too, are copied. */
void span_path_flatten(struct call_path *path, struct call_prof *into)
{
	absorb(path);
	call_prof_union(into, &path->prof, span_known_calls());
	for (struct segment *segment = path->before; segment; segment = segment->before)
		call_prof_add(into, &segment->prof, span_known_calls());
	span_path_clear(path);
}

void span_calls_union(struct call_prof *into, struct call_prof *from)
{
	call_prof_union(into, from, span_known_calls());
}

void span_calls_scale(struct call_prof *prof, uint64_t wanted, uint64_t total)
{
	if (total && !call_prof_is_empty(prof))
		call_prof_scale(prof, wanted, total, span_known_calls());
}
