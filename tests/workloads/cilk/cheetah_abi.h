// SPDX-License-Identifier: Apache-2.0
/* cheetah_abi.h - what programs know of the OpenCilk stand-in: the frame as in cheetah v2.1. */
#ifndef CHEETAH_ABI_H
#define CHEETAH_ABI_H

#include <stddef.h>
#include <stdint.h>

#define FRAME_STOLEN 1u
#define FRAME_UNSYNCHED 2u
#define FRAME_DETACHED 4u
#define FRAME_LAST 0x80u
#define FRAME_MAGIC 0x57a4d121u /* of the stand-in, not of any OpenCilk */

struct fiber;
struct worker;

struct frame {
	uint32_t flags;
	uint32_t magic;
	struct fiber *fh;
	struct frame *call_parent;
	void *ctx[5];
	void *extension;
};
_Static_assert(sizeof(struct frame) == 72, "struct __cilkrts_stack_frame");
_Static_assert(offsetof(struct frame, ctx) == 24, "ctx");

extern _Thread_local struct worker *__cilkrts_tls_worker;
extern _Thread_local struct fiber *__cilkrts_current_fh;

void __cilkrts_internal_invoke_cilkified_root(struct frame *frame);
void __cilkrts_internal_exit_cilkified_root(struct frame *frame);
void __cilkrts_enter_frame(struct frame *frame);
void __cilkrts_enter_frame_helper(struct frame *frame);
void __cilkrts_detach(struct frame *frame);
void __cilkrts_leave_frame(struct frame *frame);
void __cilkrts_leave_frame_helper(struct frame *frame);
void __cilkrts_sync(struct frame *frame);
unsigned long cilk_standin_steals(void);

#ifndef CILK_RUNTIME
/* Out of line: a function that moves between threads must not keep the address of a thread-local. */
__attribute__((noinline, noipa)) static int cilk_is_outside(void)
{
	return !__cilkrts_current_fh || !__cilkrts_tls_worker;
}
#endif

#define CILK_BEGIN_REGION __cilkrts_internal_invoke_cilkified_root
#define CILK_END_REGION __cilkrts_internal_exit_cilkified_root
#ifdef CILK_VALUE_NAMES /* a compiler that keeps them, as one built with assertions does */
#define CILK_HELPER_SYMBOL(name) #name ".outline_det.achd16.otd1"
#else
#define CILK_HELPER_SYMBOL(name) #name ".outline_.split.otd1"
#endif

#endif /* CHEETAH_ABI_H */
