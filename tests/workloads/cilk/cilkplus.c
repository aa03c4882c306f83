// SPDX-License-Identifier: Apache-2.0
/*
 * cilkplus.c - a stand-in for Intel Cilk Plus (libcilkrts.so.5, ABI 1): its names
 * and structure layouts, as a profiler knows them, on the pool of engine.h.
 *
 * The thread that enters a region becomes the user worker, the last of the
 * workers, and runs on its own stack; its scheduler has a stack of its own.
 */
#define _GNU_SOURCE
#include "cilkplus_abi.h"

#include <pthread.h>
#include <stdatomic.h>

typedef uint32_t u32;

enum { WORKER_FREE, WORKER_USER, WORKER_SYSTEM };
enum { CLOSURE_RUNNING = 1, CLOSURE_SUSPENDED, CLOSURE_READY };

struct fiber {
	struct fiber *next;
	struct worker *worker;
};

/* full_frame */
struct closure {
	uint64_t magic;
	_Atomic int lock;
	int is_synched;
	char pad0[8];
	u32 children; /* join_counter */
	int is_call_child;
	char pad1[8];
	struct closure *parent;
	char pad2[24];
	struct frame *frame; /* call_stack */
	int status;
	char pad3[36];
	void *home_sp; /* sync_sp */
	char pad4[8];
	struct fiber *fiber; /* fiber_self */
	struct fiber *fiber_child;
};
_Static_assert(offsetof(struct closure, children) == 24, "full_frame.join_counter");
_Static_assert(offsetof(struct closure, is_call_child) == 28, "full_frame.is_call_child");
_Static_assert(offsetof(struct closure, parent) == 40, "full_frame.parent");
_Static_assert(offsetof(struct closure, frame) == 72, "full_frame.call_stack");
_Static_assert(offsetof(struct closure, home_sp) == 120, "full_frame.sync_sp");
_Static_assert(offsetof(struct closure, fiber) == 136, "full_frame.fiber_self");
_Static_assert(offsetof(struct closure, fiber_child) == 144, "full_frame.fiber_child");

struct local {
	uint64_t magic;
	_Atomic int lock;
	u32 random;
	struct fiber *fiber, *retired;
	struct closure *next; /* a frame that this worker has woken */
	_Bool root_left, has_scheduler;
	struct closure *frame_ff;
	struct closure *next_frame_ff; /* stolen, about to run */
	struct closure *returned_to;
	char pad0[56];
	struct worker *team;
	int type;
	char pad1[116];
	struct fiber *scheduling_fiber;
	char pad2[16];
	void *post_suspend;
	struct closure base; /* what runs now, for those who look from outside */
	void *scheduler[5];
	struct frame *deque[4096];
};
_Static_assert(offsetof(struct local, frame_ff) == 48, "l.frame_ff");
_Static_assert(offsetof(struct local, next_frame_ff) == 56, "l.next_frame_ff");
_Static_assert(offsetof(struct local, team) == 128, "l.team");
_Static_assert(offsetof(struct local, type) == 136, "l.type");
_Static_assert(offsetof(struct local, scheduling_fiber) == 256, "l.scheduling_fiber");
_Static_assert(offsetof(struct local, post_suspend) == 280, "l.post_suspend");

struct worker {
	struct frame **tail, **head, **exc, **protected_tail, **ltq_limit;
	u32 self;
	struct global *g;
	struct local *l;
	void *reducer_map;
	struct frame *current_stack_frame;
	void *saved_protected_tail;
	void *sysdep;
};
_Static_assert(offsetof(struct worker, self) == 40, "worker.self");
_Static_assert(offsetof(struct worker, g) == 48, "worker.g");
_Static_assert(offsetof(struct worker, l) == 56, "worker.l");
_Static_assert(offsetof(struct worker, current_stack_frame) == 72, "worker.current_stack_frame");
_Static_assert(offsetof(struct worker, sysdep) == 88, "worker.sysdep");

