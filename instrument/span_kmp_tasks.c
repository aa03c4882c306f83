/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks of LLVM's OpenMP runtime. The program has the runtime allocate a task, fills it in, and hands it over. We ask
 * for more room for the variables that the task shares, and keep ours in front of those: so it is found from the
 * task, and copied with it for the tasks of a taskloop.
 */
#define _GNU_SOURCE
#include "span_kmp.h"

/* kmp.h */
enum { TASK_FINAL = 2 };
enum { KMP_IN = 1, KMP_INOUTSET = 8 };

struct kmp_task;
typedef int task_entry(int, struct kmp_task *);

struct kmp_task {
	void *shareds;
	task_entry *entry;
};

struct kmp_depend {
	intptr_t address;
	size_t bytes;
	unsigned char kind;
};

struct kmp_block {
	struct frame *frame; /* null until the task is handed over, and where it is not followed */
	task_entry *entry;
	bool is_final, is_pattern;
	struct task_run run; /* of one that the program runs itself */
} __attribute__((aligned(16)));

static void run(int thread, struct kmp_task *task, struct frame *frame, task_entry *entry)
{
	struct thread *self = &span_self;
	struct task_run run;

	span_task_begin(self, frame, &run);
	entry(thread, task);
	/* from here on the task may be gone, if another thread goes on with it */
	if (span_task_end(self, frame, &run))
		span_release(self, frame);
}

/* What the runtime calls in place of the task's own entry. */
static int enter(int thread, struct kmp_task *task)
{
	struct kmp_block *block = (struct kmp_block *)task->shareds - 1;

	if (!block->frame)
		return block->entry(thread, task);
	if (block->is_pattern)
		run(thread, task, span_spawn_alike(&span_self, block->frame), block->entry);
	else
		run(thread, task, block->frame, block->entry);
	return 0;
}

static struct kmp_block *block_of(struct kmp_task *task)
{
	return task->entry == enter ? (struct kmp_block *)task->shareds - 1 : NULL;
}

EXPORT struct kmp_task *__kmpc_omp_task_alloc(PLACE, int flags, size_t bytes, size_t shared_bytes, task_entry *entry)
{
	typedef struct kmp_task *alloc_call(PLACE, int, size_t, size_t, task_entry *);
	static void *real;
	alloc_call *call = (alloc_call *)span_real(&real, "__kmpc_omp_task_alloc");
	struct thread *self = &span_self;
	struct kmp_task *task;
	struct kmp_block *block;

	if (!is_inside(self))
		return call(place, thread, flags, bytes, shared_bytes, entry);
	span_end_strand(self);
	task = call(place, thread, flags, bytes, sizeof(*block) + shared_bytes, enter);
	block = task->shareds;
	memset(block, 0, sizeof(*block));
	block->entry = entry;
	block->is_final = flags & TASK_FINAL;
	task->shareds = block + 1;
	span_begin_strand(self);
	return task;
}

/* `is_kept`: the dependences of a task, not of a wait. */
static void depend(struct thread *self, struct frame *child, int count, const struct kmp_depend *depends, bool is_kept)
{
	for (int i = 0; i < count; i++) {
		/* tasks of one inoutset may run side by side; a mutexinoutset is taken as a chain */
		bool is_in = depends[i].kind == KMP_IN || depends[i].kind == KMP_INOUTSET;

		span_depend_on(self, self->frame, child, (void *)depends[i].address, is_in, is_kept);
	}
}

/* The task is handed over; returns its frame with a reference for the caller. */
static struct frame *hand_over(struct thread *self, struct kmp_block *block, uintptr_t caller)
{
	struct frame *child = span_spawn(self, SPAN_TASK, caller, true, block->is_final);

	span_refer_own(child);
	self->implicit->tasks++;
	block->frame = child;
	return child;
}

static void handed_over(struct thread *self, struct frame *child)
{
	span_take_serial(self->frame, child);
	span_release(self, child);
	span_begin_strand(self);
}

/* A part of an untied task ends with handing the task over again: whoever goes on with it has its frame now. */
static void leave(struct thread *self)
{
	span_end_strand(self);
	self->has_left = true;
}

EXPORT int __kmpc_omp_task(PLACE, struct kmp_task *task)
{
	REAL(int, __kmpc_omp_task, (PLACE, struct kmp_task *));
	struct thread *self = &span_self;
	struct kmp_block *block = is_inside(self) ? block_of(task) : NULL;
	struct frame *child;
	int result;

	if (!block)
		return call(place, thread, task);
	if (block->frame) {
		leave(self);
		return call(place, thread, task);
	}
	span_end_strand(self);
	child = hand_over(self, block, CALLER);
	result = call(place, thread, task);
	handed_over(self, child);
	return result;
}

#define DEPENDS int count, struct kmp_depend *depends, int other_count, struct kmp_depend *others

EXPORT int __kmpc_omp_task_with_deps(PLACE, struct kmp_task *task, DEPENDS)
{
	REAL(int, __kmpc_omp_task_with_deps, (PLACE, struct kmp_task *, DEPENDS));
	struct thread *self = &span_self;
	struct kmp_block *block = is_inside(self) ? block_of(task) : NULL;
	struct frame *child;
	int result;

	if (!block)
		return call(place, thread, task, count, depends, other_count, others);
	span_end_strand(self);
	child = hand_over(self, block, CALLER);
	depend(self, child, count, depends, true);
	depend(self, child, other_count, others, true);
	result = call(place, thread, task, count, depends, other_count, others);
	handed_over(self, child);
	return result;
}

/* The clause `if` was false: the program calls the task's entry itself, between two calls of the runtime. */

