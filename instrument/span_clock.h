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

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum span_clock { CLOCK_BY_SYSCALL, CLOCK_BY_RSEQ, CLOCK_BY_TEST };

struct clock_base {
	uint64_t begin;    /* of the strand */
	uint64_t base_tsc; /* when `base_ns` was taken */
	uint64_t base_ns;  /* the thread's CPU clock then */
	uint64_t ticks;    /* of a test's clock: what the program says that it has worked */
	uint64_t switches;
	uint64_t ended;	   /* the strand before, by the TSC; 0 where that is not known */
	uint64_t ended_ns; /* then: by the thread's CPU clock */
	uint64_t ahead;	   /* by how much pauses were taken for longer than they were: not yet made up for */
};

/* How long a pause of one kind takes, as one in some of them tells: after the others the TSC is not read. */
struct clock_pause {
	uint32_t first; /* so many of the first ones were measured */
	uint32_t left;	/* so many are not, before the next that is */
	uint64_t mean;	/* cycles, in sixteenths */
};

/* A moment of a thread's clock. */
struct clock_stop {
	uint64_t at;
	uint64_t on_cpu_ns; /* the thread's CPU clock, where there was a switch since the last base; else 0 */
	bool is_by_ticks;
};

/* What each strand calls. gcc leaves it out of line, for a region 4 ns more; clang takes no static variables in such functions. */
#ifdef __clang__
#define IN_CALLERS
#else
#define IN_CALLERS __attribute__((always_inline)) inline
#endif

/* One of the system's clocks, in nanoseconds. */
uint64_t clock_ns(clockid_t which);
/* Choose the clock; returns its cycles per second. */
uint64_t clock_choose(enum span_clock *chosen);
/* A strand of this thread begins: how long the thread was on a CPU since the last one ended, in cycles. */
uint64_t clock_begin(struct clock_base *clock);
/* It ends: its length in cycles. */
uint64_t clock_end(struct clock_base *clock);
/* The same in two steps: when, and how long it was. */
struct clock_stop clock_stop(const struct clock_base *clock);
uint64_t clock_end_by(struct clock_base *clock, struct clock_stop stop);
/* The clock, where it can be read without asking the system. */
uint64_t clock_at_hand(void);
/* Asked after that: whether it could be, and had not been stopped since the strand began. */
bool clock_was_at_hand(void);
/* The strand ended when clock_at_hand was read, and the next one began. */
uint64_t clock_end_at(struct clock_base *clock, uint64_t at);
/* The thread's CPU clock when its last strand ended, in cycles. */
uint64_t clock_at_end(const struct clock_base *clock);
/* The CPU clock of another thread now. */
uint64_t clock_of(const struct clock_base *clock, pthread_t thread);
/* This thread, or the library, is about to go: the kernel must not find our descriptor. */
void clock_leave(void);

#endif
