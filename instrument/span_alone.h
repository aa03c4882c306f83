/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the process has no other thread, as glibc knows it (2.32; what keeps older ones says that it may have): then
 * locks and counts of references need no locked instructions, of which a task would have a dozen. Only the thread itself
 * can end that, by making another one, and so not between asking and doing.
 */
#ifndef PARPROF_SPAN_ALONE_H
#define PARPROF_SPAN_ALONE_H

#include <stdatomic.h>
#include <stdbool.h>

extern char __libc_single_threaded __attribute__((weak));
extern const char *span_alone __attribute__((visibility("hidden"))); /* that word, or one that is 0 */

static inline bool span_is_alone(void)
{
	return __atomic_load_n(span_alone, __ATOMIC_RELAXED);
}

/* One reference more, to what the caller, or somebody who cannot give it back meanwhile, has one to. */
static inline void count_reference(atomic_int *references)
{
	if (span_is_alone())
		atomic_store_explicit(references, atomic_load_explicit(references, memory_order_relaxed) + 1,
				      memory_order_relaxed);
	else
		atomic_fetch_add_explicit(references, 1, memory_order_relaxed);
}

/* One less; whether it was the last. Who has the only reference needs no locked instruction: nobody can make another. */
static inline bool is_last_reference(atomic_int *references)
{
	int count = atomic_load_explicit(references, memory_order_acquire);

	if (count == 1)
		return true;
	if (!span_is_alone())
		return atomic_fetch_sub_explicit(references, 1, memory_order_acq_rel) == 1;
	atomic_store_explicit(references, count - 1, memory_order_relaxed);
	return false;
}

#endif
