/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: their members' begins and ends, their barriers; and the regions that wrappers begin and end. */
#define _GNU_SOURCE
#include "span.h"

void span_team_begin(struct thread *self, struct team *team, void (*body)(void *), void *data, uintptr_t origin)
{
	if (self->frame && self->frame->is_root)
		span_end_serial(origin);
	clear_begin(team, offsetof(struct team, phases));
	span_phase_init(&team->phases[0]);
	team->is_foreign = !self->frame;
	team->parent = self->frame ? self->frame : &span_root;
	team->parent_implicit = self->frame ? self->implicit : &span_root;
	team->context = self->context;
	team->level = team->parent->team ? team->parent->team->level + 1 : 1;
	team->creator = self;
	team->body = body;
	team->data = data;
	team->origin = origin;
	/* nobody else knows of the team yet: no lock */
	team->own = team->members = span_new_frame(self);
	span_init_implicit(team->own, team);
	team->size = 1;
}

/* A frame that books the work of a whole thread. */
void span_init_implicit(struct frame *frame, struct team *team)
{
	frame->is_implicit = true;
	frame->team = team;
	frame->group = &team->phases[0].group;
	clear_begin(&frame->share, offsetof(struct share, before));
}

void span_member_begin(struct thread *self, struct team *team)
{
	struct frame *frame;

	if (self == team->creator && team->own) {
		frame = team->own;
		team->own = NULL;
	} else {
		frame = span_new_frame(self);
		span_init_implicit(frame, team);
		spin_lock(&team->lock);
		frame->next_member = team->members;
		team->members = frame;
		team->size++;
		spin_unlock(&team->lock);
	}
	self->frame = self->implicit = frame;
	self->held_count = 0;
}

/* The frame that books what a thread does for a team of which it need be no member. */
struct frame *span_share(struct thread *self, struct team *team)
{
	struct frame *share;

	spin_lock(&team->lock);
	for (share = team->members; share && share->owner != self; share = share->next_member)
		;
	if (!share) {
		share = span_new_frame(self);
		span_init_implicit(share, team);
		share->owner = self;
		share->next_member = team->members;
		team->members = share;
	}
	spin_unlock(&team->lock);
	return share;
}

/* Its last strand has ended. The frame lives on: the thread may run tasks while it waits for the team, whose end asks
 * for its path. */
void span_member_end(struct thread *self)
{
	span_loop_end(self);
	span_doacross_end(self);
	self->frame = NULL;
}

/* A member's part of a region begins. */
struct calls_kept span_member_enter(struct thread *self, struct team *team, size_of_team *size)
{
	struct calls_kept kept = span_calls_enter(self, team->context);

	span_member_begin(self, team);
	if (self == team->creator && team->is_outermost && size)
		team->asked = (uint32_t)size();
	if (self == team->creator && team->asked == 1) {
		team->is_alone = true;
		span_begin_strand_after(self, PAUSE_REGION_BEGIN);
	} else {
		span_begin_strand(self);
	}
	return kept;
}

void span_member_leave(struct thread *self, struct calls_kept kept)
{
	span_end_strand(self);
	span_calls_leave(self, kept);
	span_member_end(self);
}

/* Of calls that are over, the phase knows now; those under way say it when they end. */
static void take_called(struct phase *phase, struct frame *frame)
{
	phase->called += frame->called;
	frame->called = 0;
}

/* A team barrier is next; the thread's strand has ended. */
void span_before_barrier(struct thread *self)
{
	struct frame *frame = self->implicit;
	struct team *team = frame->team;
	struct phase *phase = phase_of(frame);

	if (self == team->creator && !team->has_barriers) { /* others need these after the barrier */
		team->has_barriers = true;
		span_phase_init(&team->phases[1]);
		span_phase_init(&team->phases[2]);
	}
	span_loop_end(self);
	span_doacross_end(self);
	span_report(&phase->group, frame);
	if (UNLIKELY(span_has_calls)) {
		spin_lock(&frame->lock);
		span_calls_take_children(self, frame);
		spin_unlock(&frame->lock);
	}
	spin_lock(&phase->group.lock);
	span_stages_report(phase, frame);
	prof_union(&phase->work, &frame->work);
	prof_union(&phase->holds, &frame->holds);
	take_called(phase, frame);
	spin_unlock(&phase->group.lock);
	prof_clear(&frame->work);
	prof_clear(&frame->holds);
}

static void finish_ended(struct team *team)
{
	if (team->has_ended)
		span_phase_finish(team, &team->phases[team->ended % 3], team->ended_site, false);
	team->has_ended = false;
}

/* All have met: a new phase. Thread 0 adds up the one before that: of the one that just ended, other members may
 * still have to say which tasks they ran while they waited. */
void span_after_barrier(struct thread *self, uintptr_t address)
{
	struct frame *frame = self->implicit;
	struct team *team = frame->team;
	struct phase *ended = phase_of(frame);

	/* tasks that this thread ran in the barrier */
	spin_lock(&ended->group.lock);
	prof_union(&ended->work, &frame->work);
	prof_union(&ended->holds, &frame->holds);
	if (frame->busy > ended->busiest)
		ended->busiest = frame->busy;
	spin_unlock(&ended->group.lock);
	frame->busy = 0;
	prof_clear(&frame->work);
	prof_clear(&frame->holds);
	frame->generation++;
	frame->loops = frame->doacrosses = 0;
	frame->loop_began = 0;
	frame->c_before += frame->c;
	frame->c = 0;
	if (UNLIKELY(span_has_calls)) {
		span_calls_take_children(self, frame);
		span_path_clear(&frame->path);
		span_segment_keep(&frame->longest_calls, NULL);
	}
	frame->site = SITE_PENDING;
	frame->group = &phase_of(frame)->group;
	prof_clear(&frame->prof);
	atomic_store(&frame->longest, 0);
	memset(&frame->stages, 0, sizeof(frame->stages));
	atomic_store_explicit(&frame->has_loose, false, memory_order_relaxed);
	span_forget_dependences(self, frame);
	if (self == team->creator) {
		finish_ended(team);
		team->has_ended = true;
		team->ended = frame->generation - 1;
		team->ended_site = span_is_ours(address) ? span_site(SPAN_REGION, team->origin, 0)
							  : span_site(SPAN_PHASE, address, team->origin);
	}
}

