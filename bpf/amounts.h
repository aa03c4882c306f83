/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples by amount: what kernel and Python both know of them, beside wire.h. See amounts.bpf.c.
 */
#ifndef PARPROF_AMOUNTS_H
#define PARPROF_AMOUNTS_H

#include "strata.h"

enum amount_kind {
	AMOUNT_READ = 0,	/* bytes that system calls bring */
	AMOUNT_WRITTEN = 1,	/* bytes that they take */
	AMOUNT_ALLOCATED = 2,	/* bytes that malloc and its family are asked for */
	AMOUNT_KINDS = 3,
};

/* The cookie of a probe at a function that allocates; 0: at parprof_allocated, of instrument/alloc.c. */
#define ALLOCATION_BYTES_MASK 7		/* number of the argument that says how many bytes */
#define ALLOCATION_TIMES_SHIFT 4	/* 3 bits: of the argument by which they are multiplied; 0 = none */
#define ALLOCATION_OUTER (1 << 8)	/* it may call another of them, which is the same allocation */
#define ALLOCATION_MOST (1ULL << 46)	/* bytes; more is refused anyway, and counts nothing */

/* What is asked for, written by Python once. */
struct amount_plan {
	u64 size;	/* bytes for each of which there is a sample, below 2^32; 0 = nobody asked for this kind */
	u32 event;	/* as in struct sample_key */
	u32 reserved;
};

/* What went by on one CPU, of all watched processes. */
struct amount {
	u64 bytes;
	u64 times;
	u64 left_out;	/* bytes that samples stood for, for which there was no time */
	struct stratum stratum;
};

#endif
