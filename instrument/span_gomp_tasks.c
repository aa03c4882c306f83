/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks of GNU libgomp: GOMP_task, taskloop, taskwait, taskgroup. */
#define _GNU_SOURCE
#include "span.h"

/* libgomp.h, libgomp_g.h */
#define FLAG_DEPEND (1u << 3)
#define FLAG_FINAL (1u << 1)
#define FLAG_NOGROUP (1u << 11)
#define FLAG_DETACH (1u << 13)
enum { DEPEND_IN = 1 };

#define HEADER 64      /* in front of the program's block of arguments: whatever alignment that has up to 64 holds */
#define COPIED_WORDS 3 /* the first, that libgomp writes or reads: event handle, bounds of a taskloop, its reductions */
#define MAX_BLOCK 65536
#define FEW_BYTES 64 /* a multiple of a word */
#define TASKS_A_THREAD 64 /* of a taskloop of more GOMP_taskloop gives no other thread a task */

struct block {
	void *words[COPIED_WORDS];
	struct frame *frame;
};

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
			span_depend_on(self, parent, child, addresses[i], i >= outs, is_kept);
		} else {
			void **object = addresses[i];

			span_depend_on(self, parent, child, object[0], (uintptr_t)object[1] == DEPEND_IN, is_kept);
		}
	}
}

