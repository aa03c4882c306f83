/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions whose tasks are made by one thread, while the others wait for them, have stages: code of that thread, then
 * tasks, until it waits for all that it has made. A stage takes no less than its longest path, and its code before the
 * first task is one thread's; its tasks take no less than their work divided by the cores. With that of the whole phase
 * alone, code between two stages would seem to go on beside their tasks. A taskwait is for children alone: where one of
 * them may have left tasks of its own behind, stages are not known.
 */
#define _GNU_SOURCE
#include "span.h"

#define NEGLIGIBLE 50 /* one in so many: of a phase's length, what other members do themselves */

/* Tasks that are over have been booked by those that executed them. */
static uint64_t work_of_members(struct team *team)
{
	uint64_t sum = 0;

	spin_lock(&team->lock);
	for (struct frame *member = team->members; member; member = member->next_member)
		sum += __atomic_load_n(&member->worked, __ATOMIC_RELAXED);
	spin_unlock(&team->lock);
	return sum;
}

static uint64_t beyond(uint64_t work, uint64_t cores, uint64_t length)
{
	return work / cores > length ? work / cores - length : 0;
}

/* A member makes a task. */
void span_stage_task(struct frame *member)
{
	struct stages *stages = &member->stages;
	struct team *team = member->team;

	if (stages->is_open || team->is_pool || !team->parent->is_root || span_is_serial)
		return;
	stages->is_open = true;
	stages->is_unknown |= atomic_load_explicit(&member->has_loose, memory_order_relaxed);
	stages->group = member->group;
	stages->c = member->c;
	stages->sum = work_of_members(team);
	if (!stages->first_sum) {
		stages->first_c = stages->c;
		stages->first_sum = stages->sum + 1; /* never 0 */
	}
}

/* All tasks that it has made are over. */
void span_stage_end(struct frame *member)
{
	struct stages *stages = &member->stages;
	struct team *team = member->team;

	if (!stages->is_open)
		return;
	stages->is_open = false;
	stages->extra += beyond(work_of_members(team) - stages->sum,
				team->asked ? team->asked : span_record->threads ? span_record->threads : 1,
				member->c - stages->c);
}

/* The frame has waited for its children. */
void span_tasks_waited(struct frame *frame)
{
	frame->has_children = false;
	if (!frame->stages.is_open)
		return;
	frame->stages.is_unknown |= atomic_load_explicit(&frame->has_loose, memory_order_relaxed);
	span_stage_end(frame);
}

/* A member is through with a phase. Nobody else reports to it. */
void span_stages_report(struct phase *phase, struct frame *member)
{
	if (member->stages.first_sum) {
		phase->makers++;
		phase->stages = member->stages;
	} else if (member->c > phase->others) {
		phase->others = member->c;
	}
}

/* What a phase of this length takes more because of its stages. The work before its first task is the maker's own. */
uint64_t span_stages_extra(struct team *team, struct phase *phase, uint64_t length, uint64_t cores)
{
	struct stages *stages = &phase->stages;
	uint64_t done;

	if (phase->makers != 1 || stages->is_unknown || phase->loops || phase->doacrosses || atomic_load(&team->widest_nested) ||
	    phase->others > length / NEGLIGIBLE)
		return 0;
	if (!stages->is_open)
		return stages->extra;
	done = stages->first_c + stages->sum + 1 - stages->first_sum;
	return stages->extra + beyond(prof_total(&phase->work) - done, cores, length - stages->c);
}
