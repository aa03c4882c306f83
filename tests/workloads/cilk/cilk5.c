// SPDX-License-Identifier: Apache-2.0
/*
 * cilk5.c - a stand-in for the runtime of MIT Cilk-5.4.6: its names and structure
 * layouts, as a profiler knows them, on a small pool of our own.
 *
 * A worker has an array of frames, of which [head, tail) are spawning and can be
 * stolen, oldest first, and one closure, `bottom`, for the oldest frame of them.
 * Who steals a frame takes its closure along; the victim gets a new one for the
 * child that it is in. The owner pops under the deque's lock, as thieves steal.
 */
#define _GNU_SOURCE
#include "cilk5.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint32_t u32;

#define OUT_OF_LINE __attribute__((noinline, noipa, used))
#define EXPORT __attribute__((visibility("default"), noinline, noipa, used))
#define STACK_DEPTH 4096
#define SPINS 300
#define NAP_US 50

/* The debug library (-DCILK_DEBUG) and the profile library (-DCILK_PROFILE) have fields more; each library tells
 * what it is by a variable. */
#ifdef CILK_DEBUG
#define FLAGS_DEBUG DEBUG
#define MORE_IN_DEBUG 8
#define DEBUG_FIELD(type, name) type name
#else
#define FLAGS_DEBUG NODEBUG
#define MORE_IN_DEBUG 0
#define DEBUG_FIELD(type, name)
#endif
#ifdef CILK_PROFILE
#define FLAGS_PROFILE TIMING_STATS
#define MORE_IN_PROFILE 24
#else
#define FLAGS_PROFILE NOTIMING_NOSTATS
#define MORE_IN_PROFILE 0
#endif
#define FLAGS_ARE_WRONG_(debug, profile) Cilk_flags_are_wrong_##debug##_##profile##_please_recompile
#define FLAGS_ARE_WRONG(debug, profile) FLAGS_ARE_WRONG_(debug, profile)
__attribute__((visibility("default"), used)) int FLAGS_ARE_WRONG(FLAGS_DEBUG, FLAGS_PROFILE);

struct closure {
	pthread_mutex_t mutex;
	DEBUG_FIELD(u32, magic);
	u32 join_counter;
	int32_t status;
	long result;
	long *receiver;
	char pad0[16];
	struct closure *parent;
	struct cilk_frame *frame;
	char pad1[8];
	void *cache;
	struct closure *next_ready;
};
_Static_assert(offsetof(struct closure, status) == 44 + MORE_IN_DEBUG / 2, "Closure.status");
_Static_assert(offsetof(struct closure, parent) == 80 + MORE_IN_DEBUG, "Closure.parent");
_Static_assert(offsetof(struct closure, frame) == 88 + MORE_IN_DEBUG, "Closure.frame");

struct ready_deque {
	pthread_mutex_t mutex;
	DEBUG_FIELD(long, magic);
	struct closure *top, *bottom;
	char pad[64];
};
_Static_assert(sizeof(struct ready_deque) == 120 + MORE_IN_DEBUG, "ReadyDeque");
_Static_assert(offsetof(struct ready_deque, top) == 40 + MORE_IN_DEBUG, "ReadyDeque.top");
_Static_assert(offsetof(struct ready_deque, bottom) == 48 + MORE_IN_DEBUG, "ReadyDeque.bottom");

struct read_only {
	char pad0[32];
	u32 active_size;
	char pad1[16 + MORE_IN_PROFILE];
	struct ready_deque *deques;
	char pad2[8];
	cilk_main_import *invoke_main;
};
_Static_assert(offsetof(struct read_only, active_size) == 32, "RO.active_size");
_Static_assert(offsetof(struct read_only, deques) == 56 + MORE_IN_PROFILE, "RO.deques");

struct context {
	struct read_only *Cilk_RO_params;
	struct worker_state **global_state;
};

