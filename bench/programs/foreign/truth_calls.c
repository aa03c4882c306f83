// SPDX-License-Identifier: Apache-2.0
// Logged work (truth.h) for programs in other languages: truth_begin(), then truth_serial() and truth_shared() on whatever
// threads, each so many nanoseconds of CPU time, then truth_end(). Java_Truth_... are the same for Java's native methods.
#include "truth.h"

#define EXPORT __attribute__((visibility("default")))

TRUTH_WORK(serial)
TRUTH_WORK(shared)

EXPORT void truth_begin(void)
{
	truth_init();
}

EXPORT void truth_serial(u64 cpu_ns)
{
	serial(cpu_ns);
}

EXPORT void truth_shared(u64 cpu_ns)
{
	shared(cpu_ns);
}

/* Writes the log: some languages end without exit(). */
EXPORT void truth_end(void)
{
	exit(0);
}

EXPORT void Java_Truth_begin(void *env, void *class)
{
	(void)env, (void)class;
	truth_begin();
}

EXPORT void Java_Truth_serial(void *env, void *class, int64_t cpu_ns)
{
	(void)env, (void)class;
	truth_serial((u64)cpu_ns);
}

EXPORT void Java_Truth_shared(void *env, void *class, int64_t cpu_ns)
{
	(void)env, (void)class;
	truth_shared((u64)cpu_ns);
}

EXPORT void Java_Truth_end(void *env, void *class)
{
	(void)env, (void)class;
	truth_end();
}
