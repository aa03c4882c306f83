// SPDX-License-Identifier: Apache-2.0
/*
 * cilk5.h - what programs know of the stand-in for MIT Cilk-5.4.6: structures
 * as in the real one, and macros for procedures lowered by hand as cilk2c did.
 *
 * A procedure X has a frame on the heap, a fast clone X(ws, ...), which runs
 * like C, and a slow clone _cilk_X_slow(ws, frame), in which a thief goes on
 * behind the spawn number frame->entry. All state is kept in the frame.
 */
#ifndef CILK5_H
#define CILK5_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { CLOSURE_RUNNING = 42, CLOSURE_SUSPENDED = 43, CLOSURE_RETURNING = 44, CLOSURE_READY = 45 };

struct worker_state;
struct closure;
struct cilk_frame;

typedef void slow_clone(struct worker_state *ws, struct cilk_frame *frame);

struct proc_info {
	long size;
	long index;
	slow_clone *inlet;
	long argsize;
	long argindex;
};
_Static_assert(sizeof(struct proc_info) == 40 && offsetof(struct proc_info, inlet) == 16, "CilkProcInfo");

struct cilk_frame {
	int32_t entry; /* ordinal of the spawn or sync that is outstanding */
	long *receiver;
	const struct proc_info *sig;
};
_Static_assert(offsetof(struct cilk_frame, receiver) == 8, "CilkStackFrame.receiver");
_Static_assert(offsetof(struct cilk_frame, sig) == 16, "CilkStackFrame.sig");

typedef long cilk_main_import(struct worker_state *ws);

/* Runs a procedure in the workers; the caller waits. Starts the workers the first time. */
long Cilk_start(cilk_main_import *import, int workers);
void *Cilk_init_frame(struct worker_state *ws, size_t size, const struct proc_info *sig);
void Cilk_before_spawn(struct worker_state *ws);
/* 1: the frame was stolen, the caller has to return at once */
int Cilk_after_spawn(struct worker_state *ws, long value);
/* For slow clones alone. 1: children are out, the caller has to return at once */
int Cilk_sync(struct worker_state *ws);
void Cilk_set_result(struct worker_state *ws, long value);
void Cilk_free_frame(struct worker_state *ws, struct cilk_frame *frame);
unsigned long cilk_standin_steals(void);

#define CILK5_OUT_OF_LINE __attribute__((noinline, noipa))
#define CILK5_INIT(name) struct name##_frame *f = Cilk_init_frame(ws, sizeof(*f), name##_sig)

/* In a procedure: `call` is a fast clone; `lost` is what to return with when the frame is stolen. What changes
 * in the frame may not be in `call`: it is a thief's frame as soon as it can be stolen. */
#define CILK5_SPAWN(ordinal, where, call, lost)                    \
	do {                                                       \
		long value;                                        \
                                                                   \
		f->header.entry = (ordinal);                       \
		f->header.receiver = (where);                      \
		Cilk_before_spawn(ws);                             \
		value = (call);                                    \
		if (Cilk_after_spawn(ws, value))                   \
			return lost;                               \
		*(where) = value;                                  \
	} while (0)

#define CILK5_SYNC(ordinal)                        \
	do {                                       \
		f->header.entry = (ordinal);       \
		if (Cilk_sync(ws))                 \
			return;                    \
	} while (0)

#endif /* CILK5_H */
