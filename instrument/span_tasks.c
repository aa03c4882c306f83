/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks of GNU libgomp: GOMP_task, taskloop, taskwait, taskgroup, and their dependences. */
#define _GNU_SOURCE
#include "span.h"

/* libgomp.h, libgomp_g.h */
#define FLAG_DEPEND (1u << 3)
#define FLAG_FINAL (1u << 1)
#define FLAG_NOGROUP (1u << 11)
#define FLAG_DETACH (1u << 13)
enum { DEPEND_IN = 1 };

#define HEADER 64      /* in front of the program's block of arguments: whatever alignment that has up to 64 holds */
#define COPIED_WORDS 3 /* libgomp writes into the first words of a block: event handle, bounds of a taskloop */
#define MAX_BLOCK 65536

struct block {
	void *words[COPIED_WORDS];
	struct frame *frame;
};

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

static struct frame *refer(struct frame *frame)
{
	atomic_fetch_add_explicit(&frame->references, 1, memory_order_relaxed);
	return frame;
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
	child->predecessors[child->predecessor_count++] = refer(predecessor);
}

/* The child comes after what its siblings do with this address. `is_kept`: and later ones after the child. */
static void depend_on(struct thread *self, struct frame *parent, struct frame *child, void *address, bool is_in,
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
		one->ins[one->in_count++] = refer(child);
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
	one->out = refer(child);
}

/* The two forms of a depend array: {count, outs, addresses} and {0, count, outs, mutexinoutsets, ins, addresses};
 * behind the plain addresses of the second are pointers to {address, kind}. */
static void read_depend(struct thread *self, struct frame *parent, struct frame *child, void **depend, bool is_kept)
{
	bool is_long = depend[0] == NULL;
	size_t count = (uintptr_t)depend[is_long ? 1 : 0], outs = (uintptr_t)depend[is_long ? 2 : 1];
	size_t plain = count;
	void **addresses = depend + (is_long ? 5 : 2);

	if (is_long) {
		outs += (uintptr_t)depend[3]; /* mutexinoutset: taken as a chain, in the order of creation */
		plain = outs + (uintptr_t)depend[4];
	}
	for (size_t i = 0; i < count; i++) {
		if (i < plain) {
			depend_on(self, parent, child, addresses[i], i >= outs, is_kept);
		} else {
			void **object = addresses[i];

			depend_on(self, parent, child, object[0], (uintptr_t)object[1] == DEPEND_IN, is_kept);
		}
	}
}

/* All predecessors have ended: the longest of their paths goes on here. */
static void take_predecessors(struct thread *self, struct frame *frame)
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

static void copy_words(void **from, void **to, size_t bytes)
{
	memcpy(to, from, bytes < COPIED_WORDS * sizeof(void *) ? bytes : COPIED_WORDS * sizeof(void *));
}

static struct frame *spawn(struct thread *self, enum span_kind kind, uintptr_t address, bool if_clause, unsigned flags)
{
	struct frame *parent = self->frame, *child = span_new_frame(self);

	child->parent = refer(parent);
	child->team = parent->team;
	child->group = parent->group;
	span_begin_path(child, parent);
	child->context = self->context;
	child->spawn_depth = span_calls_depth(self);
	child->site = span_site(kind, address, 0);
	child->is_final = parent->is_final || (flags & FLAG_FINAL);
	/* one that the runtime executes at once for want of room could run in parallel all the same */
	child->is_serial =
		!if_clause || parent->is_final || !parent->team || parent->team->is_posix || (parent->team->level > 1 && parent->team->size == 1);
	return child;
}

/* A task's body, by whichever thread. */
static void run_task(struct thread *self, struct frame *task, void (*body)(void *), void *data)
{
	struct frame *before = self->frame, *implicit = self->implicit;
	struct calls_kept kept;

	span_end_strand(self); /* a task may run inside another's wait, or call */
	kept = span_calls_enter(self, task->context);
	if (!implicit || implicit->is_root)
		self->implicit = task->team ? task->team->members : implicit;
	self->frame = task;
	span_count(self, task->site);
	take_predecessors(self, task);
	span_begin_strand(self);
	body(data);
	span_end_strand(self);
	span_calls_leave(self, kept);
	if (UNLIKELY(span_has_calls))
		span_path_freeze(&task->path);
	task->is_done = true;
	if (task->group)
		span_report(task->group, task);
	span_report_child(task->parent, task);
	self->frame = before;
	self->implicit = implicit;
	span_forget_dependences(self, task);
}

