/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process may end while threads of POSIX run: those that are detached, or of a pool that nobody joins. Each leaves
 * now and then what it has done (an *account*: its phase's amounts, its path); what it did since then, its CPU clock
 * tells.
 */
#define _GNU_SOURCE
#include "span_accounts.h"

/* After so much work between two waits an account is left at the next lock. */
#define ACCOUNTS_PER_SECOND 1000

static _Atomic bool has_ended;
static __thread struct account *own;

static void leave_path(struct thread *self)
{
	struct frame *frame = self->frame;

	spin_lock(&own->lock);
	own->total = self->total;
	own->on_cpu = clock_at_end(&self->clock);
	own->c = frame->c;
	prof_copy(&own->prof, &frame->prof);
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&own->calls, span_path_freeze(&frame->path));
	spin_unlock(&own->lock);
}

void span_account_open(struct thread *self, struct account *account)
{
	own = account;
	memset(account, 0, sizeof(*account));
	prof_init(&account->prof);
	account->thread = pthread_self();
	leave_path(self);
	account->self = self;
}

/* What the thread was on a CPU until now was in no code of the program. */
void span_account_begin(struct thread *self)
{
	spin_lock(&own->lock);
	own->on_cpu = clock_of(&self->clock, own->thread);
	spin_unlock(&own->lock);
}

/* In the child of a fork there is none. */
void span_account_close(void)
{
	if (!own)
		return;
	spin_lock(&own->lock);
	own->self = NULL;
	spin_unlock(&own->lock);
	prof_free(&own->prof);
	span_segment_keep(&own->calls, NULL);
	own = NULL;
}

/* In the child of a fork there is one thread, and it has none. */
void span_account_forget(void)
{
	own = NULL;
}

/* What the thread has done counts now: the program may end before it says more. Its strand has ended. */
void span_account_leave(struct thread *self)
{
	struct team *team = self->frame->team;
	struct phase *phase = &team->phases[0];
	struct frame *implicit = self->implicit;

	span_count_wait();
	spin_lock(&team->lock);
	if (!atomic_load_explicit(&has_ended, memory_order_relaxed)) {
		prof_union(&phase->work, &implicit->work);
		prof_union(&phase->holds, &implicit->holds);
		prof_clear(&implicit->work);
		prof_clear(&implicit->holds);
		if (implicit->worked > phase->most)
			phase->most = implicit->worked;
		phase->called += implicit->called;
		implicit->called = 0;
		if (span_is_length_known(self->frame))
			span_report(self->frame->group, self->frame);
		leave_path(self);
	}
	spin_unlock(&team->lock);
}

/* The same of a thread that is about to wait, but to join another. */
void span_leave_account(struct thread *self)
{
	span_crew_order(self->frame);
	span_leave_account_unordered(self);
}

/* The same where it is to be known whose path goes on in its own. */
void span_leave_account_unordered(struct thread *self)
{
	span_crew_leave(self);
	span_account_leave(self);
}

/* Another's path may go on in this thread's. */
void span_after_wait(struct thread *self)
{
	if (own && self->frame->c != own->c)
		leave_path(self);
}

/* A thread that never waits gives locks back now and then. */
void span_after_unlock(struct thread *self)
{
	if (own && self->total - own->total > span_record->cycles_per_second / ACCOUNTS_PER_SECOND &&
	    span_has_strand_of_posix(self))
		span_account_leave(self);
}

static uint64_t since_account(struct account *account)
{
	struct thread *self = account->self;
	uint64_t now;

	if (!__atomic_load_n(&self->is_open, __ATOMIC_ACQUIRE))
		return self->total - account->total;
	now = clock_of(&self->clock, account->thread);
	return now > account->on_cpu ? now - account->on_cpu : 0;
}

/* How long a thread's path is by now; 0 where that is not known. Its strand may be ending: what it was on a CPU is
 * known, but not yet booked. */
uint64_t span_account_length(struct account *account)
{
	uint64_t now, length = 0;

	spin_lock(&account->lock);
	if (account->self) {
		now = clock_of(&account->self->clock, account->thread);
		length = account->c + (now > account->on_cpu ? now - account->on_cpu : 0);
	}
	spin_unlock(&account->lock);
	return length;
}

/* A thread runs on while the process ends: what it has done since it left its account. */
void span_account_take_rest(struct account *account, struct frame *frame, struct phase *phase)
{
	uint32_t site = frame->site;
	uint64_t rest, c;

	spin_lock(&account->lock);
	if (account->self) {
		rest = since_account(account);
		c = account->c + rest;
		prof_add(&phase->work, site, rest, 0);
		if (!span_crew_report(&phase->group, frame, account->total + rest) && c > phase->group.best) {
			atomic_store(&phase->group.best, c);
			prof_copy(&phase->group.best_prof, &account->prof);
			prof_add(&phase->group.best_prof, site, rest, 0);
			span_segment_keep(&phase->group.best_calls, account->calls);
		}
	} else { /* not all are reported when they are through */
		span_report_last(&phase->group, frame);
	}
	spin_unlock(&account->lock);
}

/* From now on threads leave none any more: what they have not left is taken. */
void span_accounts_end(struct team *team)
{
	spin_lock(&team->lock);
	atomic_store(&has_ended, true);
	spin_unlock(&team->lock);
}
