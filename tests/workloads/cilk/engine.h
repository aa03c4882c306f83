// SPDX-License-Identifier: Apache-2.0
/*
 * engine.h - a small continuation-stealing pool, the common part of the
 * stand-ins for OpenCilk and Cilk Plus. The file that includes it has defined
 * the layouts (struct frame, worker, local, global, closure, fiber) and the
 * names that a profiler knows; both are the real runtimes' own, the code is not.
 *
 * A frame is on some fiber, its home. A thief goes on behind the spawn with a
 * fresh fiber for its stack pointer and with the frame's own rbp. A frame that
 * was stolen has a closure: the number of its children that have yet to return
 * to it, and its stack pointer at home, where it goes on behind its sync. What
 * lets somebody else run on a fiber is done only when its worker has left it.
 *
 *	ctx[0..2]	rbp, rip, rsp at the last spawn or sync
 *	ctx[3]		the closure; NULL if not stolen since the last sync
 *	ctx[4]		the home fiber
 */
#ifndef CILK_ENGINE_H
#define CILK_ENGINE_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OUT_OF_LINE __attribute__((noinline, noipa, used))
#define EXPORT __attribute__((visibility("default"), noinline, noipa, used))

#define EXPORT_DATA __attribute__((visibility("default"), used))

#define FIBER_SIZE (256u << 10)
#define DEQUE_SIZE 4096
#define SPINS 300
#define NAP_US 50

static struct global *the_global;
static struct fiber *free_fibers;
static _Atomic int fibers_lock;
static pthread_mutex_t park_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_cond = PTHREAD_COND_INITIALIZER;
static _Atomic unsigned long steals;
/* the parallel region, if there is one */
static _Atomic int region_active, root_done;
static struct frame *root_frame;
static void *root_sp;

/* Defined by the skin. */
static bool is_boss(const struct worker *w);
static struct worker *this_worker(void);
static void set_running(struct worker *w, struct frame *frame, struct fiber *fiber);
static void set_searching(struct worker *w);
static void set_parked(struct worker *w);
static void resume(struct worker *w, struct closure *closure) __attribute__((noreturn));
static void leave_user_code(struct worker *w) __attribute__((noreturn));
/* Gives the closure a fiber, too. */
static struct closure *steal_from(struct worker *thief, struct worker *victim);

static void die(const char *why)
{
	fprintf(stderr, "stand-in Cilk runtime: %s\n", why);
	abort();
}

static inline void lock(_Atomic int *l)
{
	while (atomic_exchange_explicit(l, 1, memory_order_acquire))
		sched_yield();
}

static inline void unlock(_Atomic int *l)
{
	atomic_store_explicit(l, 0, memory_order_release);
}

static struct fiber *fiber_get(void)
{
	struct fiber *fiber;

	lock(&fibers_lock);
	fiber = free_fibers;
	if (fiber)
		free_fibers = fiber->next;
	unlock(&fibers_lock);
	if (!fiber) {
		char *stack = mmap(NULL, FIBER_SIZE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

		if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE))
			die("no memory for a fiber");
		/* the header is on top of its own stack */
		fiber = (struct fiber *)(stack + FIBER_SIZE - 256);
	}
	memset(fiber, 0, sizeof(*fiber));
	return fiber;
}

/* The top of an empty fiber's stack, as it is behind a call instruction. */
static inline void *fiber_top(struct fiber *fiber)
{
	return (void *)(((uintptr_t)fiber - 256) & ~(uintptr_t)15);
}

/* The fiber may be the one we stand on: it is free when the worker is back in its scheduler. */
static inline void fiber_retire(struct worker *w, struct fiber *fiber)
{
	fiber->next = w->l->retired;
	w->l->retired = fiber;
}

static void free_retired(struct worker *w)
{
	struct fiber *fiber;

	while ((fiber = w->l->retired)) {
		w->l->retired = fiber->next;
		lock(&fibers_lock);
		fiber->next = free_fibers;
		free_fibers = fiber;
		unlock(&fibers_lock);
	}
}

/* Goes on in user code. */
static inline __attribute__((always_inline, noreturn)) void jump(void *fp, void *pc, void *sp)
{
	__asm__ volatile("movq %0, %%rbp\n\tmovq %1, %%rsp\n\tjmp *%2"
			 : : "a"(fp), "d"(sp), "c"(pc) : "memory");
	__builtin_unreachable();
}

static void push(struct worker *w, struct frame *parent)
{
	struct local *l = w->l;

	lock(&l->lock);
	if (w->head == w->tail)
		w->head = w->tail = l->deque;
	if (w->tail == l->deque + DEQUE_SIZE)
		die("too many spawns at once");
	*w->tail++ = parent;
	unlock(&l->lock);
}

/* A spawned child is about to return: false if somebody has taken the parent. The parent is the
 * youngest entry, so that then all entries are gone. */
static bool pop(struct worker *w, struct frame *parent)
{
	bool mine;

	lock(&w->l->lock);
	mine = w->head < w->tail;
	if (mine && *--w->tail != parent)
		die("the deque is out of step");
	unlock(&w->l->lock);
	return mine;
}

