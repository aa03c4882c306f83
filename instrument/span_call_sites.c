/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Call sites, and which of them are above some code. A call is looked up by its address, its function and what is above
 * it (a *transition*): that tells its call site, and whether the site, or its caller, is the topmost of that name.
 */
#define _GNU_SOURCE
#include "span.h"

#define MAX_TRANSITIONS (1u << 16)
#define TRANSITION_SLOTS (4 * MAX_TRANSITIONS)
#define MAX_STATES (1u << 15)

static struct spin transition_lock;

static struct {
	uintptr_t address, function, caller;
} sites[SPAN_MAX_CALLS];
_Atomic uint32_t span_call_count = FIRST_CALL;

/* The set of call sites above some code: one, and those in its parent. 0 is the empty set. */
static struct {
	uint32_t parent, call;
} states[MAX_STATES];
static uint32_t state_count = 1;

static struct transition transitions[MAX_TRANSITIONS];
static uint32_t transition_count = 1;
static _Atomic uint32_t transition_slots[TRANSITION_SLOTS]; /* index of a transition; 0: free */

static void describe_call_site(uint32_t call)
{
	span_describe_call(&span_record->calls[call], sites[call].address, sites[call].function, sites[call].caller);
	if (span_record->call_count <= call)
		span_record->call_count = call + 1;
}

/* Only few: a new call site, or an old one where others are above it for the first time. */
static uint32_t call_site(uintptr_t address, uintptr_t function, uintptr_t caller)
{
	uint32_t count = span_known_calls();

	for (uint32_t call = FIRST_CALL; call < count; call++) {
		if (sites[call].address == address && sites[call].function == function)
			return call;
	}
	if (count == SPAN_MAX_CALLS) {
		span_record->flags |= SPAN_CALLS_FULL;
		return CALL_OTHER;
	}
	sites[count].address = address;
	sites[count].function = function;
	sites[count].caller = caller;
	atomic_store_explicit(&span_call_count, count + 1, memory_order_release);
	describe_call_site(count);
	return count;
}

static uint32_t next_state(uint32_t state, uint32_t call)
{
	if (state_count == MAX_STATES) {
		span_record->flags |= SPAN_CALLS_FULL;
		return state;
	}
	states[state_count].parent = state;
	states[state_count].call = call;
	return state_count++;
}

static void fill(struct transition *one, struct call_context context, uintptr_t address, uintptr_t function)
{
	*one = (struct transition){address, function, context.state, 0, 0, true, true};
	one->call = call_site(address, function, sites[context.call].function);
	for (uint32_t state = context.state; state; state = states[state].parent) {
		uint32_t above = states[state].call;

		if (above == one->call)
			one->is_top_site = false;
		if (sites[above].caller == sites[one->call].caller)
			one->is_top_caller = false;
	}
	one->next = one->is_top_site ? next_state(context.state, one->call) : context.state;
}

static const struct transition *look_up_transition(struct call_context context, uintptr_t address, uintptr_t function, uint32_t *slot)
{
	for (*slot = span_hash_call(context.state, address, function) % TRANSITION_SLOTS;; *slot = (*slot + 1) % TRANSITION_SLOTS) {
		uint32_t index = atomic_load_explicit(&transition_slots[*slot], memory_order_acquire);

		if (!index)
			return NULL;
		if (is_transition(&transitions[index], context.state, address, function))
			return &transitions[index];
	}
}

/* What cannot be kept is one site, the same for all. */
static const struct transition *add_transition(struct call_context context, uintptr_t address, uintptr_t function)
{
	static const struct transition none = {0, 0, 0, CALL_OTHER, 0, false, false};
	const struct transition *found;
	struct transition *one;
	uint32_t slot;

	spin_lock(&transition_lock);
	found = look_up_transition(context, address, function, &slot);
	if (!found && transition_count == MAX_TRANSITIONS) {
		span_record->flags |= SPAN_CALLS_FULL;
		found = &none;
	} else if (!found) {
		one = &transitions[transition_count];
		fill(one, context, address, function);
		atomic_store_explicit(&transition_slots[slot], transition_count++, memory_order_release);
		found = one;
	}
	spin_unlock(&transition_lock);
	return found;
}

const struct transition *span_find_transition(struct call_context context, uintptr_t address, uintptr_t function)
{
	uint32_t slot;
	const struct transition *found = look_up_transition(context, address, function, &slot);

	return found ? found : add_transition(context, address, function);
}

/* A new record: it has the call sites that are known by now. */
void span_reset_call_sites(struct span_record *record)
{
	atomic_flag_clear(&transition_lock.taken);
	for (uint32_t call = 0; call < span_known_calls(); call++)
		span_describe_call(&record->calls[call], sites[call].address, sites[call].function, sites[call].caller);
	record->call_count = span_known_calls();
}