/* Most tasks have few words: for those a call takes longer than the copy. */
static inline void copy_bytes(void *to, const void *from, size_t bytes)
{
	const char *source = from;

	if (bytes > FEW_BYTES || bytes % sizeof(void *)) {
		memcpy(to, from, bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += sizeof(void *)) {
		memcpy((char *)to + at, source + at, sizeof(void *));
		__asm__ volatile("" : "+r"(at)); /* else gcc makes the call of it */
	}
}

static void task_body(void *argument)
{
	struct block *block = argument;
	struct frame *task = block->frame;
	struct thread *self = &span_self;
	void *data = (char *)block + task->header;
	struct task_run run;

	if (task->is_detached)
		*(void **)data = block->words[0];
	span_task_begin(self, task, &run);
	task->body(data);
	span_task_end(self, task, &run);
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

static inline struct block *fill_block(void *room, struct frame *task, void *data, long bytes)
{
	struct block *block = room;

	*block = (struct block){.frame = task};
	if (task->copy)
		*(void **)((char *)block + task->header) = data;
	else if (data && bytes > 0)
		copy_bytes((char *)block + task->header, data, (size_t)bytes);
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
	uint32_t site;

	if (!frame || frame->is_root || !body || bytes < 0 || bytes > MAX_BLOCK) {
		call(body, data, copy, bytes, alignment, if_clause, flags, depend, priority, detach);
		return;
	}
	span_end_strand(self);
	child = span_spawn(self, SPAN_TASK, CALLER, if_clause, flags & FLAG_FINAL);
	span_refer_own(child);
	child->body = body;
	child->copy = copy;
	child->header = header_for(alignment);
	if (flags & FLAG_DETACH) {
		child->is_detached = true;
		span_record->flags |= SPAN_DETACHED;
	}
	if (flags & FLAG_DEPEND)
		read_depend(self, frame, child, depend, true);
	child->is_plain = !(flags & (FLAG_DEPEND | FLAG_DETACH));
	if (child->is_plain)
		self->ended_by = TASK_END_MADE;
	self->implicit->tasks++;
	{
		char room[room_for(child, bytes) + child->header];
		struct block *block = fill_block(aligned(room, child->header), child, data, bytes);

		call(task_body, block, copy ? copy_block : NULL, (long)child->header + bytes,
		     alignment > 0 ? alignment : 1, if_clause, flags, depend, priority, detach);
		if (child->is_detached && data && bytes >= (long)sizeof(void *))
			*(void **)data = block->words[0];
	}
	span_take_serial(frame, child);
	site = child->site;
	span_release(self, child);
	span_begin_task_strand(self, TASK_BEGIN_MADE, site);
}

/* taskloop: all its tasks are made of one block, so the frame in it is a pattern for theirs. */

static void taskloop_body(void *argument)
{
	struct block *block = argument;
	struct frame *pattern = block->frame, *task;
	struct thread *self = &span_self;
	void **data = (void **)((char *)block + pattern->header);
	struct task_run run;

	data[0] = block->words[0];
	data[1] = block->words[1];
	if (self == pattern->maker)
		pattern->alone++;
	else
		__atomic_store_n(&pattern->is_spread, true, __ATOMIC_RELAXED);
	task = span_spawn_alike(self, pattern);
	span_task_begin(self, task, &run);
	pattern->body(data);
	span_task_end(self, task, &run);
	span_release(self, task);
}

/* The runtime's call is over: were its tasks too many to be shared? */
static void note_alone(struct frame *pattern)
{
	uint32_t threads = pattern->team->size;

	/* members may be late, and fewer tasks than that be executed by one thread because others have no core */
	if (threads < span_record->threads)
		threads = span_record->threads;
	if (threads > 1 && pattern->alone > TASKS_A_THREAD * threads &&
	    !__atomic_load_n(&pattern->is_spread, __ATOMIC_RELAXED))
		__atomic_or_fetch(&span_record->flags, SPAN_TASKLOOP_ALONE, __ATOMIC_RELAXED);
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
		span_open_group(frame);
	pattern = span_spawn(self, SPAN_TASKLOOP, caller, true, false);
	span_keep_pattern(frame->group, pattern);
	pattern->body = body;
	pattern->copy = copy;
	pattern->header = header_for(alignment);
	pattern->maker = self;
	{
		char room[room_for(pattern, bytes) + pattern->header];
		struct block *block = fill_block(aligned(room, pattern->header), pattern, data, bytes);
		size_t words = sizeof(block->words);

		memcpy(block->words, data, (size_t)bytes < words ? (size_t)bytes : words);
		call(taskloop_body, block, copy ? copy_block : NULL, (long)pattern->header + bytes,
		     alignment > 0 ? alignment : 1, flags, tasks, priority, start, end, step);
	}
	note_alone(pattern);
	if (has_group)
		span_close_group(self, frame);
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

EXPORT void GOMP_taskwait(void)
{
	REAL(void, GOMP_taskwait, (void));
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (!frame || frame->is_root) {
		call();
		return;
	}
	span_end_strand(self);
	self->ended_by = TASK_END_WAITS;
	self->ended_site = frame->site;
	call();
	span_take_children(frame);
	span_tasks_waited(frame);
	span_begin_task_strand(self, TASK_BEGIN_WAITED, self->ended_site);
}

EXPORT void GOMP_taskwait_depend(void **depend)
{
	REAL(void, GOMP_taskwait_depend, (void **));
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (!frame || frame->is_root) {
		call(depend);
		return;
	}
	span_end_strand(self);
	read_depend(self, frame, frame, depend, false);
	call(depend);
	span_take_predecessors(self, frame);
	span_begin_strand(self);
}

EXPORT void GOMP_taskgroup_start(void)
{
	REAL(void, GOMP_taskgroup_start, (void));
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (frame && !frame->is_root) {
		span_end_strand(self);
		span_open_group(frame);
		call();
		span_begin_strand(self);
		return;
	}
	call();
}

EXPORT void GOMP_taskgroup_end(void)
{
	REAL(void, GOMP_taskgroup_end, (void));
	struct thread *self = &span_self;
	struct frame *frame = self->frame;

	if (!frame || frame->is_root || !frame->group || !frame->group->outer) {
		call();
		return;
	}
	span_end_strand(self);
	call();
	span_close_group(self, frame);
	span_begin_strand(self);
}

/* What is to be offloaded. Without a device it runs on the host: at once, as what its caller does; with nowait as a task,
 * of which the runtime keeps a copy with the addresses alone, so that nothing of ours can stand before its body. */

#define FLAG_TARGET_NOWAIT 1

EXPORT void GOMP_target_ext(int device, void (*body)(void *), size_t count, void **addresses, size_t *sizes,
			    unsigned short *kinds, unsigned flags, void **depend, void **arguments)
{
	REAL(void, GOMP_target_ext,
	     (int, void (*)(void *), size_t, void **, size_t *, unsigned short *, unsigned, void **, void **));

	if (span_self.frame && flags & FLAG_TARGET_NOWAIT)
		__atomic_or_fetch(&span_record->flags, SPAN_OFFLOADED, __ATOMIC_RELAXED);
	call(device, body, count, addresses, sizes, kinds, flags, depend, arguments);
}
