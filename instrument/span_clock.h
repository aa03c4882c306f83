/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's own time, without preemption: a strand is an ingredient of a maximum, and one preemption ruins a span.
 *
 * Time is the TSC. The kernel sets the field `rseq_cs` of a thread's restartable-sequence area to null whenever it
 * preempts the thread outside the critical section that the field describes (linux/rseq.h). Ours is a `nop` that
 * nothing executes: if the field still holds our descriptor, the TSC's difference is time on the CPU; if not, the
 * strand's time comes from the thread's CPU clock. Without rseq (glibc before 2.35, other machines than x86-64,
 * glibc.pthread.rseq=0) each event asks the CPU clock.
 */
#ifndef PARPROF_SPAN_CLOCK_H
#define PARPROF_SPAN_CLOCK_H

#include <stdint.h>

enum span_clock { CLOCK_BY_SYSCALL, CLOCK_BY_RSEQ, CLOCK_BY_TEST };

struct clock_base {
	uint64_t begin;    /* of the strand */
	uint64_t base_tsc; /* when `base_ns` was taken */
	uint64_t base_ns;  /* the thread's CPU clock then */
	uint64_t ticks;    /* of a test's clock: what the program says that it has worked */
	uint64_t switches;
};

/* Choose the clock; returns its cycles per second. */
uint64_t clock_choose(enum span_clock *chosen);
/* A strand of this thread begins. */
void clock_begin(struct clock_base *clock);
/* It ends: its length in cycles. */
uint64_t clock_end(struct clock_base *clock);
/* This thread, or the library, is about to go: the kernel must not find our descriptor. */
void clock_leave(void);

#endif