struct worker_state {
	struct {
		struct cilk_frame **head, **tail, **exception, **stack;
	} cache;
	char pad0[64];
	u32 self;
	u32 random;
	struct closure *next; /* to run without stealing it */
	bool returning; /* what runs here was stolen from under us: back to the scheduler */
	char pad1[263];
	struct context *context;
};
_Static_assert(sizeof(struct worker_state) == 384, "ws");
_Static_assert(offsetof(struct worker_state, cache.stack) == 24, "ws.cache.stack");
_Static_assert(offsetof(struct worker_state, self) == 96, "ws.self");
_Static_assert(offsetof(struct worker_state, context) == 376, "ws.context");

static struct read_only ro;
static struct context the_context = { .Cilk_RO_params = &ro };
static _Atomic unsigned long steals;
static pthread_mutex_t park_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_cond = PTHREAD_COND_INITIALIZER, done_cond = PTHREAD_COND_INITIALIZER;
static _Atomic bool active;
static _Atomic(struct closure *) invoked; /* what worker 0 is to run first */
static long main_result;

static void die(const char *why)
{
	fprintf(stderr, "stand-in Cilk-5 runtime: %s\n", why);
	abort();
}

static inline struct ready_deque *deque_of(struct worker_state *ws)
{
	return &ro.deques[ws->self];
}

EXPORT void *Cilk_init_frame(struct worker_state *ws, size_t size, const struct proc_info *sig)
{
	struct ready_deque *deque = deque_of(ws);
	struct cilk_frame *frame = calloc(1, size);

	if (!frame)
		die("no memory for a frame");
	frame->sig = sig;
	pthread_mutex_lock(&deque->mutex);
	*ws->cache.tail = frame;
	/* stolen from before this child had a frame */
	if (ws->cache.head == ws->cache.tail && deque->bottom && !deque->bottom->frame)
		deque->bottom->frame = frame;
	pthread_mutex_unlock(&deque->mutex);
	return frame;
}

EXPORT void Cilk_free_frame(struct worker_state *ws, struct cilk_frame *frame)
{
	(void)ws;
	free(frame);
}

/* The running frame, *tail, can be stolen from now on. */
EXPORT void Cilk_before_spawn(struct worker_state *ws)
{
	struct ready_deque *deque = deque_of(ws);

	pthread_mutex_lock(&deque->mutex);
	if (ws->cache.tail - ws->cache.stack > STACK_DEPTH - 4)
		die("too many spawns at once");
	*++ws->cache.tail = NULL;
	pthread_mutex_unlock(&deque->mutex);
}

EXPORT int Cilk_after_spawn(struct worker_state *ws, long value)
{
	struct ready_deque *deque = deque_of(ws);
	bool mine;

	if (ws->returning)
		return 1;
	pthread_mutex_lock(&deque->mutex);
	mine = ws->cache.head < ws->cache.tail;
	if (mine) {
		ws->cache.tail--;
	} else {
		deque->bottom->result = value;
		deque->bottom->status = CLOSURE_RETURNING;
		ws->returning = true;
	}
	pthread_mutex_unlock(&deque->mutex);
	return !mine;
}

EXPORT int Cilk_sync(struct worker_state *ws)
{
	struct ready_deque *deque = deque_of(ws);
	struct closure *closure;
	bool suspended;

	pthread_mutex_lock(&deque->mutex);
	closure = deque->bottom;
	pthread_mutex_lock(&closure->mutex);
	suspended = closure->join_counter > 0;
	if (suspended) {
		deque->top = deque->bottom = NULL;
		closure->status = CLOSURE_SUSPENDED;
	}
	pthread_mutex_unlock(&closure->mutex);
	pthread_mutex_unlock(&deque->mutex);
	return suspended;
}

EXPORT void Cilk_set_result(struct worker_state *ws, long value)
{
	struct closure *closure = deque_of(ws)->bottom;

	closure->result = value;
	closure->status = CLOSURE_RETURNING;
	ws->returning = true;
}