struct global {
	int pad0, system_workers, pad1, total_workers, workers_running, pad2;
	pthread_t **sysdep;
	struct worker **workers;
	char pad3[20];
	int work_done;
	char pad4[1248];
	u32 nworkers; /* P */
	u32 q;
};
_Static_assert(offsetof(struct global, system_workers) == 4, "g.system_workers");
_Static_assert(offsetof(struct global, total_workers) == 12, "g.total_workers");
_Static_assert(offsetof(struct global, sysdep) == 24, "g.sysdep");
_Static_assert(offsetof(struct global, workers) == 32, "g.workers");
_Static_assert(offsetof(struct global, work_done) == 60, "g.work_done");
_Static_assert(offsetof(struct global, nworkers) == 1312, "g.P");
_Static_assert(offsetof(struct global, q) == 1316, "g.Q");

#include "engine.h"

/* not null before the start: a zeroed state of the library's own, which ld.so relocates the pointer to */
static struct global before_start;
EXPORT_DATA struct global *volatile __cilkrts_global_state = &before_start;
static pthread_key_t worker_key;
static struct fiber user_fiber; /* the main thread's own stack */

static bool is_boss(const struct worker *w)
{
	return w->l->type == WORKER_USER;
}

static struct worker *this_worker(void)
{
	return pthread_getspecific(worker_key);
}

static void set_running(struct worker *w, struct frame *frame, struct fiber *fiber)
{
	struct local *l = w->l;

	l->fiber = fiber;
	fiber->worker = w;
	w->current_stack_frame = frame;
	if (frame)
		frame->worker = w;
	l->base.frame = frame;
	l->base.fiber = fiber;
	l->frame_ff = &l->base;
}

static void set_searching(struct worker *w)
{
	w->l->frame_ff = NULL;
}

static void set_parked(struct worker *w)
{
	w->l->frame_ff = NULL;
}

static OUT_OF_LINE __attribute__((noreturn)) void
fiber_proc_to_resume_user_code_for_random_steal(struct fiber *fiber)
{
	struct worker *w = this_worker();
	struct closure *ff = w->l->next_frame_ff;
	struct frame *frame = ff->frame;
	void *sp;

	(void)fiber;
	w->l->next_frame_ff = NULL;
	sp = take_over(w, ff);
	jump(frame->ctx[0], frame->ctx[1], sp);
}

/* Goes on behind a sync, or in the main thread behind the region. */
static OUT_OF_LINE __attribute__((noreturn)) void cilkrts_resume(struct frame *frame, struct closure *ff)
{
	void *sp = ff ? take_over(this_worker(), ff) : root_sp;

	if (!ff)
		pthread_setspecific(worker_key, NULL);
	jump(frame->ctx[0], frame->ctx[1], sp);
}

static void resume(struct worker *w, struct closure *closure)
{
	if (closure->is_synched)
		cilkrts_resume(closure->frame, closure);
	w->l->next_frame_ff = closure;
	fiber_proc_to_resume_user_code_for_random_steal(closure->fiber);
}

static OUT_OF_LINE void worker_scheduler_function(struct worker *w)
{
	search(w);
}

/* The main thread's scheduler begins here, on its own stack, when it first runs out of work. */
static OUT_OF_LINE __attribute__((noreturn)) void user_scheduler(void)
{
	struct worker *w = this_worker();

	worker_scheduler_function(w);
	cilkrts_resume(root_frame, NULL);
}

static OUT_OF_LINE __attribute__((noreturn)) void longjmp_into_runtime(struct worker *w)
{
	set_searching(w);
	if (!w->l->has_scheduler) {
		w->l->has_scheduler = true;
		/* as if called */
		jump(NULL, (void *)user_scheduler, (char *)fiber_top(w->l->scheduling_fiber) - 8);
	}
	__builtin_longjmp(w->l->scheduler, 1);
}

static void leave_user_code(struct worker *w)
{
	longjmp_into_runtime(w);
}

static OUT_OF_LINE struct closure *detach_for_steal(struct worker *thief, struct worker *victim, struct fiber *fiber)
{
	struct closure *ff = take_oldest(victim);

	(void)thief;
	if (ff)
		ff->fiber = fiber;
	return ff;
}

static struct closure *steal_from(struct worker *thief, struct worker *victim)
{
	struct closure *ff;
	struct fiber *fiber;

