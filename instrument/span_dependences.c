/* SPDX-License-Identifier: Apache-2.0 */
/* Dependences between the tasks of one parent: what each must wait for, and so whose path goes on in it. */
#define _GNU_SOURCE
#include "span.h"

/* What the tasks of one parent did with one address. */
struct dependence {
	void *address;
	struct frame *out; /* the last that writes it */
	struct frame **ins; /* those that read it since */
	uint32_t in_count, in_room;
};

struct dependences {
	uint32_t used, room; /* a power of two */
	struct dependence *slots;
};

static void grow_dependences(struct dependences *table)
{
	struct dependence *old = table->slots;
	uint32_t old_room = table->room;

	table->room = old_room ? old_room * 2 : 64;
	table->slots = calloc(table->room, sizeof(*table->slots));
	if (!table->slots)
		abort();
	for (uint32_t i = 0; i < old_room; i++) {
		uint32_t at;

		if (!old[i].address)
			continue;
		at = (uint32_t)(((uintptr_t)old[i].address * 0x9e3779b97f4a7c15ull) >> 32) & (table->room - 1);
		while (table->slots[at].address)
			at = (at + 1) & (table->room - 1);
		table->slots[at] = old[i];
	}
	free(old);
}

static struct dependence *dependence_of(struct frame *parent, void *address)
{
	struct dependences *table = parent->dependences;
	uint32_t at;

	if (!table) {
		table = parent->dependences = calloc(1, sizeof(*table));
		if (!table)
			abort();
	}
	if (table->used * 2 >= table->room)
		grow_dependences(table);
	at = (uint32_t)(((uintptr_t)address * 0x9e3779b97f4a7c15ull) >> 32) & (table->room - 1);
	while (table->slots[at].address && table->slots[at].address != address)
		at = (at + 1) & (table->room - 1);
	if (!table->slots[at].address) {
		table->slots[at].address = address;
		table->used++;
	}
	return &table->slots[at];
}

void span_forget_dependences(struct thread *self, struct frame *frame)
{
	struct dependences *table = frame->dependences;

	if (!table)
		return;
	frame->dependences = NULL;
	for (uint32_t i = 0; i < table->room; i++) {
		struct dependence *one = &table->slots[i];

		if (one->out)
			span_release(self, one->out);
		for (uint32_t j = 0; j < one->in_count; j++)
			span_release(self, one->ins[j]);
		free(one->ins);
	}
	free(table->slots);
	free(table);
}

static void add_predecessor(struct frame *child, struct frame *predecessor)
{
	uint32_t count = child->predecessor_count;

	if (predecessor == child)
		return;
	if (!(count & (count - 1))) { /* full: 0, 1, 2, 4, ... */
		struct frame **more =
			realloc(child->predecessors, (count ? 2 * count : 1) * sizeof(*child->predecessors));
		if (!more)
			abort();
		child->predecessors = more;
	}
	child->predecessors[child->predecessor_count++] = span_refer(predecessor);
}

/* The child comes after what its siblings do with this address. `is_kept`: and later ones after the child. */
void span_depend_on(struct thread *self, struct frame *parent, struct frame *child, void *address, bool is_in,
		    bool is_kept)
{
	struct dependence *one = dependence_of(parent, address);

	if (one->out)
		add_predecessor(child, one->out);
	if (is_in) {
		if (!is_kept)
			return;
		if (one->in_count == one->in_room) {
			one->in_room = one->in_room ? 2 * one->in_room : 2;
			one->ins = realloc(one->ins, one->in_room * sizeof(*one->ins));
			if (!one->ins)
				abort();
		}
		one->ins[one->in_count++] = span_refer(child);
		return;
	}
	for (uint32_t i = 0; i < one->in_count; i++)
		add_predecessor(child, one->ins[i]);
	if (!is_kept)
		return;
	for (uint32_t i = 0; i < one->in_count; i++)
		span_release(self, one->ins[i]);
	one->in_count = 0;
	if (one->out)
		span_release(self, one->out);
	one->out = span_refer(child);
}

/* All predecessors have ended: the longest of their paths goes on here. */
void span_take_predecessors(struct thread *self, struct frame *frame)
{
	for (uint32_t i = 0; i < frame->predecessor_count; i++) {
		struct frame *one = frame->predecessors[i];

		span_take_path(frame, one->c, &one->prof, span_path_freeze(&one->path));
		span_release(self, one);
	}
	free(frame->predecessors);
	frame->predecessors = NULL;
	frame->predecessor_count = 0;
}