static void task_body(void *argument)
{
	struct block *block = argument;
	struct frame *task = block->frame;
	struct thread *self = &span_self;
	void *data = (char *)block + task->header;

	if (task->is_detached)
		*(void **)data = block->words[0];
	run_task(self, task, task->body, data);
	span_release(self, task);
}

static void copy_block(void *to, void *from)
{
	struct block *source = from, *block = to;
	struct frame *task = source->frame;
	/* behind the header of the source is a pointer to the program's own block */
	void *data = *(void **)((char *)source + task->header);

	*block = *source;
	task->copy((char *)to + task->header, data);
}

static size_t header_for(long alignment)
{
	return alignment > HEADER ? (size_t)alignment : HEADER;
}

/* Bytes of our block with room for the alignment; for a task with a copy function it only leads to the data. */
static size_t room_for(struct frame *task, long bytes)
{
	return task->header + (task->copy ? sizeof(void *) : (size_t)bytes);
}

static struct block *fill_block(void *room, struct frame *task, void *data, long bytes)
{
	struct block *block = room;

	memset(block, 0, sizeof(*block));
	block->frame = task;
	if (data && bytes > 0)
		copy_words(data, block->words, (size_t)bytes);
	if (task->copy)
		*(void **)((char *)block + task->header) = data;
	else if (data && bytes > 0)
		memcpy((char *)block + task->header, data, (size_t)bytes);
	return block;
}

