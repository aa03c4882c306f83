// SPDX-License-Identifier: Apache-2.0
/*
 * cheetah.c - a stand-in for OpenCilk's runtime (cheetah v2.1): its names and
 * structure layouts, as a profiler knows them, on the pool of engine.h.
 */
#define _GNU_SOURCE
#define CILK_RUNTIME
#include "cheetah_abi.h"

#include <pthread.h>

typedef uint32_t u32;

enum { WORKER_IDLE = 10, WORKER_SCHED = 11, WORKER_RUN = 13 };
enum { CLOSURE_RUNNING = 42, CLOSURE_SUSPENDED = 43, CLOSURE_RETURNING = 44, CLOSURE_READY = 45 };

struct fiber {
	struct worker *worker;
	struct frame *current_stack_frame;
	struct fiber *next;
};

struct closure {
	struct frame *frame;
	struct fiber *fiber;
	_Atomic int lock;
	u32 children;
	void *home_sp;
	char pad[8];
	int is_synched;
	uint8_t status;
	struct closure *unused[3];
	struct closure *call_parent;
	struct closure *spawn_parent;
};
_Static_assert(offsetof(struct closure, frame) == 0, "Closure.frame");
_Static_assert(offsetof(struct closure, fiber) == 8, "Closure.fiber");
_Static_assert(offsetof(struct closure, status) == 44, "Closure.status");
_Static_assert(offsetof(struct closure, call_parent) == 72, "Closure.call_parent");
_Static_assert(offsetof(struct closure, spawn_parent) == 80, "Closure.spawn_parent");

struct local {
	_Atomic int lock;
	u32 random;
	_Atomic uint16_t state;
	struct fiber *fiber, *retired;
	struct closure *next, *returned_to;
	_Bool root_left;
	struct closure base; /* what runs now, for those who look from outside */
	void *scheduler[5];
	struct frame *deque[4096];
};
_Static_assert(offsetof(struct local, state) == 8, "local_state.state");

struct worker {
	u32 self;
	void *hyper_table;
	struct global *g;
	struct local *l;
	char pad0[16];
	struct frame **tail;
	char pad1[8];
	struct frame **exc;
	char pad2[56];
	struct frame **head;
};
_Static_assert(offsetof(struct worker, g) == 16, "worker.g");
_Static_assert(offsetof(struct worker, l) == 24, "worker.l");
_Static_assert(offsetof(struct worker, tail) == 48, "worker.tail");
_Static_assert(offsetof(struct worker, exc) == 64, "worker.exc");
_Static_assert(offsetof(struct worker, head) == 128, "worker.head");

struct ready_deque {
	struct closure *bottom;
	char pad0[120];
	struct closure *top;
	char pad1[248];
};
_Static_assert(sizeof(struct ready_deque) == 384, "ReadyDeque");

struct global {
	char pad0[24];
	u32 nworkers;
	char pad1[8];
	struct worker **workers;
	struct ready_deque *deques;
	pthread_t *threads;
	struct closure *root_closure;
};

#include "engine.h"

_Static_assert(offsetof(struct global, nworkers) == 24, "g.nworkers");
_Static_assert(offsetof(struct global, workers) == 40, "g.workers");
_Static_assert(offsetof(struct global, deques) == 48, "g.deques");
_Static_assert(offsetof(struct global, threads) == 56, "g.threads");
_Static_assert(offsetof(struct global, root_closure) == 64, "g.root_closure");

EXPORT_DATA _Thread_local struct worker *__cilkrts_tls_worker;
EXPORT_DATA _Thread_local struct fiber *__cilkrts_current_fh;
/* a pointer that profilers look up: not folded into the_global */
static struct global *volatile default_cilkrts __attribute__((used));

static bool is_boss(const struct worker *w)
{
	return w->self == 0;
}

static struct worker *this_worker(void)
{
	return __cilkrts_tls_worker;
}

static void set_running(struct worker *w, struct frame *frame, struct fiber *fiber)
{
	struct closure *base = &w->l->base;
	struct ready_deque *deque = &w->g->deques[w->self];

	w->l->fiber = fiber;
	fiber->worker = w;
	fiber->current_stack_frame = frame;
	__cilkrts_current_fh = fiber;
	base->frame = frame;
	base->fiber = fiber;
	base->status = CLOSURE_RUNNING;
	deque->top = deque->bottom = base;
	atomic_store(&w->l->state, WORKER_RUN);
}

static void set_searching(struct worker *w)
{
	atomic_store(&w->l->state, WORKER_SCHED);
}

static void set_parked(struct worker *w)
{
	atomic_store(&w->l->state, WORKER_IDLE);
}

static OUT_OF_LINE __attribute__((noreturn)) void longjmp_to_user_code(struct worker *w, struct closure *t)
{
	struct frame *frame = t->frame;
	void *sp = take_over(w, t);

	jump(frame->ctx[0], frame->ctx[1], sp);
}

static void resume(struct worker *w, struct closure *closure)
{
	longjmp_to_user_code(w, closure);
}

static OUT_OF_LINE __attribute__((noreturn)) void longjmp_to_runtime(struct worker *w)
{
	struct ready_deque *deque = &w->g->deques[w->self];

	deque->top = deque->bottom = NULL;
	set_searching(w);
	__builtin_longjmp(w->l->scheduler, 1);
}

