/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of POSIX, in programs without a runtime that is followed: from the first pthread_create on, until all such
 * threads are joined, they and the first thread are one phase. A thread is a task that starts with its creator's
 * path; who joins it goes on with the longer path of the two. Where else they meet is in span_meetings.c (barriers),
 * span_conditions.c, span_semaphores.c and span_futex.c. What of them counts if the process ends while they run is in
 * span_accounts.c.
 */
#define _GNU_SOURCE
#include "span.h"
#include "span_accounts.h"

struct child {
	struct child *next;
	pthread_t thread;
	struct frame *frame;
	struct account account;
};

struct start {
	void *(*body)(void *);
	void *argument;
	struct child *child;
};

static struct team threads_team;
static struct spin children_lock;
static struct child *children;
static uint32_t live; /* made, and not joined */
static bool is_begun; /* a phase, and not over */
static _Atomic bool is_given_up;
static uint32_t computations; /* phases that were begun: in each, paths are as long as they are since its beginning */
static struct account first;

bool span_is_posix(struct thread *self)
{
	return self->is_open && self->frame->team == &threads_team;
}

/* The same where the strand has ended, in a wrapper. */
bool span_has_strand_of_posix(struct thread *self)
{
	return self->frame->team == &threads_team;
}

bool span_has_posix(void)
{
	return span_record && !atomic_load(&is_given_up);
}

/* Whether threads of POSIX are at work, or have been and are not all joined. */
bool span_has_threads(void)
{
	return is_begun;
}

uint32_t span_posix_computation(void)
{
	return computations;
}

/* The first thread's own code beside the others is called after where they were made and `address`. */
static void end_phase(struct thread *self, uintptr_t address)
{
	threads_team.until = address;
	is_begun = false;
	span_account_close();
	span_member_end(self);
	span_team_end(self, &threads_team, &span_root, &span_root);
}

/* Runtimes make their threads inside calls that we wrap; a program of theirs is followed by its regions alone. */
void span_give_up_threads(struct thread *self, uintptr_t address)
{
	if (atomic_load_explicit(&is_given_up, memory_order_relaxed))
		return;
	atomic_store(&is_given_up, true);
	if (self->frame && self->frame->team == &threads_team && self == threads_team.creator) {
		live = 0;
		end_phase(self, address);
	}
}

/* What each thread of a crew has done by now, and the sum. */
uint64_t span_done_by_crew(struct crew *crew)
{
	uint64_t length, sum = 0;

	spin_lock(&children_lock);
	for (struct child *child = children; child; child = child->next) {
		if (child->frame->crew != crew)
			continue;
		length = span_account_length(&child->account);
		child->frame->crew_done = length > child->frame->crew_start ? length - child->frame->crew_start : 0;
		sum += child->frame->crew_done;
	}
	spin_unlock(&children_lock);
	return sum;
}

/* How long the path of a thread is that makes others. */
uint64_t span_length_now(struct frame *frame)
{
	uint64_t length = 0;

	if (frame == threads_team.members)
		return span_account_length(&first);
	spin_lock(&children_lock);
	for (struct child *child = children; child; child = child->next) {
		if (child->frame == frame)
			length = span_account_length(&child->account);
	}
	spin_unlock(&children_lock);
	return length;
}

/* The first thread is at work, or waits for the others: its frame stays its own. */
static void take_first(struct thread *self)
{
	struct frame *frame = threads_team.members;

	if (self == first.self || !frame)
		return;
	span_account_take_rest(&first, frame, &threads_team.phases[0]);
	threads_team.phases[0].called += frame->called;
	threads_team.phases[0].busiest = frame->busy;
	threads_team.members = NULL;
}

/* At the process's end, by whichever thread. */
void span_end_threads(struct thread *self)
{
	if (!is_begun)
		return;
	if (self->frame && self->frame->team == &threads_team)
		span_leave_account(self);
	span_accounts_end(&threads_team);
	spin_lock(&children_lock);
	for (struct child *child = children; child; child = child->next)
		span_account_take_rest(&child->account, child->frame, &threads_team.phases[0]);
	spin_unlock(&children_lock);
	take_first(self);
	threads_team.until = 0;
	span_team_end(self, &threads_team, &span_root, &span_root);
}

/* In the child of a fork there is one thread. */
void span_forget_threads(void)
{
	atomic_flag_clear(&children_lock.taken);
	atomic_flag_clear(&threads_team.lock.taken);
	span_forget_crews();
	children = NULL;
	live = 0;
	is_begun = false;
	span_account_forget();
}

static void begin_phase(struct thread *self, uintptr_t address)
{
	span_team_begin(self, &threads_team, NULL, NULL, address);
	span_member_begin(self, &threads_team);
	threads_team.is_posix = true;
	threads_team.at_once = 1;
	computations++;
	/* calls that began before go on */
	self->frame->work_done = span_root.work_done;
	self->frame->c_before = span_root.c_before + span_root.c;
	threads_team.size = span_record->threads ? span_record->threads : 1;
	span_account_open(self, &first);
	is_begun = true;
}