/* Takes the oldest spawning frame of the victim, if there is one. */
static inline struct closure *take_oldest(struct worker *victim)
{
	struct closure *closure = NULL;

	lock(&victim->l->lock);
	if (victim->head < victim->tail) {
		struct frame *frame = *victim->head++;

		closure = frame->ctx[3];
		if (!closure) {
			closure = calloc(1, sizeof(*closure));
			if (!closure)
				die("no memory for a closure");
			closure->frame = frame;
			closure->home_sp = frame->ctx[2];
			frame->ctx[3] = closure;
		}
		lock(&closure->lock);
		closure->children++;
		closure->status = CLOSURE_READY;
		unlock(&closure->lock);
		frame->flags |= FRAME_STOLEN | FRAME_UNSYNCHED;
		atomic_fetch_add(&steals, 1);
	}
	unlock(&victim->l->lock);
	return closure;
}

/* Makes `w` the one that runs a closure: stolen just now, or all its children are back. Returns the
 * stack pointer to go on with. The closure is gone afterwards if it is synched. */
static inline void *take_over(struct worker *w, struct closure *closure)
{
	struct frame *frame = closure->frame;
	struct fiber *fiber;
	void *sp;

	if (closure->is_synched) {
		fiber = frame->ctx[4];
		sp = closure->home_sp;
		frame->flags &= ~(u32)(FRAME_STOLEN | FRAME_UNSYNCHED);
		frame->ctx[3] = NULL;
		free(closure);
	} else {
		fiber = closure->fiber;
		sp = fiber_top(fiber);
		closure->status = CLOSURE_RUNNING;
	}
	set_running(w, frame, fiber);
	return sp;
}

/* The last act of a child whose parent was stolen. */
static inline __attribute__((noreturn)) void return_to_stolen(struct worker *w, struct frame *parent)
{
	/* What is below us on this fiber is the parent, or nothing but its outgoing arguments. */
	if (w->l->fiber != parent->ctx[4])
		fiber_retire(w, w->l->fiber);
	w->l->returned_to = parent->ctx[3];
	leave_user_code(w);
}

/* The child is off the fiber: its parent may go on there. */
static void count_return(struct worker *w)
{
	struct closure *closure = w->l->returned_to;

	if (!closure)
		return;
	w->l->returned_to = NULL;
	lock(&closure->lock);
	if (--closure->children == 0 && closure->status == CLOSURE_SUSPENDED) {
		closure->status = CLOSURE_READY;
		closure->is_synched = true;
		w->l->next = closure;
	}
	unlock(&closure->lock);
}

/* The sync of a stolen frame, which is never at home. Goes on behind it when all children are back. */
static inline __attribute__((noreturn)) void sync_stolen(struct worker *w, struct frame *frame)
{
	struct closure *closure = frame->ctx[3];
	void *sp;

	fiber_retire(w, w->l->fiber);
	lock(&closure->lock);
	if (closure->children) {
		closure->status = CLOSURE_SUSPENDED;
		unlock(&closure->lock); /* from here on the last child may run the frame */
		leave_user_code(w);
	}
	closure->is_synched = true;
	unlock(&closure->lock);
	sp = take_over(w, closure);
	jump(frame->ctx[0], frame->ctx[1], sp);
}

static inline struct closure *find_work(struct worker *w)
{
	struct closure *closure = w->l->next;
	u32 count = the_global->nworkers;

	w->l->next = NULL;
	if (!closure && count > 1) {
		u32 victim;

		w->l->random = w->l->random * 1664525u + 1013904223u;
		victim = (w->l->random >> 16) % (count - 1);
		victim += victim >= w->self;
		closure = steal_from(w, the_global->workers[victim]);
	}
	return closure;
}

/* Where workers look for work; user code that leaves comes back to the setjmp. Returns when a worker
 * is to be parked, and in the boss when the region is over. */
static inline void search(struct worker *w)
{
	u32 fails = 0;

	__builtin_setjmp(w->l->scheduler);
	set_searching(w);
	free_retired(w);
	count_return(w);
	if (w->l->root_left) {
		w->l->root_left = false;
		atomic_store(&region_active, 0);
		atomic_store(&root_done, 1);
	}
	while (is_boss(w) ? !atomic_load(&root_done) : atomic_load(&region_active)) {
		struct closure *closure = find_work(w);

		if (closure)
			resume(w, closure);
		if (++fails < SPINS)
			sched_yield();
		else
			usleep(NAP_US);
	}
	set_parked(w);
}

static void wait_for_region(void)
{
	pthread_mutex_lock(&park_lock);
	while (!atomic_load(&region_active))
		pthread_cond_wait(&park_cond, &park_lock);
	pthread_mutex_unlock(&park_lock);
}

static void start_region(struct frame *root)
{
	root_frame = root;
	atomic_store(&root_done, 0);
	pthread_mutex_lock(&park_lock);
	atomic_store(&region_active, 1);
	pthread_cond_broadcast(&park_cond);
	pthread_mutex_unlock(&park_lock);
}

static struct worker *make_worker(struct global *g, u32 self)
{
	struct worker *w = aligned_alloc(128, (sizeof(*w) + 127) & ~127ul);
	struct local *l = calloc(1, sizeof(*l));

	if (!w || !l)
		die("no memory for a worker");
	memset(w, 0, sizeof(*w));
	w->self = self;
	w->g = g;
	w->l = l;
	l->random = self * 2654435761u + 1;
	w->head = w->tail = l->deque;
	return w;
}

static u32 wanted_workers(void)
{
	const char *text = getenv("CILK_NWORKERS");
	long count = text ? atol(text) : sysconf(_SC_NPROCESSORS_ONLN);

	return count < 1 ? 1 : count > 64 ? 64 : (u32)count;
}

EXPORT unsigned long cilk_standin_steals(void)
{
	return atomic_load(&steals);
}

#endif /* CILK_ENGINE_H */
