/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into a command by `parprof record -e malloc-bytes`: counts the bytes that malloc and its family are asked for,
 * and hands on a sample for each PARPROF_ALLOC_BYTES of them (froyd-2005 figure 2). Whatever allocator the program has
 * goes on as it was: each function calls the next one of its name.
 *
 * A thread whose samples would come faster than each PARPROF_ALLOC_PAUSE_NS takes fewer, each of which stands for more.
 *
 * A sample is a call of parprof_allocated, which does nothing: a uprobe is on it. So a call of malloc that is none costs
 * some additions, and nothing in here can walk a stack, take a lock for long or fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../bpf/strata.h"

#define VISIBLE __attribute__((visibility("default")))
#define UNLIKELY(what) __builtin_expect(!!(what), 0)
#define AT_ONCE 255	/* records that are made at a time */
#define LOOKS 8	/* so many samples of a thread are timed together */
#define MOST_BYTES (1ULL << 40)

typedef unsigned long long u64;

/* What one thread has allocated since it told. Never freed: a thread that ends leaves its record to another. */
struct account {
	struct stratum stratum;
	u64 size;	/* bytes for each of which it has a sample */
	u64 luck;
	u64 bytes, times;
	u64 since_ns;	/* when its samples were looked at last */
	int samples, taken;
};

struct accounts {
	struct accounts *next;
	struct account of[AT_ONCE];
};

static struct accounts first;
static u64 wanted_size;	/* bytes for each of which there is a sample at best; 0: nobody wants any */
static u64 pause_ns;
static pthread_key_t ending;
static int has_key;
static __thread struct account *mine;

/* A sample that stands for `due` bytes, and all that was allocated since the last call: what is probed. The kernel emulates
 * a nop; one of five bytes is cheaper still, but has it map a page into the program, in which samples are found then. */
VISIBLE __attribute__((noinline, noclone)) void parprof_allocated(u64 bytes, u64 times, u64 due)
{
	__asm__ volatile("nop" : : "r"(bytes), "r"(times), "r"(due) : "memory");
}

/* What is not told yet: whoever asks tells it. */
static u64 take(u64 *count)
{
	return __atomic_exchange_n(count, 0, __ATOMIC_RELAXED);
}

static inline __attribute__((always_inline)) void tell(struct account *a, u64 due)
{
	u64 bytes = take(&a->bytes), times = take(&a->times);

	if (times)
		parprof_allocated(bytes, times, due);
}

static struct account *claim(struct accounts *list)
{
	for (int i = 0; i < AT_ONCE; i++)
		if (!__atomic_load_n(&list->of[i].taken, __ATOMIC_RELAXED) &&
		    !__atomic_exchange_n(&list->of[i].taken, 1, __ATOMIC_ACQUIRE))
			return &list->of[i];
	return NULL;
}

static struct accounts *more(struct accounts *last)
{
	struct accounts *made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *none = NULL;