static void thread_ends(void *argument)
{
	struct thread *self = &span_self;
	struct frame *frame = argument;

	span_end_strand(self);
	if (self->frame != frame) {
		span_account_close();
		return;
	}
	span_calls_leave(self, (struct calls_kept){{0, 0}, 0});
	span_items_end(frame);
	span_crew_leave(self);
	span_crew_end(frame);
	if (!atomic_load(&is_given_up))
		span_account_leave(self);
	span_account_close();
	self->frame = NULL;
	span_calls_end_thread(self);
}

/* The thread itself says who it is: once who made it knows, it may be joined by others already. */
static void name_child(struct child *child)
{
	spin_lock(&children_lock);
	child->thread = pthread_self();
	spin_unlock(&children_lock);
}

static void *thread_body(void *argument)
{
	struct start start = *(struct start *)argument;
	struct frame *frame = start.child->frame;
	struct thread *self = &span_self;
	void *result;

	free(argument);
	name_child(start.child);
	self->frame = self->implicit = frame;
	self->context = frame->context;
	span_count(self, frame->site);
	span_account_open(self, &start.child->account);
	span_account_leave(self);
	span_crew_begin(frame);
	span_account_begin(self);
	/* pthread_exit and cancellation unwind through here */
	pthread_cleanup_push(thread_ends, frame);
	span_begin_strand(self);
	result = start.body(start.argument);
	pthread_cleanup_pop(1);
	return result;
}

static struct frame *new_thread_frame(struct thread *self, uintptr_t address)
{
	struct frame *parent = self->frame, *frame = span_new_frame(self);

	span_init_implicit(frame, &threads_team);
	frame->parent = NULL;
	frame->group = &threads_team.phases[0].group;
	span_begin_path(frame, parent);
	frame->context = self->context;
	frame->site = span_site(SPAN_THREAD, address, 0);
	return frame;
}

/* Before it is made: it may do much before who made it goes on, and even be joined. With it, how many there are. */
static uint32_t keep_child(struct child *child)
{
	uint32_t alive;

	spin_lock(&children_lock);
	child->next = children;
	children = child;
	alive = ++live;
	spin_unlock(&children_lock);
	return alive;
}

/* It could not be made. */
static void forget_child(struct child *child)
{
	struct child **at = &children;

	spin_lock(&children_lock);
	while (*at != child)
		at = &(*at)->next;
	*at = child->next;
	live--;
	spin_unlock(&children_lock);
	free(child);
}

static void note_alive(uint32_t alive)
{
	spin_lock(&children_lock);
	if (threads_team.at_once < alive + 1)
		threads_team.at_once = alive + 1;
	spin_unlock(&children_lock);
}

typedef int create_call(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
	static void *real;
	create_call *call = (create_call *)span_real(&real, "pthread_create");
	struct thread *self = &span_self;
	struct start *start;
	struct child *child;
	uintptr_t caller;
	uint32_t alive;
	int failure;

	span_load();
	if (!self->is_open || atomic_load(&is_given_up) || (self->frame != &span_root && !span_is_posix(self)) ||
	    (self->frame == &span_root && live))
		return call(thread, attributes, body, argument);
	span_end_strand(self);
	caller = span_chain(CALLER);
	start = malloc(sizeof(*start));
	child = malloc(sizeof(*child));
	if (!start || !child)
		abort();
	if (self->frame == &span_root)
		begin_phase(self, caller);
	*child = (struct child){.frame = new_thread_frame(self, caller)};
	*start = (struct start){body, argument, child};
	span_crew_add(self->frame, child->frame, body);
	alive = keep_child(child);
	failure = call(thread, attributes, thread_body, start);
	if (failure) {
		span_crew_remove(child->frame);
		free(start);
		forget_child(child);
		if (!live)
			end_phase(self, caller);
	} else {
		note_alive(alive);
	}
	span_begin_strand(self);
	return failure;
}

static struct frame *take_child(pthread_t thread, bool *is_last)
{
	struct frame *frame = NULL;

	spin_lock(&children_lock);
	for (struct child **at = &children; *at; at = &(*at)->next) {
		if (pthread_equal((*at)->thread, thread)) {
			struct child *found = *at;

			frame = found->frame;
			*at = found->next;
			free(found);
			*is_last = --live == 0;
			break;
		}
	}
	spin_unlock(&children_lock);
	return frame;
}

EXPORT int pthread_join(pthread_t thread, void **result)
{
	REAL(int, pthread_join, (pthread_t, void **));
	struct thread *self = &span_self;
	struct frame *frame;
	bool is_last = false;
	int failure;

	if (!span_is_posix(self))
		return call(thread, result);
	span_end_strand(self);
	span_crew_order(self->frame);
	span_crew_close(self);
	span_account_leave(self);
	failure = call(thread, result);
	frame = failure ? NULL : take_child(thread, &is_last);
	if (frame) {
		span_crew_joined(self, frame);
		span_release(self, frame);
		span_after_wait(self);
	}
	if (is_last && self == threads_team.creator)
		end_phase(self, span_chain(CALLER));
	span_begin_strand(self);
	return failure;
}
