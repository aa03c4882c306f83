/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "span_clock.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS 1000000000ull

static enum span_clock clock_kind;
static uint64_t clock_frequency = NS; /* of the cycles */
static uint64_t clock_cost;	      /* of reading the clock, in cycles */

static inline uint64_t nanoseconds(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

#ifdef __x86_64__
#include <x86intrin.h>

/* glibc 2.35: absent before, where these are null */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

extern const char parprof_rseq_never[] __attribute__((visibility("hidden")));
extern const char parprof_rseq_abort[] __attribute__((visibility("hidden")));
/* the abort address needs the signature that glibc registered in the four bytes before it */
__asm__(".pushsection .text.parprof_rseq, \"ax\", @progbits\n"
	".balign 32\n"
	".hidden parprof_rseq_never\n.globl parprof_rseq_never\nparprof_rseq_never:\n\tnop\n"
	".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n"
	".hidden parprof_rseq_abort\n.globl parprof_rseq_abort\nparprof_rseq_abort:\n\tud2\n"
	".popsection\n");

struct descriptor {
	uint32_t version, flags;
	uint64_t start_ip, post_commit_offset, abort_ip;
} __attribute__((aligned(32)));
static struct descriptor descriptor;

static inline volatile uint64_t *rseq_field(void)
{
	return (volatile uint64_t *)((char *)__builtin_thread_pointer() + __rseq_offset + 8);
}

static inline int is_unswitched(void)
{
	return *rseq_field() == (uint64_t)(uintptr_t)&descriptor;
}

static int has_rseq(void)
{
	struct timespec moment = {0, 100000};

	if (!&__rseq_size || !&__rseq_offset || !__rseq_size || *rseq_field())
		return 0;
	descriptor.start_ip = (uint64_t)(uintptr_t)parprof_rseq_never;
	descriptor.post_commit_offset = 1;
	descriptor.abort_ip = (uint64_t)(uintptr_t)parprof_rseq_abort;
	*rseq_field() = (uint64_t)(uintptr_t)&descriptor;
	nanosleep(&moment, NULL);
	if (*rseq_field() == 0)
		return 1;
	*rseq_field() = 0;
	return 0;
}

static uint64_t tsc_frequency(void)
{
	uint64_t start_ns = nanoseconds(CLOCK_MONOTONIC), start = __rdtsc(), end_ns;

	do
		end_ns = nanoseconds(CLOCK_MONOTONIC);
	while (end_ns - start_ns < 5000000);
	return (uint64_t)((double)(__rdtsc() - start) * (double)NS / (double)(end_ns - start_ns));
}

static uint64_t cost_of_reading(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 1000; i++) {
		uint64_t start = __rdtsc(), taken = __rdtsc() - start;
		if (taken < least)
			least = taken;
	}
	return least;
}

static void renew_base(struct clock_base *clock)
{
	*rseq_field() = (uint64_t)(uintptr_t)&descriptor;
	clock->base_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
	clock->base_tsc = __rdtsc();
}

static void begin_by_rseq(struct clock_base *clock)
{
	if (__builtin_expect(!is_unswitched() || !clock->base_tsc, 0))
		renew_base(clock);
	clock->begin = __rdtsc();
}

static uint64_t end_by_rseq(struct clock_base *clock)
{
	uint64_t now = __rdtsc();
	double on_cpu;

	if (__builtin_expect(is_unswitched(), 1)) {
		uint64_t length = now - clock->begin;
		return length > clock_cost ? length - clock_cost : 0;
	}
	/* from the base to the strand's begin there was no switch: that part is known by the TSC */
	on_cpu = (double)(nanoseconds(CLOCK_THREAD_CPUTIME_ID) - clock->base_ns) * (double)clock_frequency / (double)NS;
	on_cpu -= (double)(clock->begin - clock->base_tsc);
	clock->base_tsc = 0;
	clock->switches++;
	return on_cpu > 0 ? (uint64_t)on_cpu : 0;
}

void clock_leave(void)
{
	if (clock_kind == CLOCK_BY_RSEQ && is_unswitched())
		*rseq_field() = 0;
}
#else
static int has_rseq(void) { return 0; }
static uint64_t tsc_frequency(void) { return NS; }
static uint64_t cost_of_reading(void) { return 0; }
static void begin_by_rseq(struct clock_base *clock) { clock->begin = 0; }
static uint64_t end_by_rseq(struct clock_base *clock) { return clock->begin; }
void clock_leave(void) {}
#endif

uint64_t clock_choose(enum span_clock *chosen)
{
	const char *asked = getenv("PARPROF_SPAN_CLOCK");

	if (asked && !strcmp(asked, "test")) {
		clock_kind = CLOCK_BY_TEST;
	} else if ((!asked || strcmp(asked, "syscall")) && has_rseq()) {
		clock_kind = CLOCK_BY_RSEQ;
		clock_frequency = tsc_frequency();
		clock_cost = cost_of_reading();
	}
	*chosen = clock_kind;
	return clock_frequency;
}

void clock_begin(struct clock_base *clock)
{
	if (clock_kind == CLOCK_BY_RSEQ)
		begin_by_rseq(clock);
	else
		clock->begin = clock_kind == CLOCK_BY_TEST ? clock->ticks : nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t clock_end(struct clock_base *clock)
{
	if (clock_kind == CLOCK_BY_RSEQ)
		return end_by_rseq(clock);
	return (clock_kind == CLOCK_BY_TEST ? clock->ticks : nanoseconds(CLOCK_THREAD_CPUTIME_ID)) - clock->begin;
}
