/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks, whichever runtime makes them: their paths from where they are made to where they are waited for. */
#define _GNU_SOURCE
#include "span.h"

struct frame *span_refer(struct frame *frame)
{
	count_reference(&frame->references);
	return frame;
}

/* The same of a frame that nobody else knows of. */
void span_refer_own(struct frame *frame)
{
	uint32_t references = (uint32_t)atomic_load_explicit(&frame->references, memory_order_relaxed);

	atomic_store_explicit(&frame->references, (int)references + 1, memory_order_relaxed);
}

/* Whether a task is executed at once, by the thread that makes it, because the program says so. */
static bool is_serial(struct frame *parent, bool if_clause)
{
	struct team *team = parent->team;

	return !if_clause || parent->is_final || !team || team->is_posix || (team->level > 1 && team->size == 1);
}

/* The thread's task makes one: its path begins where that is now. */
struct frame *span_spawn(struct thread *self, enum span_kind kind, uintptr_t address, bool if_clause, bool is_final)
{
	struct frame *parent = self->frame, *child = span_new_frame(self);

	child->parent = span_refer(parent);
	child->team = parent->team;
	child->group = parent->group;
	span_begin_path(child, parent);
	child->context = self->context;
	child->spawn_depth = span_calls_depth(self);
	child->site = span_site(kind, address, 0);
	child->is_final = parent->is_final || is_final;
	/* one that the runtime executes at once for want of room could run in parallel all the same */
	child->is_serial = is_serial(parent, if_clause);
	if (!child->is_serial && parent->is_implicit)
		span_stage_task(parent);
	else if (!child->is_serial)
		parent->has_children = true;
	return child;
}

/* One of a taskloop's tasks. */
struct frame *span_spawn_alike(struct thread *self, struct frame *pattern)
{
	struct frame *task = span_new_frame(self);

	task->parent = span_refer(pattern->parent);
	task->team = pattern->team;
	task->group = pattern->group;
	span_begin_path(task, pattern);
	task->context = pattern->context;
	task->spawn_depth = pattern->spawn_depth;
	task->site = pattern->site;
	task->is_final = pattern->is_final;
	return task;
}

/* A task that was executed at once is a part of its parent's path. */
void span_take_serial(struct frame *parent, struct frame *child)
{
	if (child->is_serial && child->is_done)
		span_take_path(parent, child->c, &child->prof, span_path_freeze(&child->path));
}

/* The frame that books what the thread does in a task of this team. */
static struct frame *implicit_for(struct thread *self, struct team *team)
{
	if (team && team->is_pool)
		return self->implicit && self->implicit->team == team ? self->implicit : span_share(self, team);
	if (team && (!self->implicit || self->implicit->is_root))
		return team->members;
	return self->implicit;
}

/* In a team of one thread nobody is waited for: what the runtime does between two strands takes about as long each time,
 * if it is about tasks of one site, and the same is to be done. */
void span_begin_task_strand(struct thread *self, enum task_begin begin, uint32_t site)
{
	struct team *team = self->frame->team;
	struct task_pauses *pauses = &self->task_pauses[site % TASK_PAUSE_SITES];

	if (!team || !team->is_alone || self->ended_by == TASK_END_OTHER) {
		span_begin_strand(self);
		return;
	}
	if (UNLIKELY(pauses->site != site)) {
		memset(pauses, 0, sizeof(*pauses));
		pauses->site = site;
	}
	self->is_open = true;
	self->implicit->busy += clock_begin_alike(&self->clock, &pauses->of[self->ended_by][begin]);
}

/* A task's body begins, in whichever thread. */
void span_task_begin(struct thread *self, struct frame *task, struct task_run *run)
{
	run->before = self->frame;
	run->implicit = self->implicit;
	run->was_open = self->is_open; /* it may run inside another's wait, or call */
	run->had_left = self->has_left;
	self->has_left = false;
	span_end_strand(self);
	run->kept = span_calls_enter(self, task->context);
	self->implicit = implicit_for(self, task->team);
	self->frame = task;
	if (UNLIKELY(task->predecessor_count))
		span_take_predecessors(self, task);
	self->begun = !task->has_begun;
	task->has_begun = true;
	if (task->is_plain)
		span_begin_task_strand(self, TASK_BEGIN_BODY, task->site);
	else
		span_begin_strand(self);
}

/* It ends, or this part of it does: then nothing of the task may be touched any more. Returns whether it ended. */
bool span_task_end(struct thread *self, struct frame *task, struct task_run *run)
{
	bool has_left = self->has_left;

	span_end_strand(self);
	if (task->is_plain) {
		self->ended_by = TASK_END_BODY;
		self->ended_site = task->site;
	}
	span_calls_leave(self, run->kept);
	if (!has_left) {
		if (UNLIKELY(span_has_calls))
			span_path_freeze(&task->path);
		task->is_done = true;
		if (UNLIKELY(task->has_children || atomic_load_explicit(&task->has_loose, memory_order_relaxed)))
			atomic_store_explicit(&task->parent->has_loose, true, memory_order_relaxed);
		if (task->group)
			span_report(task->group, task);
		span_report_child(task->parent, task);
	}
	self->has_left = run->had_left;
	self->frame = run->before;
	self->implicit = run->implicit;
	if (UNLIKELY(task->dependences) && !has_left)
		span_forget_dependences(self, task);
	if (run->was_open)
		span_begin_strand(self);
	return !has_left;
}

/* groups: what is waited for together */

void span_open_group(struct frame *frame)
{
	struct group *group = calloc(1, sizeof(*group));

	if (!group)
		abort();
	prof_init(&group->best_prof);
	group->outer = frame->group;
	group->had_children = frame->has_children;
	group->had_loose = atomic_load_explicit(&frame->has_loose, memory_order_relaxed);
	frame->group = group;
}

/* A taskloop's pattern is used until all its tasks have ended, and those of its group with them. */
void span_keep_pattern(struct group *group, struct frame *pattern)
{
	spin_lock(&group->lock);
	pattern->next_member = group->patterns;
	group->patterns = pattern;
	spin_unlock(&group->lock);
}

void span_release_patterns(struct thread *self, struct group *group)
{
	struct frame *pattern;

	while ((pattern = group->patterns)) {
		group->patterns = pattern->next_member;
		span_release(self, pattern);
	}
}

/* All in it have ended: the longest path goes on. */
void span_close_group(struct thread *self, struct frame *frame)
{
	struct group *group = frame->group;

	span_take_path(frame, group->best, &group->best_prof, group->best_calls);
	span_segment_keep(&group->best_calls, NULL);
	/* tasks from before it may go on */
	if (frame->stages.group == group)
		span_stage_end(frame);
	frame->has_children = group->had_children;
	atomic_store_explicit(&frame->has_loose, group->had_loose, memory_order_relaxed);
	span_release_patterns(self, group);
	frame->group = group->outer;
	prof_free(&group->best_prof);
	free(group);
}
