/* SPDX-License-Identifier: Apache-2.0 */
/* What the wrappers of LLVM's OpenMP runtime (libomp, libiomp5) have in common. */
#ifndef PARPROF_SPAN_KMP_H
#define PARPROF_SPAN_KMP_H

#include "span.h"

/* Every entry begins with the program's place in its source, which we do not read, and the thread's number. */
#define PLACE void *place, int thread

/*
 * The runtime calls entries of its own through the same table as the program does, so through our wrappers, too.
 * Then no strand is under way: the wrapper that the program called has ended it.
 */
static inline bool is_program(struct thread *self)
{
	return self->is_open;
}

/* Whether the calling thread's own code is a member's, which is where barriers and loops bind. */
static inline bool is_kmp_member(struct thread *self)
{
	return self->is_open && self->frame->is_implicit && !self->frame->team->is_posix;
}

/* A call that waits, or that runs tasks, without cutting the path. */
#define PAUSE(type, name, parameters, ...)                                                                            \
	EXPORT type name parameters                                                                                   \
	{                                                                                                             \
		REAL(type, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
		unsigned long result = 0;                                                                             \
                                                                                                                      \
		if (!is_program(self))                                                                                \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		RESULT_##type call(__VA_ARGS__);                                                                      \
		span_begin_strand(self);                                                                              \
		return (type)result;                                                                                  \
	}

#endif
