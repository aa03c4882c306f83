// SPDX-License-Identifier: Apache-2.0
/* cilkplus_abi.h - what programs know of the Cilk Plus stand-in: the frame of its ABI 1. */
#ifndef CILKPLUS_ABI_H
#define CILKPLUS_ABI_H

#include <stddef.h>
#include <stdint.h>

#define FRAME_STOLEN 1u
#define FRAME_UNSYNCHED 2u
#define FRAME_DETACHED 4u
#define FRAME_LAST 0x80u

struct worker;

struct frame {
	uint32_t flags;
	uint32_t size;
	struct frame *call_parent;
	struct worker *worker;
	void *except_data;
	void *ctx[5];
	uint32_t mxcsr;
	uint16_t fpcsr, reserved;
	uint64_t pedigree[2];
};
_Static_assert(sizeof(struct frame) == 96, "__cilkrts_stack_frame");
_Static_assert(offsetof(struct frame, call_parent) == 8, "call_parent");
_Static_assert(offsetof(struct frame, worker) == 16, "worker");
_Static_assert(offsetof(struct frame, ctx) == 32, "ctx");

struct worker *__cilkrts_bind_thread_1(struct frame *frame);
struct worker *__cilkrts_get_tls_worker(void);
void __cilkrts_enter_frame_1(struct frame *frame);
void __cilkrts_enter_frame_fast_1(struct frame *frame);
void __cilkrts_detach(struct frame *frame);
void __cilkrts_leave_frame(struct frame *frame);
void __cilkrts_sync(struct frame *frame);
void __cilkrts_leave_last_frame(struct frame *frame);
unsigned long cilk_standin_steals(void);

#define cilk_is_outside() (!__cilkrts_get_tls_worker())
#define CILK_BEGIN_REGION __cilkrts_bind_thread_1
#define CILK_END_REGION __cilkrts_leave_last_frame
/* gcc counts the helpers of a file */
#define CILK_HELPER_SYMBOL(name) "_cilk_spn_" CILK_TEXT(__COUNTER__)
#define CILK_TEXT(counter) CILK_TEXT_(counter)
#define CILK_TEXT_(counter) #counter
#define __cilkrts_enter_frame __cilkrts_enter_frame_1
#define __cilkrts_enter_frame_helper __cilkrts_enter_frame_fast_1
#define __cilkrts_leave_frame_helper __cilkrts_leave_frame

#endif /* CILKPLUS_ABI_H */
