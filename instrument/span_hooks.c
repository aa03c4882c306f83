/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks at the begin and the end of each function of a program that is built with them. In a strand they only write
 * down which function it was, and when: a few instructions, and one reading of the clock. What that means for the calls
 * under way is worked out when the strand ends, when there is no room for more, or when the thread was off its CPU: then
 * in one loop, and outside of the strand.
 */
#define _GNU_SOURCE
#include "span.h"

/* The first hook: what was executed until then was in no call. */
static void begin_calls(struct thread *self)
{
	span_book(self, self->frame, clock_end(&self->clock));
	span_has_calls = true;
	span_record->flags |= SPAN_CALLS;
	if (self->frame->is_root && self->frame->c)
		span_calls_book(self, self->frame, self->frame->c);
	clock_begin(&self->clock);
}

/* All that is written down has happened. The site stays meanwhile, and so does the frame. */
IN_CALLERS void span_hooks_replay(struct thread *self)
{
	uint32_t count = self->hook_count;

	if (!count)
		return;
	self->hook_count = 0;
	span_calls_replay(self, self->hooks, count);
}

/* By any clock, whatever has happened, and first of all. */
static __attribute__((noinline)) void hook_anyhow(struct thread *self, struct hook *hook)
{
	struct clock_stop stop;

	if (!span_has_calls)
		begin_calls(self);
	stop = clock_stop(&self->clock);
	if (stop.is_by_ticks && self->hook_count < self->hook_room) {
		hook->at = stop.at;
		self->hooks[self->hook_count++] = *hook;
	} else {
		span_hooks_replay(self);
		span_calls_hook(self, hook, clock_end_by(&self->clock, stop));
		if (self->frame->is_root) /* of a process that is killed that much is known */
			span_book(self, self->frame, 0);
		clock_begin(&self->clock);
	}
	self->is_open = true;
}

static inline void write_down(uintptr_t function, uintptr_t address, uintptr_t stack)
{
	struct thread *self = &span_self;
	struct hook *hook = &self->hooks[self->hook_count];
	uint64_t at;

	if (UNLIKELY(!self->is_open))
		return;
	self->is_open = false; /* for handlers of signals */
	at = clock_at_hand();
	if (UNLIKELY(self->hook_count == self->hook_room || !clock_was_at_hand())) {
		hook_anyhow(self, &(struct hook){.function = function, .address = address, .stack = stack});
		return;
	}
	hook->at = at;
	hook->function = function;
	hook->address = address;
	hook->stack = stack;
	self->hook_count++;
	self->is_open = true;
}

EXPORT void __cyg_profile_func_enter(void *function, void *call_site)
{
	write_down((uintptr_t)function, (uintptr_t)call_site, (uintptr_t)__builtin_frame_address(0));
}

EXPORT void __cyg_profile_func_exit(void *function, void *call_site)
{
	(void)call_site;
	write_down((uintptr_t)function, 0, 0);
}
