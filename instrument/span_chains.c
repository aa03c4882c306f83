/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that a library makes for the program, as C++'s and Rust's do to begin threads: whose code the calls around one
 * are is known when names are. So a site has all of them, as a chain; its number stands for the call's address.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unwind.h>

#include "span.h"

struct chain {
	uint32_t count;
	uintptr_t addresses[SPAN_CHAIN_CALLS];
};

struct chain_search {
	uintptr_t caller;
	struct chain chain;
};

typedef _Unwind_Reason_Code backtrace_call(_Unwind_Trace_Fn, void *);

static struct chain chains[SPAN_MAX_CHAINS];
static uint32_t chain_count;
static struct spin chains_lock;

static void describe_chain(struct span_record *record, uint32_t index)
{
	struct span_chain *described = &record->chains[index];

	described->count = chains[index].count;
	for (uint32_t i = 0; i < described->count; i++)
		described->modules[i] = span_resolve(record, chains[index].addresses[i], &described->addresses[i]);
	atomic_thread_fence(memory_order_release);
	described->is_ready = 1;
}

static _Unwind_Reason_Code take_frame(struct _Unwind_Context *context, void *argument)
{
	struct chain_search *search = argument;
	uintptr_t address = _Unwind_GetIP(context);

	if (!search->chain.count && address != search->caller) /* ours */
		return _URC_NO_REASON;
	if (!address || search->chain.count == SPAN_CHAIN_CALLS)
		return _URC_END_OF_STACK;
	if (span_is_ours(address)) /* a wrapper around it: of a thread's body, of a region's */
		return _URC_NO_REASON;
	search->chain.addresses[search->chain.count++] = address;
	return _URC_NO_REASON;
}

static uintptr_t number_of(const struct chain *chain)
{
	uint32_t index;

	for (index = 0; index < chain_count; index++) {
		if (chains[index].count == chain->count &&
		    !memcmp(chains[index].addresses, chain->addresses, chain->count * sizeof(*chain->addresses)))
			return SPAN_CHAIN_BASE + index;
	}
	if (chain_count == SPAN_MAX_CHAINS)
		return chain->addresses[0];
	chains[chain_count++] = *chain;
	span_lock_sites(); /* files are numbered there, too */
	describe_chain(span_record, index);
	span_unlock_sites();
	return SPAN_CHAIN_BASE + index;
}

/* The call that returns to `caller`, and those around it. Only where the process has an unwinder, as programs of C++
 * and Rust have: those of C call themselves. */
uintptr_t span_chain(uintptr_t caller)
{
	static void *unwinder;
	struct chain_search search = {.caller = caller};
	uintptr_t number;

	if (!span_record)
		return caller;
	if (!unwinder)
		unwinder = dlsym(RTLD_DEFAULT, "_Unwind_Backtrace");
	if (!unwinder)
		return caller;
	((backtrace_call *)unwinder)(take_frame, &search);
	if (search.chain.count < 2)
		return caller;
	spin_lock(&chains_lock);
	number = number_of(&search.chain);
	spin_unlock(&chains_lock);
	return number;
}

/* A new record, maybe after a fork. */
void span_reset_chains(struct span_record *record)
{
	atomic_flag_clear(&chains_lock.taken);
	for (uint32_t index = 0; index < chain_count; index++)
		describe_chain(record, index);
}