static struct closure *new_closure(struct closure *parent, struct cilk_frame *frame)
{
	struct closure *closure = calloc(1, sizeof(*closure));

	if (!closure)
		die("no memory for a closure");
	pthread_mutex_init(&closure->mutex, NULL);
	closure->parent = parent;
	closure->frame = frame;
	closure->status = CLOSURE_RUNNING;
	return closure;
}

/* The victim keeps a new closure, for the child of its oldest frame. */
static OUT_OF_LINE struct closure *promote_child(struct worker_state *victim, struct closure *parent)
{
	struct closure *child = new_closure(parent, victim->cache.head[1]);

	child->receiver = victim->cache.head[0]->receiver;
	victim->cache.head++;
	deque_of(victim)->top = deque_of(victim)->bottom = child;
	return child;
}

/* The thief has the parent, which has one child more that is to return to it. */
EXPORT void finish_promote(struct worker_state *thief, struct closure *parent, struct closure *child)
{
	(void)thief;
	(void)child;
	pthread_mutex_lock(&parent->mutex);
	parent->join_counter++;
	parent->status = CLOSURE_READY;
	pthread_mutex_unlock(&parent->mutex);
	atomic_fetch_add(&steals, 1);
}

static struct closure *steal(struct worker_state *ws)
{
	struct closure *parent = NULL;
	struct worker_state *victim;
	struct ready_deque *deque;
	u32 other;

	if (ro.active_size < 2)
		return NULL;
	ws->random = ws->random * 1664525u + 1013904223u;
	other = (ws->random >> 16) % (ro.active_size - 1);
	victim = the_context.global_state[other + (other >= ws->self)];
	if (victim->cache.head >= victim->cache.tail) /* a look without the lock */
		return NULL;
	deque = deque_of(victim);
	pthread_mutex_lock(&deque->mutex);
	if (victim->cache.head < victim->cache.tail) {
		parent = deque->bottom;
		finish_promote(ws, parent, promote_child(victim, parent));
	}
	pthread_mutex_unlock(&deque->mutex);
	return parent;
}

static void main_is_done(long value)
{
	pthread_mutex_lock(&park_lock);
	main_result = value;
	atomic_store(&active, false);
	pthread_cond_broadcast(&done_cond);
	pthread_mutex_unlock(&park_lock);
}

/* The closure that runs here has its result: it goes to the parent, whose last child may wake it. */
static struct closure *return_closure(struct worker_state *ws)
{
	struct ready_deque *deque = deque_of(ws);
	struct closure *closure = deque->bottom, *parent = closure->parent, *next = NULL;

	pthread_mutex_lock(&deque->mutex);
	deque->top = deque->bottom = NULL;
	ws->cache.head = ws->cache.tail = ws->cache.stack;
	ws->returning = false;
	pthread_mutex_unlock(&deque->mutex);
	if (!parent) {
		main_is_done(closure->result);
	} else {
		pthread_mutex_lock(&parent->mutex);
		*closure->receiver = closure->result;
		if (--parent->join_counter == 0 && parent->status == CLOSURE_SUSPENDED) {
			parent->status = CLOSURE_READY;
			next = parent;
		}
		pthread_mutex_unlock(&parent->mutex);
	}
	pthread_mutex_destroy(&closure->mutex);
	free(closure);
	return next;
}

/* Calls the slow clone of a closure's frame; returns when that is back, for whatever reason. */
static void run(struct worker_state *ws, struct closure *closure)
{
	struct ready_deque *deque = deque_of(ws);
	struct cilk_frame *frame = closure->frame;

	pthread_mutex_lock(&deque->mutex);
	ws->cache.head = ws->cache.tail = ws->cache.stack;
	*ws->cache.tail = frame;
	closure->status = CLOSURE_RUNNING;
	deque->top = deque->bottom = closure;
	pthread_mutex_unlock(&deque->mutex);
	frame->sig[0].inlet(ws, frame);
}

