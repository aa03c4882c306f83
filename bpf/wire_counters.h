/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the contract with Python (see wire.h) about what the programs count: each way to lose data, and what there
 * was. Python's names for it are in parprof/kernel/counters.py.
 */
#ifndef PARPROF_WIRE_COUNTERS_H
#define PARPROF_WIRE_COUNTERS_H

/* Counters. The first group are losses: each way to lose data has one; Python shows all that are not 0. */
enum counter {
	LOST_COUNTS_FULL = 0,	/* samples: the table of counts was full */
	LOST_STACK_RING = 1,	/* stacks: ring buffer full, sent again with a later sample of the same stack */
	LOST_USER_STACK = 2,	/* samples counted without user stack: it could not be read */
	LOST_CONTROL_RING = 3,	/* control records: ring buffer full; Python re-reads everything */
	LOST_THREADS_FULL = 4,	/* threads: table full; their samples count as work */
	LOST_PROCESSES_FULL = 5,	/* forked children: table full */
	LOST_NESTING = 6,	/* work edges deeper than MAX_NESTING */
	LOST_LEARNED_FULL = 7,	/* outlined functions: table full */
	LOST_TRACE_RING = 8,	/* trace records */
	LOST_CONTEXTS = 9,	/* call paths of created work: no room to walk them, or ring buffer full */
	LOST_MEMORY = 10,	/* samples whose n_working could not be read from the runtime's memory */
	LOST_UNDECIDED = 11,	/* samples of processes before Python decided whether to watch them */
	LOST_CPUS = 12,		/* samples whose n_working leaves out CPUs beyond MAX_CPUS */
	LOST_WAITS = 13,	/* waits: the table of counts was full */
	LOST_CALLS = 14,	/* calls: no room for their thread */
	LOST_CALLERS = 15,	/* calls that are counted without their caller: the table was full, or the stack unreadable */
	LOST_REASONS = 16,
	STAT_SAMPLES = 16,	/* samples counted, of all events */
	STAT_SWITCHES = 17,	/* context switches of threads of watched processes */
	STAT_WAKEUPS = 18,
	STAT_REPAIRED = 19,	/* n_working found below 1 at a sample of a working thread */
	STAT_UNSURE = 20,	/* samples with unsure set */
	STAT_CONTEXTS = 21,	/* call paths of created work */
	STAT_IMAGES = 22,	/* image ids given out by the kernel (fork, exec) */
	STAT_CAUGHT = 23,	/* samples with caught_working set: an edge is not probed (yet) */
	STAT_CHECKED = 24,	/* samples with n_working from both edges and memory */
	STAT_DISAGREED = 25,	/* of these, those with two different numbers */
	STAT_TICKS = 26,	/* samples whose n_working is what ran on the CPUs */
	STAT_KNOWN_CREATIONS = 27,	/* creations whose stack was known, and not walked again */
	STAT_STOPS = 28,	/* SIGSTOPs sent at exec and by ld.so */
	STAT_WAITS = 29,	/* waits of threads */
	STAT_WALKED_WAITS = 30,	/* of these, those whose stack was walked; the others were at a place that is known */
	STAT_SCOPE_CONTENDED = 31,	/* changes of n_working whose time was charged with that of the next */
	STAT_STACKS = 32,	/* + enum stack_end: samples */
	STAT_PYTHON = 44,	/* + enum python_end: samples of processes with an interpreter */
	STAT_PLACELESS_WAITS = 47,	/* waits of which nobody knows where: there was no time to look */
	STAT_EDGES = 48,	/* + enum edge_kind: probe hits */
	STAT_MISSED_SWITCHES = 61,	/* threads found running whose switch to a CPU nobody told of: their wait for it is left out */
	STAT_NOT_COMPARED = 62,	/* samples whose stack was not compared with the thread's previous one: cut short, or no room */
	STAT_UNTIMED_CALLS = 63,	/* calls whose time is not known: no room, or too many threads began or ended one at once */
	STAT_LEFT_OUT = 64,	/* + enum cost_kind: events that were left out to keep to the budget */
	COUNTERS = 75,
};

#endif
