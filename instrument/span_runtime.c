/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runtimes that say themselves what happens, by the calls of parprof_span.h. Their threads are no members of a team: a
 * region has one member, the thread that began it, and others get a share in it with the first task that they execute.
 */
#define _GNU_SOURCE
#include "span.h"

struct parprof_region {
	struct region region;
	struct calls_kept kept;
};

struct parprof_task {
	atomic_int users; /* its body, and who keeps it */
	struct frame *frame;
	struct task_run run;
	uint64_t region; /* that it was made in */
};

static _Atomic uint64_t region_count;

/* Whether the thread executes code of such a region, or waits in it. */
static bool is_in_region(struct thread *self)
{
	return self->frame && self->frame->team && self->frame->team->is_pool;
}

/* What a thread tells is no time of its own, and leaves it in the program's code, or out of it. */
static bool interrupt(struct thread *self)
{
	bool was_open = self->is_open;

	span_end_strand(self);
	return was_open;
}

static void go_on(struct thread *self, bool was_open)
{
	if (was_open)
		span_begin_strand(self);
}

parprof_region *parprof_span_region_begin(const void *where)
{
	struct thread *self = &span_self;
	parprof_region *begun = malloc(sizeof(*begun));

	if (!begun || !span_region_begin(&begun->region, NULL, NULL, where ? (uintptr_t)where : CALLER)) {
		free(begun);
		return NULL;
	}
	begun->kept = span_member_enter(self, &begun->region.team, NULL);
	begun->region.team.is_pool = true;
	begun->region.team.number = atomic_fetch_add_explicit(&region_count, 1, memory_order_relaxed) + 1;
	/* any thread may execute its tasks: as many as there are to be */
	begun->region.team.size = span_record->threads ? span_record->threads : 1;
	self->frame->owner = self;
	return begun;
}

void parprof_span_region_end(parprof_region *region)
{
	if (!region)
		return;
	span_member_leave(&span_self, region->kept);
	span_region_end(&region->region);
	free(region);
}

static parprof_task *make(struct thread *self, uintptr_t where, bool is_call)
{
	parprof_task *task;
	bool was_open;

	if (!is_in_region(self) || !(task = malloc(sizeof(*task))))
		return NULL;
	was_open = interrupt(self);
	atomic_init(&task->users, 1);
	task->region = self->frame->team->number;
	task->frame = span_spawn(self, SPAN_TASK, where, !is_call, false);
	go_on(self, was_open);
	return task;
}

parprof_task *parprof_span_spawn(const void *where)
{
	parprof_task *task = make(&span_self, where ? (uintptr_t)where : CALLER, false);

	if (task)
		span_self.implicit->tasks++;
	return task;
}

parprof_task *parprof_span_call(const void *where)
{
	return make(&span_self, where ? (uintptr_t)where : CALLER, true);
}

void parprof_span_begin(parprof_task *task)
{
	if (task)
		span_task_begin(&span_self, task->frame, &task->run);
}

static void drop(struct thread *self, parprof_task *task)
{
	if (atomic_fetch_sub_explicit(&task->users, 1, memory_order_acq_rel) != 1)
		return;
	span_release(self, task->frame);
	free(task);
}

void parprof_span_end(parprof_task *task)
{
	struct thread *self = &span_self;

	if (!task)
		return;
	span_task_end(self, task->frame, &task->run);
	if (task->frame->is_serial)
		span_take_serial(task->frame->parent, task->frame);
	drop(self, task);
}

void parprof_span_keep(parprof_task *task)
{
	if (task)
		atomic_fetch_add_explicit(&task->users, 1, memory_order_relaxed);
}

/* Its path has not changed since it ended, so several may take it at once. */
void parprof_span_joined(parprof_task *task)
{
	struct thread *self = &span_self;
	struct frame *done;
	bool was_open;

	if (!task || !is_in_region(self) || task->region != self->frame->team->number)
		return;
	done = task->frame;
	if (!__atomic_load_n(&done->is_done, __ATOMIC_ACQUIRE))
		return;
	was_open = interrupt(self);
	span_take_path(self->frame, done->c, &done->prof, done->path.before);
	go_on(self, was_open);
}

void parprof_span_drop(parprof_task *task)
{
	if (task)
		drop(&span_self, task);
}

void parprof_span_synced(void)
{
	struct thread *self = &span_self;
	bool was_open;

	if (!is_in_region(self))
		return;
	was_open = interrupt(self);
	spin_lock(&self->frame->lock); /* whatever the runtime says, some may not be over */
	span_take_children(self->frame);
	spin_unlock(&self->frame->lock);
	go_on(self, was_open);
}

void parprof_span_pause(void)
{
	if (is_in_region(&span_self))
		span_end_strand(&span_self);
}

void parprof_span_resume(void)
{
	if (is_in_region(&span_self) && !span_self.is_open)
		span_begin_strand(&span_self);
}

void parprof_span_acquired(const void *lock, const void *where)
{
	struct thread *self = &span_self;
	bool was_open;

	if (!is_in_region(self))
		return;
	was_open = interrupt(self);
	span_acquired(self, (uintptr_t)lock, SPAN_CRITICAL, where ? (uintptr_t)where : CALLER);
	go_on(self, was_open);
}

void parprof_span_releasing(const void *lock)
{
	struct thread *self = &span_self;
	bool was_open;

	if (!is_in_region(self))
		return;
	was_open = interrupt(self);
	span_releasing(self, (uintptr_t)lock);
	go_on(self, was_open);
}
