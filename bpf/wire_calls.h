/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the contract with Python (see wire.h) about what is counted and timed exactly, not sampled: calls of
 * chosen routines, and the phases of parallel regions.
 */
#ifndef PARPROF_WIRE_CALLS_H
#define PARPROF_WIRE_CALLS_H

/* The cookie of a probe that counts calls. */
#define CALL_SITE_MASK 0xffff	/* number of the site: index of `call_counts` */
#define CALL_DEAR (1ULL << 16)	/* as COOKIE_DEAR */
#define CALL_KNOWS_CALLER (1ULL << 17)	/* the instruction that calls is probed, not the function that is called */
#define CALL_TIMED (1ULL << 18)	/* its end is probed, too: see call_times.bpf.c */
#define CALL_LEAVES (1ULL << 19)	/* no call, but an exit of the routine */
#define CALL_LANDS (1ULL << 20)	/* no call: here a thread goes on after an exception or longjmp, with its stack as it is then */
#define CALL_ROUTINE_SHIFT 32	/* 16 bits: index of `routine_times` */
#define CALL_ROUTINE_MASK 0xffff
#define NO_ROUTINE 0xffffffff

/* Calls through one site, as one CPU counted them. */
struct call_count {
	u64 sequential;		/* n_working was 1 at the entry */
	u64 concurrent;		/* it was more */
	u64 unsure;		/* of both: n_working was partly a guess */
};

/* Who calls, where the site itself does not say so. */
struct call_arc {
	u64 caller;		/* the return address; 0 = the stack could not be read */
	u32 site;
	u32 epoch;		/* of the load map, as in struct sample_key */
	u32 image;		/* which process image's: after an exec a site may be the next one's, too */
	u32 reserved;
};

enum phase_kind {
	PHASE_SERIAL = 1,	/* code of the thread that begins regions, before one */
	PHASE_SHARES = 2,	/* of a team, up to a barrier or to the region's end */
};

/* What a phase belongs to. */
struct phase_site {
	u64 function;		/* the region's body */
	u64 barrier;		/* the address that the barrier returns to, which ended it; 0: the region's end */
	u32 kind;		/* enum phase_kind */
	u32 reserved;
};

/* All phases of one site. */
struct phase_sum {
	u64 work_ns;		/* CPU time of all threads */
	u64 span_ns;		/* of the one that had most, phase by phase */
	u64 phases;
};

#define PHASE_SLOTS 16		/* of phases whose longest share may still grow */

/* A measured process. */
struct phase_process {
	u64 function;		/* body of the region that is open, or was last */
	u64 hits;
	u32 region;		/* how many have begun */
	u32 open;		/* whether one is open */
	u32 members;		/* that have joined it, with those of regions within it */
	u32 widest;		/* the most that ever did */
	u32 nested;		/* regions that began while one was open */
	u32 beside;		/* of these: begun by threads that had no part in that one */
	u64 slots[PHASE_SLOTS];	/* 16 bits that tell phases apart, 48 bits of ns: the longest share so far */
};

struct phase_thread {
	u64 mark_ns;		/* its CPU time when the code began that it executes now */
	u64 part_ns;		/* CPU time in this phase, up to then */
	u64 told_ns;		/* what of that is in the sums */
	u64 states;		/* bits: whether it executed the program's code before each function it is in */
	u32 depth;		/* functions it is in */
	u32 base;		/* when it joined the region */
	u32 region;
	u32 phase;		/* barriers of the region that it has passed */
	u32 begins;		/* at this depth it began the region that is open; 0: it did not */
	u32 on;			/* it executes the program's code */
	u32 helps;		/* it joined a region within the one that is open: its share is work of that one's */
	u32 reserved;
};

#define OPEN_TIME_SHIFT 4

/* How long at least one thread was there: those that are now, 16 bits; above, since when, in units of 16 ns. */
struct open_time {
	u64 word;
	u64 any_ns;		/* up to then */
};

/* Calls that have ended, and what they took; of those that were entered in one state of the program. */
struct call_time {
	u64 ended;
	u64 elapsed_ns;		/* of all, those within another of the same routine too */
	u64 direct_ns;		/* less that of routines which they called and that are timed */
	u64 cpu_ns;
	u64 direct_cpu_ns;
	u64 outermost_ns;	/* malony-1987 sec. 4.4.1: of those that were no recursion */
	u64 first_ns;		/* of those that were no recursion of their own thread */
	u64 first_cpu_ns;
	u64 first_gross_ns;	/* as first_ns and direct_ns, with what timing them took */
	u64 direct_gross_ns;
	u64 longest_ns;
};

struct routine_time {
	struct call_time sequential;
	struct call_time concurrent;
	struct open_time inside;	/* threads in the routine, or in what it calls */
	struct open_time directly;	/* in the routine itself */
	s64 open_sequential;	/* calls that began while no other thread worked */
	u64 unseen;		/* ended, nobody knows when */
	u64 unwound;		/* ended by an exception or longjmp */
	u64 unseen_within;	/* calls right within it that ended, nobody knows when: they are not taken off its own time */
};

/* The same by caller; [1] is for concurrent calls. */
struct arc_time {
	u64 ended[2];
	u64 elapsed_ns[2];
	u64 cpu_ns[2];
};

struct open_call {
	u64 slot;		/* where its return address lies */
	u64 caller;		/* that address */
	u64 begun_ns;
	u64 begun_cpu_ns;
	u64 inner_ns;		/* of timed routines that it called */
	u64 inner_cpu_ns;
	u64 inner_gross_ns;
	u64 taken_ns;		/* by us, meanwhile */
	u32 site;
	u32 epoch;
	u32 image;
	u32 routine;
	u8 is_concurrent;
	u8 is_first;		/* the thread was not in the routine before */
	u8 is_outermost;
	u8 reserved[5];
};

/* A thread that was in a timed routine. */
struct call_thread {
	u64 cpu_ns;		/* that it used, up to `since_ns`, since it was met */
	u64 since_ns;
	u64 ran_ns;		/* the kernel's own account, up to then; 0: not looked at yet */
	u32 depth;		/* its open calls */
	u32 tid;
	u32 is_off;		/* it has no CPU, as far as we were told */
	u32 reserved;
	struct {	/* what has happened just now: see end_calls */
		u64 slot, now, cost_ns, trap_ns;
		u32 how, routine;
		u32 ended, unused;	/* calls that it has ended */
	} leaving;
	struct open_call fresh;	/* one that begins: the stack has no room for it */
};

#endif