EXPORT void __kmpc_omp_task_begin_if0(PLACE, struct kmp_task *task)
{
	REAL(void, __kmpc_omp_task_begin_if0, (PLACE, struct kmp_task *));
	struct thread *self = &span_self;
	struct kmp_block *block = is_inside(self) ? block_of(task) : NULL;

	if (!block) {
		call(place, thread, task);
		return;
	}
	span_end_strand(self);
	block->frame = span_spawn(self, SPAN_TASK, CALLER, false, block->is_final);
	self->implicit->tasks++;
	call(place, thread, task);
	span_task_begin(self, block->frame, &block->run);
}

EXPORT void __kmpc_omp_task_complete_if0(PLACE, struct kmp_task *task)
{
	REAL(void, __kmpc_omp_task_complete_if0, (PLACE, struct kmp_task *));
	struct thread *self = &span_self;
	struct kmp_block *block = is_inside(self) ? block_of(task) : NULL;
	struct frame *child = block ? block->frame : NULL;

	if (!child) {
		call(place, thread, task);
		return;
	}
	span_task_end(self, child, &block->run);
	call(place, thread, task);
	handed_over(self, child);
}

/* taskloop: the runtime copies the task for each part of the loop, so the frame in it is a pattern for theirs */

static struct frame *taskloop_begin(struct thread *self, struct kmp_block *block, bool has_group, uintptr_t caller)
{
	struct frame *frame = self->frame;

	span_end_strand(self);
	if (has_group)
		span_open_group(frame);
	block->frame = span_spawn(self, SPAN_TASKLOOP, caller, true, block->is_final);
	block->is_pattern = true;
	span_keep_pattern(frame->group, block->frame);
	return frame;
}

static void taskloop_end(struct thread *self, struct frame *frame, bool has_group)
{
	if (has_group)
		span_close_group(self, frame);
	span_begin_strand(self);
}

#define TASKLOOP(name, parameters, ...)                                                                               \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		REAL(void, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
		struct kmp_block *block = is_inside(self) ? block_of(task) : NULL;                                        \
		struct frame *frame;                                                                                  \
                                                                                                                      \
		if (!block) {                                                                                         \
			call(__VA_ARGS__);                                                                            \
			return;                                                                                       \
		}                                                                                                     \
		frame = taskloop_begin(self, block, !is_alone, CALLER);                                               \
		call(__VA_ARGS__);                                                                                    \
		taskloop_end(self, frame, !is_alone);                                                                 \
	}
#define RANGE PLACE, struct kmp_task *task, int condition, void *from, void *to, long by, int is_alone, int kind, unsigned long grain
TASKLOOP(__kmpc_taskloop, (RANGE, void *copy), place, thread, task, condition, from, to, by, is_alone, kind, grain, copy)
TASKLOOP(__kmpc_taskloop_5, (RANGE, int modifier, void *copy), place, thread, task, condition, from, to, by, is_alone, kind,
	 grain, modifier, copy)

/* waits */

EXPORT int __kmpc_omp_taskwait(PLACE)
{
	REAL(int, __kmpc_omp_taskwait, (PLACE));
	struct thread *self = &span_self;
	int result;

	if (!is_inside(self))
		return call(place, thread);
	span_end_strand(self);
	result = call(place, thread);
	span_take_children(self->frame);
	span_tasks_waited(self->frame);
	span_begin_strand(self);
	return result;
}

#define WAIT_FOR(name, parameters, ...)                                                                               \
	EXPORT void name parameters                                                                                   \
	{                                                                                                             \
		REAL(void, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
                                                                                                                      \
		if (!is_inside(self)) {                                                                               \
			call(__VA_ARGS__);                                                                            \
			return;                                                                                       \
		}                                                                                                     \
		span_end_strand(self);                                                                                \
		depend(self, self->frame, count, depends, false);                                                     \
		depend(self, self->frame, other_count, others, false);                                                \
		call(__VA_ARGS__);                                                                                    \
		span_take_predecessors(self, self->frame);                                                            \
		span_begin_strand(self);                                                                              \
	}
WAIT_FOR(__kmpc_omp_wait_deps, (PLACE, DEPENDS), place, thread, count, depends, other_count, others)
/* LLVM 16; without dependences clang calls the plain one */
WAIT_FOR(__kmpc_omp_taskwait_deps_51, (PLACE, DEPENDS, int is_nowait), place, thread, count, depends, other_count, others,
	 is_nowait)

EXPORT void __kmpc_taskgroup(PLACE)
{
	REAL(void, __kmpc_taskgroup, (PLACE));
	struct thread *self = &span_self;

	if (!is_inside(self)) {
		call(place, thread);
		return;
	}
	span_end_strand(self);
	span_open_group(self->frame);
	call(place, thread);
	span_begin_strand(self);
}

EXPORT void __kmpc_end_taskgroup(PLACE)
{
	REAL(void, __kmpc_end_taskgroup, (PLACE));
	struct thread *self = &span_self;

	if (!is_inside(self) || !self->frame->group || !self->frame->group->outer) {
		call(place, thread);
		return;
	}
	span_end_strand(self);
	call(place, thread);
	span_close_group(self, self->frame);
	span_begin_strand(self);
}

PAUSE(int, __kmpc_omp_taskyield, (PLACE, int part), place, thread, part)

EXPORT void *__kmpc_task_allow_completion_event(PLACE, struct kmp_task *task)
{
	static void *real;

	if (span_record)
		__atomic_or_fetch(&span_record->flags, SPAN_DETACHED, __ATOMIC_RELAXED);
	return ((void *(*)(PLACE, struct kmp_task *))span_real(&real, "__kmpc_task_allow_completion_event"))(place, thread,
														 task);
}