EXPORT void Cilk_scheduler(struct worker_state *ws)
{
	u32 fails = 0;

	while (atomic_load(&active)) {
		struct closure *closure = ws->next;

		ws->next = NULL;
		if (!closure && ws->self == 0)
			closure = atomic_exchange(&invoked, NULL);
		if (!closure)
			closure = steal(ws);
		if (closure) {
			fails = 0;
			run(ws, closure);
			if (ws->returning)
				ws->next = return_closure(ws);
		} else if (++fails < SPINS) {
			sched_yield();
		} else {
			usleep(NAP_US);
		}
	}
}

static OUT_OF_LINE void *Cilk_child_main(void *params)
{
	struct worker_state *ws = params;

	for (;;) {
		pthread_mutex_lock(&park_lock);
		while (!atomic_load(&active))
			pthread_cond_wait(&park_cond, &park_lock);
		pthread_mutex_unlock(&park_lock);
		Cilk_scheduler(ws);
	}
	return NULL;
}

static slow_clone invoke_main_slow;
static const struct proc_info invoke_main_sig[] = { { .size = sizeof(struct cilk_frame), .inlet = invoke_main_slow } };
struct invoke_main_frame {
	struct cilk_frame header;
	long result;
};

static OUT_OF_LINE void invoke_main_slow(struct worker_state *ws, struct cilk_frame *frame)
{
	struct invoke_main_frame *f = (struct invoke_main_frame *)frame;

	switch (frame->entry) {
	case 0:
		CILK5_SPAWN(2, &f->result, ws->context->Cilk_RO_params->invoke_main(ws), );
		/* fallthrough */
	case 2:
		CILK5_SYNC(3);
		/* fallthrough */
	case 3:
		Cilk_set_result(ws, f->result);
	}
	free(f);
}

static OUT_OF_LINE void Cilk_create_children(int count)
{
	ro.deques = calloc((size_t)count, sizeof(*ro.deques));
	the_context.global_state = calloc((size_t)count, sizeof(*the_context.global_state));
	if (!ro.deques || !the_context.global_state)
		die("no memory");
	for (int i = 0; i < count; i++) {
		struct worker_state *ws = calloc(1, sizeof(*ws));

		if (!ws || !(ws->cache.stack = calloc(STACK_DEPTH, sizeof(*ws->cache.stack))))
			die("no memory for a worker");
		ws->cache.head = ws->cache.tail = ws->cache.stack;
		ws->self = (u32)i;
		ws->random = (u32)i * 2654435761u + 1;
		ws->context = &the_context;
		pthread_mutex_init(&ro.deques[i].mutex, NULL);
		the_context.global_state[i] = ws;
	}
	ro.active_size = (u32)count;
	for (int i = 0; i < count; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, Cilk_child_main, the_context.global_state[i]))
			die("no thread");
	}
}

static OUT_OF_LINE void Cilk_wakeup_workers(struct context *context)
{
	(void)context;
	pthread_mutex_lock(&park_lock);
	atomic_store(&active, true);
	pthread_cond_broadcast(&park_cond);
	while (atomic_load(&active))
		pthread_cond_wait(&done_cond, &park_lock);
	pthread_mutex_unlock(&park_lock);
}

EXPORT long Cilk_start(cilk_main_import *import, int workers)
{
	struct invoke_main_frame *f = calloc(1, sizeof(*f));

	if (!f)
		die("no memory");
	if (!ro.active_size)
		Cilk_create_children(workers);
	f->header.sig = invoke_main_sig;
	ro.invoke_main = import;
	atomic_store(&invoked, new_closure(NULL, &f->header));
	Cilk_wakeup_workers(&the_context);
	return main_result;
}

EXPORT unsigned long cilk_standin_steals(void)
{
	return atomic_load(&steals);
}