	if (victim->head >= victim->tail) /* a look without the lock */
		return NULL;
	fiber = fiber_get();
	ff = detach_for_steal(thief, victim, fiber);
	if (!ff) {
		fiber_retire(thief, fiber);
		free_retired(thief);
	}
	return ff;
}

static OUT_OF_LINE void *scheduler_thread_proc_for_system_worker(void *argument)
{
	struct worker *w = argument;

	pthread_setspecific(worker_key, w);
	w->l->has_scheduler = true;
	for (;;) {
		wait_for_region();
		worker_scheduler_function(w);
	}
	return NULL;
}

static void start_runtime(void)
{
	struct global *g = calloc(1, sizeof(*g));
	u32 count = wanted_workers();
	pthread_t *threads = calloc(count, sizeof(*threads));

	if (!g || !threads || !(g->workers = calloc(count, sizeof(*g->workers))) ||
	    !(g->sysdep = calloc(1, sizeof(*g->sysdep))))
		die("no memory");
	*g->sysdep = threads;
	g->nworkers = count;
	g->total_workers = (int)count;
	g->system_workers = (int)count - 1;
	for (u32 i = 0; i < count; i++) {
		g->workers[i] = make_worker(g, i);
		g->workers[i]->l->type = i < count - 1 ? WORKER_SYSTEM : WORKER_FREE;
	}
	the_global = __cilkrts_global_state = g;
	for (u32 i = 0; i < count - 1; i++)
		if (pthread_create(&threads[i], NULL, scheduler_thread_proc_for_system_worker, g->workers[i]))
			die("no thread");
}

__attribute__((constructor)) static void make_key(void)
{
	pthread_key_create(&worker_key, NULL);
}

/* Called through CILK_CALL, but simply returns: the main thread works on, on its own stack. */
EXPORT struct worker *__cilkrts_bind_thread_1(struct frame *frame)
{
	struct worker *w;

	if (!the_global)
		start_runtime();
	w = the_global->workers[the_global->nworkers - 1];
	w->l->type = WORKER_USER;
	w->l->team = w;
	w->l->has_scheduler = false;
	if (!w->l->scheduling_fiber)
		w->l->scheduling_fiber = fiber_get();
	pthread_setspecific(worker_key, w);
	set_running(w, NULL, &user_fiber);
	start_region(frame);
	return w;
}

/* Called through CILK_CALL at the end of the region, on the main thread's stack: if another worker is
 * there, the main thread takes over behind the call. */
EXPORT void __cilkrts_leave_last_frame(struct frame *frame)
{
	struct worker *w = this_worker();

	if (!is_boss(w)) {
		root_sp = frame->ctx[2];
		w->l->root_left = true;
		leave_user_code(w);
	}
	atomic_store(&region_active, 0);
	w->current_stack_frame = NULL;
	w->l->frame_ff = NULL;
	pthread_setspecific(worker_key, NULL);
}

EXPORT struct worker *__cilkrts_get_tls_worker(void)
{
	return this_worker();
}

EXPORT void __cilkrts_enter_frame_1(struct frame *frame)
{
	struct worker *w = this_worker();

	frame->call_parent = w->current_stack_frame;
	frame->flags = frame->call_parent ? 0 : FRAME_LAST;
	frame->size = 0;
	frame->worker = w;
	frame->ctx[3] = NULL;
	frame->ctx[4] = w->l->fiber;
	w->current_stack_frame = frame;
}

EXPORT void __cilkrts_enter_frame_fast_1(struct frame *frame)
{
	__cilkrts_enter_frame_1(frame);
}

EXPORT void __cilkrts_detach(struct frame *frame)
{
	frame->flags |= FRAME_DETACHED;
	push(this_worker(), frame->call_parent);
}

EXPORT void __cilkrts_leave_frame(struct frame *frame)
{
	struct worker *w = this_worker();

	w->current_stack_frame = frame->call_parent;
	if (frame->flags & FRAME_DETACHED && !pop(w, frame->call_parent))
		return_to_stolen(w, frame->call_parent);
}

EXPORT void __cilkrts_sync(struct frame *frame)
{
	sync_stolen(this_worker(), frame);
}