static void *aligned(void *room, size_t alignment)
{
	return (void *)(((uintptr_t)room + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

typedef void task_call(void (*)(void *), void *, void (*)(void *, void *), long, long, bool, unsigned, void **, int,
		       void *);

EXPORT void GOMP_task(void (*body)(void *), void *data, void (*copy)(void *, void *), long bytes, long alignment,
		      bool if_clause, unsigned flags, void **depend, int priority, void *detach)
{
	static void *real;
	task_call *call = (task_call *)span_real(&real, "GOMP_task");
	struct thread *self = &span_self;
	struct frame *frame = self->frame, *child;

	if (!frame || frame->is_root || !body || bytes < 0 || bytes > MAX_BLOCK) {
		call(body, data, copy, bytes, alignment, if_clause, flags, depend, priority, detach);
		return;
	}
	span_end_strand(self);
	child = refer(spawn(self, SPAN_TASK, CALLER, if_clause, flags));
	child->body = body;
	child->copy = copy;
	child->header = header_for(alignment);
	if (flags & FLAG_DETACH) {
		child->is_detached = true;
		span_record->flags |= SPAN_DETACHED;
	}
	if (flags & FLAG_DEPEND)
		read_depend(self, frame, child, depend, true);
	__atomic_add_fetch(&span_record->tasks, 1, __ATOMIC_RELAXED);
	{
		char room[room_for(child, bytes) + child->header];
		struct block *block = fill_block(aligned(room, child->header), child, data, bytes);

		call(task_body, block, copy ? copy_block : NULL, (long)child->header + bytes,
		     alignment > 0 ? alignment : 1, if_clause, flags, depend, priority, detach);
		if (child->is_detached && data && bytes >= (long)sizeof(void *))
			*(void **)data = block->words[0];
	}
	if (child->is_serial && child->is_done)
		span_take_path(frame, child->c, &child->prof, span_path_freeze(&child->path));
	span_release(self, child);
	span_begin_strand(self);
}

/* taskloop: all its tasks are made of one block, so the frame in it is a pattern for theirs. */

static void taskloop_body(void *argument)
{
	struct block *block = argument;
	struct frame *pattern = block->frame, *task;
	struct thread *self = &span_self;
	void **data = (void **)((char *)block + pattern->header);

	data[0] = block->words[0];
	data[1] = block->words[1];
	task = span_new_frame(self);
	task->parent = refer(pattern->parent);
	task->team = pattern->team;
	task->group = pattern->group;
	span_begin_path(task, pattern);
	task->context = pattern->context;
	task->spawn_depth = pattern->spawn_depth;
	task->site = pattern->site;
	task->is_final = pattern->is_final;
	run_task(self, task, pattern->body, data);
	/* without the clause nogroup, the pattern lives until all have ended; with it, until the phase ends */
	span_release(self, task);
}

struct taskloop {
	struct thread *self;
	struct frame *frame, *pattern;
	struct group group;
	bool has_group;
};

static struct group *open_group(struct frame *frame)
{
	struct group *group = calloc(1, sizeof(*group));

	if (!group)
		abort();
	prof_init(&group->best_prof);
	group->outer = frame->group;
	frame->group = group;
	return group;
}

static void close_group(struct frame *frame)
{
	struct group *group = frame->group;

	span_take_path(frame, group->best, &group->best_prof, group->best_calls);
	span_segment_keep(&group->best_calls, NULL);
	frame->group = group->outer;
	prof_free(&group->best_prof);
	free(group);
}

typedef void taskloop_call(void (*)(void *), void *, void (*)(void *, void *), long, long, unsigned, unsigned long, int,
			   long, long, long);

static void taskloop(taskloop_call *call, uintptr_t caller, void (*body)(void *), void *data,
		     void (*copy)(void *, void *), long bytes, long alignment, unsigned flags, unsigned long tasks,
		     int priority, long start, long end, long step)
{
	struct thread *self = &span_self;
	struct frame *frame = self->frame, *pattern;
	bool has_group = !(flags & FLAG_NOGROUP);

	if (!frame || frame->is_root || bytes < 2 * (long)sizeof(long) || bytes > MAX_BLOCK) {
		call(body, data, copy, bytes, alignment, flags, tasks, priority, start, end, step);
		return;
	}
	span_end_strand(self);
	if (has_group)
		open_group(frame);
	pattern = spawn(self, SPAN_TASKLOOP, caller, true, 0);
	pattern->body = body;
	pattern->copy = copy;
	pattern->header = header_for(alignment);
	{
		char room[room_for(pattern, bytes) + pattern->header];
		struct block *block = fill_block(aligned(room, pattern->header), pattern, data, bytes);

		call(taskloop_body, block, copy ? copy_block : NULL, (long)pattern->header + bytes,
		     alignment > 0 ? alignment : 1, flags, tasks, priority, start, end, step);
	}
	if (has_group) {
		close_group(frame);
		span_release(self, pattern);
	}
	span_begin_strand(self);
}

EXPORT void GOMP_taskloop(void (*body)(void *), void *data, void (*copy)(void *, void *), long bytes, long alignment,
			  unsigned flags, unsigned long tasks, int priority, long start, long end, long step)
{
	static void *real;

	taskloop((taskloop_call *)span_real(&real, "GOMP_taskloop"), CALLER, body, data, copy, bytes, alignment, flags,
		 tasks, priority, start, end, step);
}

EXPORT void GOMP_taskloop_ull(void (*body)(void *), void *data, void (*copy)(void *, void *), long bytes,
			      long alignment, unsigned flags, unsigned long tasks, int priority, long start, long end,
			      long step)
{
	static void *real;

	taskloop((taskloop_call *)span_real(&real, "GOMP_taskloop_ull"), CALLER, body, data, copy, bytes, alignment,
		 flags, tasks, priority, start, end, step);
}

typedef void plain_call(void);
typedef void depend_call(void **);

EXPORT void GOMP_taskwait(void)
{
	static void *real;
	plain_call *call = (plain_call *)span_real(&real, "GOMP_taskwait");
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (!frame || frame->is_root) {
		call();
		return;
	}
	span_end_strand(self);
	call();
	span_take_children(frame);
	span_begin_strand(self);
}

EXPORT void GOMP_taskwait_depend(void **depend)
{
	static void *real;
	depend_call *call = (depend_call *)span_real(&real, "GOMP_taskwait_depend");
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (!frame || frame->is_root) {
		call(depend);
		return;
	}
	span_end_strand(self);
	read_depend(self, frame, frame, depend, false);
	call(depend);
	take_predecessors(self, frame);
	span_begin_strand(self);
}

EXPORT void GOMP_taskgroup_start(void)
{
	static void *real;
	plain_call *call = (plain_call *)span_real(&real, "GOMP_taskgroup_start");
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (frame && !frame->is_root) {
		span_end_strand(self);
		open_group(frame);
		call();
		span_begin_strand(self);
		return;
	}
	call();
}

EXPORT void GOMP_taskgroup_end(void)
{
	static void *real;
	plain_call *call = (plain_call *)span_real(&real, "GOMP_taskgroup_end");
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (!frame || frame->is_root || !frame->group || !frame->group->outer) {
		call();
		return;
	}
	span_end_strand(self);
	call();
	close_group(frame);
	span_begin_strand(self);
}
