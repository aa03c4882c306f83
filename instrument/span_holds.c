/* SPDX-License-Identifier: Apache-2.0 */
/* For how long each lock was held, whatever the program calls it: the wrappers of locks are in span_locks.c. */
#define _GNU_SOURCE
#include "span.h"

static bool is_held_by(const struct thread *self, uintptr_t key)
{
	for (uint32_t at = 0; at < self->held_count; at++) {
		if (self->held[at].key == key)
			return true;
	}
	return false;
}

static void begin_hold(struct thread *self, uintptr_t key, enum span_kind kind, uintptr_t address, uint32_t parts)
{
	struct held *held;

	if (self->frame->is_root || self->held_count == MAX_HELD)
		return;
	parts = is_held_by(self, key) ? 0 : parts;
	held = &self->held[self->held_count++];
	held->key = key;
	held->parts = parts;
	held->since = self->total;
	held->site_before = self->frame->site;
	self->frame->site = held->site = span_site(kind, address, 0);
	span_count(self, self->frame->site);
}

/* The thread holds a lock from here on. */
void span_acquired(struct thread *self, uintptr_t key, enum span_kind kind, uintptr_t address)
{
	begin_hold(self, key, kind, address, 1);
}

/* The same beside others that do not exclude it, readers: as many as there are cores. */
void span_acquired_with_others(struct thread *self, uintptr_t key, enum span_kind kind, uintptr_t address)
{
	begin_hold(self, key, kind, address, span_record->threads ? span_record->threads : 1);
}

/* For how long the thread has had a lock, and the site where it took it; 0: it is not known to have it. */
uint64_t span_held(const struct thread *self, uintptr_t key, uint32_t *site)
{
	uint32_t at = self->held_count;

	while (at > 0 && self->held[at - 1].key != key)
		at--;
	if (!at)
		return 0;
	*site = self->held[at - 1].site;
	return self->total - self->held[at - 1].since;
}

/* The thread is about to give a lock back; its strand has ended. Returns whether it was known to have it. */
bool span_releasing(struct thread *self, uintptr_t key)
{
	uint32_t at = self->held_count;
	struct held held;

	while (at > 0 && self->held[at - 1].key != key)
		at--;
	if (!at)
		return false;
	held = self->held[at - 1];
	/* a lock that is taken in several places has several parts; `origin` is the critical section */
	if (held.parts)
		prof_add(&self->implicit->holds, span_site(SPAN_LOCK, key, held.site),
			 (self->total - held.since) / held.parts, 1);
	if (at == self->held_count)
		self->frame->site = held.site_before;
	memmove(&self->held[at - 1], &self->held[at], (self->held_count - at) * sizeof(held));
	self->held_count--;
	return true;
}

/* The thread does not have the lock: it was told so too early. */
void span_forget_hold(struct thread *self, uintptr_t key)
{
	uint32_t at = self->held_count;

	while (at > 0 && self->held[at - 1].key != key)
		at--;
	if (!at)
		return;
	if (at == self->held_count)
		self->frame->site = self->held[at - 1].site_before;
	memmove(&self->held[at - 1], &self->held[at], (self->held_count - at) * sizeof(*self->held));
	self->held_count--;
}

/* The lock that was held longest: the sum over all the places where it is taken. */
struct hold span_longest_hold(struct prof *holds)
{
	struct prof_entry *entries = prof_entries(holds);
	struct hold best = {0, 0};

	for (uint32_t i = 0; i < holds->length; i++) {
		uintptr_t key = span_site_address(entries[i].site);
		struct hold hold = {0, 0};
		uint64_t most = 0;

		if (entries[i].site == SITE_OTHER)
			continue;
		for (uint32_t j = 0; j < holds->length; j++) {
			if (span_site_address(entries[j].site) != key)
				continue;
			hold.cycles += entries[j].cycles;
			if (entries[j].cycles >= most) {
				most = entries[j].cycles;
				hold.site = (uint32_t)span_site_origin(entries[j].site);
			}
		}
		if (hold.cycles > best.cycles)
			best = hold;
	}
	return best;
}
