// SPDX-License-Identifier: Apache-2.0
/*
 * spawn.h - Cilk functions lowered by hand, as compilers lower them for OpenCilk
 * and Cilk Plus. CILK_ABI names the header of the runtime's interface.
 *
 *	CILK_FUNCTION(long, f, (int n))
 *	{
 *		CILK_ENTER;
 *		CILK_SPAWN(f_helper, &x, n - 1, 0);
 *		...
 *		CILK_SYNC;
 *		CILK_LEAVE;
 *	}
 *
 * With PARPROF_SPAN the macros also say to `parprof scale` what happens, as a
 * compiler for the runtime could (instrument/parprof_span.h): for one worker,
 * since what is stolen goes on in another thread.
 *
 * A thief runs the rest of the function with its own rsp and the frame's rbp.
 * So locals must be found by rbp: alloca sees to that, whatever the options.
 */
#ifndef SPAWN_H
#define SPAWN_H

#include CILK_ABI

#ifdef PARPROF_SPAN
#include "parprof_span.h"
#define SPAN_ENTER(is_outside)                                                     \
	parprof_region *cilk_region = (is_outside) ? parprof_region_begin(0) : 0;  \
	parprof_task *cilk_called = cilk_region ? 0 : parprof_call(0);             \
	parprof_begin(cilk_called)
#define SPAN_LEAVE                                                                 \
	do {                                                                       \
		if (cilk_called)                                                   \
			parprof_end(cilk_called);                                  \
		if (cilk_region)                                                   \
			parprof_region_end(cilk_region);                           \
	} while (0)
#define SPAN_SPAWN(call)                                                           \
	do {                                                                       \
		parprof_task *cilk_spawned = parprof_spawn(0);                     \
                                                                                   \
		parprof_begin(cilk_spawned);                                       \
		call;                                                              \
		parprof_end(cilk_spawned);                                         \
	} while (0)
#define SPAN_SYNC(wait)                                                            \
	do {                                                                       \
		parprof_pause();                                                   \
		wait;                                                              \
		parprof_synced();                                                  \
		parprof_resume();                                                  \
	} while (0)
#else
#define SPAN_ENTER(is_outside) do {} while (0)
#define SPAN_LEAVE do {} while (0)
#define SPAN_SPAWN(call) call
#define SPAN_SYNC(wait) wait
#endif

#define CILK_FUNCTION(type, name, parameters)                                      \
	static type name parameters __attribute__((noinline, noipa));              \
	static type name parameters

/* The outlined function of one spawn. It begins with HELPER_ENTER and ends with HELPER_LEAVE. */
#define CILK_HELPER(author, name, parameters)                                      \
	static void name parameters __asm__(CILK_HELPER_SYMBOL(author))            \
		__attribute__((noinline, noipa));                                  \
	static void name parameters

/*
 * Saves rbp, rip and rsp in the frame and calls: who resumes the frame goes on
 * behind the call, as if it had returned. No register survives that.
 */
#define CILK_CALL(function, a, b, c)                                               \
	do {                                                                       \
		unsigned long cilk_a = (unsigned long)(a), cilk_b = (unsigned long)(b); \
		unsigned long cilk_c = (unsigned long)(c);                         \
		struct frame *cilk_f = &cilk_frame;                                \
		void *cilk_to = (void *)(function);                                \
                                                                                   \
		__asm__ volatile("leaq 1f(%%rip), %%r8\n\t"                        \
				 "movq %%rbp, %c[ctx](%%rax)\n\t"                  \
				 "movq %%r8, 8+%c[ctx](%%rax)\n\t"                 \
				 "movq %%rsp, 16+%c[ctx](%%rax)\n\t"               \
				 "call *%%rcx\n"                                   \
				 "1:"                                              \
				 : "+a"(cilk_f), "+c"(cilk_to), "+D"(cilk_a),      \
				   "+S"(cilk_b), "+d"(cilk_c)                      \
				 : [ctx] "i"(offsetof(struct frame, ctx))          \
				 : "rbx", "r8", "r9", "r10", "r11", "r12", "r13",  \
				   "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",   \
				   "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
				   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",    \
				   "xmm15", "memory", "cc");                       \
	} while (0)

#define CILK_ENTER                                                                 \
	struct frame cilk_frame;                                                   \
	SPAN_ENTER(cilk_is_outside());                                             \
	do {                                                                       \
		unsigned long cilk_size = 16;                                      \
                                                                                   \
		__asm__ volatile("" : "+r"(cilk_size));                            \
		__asm__ volatile("" : : "r"(__builtin_alloca(cilk_size)) : "memory"); \
		if (cilk_is_outside())                                             \
			CILK_CALL(CILK_BEGIN_REGION, &cilk_frame, 0, 0);           \
		__cilkrts_enter_frame(&cilk_frame);                                \
	} while (0)

#define CILK_SPAWN(helper, a, b, c) SPAN_SPAWN(CILK_CALL(helper, a, b, c))

#define CILK_SYNC SPAN_SYNC(CILK_WAIT)

/* volatile: a thief sets the flag */
#define CILK_WAIT                                                                  \
	do {                                                                       \
		if (*(volatile uint32_t *)&cilk_frame.flags & FRAME_UNSYNCHED)     \
			CILK_CALL(__cilkrts_sync, &cilk_frame, 0, 0);              \
	} while (0)

#define CILK_LEAVE                                                                 \
	do {                                                                       \
		CILK_SYNC;                                                         \
		SPAN_LEAVE;                                                        \
		if (*(volatile uint32_t *)&cilk_frame.flags & FRAME_LAST)          \
			CILK_CALL(CILK_END_REGION, &cilk_frame, 0, 0);             \
		else                                                               \
			__cilkrts_leave_frame(&cilk_frame);                        \
	} while (0)

#define HELPER_ENTER                                                               \
	struct frame cilk_frame;                                                   \
	__cilkrts_enter_frame_helper(&cilk_frame);                                 \
	__cilkrts_detach(&cilk_frame)

#define HELPER_LEAVE __cilkrts_leave_frame_helper(&cilk_frame)

#endif /* SPAWN_H */
