/* SPDX-License-Identifier: Apache-2.0 */
/* Paths' amounts by call site, and the segments that paths have in common: see span_calls.h. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "span_alone.h"
#include "span_calls.h"

#define MAX_SPARE_SEGMENTS 512
#define MAX_CHAIN 32

static __thread struct segment *spare_segments;
static __thread uint32_t spare_segment_count;

static struct segment *new_segment(void)
{
	struct segment *segment = spare_segments;

	if (segment) {
		spare_segments = segment->before;
		spare_segment_count--;
		return segment;
	}
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		abort();
	return segment;
}

/* Its prof is empty. */
static void free_segment(struct segment *segment)
{
	if (spare_segment_count == MAX_SPARE_SEGMENTS) {
		free(segment);
		return;
	}
	segment->before = spare_segments;
	spare_segments = segment;
	spare_segment_count++;
}

static void release(struct segment *segment)
{
	while (segment && is_last_reference(&segment->references)) {
		struct segment *before = segment->before;

		call_prof_clear(&segment->prof);
		free_segment(segment);
		segment = before;
	}
}

static struct segment *refer(struct segment *segment)
{
	if (segment)
		count_reference(&segment->references);
	return segment;
}

/* The same where the caller has the reference that is known, for itself alone: if that is the only one, nobody else can
 * make another meanwhile. */
static struct segment *refer_own(struct segment *segment)
{
	if (segment && atomic_load_explicit(&segment->references, memory_order_acquire) == 1)
		atomic_store_explicit(&segment->references, 2, memory_order_relaxed);
	else
		refer(segment);
	return segment;
}

/* Segments that only this path refers to are part of it. */
static void absorb(struct call_path *path)
{
	struct segment *segment;

	while ((segment = path->before) && atomic_load_explicit(&segment->references, memory_order_acquire) == 1) {
		path->before = segment->before;
		call_prof_union(&path->prof, &segment->prof, span_known_calls());
		free_segment(segment);
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
	segment = new_segment();
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
	bool is_new = !call_prof_is_empty(&path->prof); /* others may have the pattern of a taskloop, which is not */
	struct segment *segment = span_path_freeze(path);

	child->before = is_new ? refer_own(segment) : refer(segment);
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

/* Of a path that nobody else works on. */
void span_segment_keep_own(struct segment **kept, struct segment *segment)
{
	refer_own(segment);
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

/* The amounts of a path without those of one that it began with, which somebody keeps. */
void span_path_add_rest(struct call_path *path, const struct segment *begin, struct call_prof *into)
{
	call_prof_add(into, &path->prof, span_known_calls());
	for (struct segment *segment = path->before; segment && segment != begin; segment = segment->before)
		call_prof_add(into, &segment->prof, span_known_calls());
}

bool span_path_is_long(const struct call_path *path)
{
	const struct segment *segment = path->before;
	uint32_t count = 0;

	for (; segment && count <= MAX_CHAIN; segment = segment->before)
		count++;
	return count > MAX_CHAIN;
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