	if (made == MAP_FAILED)
		return NULL;
	if (__atomic_compare_exchange_n(&last->next, &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return made;
	munmap(made, sizeof(*made));
	return none;
}

static u64 number(const char *variable)
{
	const char *text = getenv(variable);

	return text ? strtoull(text, NULL, 10) : 0;
}

/* This thread's first allocation, perhaps before our constructor. */
static __attribute__((noinline)) struct account *begin(void)
{
	struct account *found = NULL;

	if (!wanted_size) {
		pause_ns = number("PARPROF_ALLOC_PAUSE_NS");
		wanted_size = number("PARPROF_ALLOC_BYTES");
		if (!wanted_size)
			return NULL;
	}
	for (struct accounts *list = &first; list && !found; list = list->next ? list->next : more(list))
		found = claim(list);
	if (!found)
		return NULL;
	found->luck ^= (uintptr_t)&found ^ __builtin_ia32_rdtsc() ^ 0x9e3779b97f4a7c15ULL;
	found->size = found->size ? found->size : wanted_size;
	mine = found;
	if (has_key)
		pthread_setspecific(ending, found);
	return found;
}

static void end_thread(void *of)
{
	struct account *a = of;

	mine = NULL;	/* what it allocates after that begins anew */
	tell(a, 0);
	__atomic_store_n(&a->taken, 0, __ATOMIC_RELEASE);
}

#define REFUSED (1ULL << 46)	/* so many bytes nobody gets: they count nothing */

/* Counts; the bytes that samples which are due stand for. */
static inline __attribute__((always_inline)) u64 note(u64 bytes)
{
	struct account *a = mine;
	u64 luck;

	if (UNLIKELY(!a)) {
		a = begin();
		if (!a)
			return 0;
	}
	luck = a->luck;	/* xorshift */
	luck ^= luck << 13;
	luck ^= luck >> 7;
	luck ^= luck << 17;
	a->luck = luck;
	bytes &= bytes > REFUSED ? 0 : ~0ULL;
	a->bytes += bytes;
	a->times++;
	return a->size * points_within(&a->stratum, bytes, a->size, luck >> 16);
}

/* A thread has a sample for each `size` bytes from the next stretch on. What is left of this one, which has had its own,
 * goes by first. */
static void change_size(struct account *a, u64 size)
{
	u64 rest = a->size - a->stratum.position;

	if (rest >= size)
		return;	/* another time */
	a->size = size;
	a->stratum.position = size - rest;
	a->stratum.point = 1;	/* it is gone by */
}

/* Keeps a thread's samples from coming too fast. Right behind one. */
static __attribute__((noinline)) void pace(struct account *a)
{
	struct timespec now;
	u64 now_ns, took_ns;

	a->samples = 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	now_ns = now.tv_sec * 1000000000ULL + now.tv_nsec;
	took_ns = now_ns - a->since_ns;
	a->since_ns = now_ns;
	if (took_ns < LOOKS * pause_ns && a->size < MOST_BYTES)
		change_size(a, 2 * a->size);
	else if (took_ns > 4 * LOOKS * pause_ns && a->size > wanted_size)
		change_size(a, a->size / 2);
}

/* All inlined into the wrapper, which is the innermost frame of the sample then. */
static inline __attribute__((always_inline)) void allocate(u64 bytes)
{
	u64 due = note(bytes);

	if (UNLIKELY(due)) {
		tell(mine, due);
		if (++mine->samples >= LOOKS)
			pace(mine);
	}
}

static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static void *(*next_aligned_alloc)(size_t, size_t);
static void *(*next_memalign)(size_t, size_t);
static int (*next_posix_memalign)(void **, size_t, size_t);
static void *(*next_valloc)(size_t);
static void *(*next_pvalloc)(size_t);

/* What dlsym itself allocates, should it. It is never freed. */
static char early[4096] __attribute__((aligned(16)));
static size_t early_used;
static int resolving;

static void *early_alloc(size_t bytes)
{
	size_t at = early_used, rounded = (bytes + 15) & ~(size_t)15;

	if (bytes > sizeof(early) || rounded > sizeof(early) - at)
		return NULL;
	early_used = at + rounded;
	return early + at;
}

static __attribute__((noinline)) void resolve(void)
{
	__atomic_store_n(&resolving, 1, __ATOMIC_RELAXED);
	*(void **)&next_calloc = dlsym(RTLD_NEXT, "calloc");
	*(void **)&next_realloc = dlsym(RTLD_NEXT, "realloc");
	*(void **)&next_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
	*(void **)&next_memalign = dlsym(RTLD_NEXT, "memalign");
	*(void **)&next_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
	*(void **)&next_valloc = dlsym(RTLD_NEXT, "valloc");
	*(void **)&next_pvalloc = dlsym(RTLD_NEXT, "pvalloc");
	*(void **)&next_malloc = dlsym(RTLD_NEXT, "malloc");
	__atomic_store_n(&resolving, 0, __ATOMIC_RELAXED);
}

#define READY(next, otherwise) \
	do { \
		if (UNLIKELY(!(next))) { \
			if (resolving) \
				return otherwise; \
			resolve(); \
		} \
	} while (0)

VISIBLE void *malloc(size_t bytes)
{
	READY(next_malloc, early_alloc(bytes));
	allocate(bytes);
	return next_malloc(bytes);
}

VISIBLE void *calloc(size_t count, size_t each)
{
	size_t bytes;

	if (__builtin_mul_overflow(count, each, &bytes))
		bytes = 0;	/* it will be refused */
	READY(next_calloc, early_alloc(bytes));
	allocate(bytes);
	return next_calloc(count, each);
}

/* All of the new size, as if it had been allocated and copied. */
VISIBLE void *realloc(void *old, size_t bytes)
{
	READY(next_realloc, NULL);
	allocate(bytes);
	return next_realloc(old, bytes);
}

VISIBLE void *aligned_alloc(size_t alignment, size_t bytes)
{
	READY(next_aligned_alloc, NULL);
	allocate(bytes);
	return next_aligned_alloc(alignment, bytes);
}

VISIBLE void *memalign(size_t alignment, size_t bytes)
{
	READY(next_memalign, NULL);
	allocate(bytes);
	return next_memalign(alignment, bytes);
}

VISIBLE int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	READY(next_posix_memalign, ENOMEM);
	allocate(bytes);
	return next_posix_memalign(out, alignment, bytes);
}

VISIBLE void *valloc(size_t bytes)
{
	READY(next_valloc, NULL);
	allocate(bytes);
	return next_valloc(bytes);
}

VISIBLE void *pvalloc(size_t bytes)
{
	READY(next_pvalloc, NULL);
	allocate(bytes);
	return next_pvalloc(bytes);
}

/* What the parent has yet to tell is the parent's. */
static void after_fork(void)
{
	for (struct accounts *list = &first; list; list = list->next)
		for (int i = 0; i < AT_ONCE; i++) {
			list->of[i].bytes = list->of[i].times = 0;
			if (&list->of[i] != mine)
				list->of[i].taken = 0;	/* its thread is not in the child */
		}
}

static __attribute__((constructor)) void prepare(void)
{
	if (!next_malloc)
		resolve();
	has_key = !pthread_key_create(&ending, end_thread);
	if (has_key && mine)
		pthread_setspecific(ending, mine);
	pthread_atfork(NULL, NULL, after_fork);
}

static __attribute__((destructor)) void end_process(void)
{
	for (struct accounts *list = &first; list; list = list->next)
		for (int i = 0; i < AT_ONCE; i++)
			tell(&list->of[i], 0);
}