/* The most threads that a team and the regions within it may have had at work at a time. Where there is a limit to them
 * not all of these regions had as many as the widest. */
uint32_t span_at_once(struct team *team)
{
	uint32_t size = team->is_posix && team->at_once < team->size ? team->at_once : team->size;
	uint32_t nested = atomic_load_explicit(&team->widest_nested, memory_order_relaxed);
	uint32_t most = nested ? size * nested : size;

	return nested && most > span_thread_limit && size < span_thread_limit ? span_thread_limit : most;
}

static void note_nested(struct team *outer, uint32_t threads)
{
	uint32_t known = atomic_load_explicit(&outer->widest_nested, memory_order_relaxed);

	while (threads > 1 && known < threads &&
	       !atomic_compare_exchange_weak_explicit(&outer->widest_nested, &known, threads, memory_order_relaxed,
						      memory_order_relaxed))
		;
}

static bool has_one_pending(struct prof *prof, uint64_t cycles)
{
	return prof->length == 1 && !prof->more && prof->first[0].site == SITE_PENDING && prof->first[0].cycles == cycles;
}

/* Whether a region had one thread that made no task, met nobody, shared out no loop, held no lock and began no other
 * region: it is one strand. A program may have a million of these, so their end is worth a way of its own. */
static bool is_plain(struct team *team)
{
	struct frame *member = team->members;

	return team->is_outermost && team->size == 1 && !team->is_pool && !team->has_barriers && !team->nested &&
	       member->references == 1 && !member->tasks && !member->dependences && !member->loops &&
	       !member->doacrosses && !member->holds.length && has_one_pending(&member->prof, member->c) &&
	       has_one_pending(&member->work, member->c) && !team->phases[0].group.best &&
	       !team->phases[0].group.patterns && LIKELY(!span_has_calls);
}

/* The team's last barrier is over: nobody works for it any more. */
void span_team_end(struct thread *self, struct team *team, struct frame *frame, struct frame *implicit)
{
	struct phase *last = &team->phases[0];
	struct frame *member;
	uint64_t tasks = 0;

	self->frame = frame;
	self->implicit = implicit;
	self->held_count = 0;
	if (LIKELY(is_plain(team))) {
		span_add_plain(team, team->members);
		span_begin_serial(team->origin);
		span_release_plain(self, team->members);
		return;
	}
	if (team->members)
		last = phase_of(team->members);
	for (member = team->members; member; member = member->next_member) {
		span_report_last(&last->group, member);
		span_stages_report(last, member);
		tasks += member->tasks;
		if (member->busy > last->busiest)
			last->busiest = member->busy;
		prof_union(&last->work, &member->work);
		prof_union(&last->holds, &member->holds);
		take_called(last, member);
		last->called += span_calls_forget_children(member);
	}
	atomic_store_explicit(&team->tasks, team->tasks + tasks, memory_order_relaxed);
	if (!team->parent->is_root) {
		struct team *outer = team->parent->team;

		atomic_fetch_add_explicit(&outer->nested, 1 + team->nested, memory_order_relaxed);
		atomic_fetch_add_explicit(&outer->tasks, team->tasks, memory_order_relaxed);
		if (!team->is_pool) /* those share its threads */
			note_nested(outer, span_at_once(team));
	}
	finish_ended(team);
	span_phase_finish(team, last,
			  team->is_posix ? span_site(SPAN_SERIAL, team->until, team->origin)
					 : span_site(SPAN_REGION, team->origin, 0),
			  true);
	if (UNLIKELY(span_has_calls))
		span_calls_called(self, team->called);
	if (frame && frame->is_root)
		span_begin_serial(team->origin);
	while ((member = team->members)) {
		team->members = member->next_member;
		span_release(self, member);
	}
	for (int i = 0; i < (team->has_barriers ? 3 : 1); i++)
		span_phase_free(&team->phases[i]);
}

/* A wrapper is about to let the runtime start a team; false where nothing is followed. */
bool span_region_begin(struct region *region, void (*body)(void *), void *data, uintptr_t caller)
{
	struct thread *self = &span_self;
	bool is_outermost = self->is_open && self->frame->is_root;

	if (!span_record)
		return false;
	span_end_strand(self);
	span_give_up_threads(self, caller);
	region->self = self;
	region->frame = self->frame;
	region->implicit = self->implicit;
	if (span_is_ours(caller) && self->frame && self->frame->team)
		caller = self->frame->team->origin;
	span_team_begin(self, &region->team, body, data, caller);
	region->team.is_outermost = is_outermost;
	return true;
}

void span_region_end(struct region *region)
{
	span_team_end(region->self, &region->team, region->frame, region->implicit);
	if (!region->frame)
		return;
	if (region->team.is_alone)
		span_begin_strand_after(region->self, PAUSE_REGION_END);
	else
		span_begin_strand(region->self);
}
