// SPDX-License-Identifier: Apache-2.0
/*
 * truth.h - a log of when each thread was inside a work function.
 *
 * TRUTH_WORK(name) defines `void name(u64 cpu_ns)`, which burns that much CPU
 * time of the calling thread and logs the interval. Work is measured in CPU
 * time, so that a busy machine stretches an interval but not its work. Work
 * functions never nest, so "inside a work function" is what a profiler should
 * call working.
 *
 * The log goes to the file named by $PARPROF_TRUTH at exit; unset, nothing is
 * logged. Its lines (tests/truth.py reads them):
 *	parprof-truth 1
 *	pid PID
 *	dropped N			intervals for which there was no room
 *	function ID NAME
 *	interval ID TID ENTER_NS EXIT_NS CPU_NS
 *	end N				number of intervals; absent if cut short
 * ENTER_NS and EXIT_NS are CLOCK_MONOTONIC. Include once per program.
 */
#ifndef TRUTH_H
#define TRUTH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef uint32_t u32;
typedef uint64_t u64;

#ifdef __clang__
#define TRUTH_NOINLINE __attribute__((noinline))
#else
/* gcc would also clone (name.constprop.0) and merge functions */
#define TRUTH_NOINLINE __attribute__((noinline, noipa))
#endif

struct truth_record {
	u32 function;
	u32 tid;
	u64 enter_ns;
	u64 exit_ns; /* 0: not finished */
	u64 cpu_ns;
};

/*
 * One array, mapped ahead and handed out in chunks: threads write without
 * locks, and the number of threads is not limited.
 */
#ifndef TRUTH_RECORDS
#define TRUTH_RECORDS (1u << 20) /* a multiple of TRUTH_CHUNK */
#endif
#define TRUTH_CHUNK 64u

static struct truth_record *truth_records;
static _Atomic u32 truth_used;
static _Atomic u64 truth_dropped;
static FILE *truth_file;
static _Thread_local struct truth_record *truth_next, *truth_chunk_end;
static _Thread_local u32 truth_tid;

/* the linker collects the names; a function's id is its index here */
extern const char *const __start_truth_names[];
extern const char *const __stop_truth_names[];

static inline u64 truth_clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}

/* from $PARPROF_STEPS_PER_US: work is that many steps, not CPU time; for measuring what slows a program down */
static u64 truth_steps_per_us;

/*
 * Burns @cpu_ns of this thread's CPU time; looks at the clock every ~30 us.
 * The xor keeps compilers from folding several steps into one.
 */
TRUTH_NOINLINE static void burn(u64 cpu_ns)
{
	u64 end_ns = truth_clock_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;
	u64 x = end_ns;

	if (truth_steps_per_us) {
		for (u64 i = cpu_ns * truth_steps_per_us / 1000; i; i--)
			x = (x ^ x >> 29) * 6364136223846793005u;
		__asm__ volatile("" : "+r"(x));
		return;
	}

	do {
		for (int i = 0; i < 20000; i++)
			x = (x ^ x >> 29) * 6364136223846793005u;
		__asm__ volatile("" : "+r"(x));
	} while (truth_clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns);
}

static struct truth_record *truth_slot(void)
{
	if (!truth_records)
		return NULL;
	if (truth_next == truth_chunk_end) {
		u32 used = atomic_load(&truth_used);

		do {
			if (used == TRUTH_RECORDS) {
				atomic_fetch_add(&truth_dropped, 1);
				return NULL;
			}
		} while (!atomic_compare_exchange_weak(&truth_used, &used, used + TRUTH_CHUNK));
		truth_next = truth_records + used;
		truth_chunk_end = truth_next + TRUTH_CHUNK;
	}
	return truth_next++;
}

static inline struct truth_record *truth_enter(const char *const *name)
{
	struct truth_record *r = truth_slot();

	if (!r)
		return NULL;
	if (!truth_tid)
		truth_tid = (u32)syscall(SYS_gettid);
	/* these stores take the page fault, before the interval begins */
	r->function = (u32)(name - __start_truth_names);
	r->tid = truth_tid;
	r->cpu_ns = truth_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	r->enter_ns = truth_clock_ns(CLOCK_MONOTONIC);
	return r;
}

static inline void truth_exit(struct truth_record *r)
{
	if (!r)
		return;
	r->exit_ns = truth_clock_ns(CLOCK_MONOTONIC);
	r->cpu_ns = truth_clock_ns(CLOCK_THREAD_CPUTIME_ID) - r->cpu_ns;
}

#define TRUTH_WORK(name)                                                           \
	static const char *const truth_name_##name                                 \
		__attribute__((used, section("truth_names"))) = #name;             \
	TRUTH_NOINLINE static void name(u64 cpu_ns)                                \
	{                                                                          \
		struct truth_record *truth_r = truth_enter(&truth_name_##name);    \
                                                                                   \
		burn(cpu_ns);                                                      \
		truth_exit(truth_r);                                               \
	}

static void truth_write(void)
{
	u32 count = 0, used = atomic_load(&truth_used);

	fprintf(truth_file, "parprof-truth 1\npid %d\ndropped %" PRIu64 "\n", (int)getpid(),
		atomic_load(&truth_dropped));
	for (const char *const *name = __start_truth_names; name < __stop_truth_names; name++)
		fprintf(truth_file, "function %d %s\n", (int)(name - __start_truth_names), *name);
	for (const struct truth_record *r = truth_records; r < truth_records + used; r++) {
		if (!r->exit_ns)
			continue;
		fprintf(truth_file, "interval %u %u %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
			r->function, r->tid, r->enter_ns, r->exit_ns, r->cpu_ns);
		count++;
	}
	fprintf(truth_file, "end %u\n", count);
	if (fclose(truth_file))
		perror("PARPROF_TRUTH");
}

/* Call once, before the first work function. */
static void truth_init(void)
{
	const char *path = getenv("PARPROF_TRUTH"), *steps = getenv("PARPROF_STEPS_PER_US");

	truth_steps_per_us = steps ? strtoull(steps, NULL, 10) : 0;
	if (!path || !*path)
		return;
	truth_file = fopen(path, "w");
	truth_records = mmap(NULL, TRUTH_RECORDS * sizeof(*truth_records), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!truth_file || truth_records == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	atexit(truth_write);
}

#endif /* TRUTH_H */