static void leave_user_code(struct worker *w)
{
	longjmp_to_runtime(w);
}

/* As in v2.1: the thief is the third argument, the victim the fourth. */
static OUT_OF_LINE struct closure *extract_top_spawning_closure(struct ready_deque *deques, u32 id,
								struct worker *thief, struct worker *victim)
{
	(void)deques;
	(void)id;
	(void)thief;
	return take_oldest(victim);
}

static struct closure *steal_from(struct worker *thief, struct worker *victim)
{
	struct closure *closure;

	if (victim->head >= victim->tail) /* a look without the lock */
		return NULL;
	closure = extract_top_spawning_closure(thief->g->deques, thief->self, thief, victim);
	if (closure)
		closure->fiber = fiber_get();
	return closure;
}

static OUT_OF_LINE void worker_scheduler(struct worker *w)
{
	search(w);
}

static OUT_OF_LINE void *scheduler_thread_proc(void *argument)
{
	struct worker *w = argument;

	__cilkrts_tls_worker = w;
	for (;;) {
		wait_for_region();
		worker_scheduler(w);
	}
	return NULL;
}

/* The main thread is about to leave the region and to work serially. */
static OUT_OF_LINE void boss_wait_helper(void)
{
	__cilkrts_current_fh = NULL;
}

static void start_runtime(void)
{
	struct global *g = calloc(1, sizeof(*g));
	u32 count = wanted_workers();

	if (!g)
		die("no memory");
	g->nworkers = count;
	g->workers = calloc(count, sizeof(*g->workers));
	g->deques = aligned_alloc(128, count * sizeof(*g->deques));
	g->threads = calloc(count, sizeof(*g->threads));
	g->root_closure = calloc(1, sizeof(*g->root_closure));
	if (!g->workers || !g->deques || !g->threads || !g->root_closure)
		die("no memory");
	memset(g->deques, 0, count * sizeof(*g->deques));
	for (u32 i = 0; i < count; i++) {
		g->workers[i] = make_worker(g, i);
		atomic_store(&g->workers[i]->l->state, WORKER_IDLE);
	}
	__cilkrts_tls_worker = g->workers[0];
	the_global = default_cilkrts = g;
	for (u32 i = 1; i < count; i++)
		if (pthread_create(&g->threads[i], NULL, scheduler_thread_proc, g->workers[i]))
			die("no thread");
}

/* Called through CILK_CALL: the caller goes on, on a fiber, behind the call. The boss's scheduler
 * stays here, on the main thread's stack. */
EXPORT void __cilkrts_internal_invoke_cilkified_root(struct frame *frame)
{
	struct closure *root;
	struct worker *w;

	if (!the_global)
		start_runtime();
	w = the_global->workers[0];
	root = the_global->root_closure;
	memset(root, 0, sizeof(*root));
	root->frame = frame;
	root->fiber = fiber_get();
	root->status = CLOSURE_READY;
	root_sp = frame->ctx[2];
	w->l->next = root;
	start_region(frame);
	worker_scheduler(w);
	boss_wait_helper();
	jump(root_frame->ctx[0], root_frame->ctx[1], root_sp);
}

/* Called through CILK_CALL: the caller goes on in the main thread, on its own stack. */
EXPORT void __cilkrts_internal_exit_cilkified_root(struct frame *frame)
{
	struct worker *w = this_worker();

	(void)frame;
	fiber_retire(w, w->l->fiber);
	w->l->root_left = true;
	leave_user_code(w);
}

EXPORT void __cilkrts_enter_frame(struct frame *frame)
{
	struct fiber *fiber = __cilkrts_current_fh;

	frame->flags = 0;
	frame->magic = FRAME_MAGIC;
	frame->fh = fiber;
	frame->call_parent = fiber->current_stack_frame;
	if (frame->call_parent == frame) /* the root, which we resumed */
		frame->flags = FRAME_LAST;
	frame->ctx[3] = NULL;
	frame->ctx[4] = fiber;
	fiber->current_stack_frame = frame;
}

EXPORT void __cilkrts_enter_frame_helper(struct frame *frame)
{
	__cilkrts_enter_frame(frame);
}

EXPORT void __cilkrts_detach(struct frame *frame)
{
	frame->flags |= FRAME_DETACHED;
	push(this_worker(), frame->call_parent);
}

EXPORT void __cilkrts_leave_frame(struct frame *frame)
{
	__cilkrts_current_fh->current_stack_frame = frame->call_parent;
}

EXPORT void __cilkrts_leave_frame_helper(struct frame *frame)
{
	struct worker *w = this_worker();

	__cilkrts_current_fh->current_stack_frame = frame->call_parent;
	if (!pop(w, frame->call_parent))
		return_to_stolen(w, frame->call_parent);
}

EXPORT void __cilkrts_sync(struct frame *frame)
{
	sync_stolen(this_worker(), frame);
}

/* Real runtimes of this age export it; it tells the version. */
EXPORT void *__cilkrts_local_hyper_table_alloc(void)
{
	return calloc(1, 64);
}
