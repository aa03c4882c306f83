/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `parprof scale` reads when a target has ended, or while it runs: one file for each process, mapped shared
 * from the start, so that a target that is killed leaves what it had measured until then.
 *
 * All numbers are in the byte order of the machine; times are in cycles of the clock that `cycles_per_second`
 * belongs to. daemon/parprof/scale/record.py has the same layout; tests/unit/test_scale_record.py compares them.
 */
#ifndef PARPROF_SPAN_RECORD_H
#define PARPROF_SPAN_RECORD_H

#include <stdint.h>

#define SPAN_MAGIC 0x314e415053505250ull /* "PRPSPAN1" */
#define SPAN_VERSION 5
#define SPAN_MAX_SITES 4096
#define SPAN_MAX_MODULES 256
#define SPAN_MAX_CALLS 4096
#define SPAN_CALL_AMOUNTS 9
#define SPAN_MAX_CHAINS 256
#define SPAN_CHAIN_CALLS 16
#define SPAN_CHAIN_BASE 1024 /* an address without a module from here on is a chain of calls: its index is added */
#define SPAN_PATH_BYTES 480
#define SPAN_COMMAND_BYTES 256

enum span_kind {
	SPAN_NONE,
	SPAN_PENDING,  /* code whose site is known when its phase ends */
	SPAN_OTHER,    /* the table of sites was full */
	SPAN_SERIAL,   /* code outside regions, before the call at `address`, after the one at `origin` */
	SPAN_REGION,   /* a region's body, from its last barrier on; `address`: the call that starts it */
	SPAN_PHASE,    /* code of a region before the barrier at `address` */
	SPAN_LOOP,     /* chunks that the runtime gave out at `address` */
	SPAN_SECTIONS,
	SPAN_SINGLE,
	SPAN_TASK,     /* tasks made at `address` */
	SPAN_TASKLOOP,
	SPAN_CRITICAL, /* code that holds a lock taken at `address` */
	SPAN_ORDERED,
	SPAN_LOCK,     /* a lock: `address` is its own, `origin` the call that took it first */
	SPAN_THREAD,   /* a thread started at `address` */
	SPAN_MASKED,   /* code of one thread; the others do not wait for it */
	SPAN_DOACROSS, /* a loop with ordered(n) that begins at `address` */
	SPAN_KINDS
};

enum span_flag {
	SPAN_CLOSED = 1,      /* the process ended by exit() or by returning from main() */
	SPAN_INSIDE = 2,      /* ... inside a region */
	SPAN_NO_RSEQ = 4,     /* times are by system calls */
	SPAN_FORKED = 8,      /* begins at a fork, not at an exec */
	SPAN_WAITS_LOST = 16, /* some waits of doacross loops are not modelled */
	SPAN_FOREIGN = 32,    /* threads other than the first began regions */
	SPAN_DETACHED = 64,   /* uses detached tasks: what they wait for is not modelled */
	SPAN_FAKE_CLOCK = 128, /* a test's */
	SPAN_FULL = 256,      /* the table of sites was full */
	SPAN_CALLS = 1024,    /* built with hooks: there are call sites */
	SPAN_CALLS_FULL = 2048, /* more call sites, or more ways to them, than are told apart */
	SPAN_TASKLOOP_ALONE = 4096, /* one thread executed all tasks of a taskloop because they are so many */
	SPAN_OFFLOADED = 8192, /* uses target nowait: on the host the runtime executes that as tasks of its own */
	SPAN_DEALT_OUT = 16384, /* threads shared work out themselves: who did how much is taken for chance */
	SPAN_ELSEWHERE = 32768, /* the reader's: most of a run's CPU time was in other processes */
	SPAN_REPLACED = 65536, /* the process went on as another program */
	SPAN_FUTEX_LOCKS = 131072, /* locks that are known by the kernel's futex alone: in part */
	SPAN_TBB = 262144, /* the reader's: oneTBB made threads */
};

struct span_site {
	uint32_t kind;
	uint32_t module; /* of `address`, an index; ~0 if unknown */
	uint32_t origin_module;
	uint32_t is_ready; /* 1 once the fields above and the addresses are there */
	uint64_t address;  /* ELF virtual address in the module, or the address itself where that is unknown */
	uint64_t origin;
	uint64_t work; /* local */
	uint64_t count;
	uint64_t span; /* local, on the critical path */
	uint64_t span_count;
	uint64_t bound;    /* as span, where a phase takes no less than its work divided by its threads */
	uint64_t uneven;   /* of the bound: what a longest path adds to the even share of the work */
	uint64_t critical; /* of the bound: what a lock's hold times add */
	uint64_t hold;     /* of a lock */
	uint64_t chained;  /* of uneven: what threads of POSIX, who waited for each other, did beyond what any one did */
	uint64_t at_once;  /* the most threads of a phase that it is in */
};

/* A call site: one function called from one address. Filled in when the process ends. */
struct span_call {
	uint32_t is_ready;
	uint32_t module; /* of `address`, an index; ~0 if unknown */
	uint32_t callee_module;
	uint32_t caller_module;
	uint64_t address; /* that the call returns to; 0: code outside of all calls */
	uint64_t callee;
	uint64_t caller; /* the function that it is in; 0 if that has no hooks */
	/* in the order of `enum call_amount` (span_prof_calls.h) */
	uint64_t on_work[SPAN_CALL_AMOUNTS]; /* of all calls; no local span */
	uint64_t on_span[SPAN_CALL_AMOUNTS]; /* of those on the critical path */
};

/* A call, and the calls around it: of a library that the program's own code called. */
struct span_chain {
	uint32_t is_ready;
	uint32_t count;
	uint32_t modules[SPAN_CHAIN_CALLS]; /* of the addresses; ~0 if unknown */
	uint64_t addresses[SPAN_CHAIN_CALLS]; /* the innermost first */
};

struct span_module {
	uint32_t is_ready;
	uint32_t build_id_bytes;
	uint8_t build_id[24];
	char path[SPAN_PATH_BYTES];
};

struct span_record {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes; /* of the whole file */
	uint64_t generation; /* odd while totals are being changed */
	uint32_t flags;
	uint32_t pid;
	uint32_t site_count;
	uint32_t module_count;
	uint32_t threads;     /* asked for */
	uint32_t widest_team; /* seen */
	uint64_t cycles_per_second;
	uint64_t regions;
	uint64_t tasks;
	uint64_t switches;   /* strands that were preempted, and corrected */
	uint64_t cpu_ns;     /* of the process, from our start to its end */
	uint64_t elapsed_ns;
	uint64_t scheduled; /* regions alone: as the bound, but no phase takes less than its busiest thread was on a CPU */
	uint32_t call_count;
	uint32_t reserved;
	char command[SPAN_COMMAND_BYTES];
	struct span_site sites[SPAN_MAX_SITES];
	struct span_module modules[SPAN_MAX_MODULES];
	struct span_call calls[SPAN_MAX_CALLS];
	struct span_chain chains[SPAN_MAX_CHAINS];
};

#endif
