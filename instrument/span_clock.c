/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "span_clock.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS 1000000000ull
#define TRIALS 101 /* of what takes as long each time */
#define MEASURED_NS 500000 /* of the TSC, for its frequency */

static enum span_clock clock_kind;
static uint64_t clock_frequency = NS; /* of the cycles */
static uint64_t clock_cost;	      /* of reading the clock, in cycles */

uint64_t clock_ns(clockid_t which)
{
	struct timespec now;

	clock_gettime(which, &now);
	return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

static inline double cycles_of(uint64_t ns)
{
	return (double)ns * (double)clock_frequency / (double)NS;
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

struct moment {
	uint64_t ns, tsc;
	int core;
};

static struct moment before_sleep;

/* The same moment by both clocks, as nearly as a few attempts have it: a preemption may come between. */
static struct moment read_both(void)
{
	struct moment best = {0, 0, 0};
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 10; i++) {
		uint64_t before = __rdtsc(), ns = clock_ns(CLOCK_MONOTONIC), taken = __rdtsc() - before;

		if (taken < least) {
			least = taken;
			best = (struct moment){ns, before + taken / 2, sched_getcpu()};
		}
	}
	return best;
}

/* Whether the kernel says when it took the thread off its CPU: it does that now. */
static int has_rseq(void)
{
	struct timespec length = {0, MEASURED_NS};

	if (!&__rseq_size || !&__rseq_offset || !__rseq_size || *rseq_field())
		return 0;
	descriptor.start_ip = (uint64_t)(uintptr_t)parprof_rseq_never;
	descriptor.post_commit_offset = 1;
	descriptor.abort_ip = (uint64_t)(uintptr_t)parprof_rseq_abort;
	*rseq_field() = (uint64_t)(uintptr_t)&descriptor;
	before_sleep = read_both();
	nanosleep(&length, NULL);
	if (*rseq_field() == 0)
		return 1;
	*rseq_field() = 0;
	return 0;
}

/* Measured while has_rseq slept, which takes no time on the CPU. If the thread was woken up early, or on another core,
 * whose TSC may be another, it does take some. */
static uint64_t tsc_frequency(void)
{
	struct moment start = before_sleep, end = read_both();

	if (end.core != start.core)
		start = end;
	while (end.ns - start.ns < MEASURED_NS)
		end = read_both();
	return (uint64_t)((double)(end.tsc - start.tsc) * (double)NS / (double)(end.ns - start.ns));
}

static int compare(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

/* Not the least: a core may read the TSC twice at once. */
static uint64_t cost_of_reading(void)
{
	uint64_t taken[TRIALS];

	for (int i = 0; i < TRIALS; i++) {
		uint64_t start = __rdtsc();

		taken[i] = __rdtsc() - start;
	}
	qsort(taken, TRIALS, sizeof(*taken), compare);
	return taken[TRIALS / 2];
}

static __attribute__((noinline)) void renew_base(struct clock_base *clock)
{
	*rseq_field() = (uint64_t)(uintptr_t)&descriptor;
	clock->base_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	clock->base_tsc = __rdtsc();
}

/* The CPU clock when the last strand ended. */
static double at_end_by_rseq(const struct clock_base *clock)
{
	if (!clock->ended)
		return cycles_of(clock->ended_ns);
	return cycles_of(clock->base_ns) + (double)(clock->ended - clock->base_tsc);
}

/* As begin_by_rseq, after a switch: how much of the time since the last strand was on the CPU, its CPU clock knows. */
static __attribute__((noinline)) uint64_t begin_anew(struct clock_base *clock)
{
	double until = at_end_by_rseq(clock), passed;

	renew_base(clock);
	clock->begin = __rdtsc();
	passed = cycles_of(clock->base_ns) - until;
	return until > 0 && passed > 0 ? (uint64_t)passed : 0;
}

static inline uint64_t begin_by_rseq(struct clock_base *clock)
{
	if (__builtin_expect(!is_unswitched() || !clock->base_tsc, 0))
		return begin_anew(clock);
	clock->begin = __rdtsc();
	return clock->begin - clock->ended;
}

#define MAX_AHEAD 4096
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* From the base to the strand's begin there was no switch: that part is known by the TSC. */
static __attribute__((noinline)) uint64_t length_with_switches(struct clock_base *clock, uint64_t on_cpu_ns)
{
	double on_cpu;

	clock->ended = 0;
	clock->ended_ns = on_cpu_ns;
	on_cpu = cycles_of(clock->ended_ns - clock->base_ns) - (double)(clock->begin - clock->base_tsc);
	clock->base_tsc = 0;
	clock->ahead = 0;
	clock->switches++;
	return on_cpu > 0 ? (uint64_t)on_cpu : 0;
}

/* Of a strand without a switch. */
ALWAYS_INLINE uint64_t length_until(struct clock_base *clock, uint64_t at)
{
	int64_t length, missing;

	length = (int64_t)(at - clock->begin - clock_cost - clock->ahead);
	missing = length < 0 ? -length : 0; /* without a branch: which it is, is anybody's guess */
	clock->ahead = (uint64_t)(missing < MAX_AHEAD ? missing : MAX_AHEAD);
	return (uint64_t)(length + missing);
}

ALWAYS_INLINE struct clock_stop stop_by_rseq(void)
{
	struct clock_stop stop = {__rdtsc(), 0, false};

	if (__builtin_expect(!is_unswitched(), 0))
		stop.on_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	return stop;
}

ALWAYS_INLINE uint64_t end_by_rseq(struct clock_base *clock, struct clock_stop stop)
{
	if (__builtin_expect(stop.on_cpu_ns != 0, 0))
		return length_with_switches(clock, stop.on_cpu_ns);
	clock->ended = stop.at;
	return length_until(clock, stop.at);
}

ALWAYS_INLINE bool is_at_hand(void)
{
	return is_unswitched();
}

ALWAYS_INLINE uint64_t read_at_hand(void)
{
	return __rdtsc();
}

/* One of so many pauses is measured. An odd number: of what a program does by turns each has its part. */
#define MEASURED 17
#define FIRST_MEASURED 16

/* The first ones are cold: the shortest of them counts. Later ones that an interrupt made long say little. */
static __attribute__((noinline)) void learn(struct clock_pause *pause, uint64_t taken)
{
	uint64_t most = 4 * pause->mean / 16;

	if (pause->first < FIRST_MEASURED) {
		if (!pause->first++ || taken * 16 < pause->mean)
			pause->mean = taken * 16;
		return;
	}
	pause->left = MEASURED - 1;
	pause->mean += 2 * (taken < most ? taken : most) - pause->mean / 8;
}

/* A reading takes `clock_cost`, which the strand's end will take off: pauses without a second one are that much
 * shorter. */
ALWAYS_INLINE uint64_t length_of(const struct clock_pause *pause)
{
	return pause->mean / 16 - clock_cost;
}

ALWAYS_INLINE uint64_t begin_alike_by_rseq(struct clock_base *clock, struct clock_pause *pause)
{
	if (__builtin_expect(!is_unswitched() || !clock->base_tsc, 0))
		return begin_anew(clock);
	if (__builtin_expect(pause->left != 0, 1)) {
		pause->left--;
		clock->begin = clock->ended + length_of(pause);
		return pause->mean / 16;
	}
	clock->begin = __rdtsc();
	learn(pause, clock->begin - clock->ended);
	return clock->begin - clock->ended;
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
static uint64_t begin_by_rseq(struct clock_base *clock) { return clock->begin = 0; }
static struct clock_stop stop_by_rseq(void) { return (struct clock_stop){0, 0, false}; }
static uint64_t end_by_rseq(struct clock_base *clock, struct clock_stop stop) { return clock->begin + stop.at; }
static uint64_t length_until(struct clock_base *clock, uint64_t at) { return at - clock->begin; }
static bool is_at_hand(void) { return false; }
static uint64_t read_at_hand(void) { return 0; }
static uint64_t begin_alike_by_rseq(struct clock_base *clock, struct clock_pause *pause)
{
	(void)pause;
	return clock->begin = 0;
}
static double at_end_by_rseq(const struct clock_base *clock) { return (double)clock->ended; }
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

IN_CALLERS uint64_t clock_begin(struct clock_base *clock)
{
	if (clock_kind == CLOCK_BY_RSEQ)
		return begin_by_rseq(clock);
	clock->begin = clock_kind == CLOCK_BY_TEST ? clock->ticks : clock_ns(CLOCK_THREAD_CPUTIME_ID);
	return clock->ended ? clock->begin - clock->ended : 0;
}

IN_CALLERS struct clock_stop clock_stop(const struct clock_base *clock)
{
	if (clock_kind == CLOCK_BY_RSEQ)
		return stop_by_rseq();
	if (clock_kind == CLOCK_BY_TEST)
		return (struct clock_stop){clock->ticks, 0, true};
	return (struct clock_stop){clock_ns(CLOCK_THREAD_CPUTIME_ID), 0, false};
}

IN_CALLERS uint64_t clock_end_by(struct clock_base *clock, struct clock_stop stop)
{
	if (clock_kind == CLOCK_BY_RSEQ)
		return end_by_rseq(clock, stop);
	clock->ended = stop.at;
	return clock->ended - clock->begin;
}

IN_CALLERS uint64_t clock_end(struct clock_base *clock)
{
	return clock_end_by(clock, clock_stop(clock));
}

IN_CALLERS uint64_t clock_end_at(struct clock_base *clock, uint64_t at)
{
	uint64_t length = clock_kind == CLOCK_BY_RSEQ ? length_until(clock, at) : at - clock->begin;

	clock->begin = clock->ended = at;
	return length;
}

IN_CALLERS uint64_t clock_at_hand(void)
{
	return read_at_hand();
}

IN_CALLERS bool clock_was_at_hand(void)
{
	return clock_kind == CLOCK_BY_RSEQ && is_at_hand();
}

IN_CALLERS uint64_t clock_begin_alike(struct clock_base *clock, struct clock_pause *pause)
{
	return clock_kind == CLOCK_BY_RSEQ ? begin_alike_by_rseq(clock, pause) : clock_begin(clock);
}

uint64_t clock_at_end(const struct clock_base *clock)
{
	return clock_kind == CLOCK_BY_RSEQ ? (uint64_t)at_end_by_rseq(clock) : clock->ended;
}

uint64_t clock_of(const struct clock_base *clock, pthread_t thread)
{
	clockid_t which;

	if (clock_kind == CLOCK_BY_TEST)
		return __atomic_load_n(&clock->ticks, __ATOMIC_RELAXED);
	return pthread_getcpuclockid(thread, &which) ? 0 : (uint64_t)cycles_of(clock_ns(which));
}
