/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libparprof_span: work and span of a running program, by site. The front ends (span_gomp*.c for GNU libgomp,
 * span_kmp*.c for LLVM's runtime, span_locks.c, span_threads.c, span_meetings.c, span_conditions.c, span_semaphores.c,
 * span_futex.c, span_runtime.c) say what happens; span.c (strands and paths), span_tasks.c, span_dependences.c,
 * span_loops.c, span_doacross.c, span_holds.c (locks), span_tokens.c, span_stages.c, span_accounts.c, span_items.c,
 * span_regions.c (teams and their barriers), span_crews.c and span_phases.c compute; span_hooks.c is called by the
 * program's own functions; span_sites.c and span_chains.c say where in the code; span_record.h is what comes out.
 * span_processors.c has the program believe in as many cores as the run is about.
 *
 * The algorithm, after schardl-2015 sec. 3, changed so that it runs in parallel: a *strand* is what a thread
 * executes between two calls of the runtime. Each *frame* (a thread's share of a region, or a task) knows the
 * length `c` of the longest path of strands from the start of its phase up to now, and that path's amounts by site.
 * A spawned task starts with its parent's path; where paths meet, the longest one goes on. A *phase* is what lies
 * between two barriers of a team: there all paths begin anew, and span = sum of the longest of each phase.
 */
#ifndef PARPROF_SPAN_H
#define PARPROF_SPAN_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define PARPROF_SPAN_LIBRARY
#include "parprof_span.h"
#include "span_alone.h"
#include "span_calls.h"
#include "span_clock.h"
#include "span_prof.h"
#include "span_record.h"

#define EXPORT PARPROF_SPAN_FUNCTION
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
/* The call that a wrapper stands for: the address after it. */
#define CALLER ((uintptr_t)__builtin_return_address(0))
#define MAX_HELD 32
#define MAX_DOACROSS 8 /* loops of one ordered(n) */
#define CLEARED 32 /* bytes at a time */
#define SPAN_LOOK_CYCLES 800 /* less is between a wait and the next, where nothing had come */
/* Indices of the sites that every record begins with. */
enum { SITE_PENDING = 1, SITE_OTHER = 2, FIRST_SITE = 3 };

struct spin {
	atomic_flag taken;
};

/* What ends together: the tasks of a taskgroup, or all of a phase. */
struct group {
	struct spin lock;
	_Atomic uint64_t best; /* the longest path that has ended */
	struct prof best_prof;
	struct segment *best_calls;
	struct group *outer;
	struct frame *patterns; /* of taskloops in it */
	bool had_children, had_loose; /* its frame, when it began */
};

/* One worksharing loop whose chunks the runtime gives out. A chunk belongs to the loop, not to who took it. */
struct loop {
	struct loop *next;
	uint32_t index, site;
	uint64_t total, longest;
	uint32_t members; /* that were in it */
	uint64_t before, most_before, least_before; /* by members since the loop before: the sum */
	struct prof total_prof, longest_prof;
	struct call_prof rest_calls, longest_calls; /* together: all; rest alone where chunks wait for others */
	bool has_waits;
};

/* Of the tasks that a member makes in a phase: see span_stages.c. */
struct stages {
	bool is_open;
	bool is_unknown; /* what an earlier stage's tasks have made may go on */
	const struct group *group; /* in which the first task since was made */
	uint64_t c, sum; /* when the first one since was made: the member's path, and the work of all members */
	uint64_t first_c, first_sum; /* the same of the phase's first one */
	uint64_t extra; /* that those which are over took more than their paths */
};

struct phase {
	struct group group;
	struct prof work;
	struct prof holds; /* by lock */
	uint64_t busiest;  /* what the thread did that did most, with the runtime's own code */
	uint64_t most;	   /* the same of threads of POSIX, without that code */
	struct loop *loops;
	struct doacross *doacrosses;
	struct stages stages; /* of the member that makes tasks */
	uint32_t makers;      /* so many do */
	uint64_t others;      /* the longest path of one that does not */
	/* by call site */
	struct call_prof loop_calls; /* of the path: its loops' */
	uint64_t called;	     /* work in calls that the members made */
};

struct frame;
struct thread;
struct crew;

struct team {
	struct frame *parent;		 /* that started it */
	struct frame *parent_implicit;
	struct thread *creator;
	void (*body)(void *);
	void *data;
	bool has_ended;		/* there is such a last one */
	uint32_t ended, ended_site;
	struct spin lock;
	struct frame *members, *own; /* own: its creator's, before that begins */
	bool has_barriers;
	uint32_t size, level;
	uint32_t asked; /* how many it will be; 0: not known */
	uintptr_t origin; /* the call that started it */
	bool is_posix;	  /* threads of POSIX, not of a runtime */
	bool is_pool;	  /* of a runtime that says what happens: see span_runtime.c */
	uint64_t number;  /* of those */
	uintptr_t until;  /* of such a team: where it ended */
	uint32_t at_once; /* of threads of POSIX, who choose their number: how many there were, the first with them */
	bool is_foreign;  /* by a thread that is not the process's first */
	bool is_outermost; /* and begun where a strand ended: not by a thread that is not followed */
	bool is_alone;	   /* such a one with one thread */
	_Atomic uint32_t widest_nested; /* threads at once in a region that one of its members began; 0: none had several */
	/* in it, that are over: */
	_Atomic uint32_t nested; /* regions */
	_Atomic uint64_t tasks;
	struct call_context context; /* where it was begun */
	uint64_t called;
	/* the current one, the next, and the last, which thread 0 has yet to add up; at the end: they are large. Without a
	 * barrier there is the first alone. */
	struct phase phases[3];
};

/* A member's part in the loop that it is in. */
struct share {
	bool is_open, in_chunk;
	uint32_t index, site, site_before;
	uint64_t start;
	uint64_t came; /* the member's path since the loop before, when it came to this one */
	uint64_t total, longest;
	struct call_path calls_before;
	struct call_prof rest_calls, longest_calls;
	/* of a doacross loop: of the chunk's path what another's path had, that it waited for */
	struct doacross *doacross;
	uint32_t site_around;
	struct modelled *thread; /* that has the chunk */
	uint64_t chunk;
	uint64_t taken;
	struct segment *taken_calls;
	/* these are not cleared */
	struct prof before __attribute__((aligned(CLEARED))); /* the member's path up to the chunk, or its first item */
	struct prof total_prof, longest_prof, taken_prof;
};

struct frame {
	atomic_int references;
	struct frame *parent;
	struct team *team;
	struct group *group;
	uint64_t c;
	uint32_t site;
	bool is_root, is_implicit, is_final, is_serial, has_begun, is_done;
	bool has_children;	/* of a task: that it has not waited for */
	_Atomic bool has_loose; /* a task below was over before those that it had made */
	uint32_t site_before; /* a construct that is in one thread alone */
	/* of its children, for taskwait */
	struct spin lock;
	_Atomic uint64_t longest;
	/* by call site */
	struct call_path path;
	struct segment *longest_calls;
	struct call_context context; /* where it was made */
	uint32_t spawn_depth;	     /* of calls in its parent then */
	uint64_t work_done;	     /* with that of the children that it has waited for */
	uint64_t called;	     /* of that: in calls that it made itself, not in a call */
	uint64_t c_before;	     /* its own length before `c` began anew */
	/* of a task */
	void (*body)(void *);
	void (*copy)(void *, void *);
	size_t header;
	bool is_detached;
	bool is_plain; /* the runtime does for it what it does for all of its site, whenever its team has one thread */
	uint32_t predecessor_count;
	struct frame **predecessors;
	struct dependences *dependences; /* of its children */
	/* of a member of a team */
	struct frame *next_member;
	struct thread *owner; /* where threads may have a share in the team that are no members of it */
	/* of a thread of POSIX that takes items: its path before it took the first, whose prof is in `share` */
	bool has_items;
	uint64_t item_start;
	struct segment *item_calls;
	/* and that shares work out with others: see span_crews.c */
	struct crew *crew;   /* that it is one of */
	struct crew *made;   /* that it has made */
	uint64_t crew_start; /* its path when it was made */
	uint64_t crew_done;  /* what it had done when the first of them was through */
	uint64_t began_ns, runnable_ns; /* its time on a CPU, or ready for one, then */
	uint64_t waited_ns;		/* for locks */
	/* of a taskloop's pattern */
	struct thread *maker;
	uint32_t alone; /* tasks that its maker executed */
	bool is_spread; /* others executed some, too */
	uint32_t generation, loops, doacrosses;
	uint64_t loop_began; /* its path when the last one of the phase began */
	/* of the thread whose work it books: */
	uint64_t tasks; /* that it made */
	uint64_t busy;	/* in this phase: its work, and what it was on a CPU between strands */
	uint64_t worked; /* since its team began */
	struct stages stages;
	/* from here on a new frame is not cleared: the profs of one that is gone are empty */
	struct prof prof __attribute__((aligned(CLEARED))), longest_prof;
	struct children_calls children; /* that of a frame which is gone is empty, and its room is used again */
	struct share share;
	struct prof work, holds;
} __attribute__((aligned(64))); /* a region begins and ends with clearing one: 15 ns less on whole cache lines */

/* What is between two strands, and takes about as long each time. */
enum pause {
	/* of a region with one thread, outside of others: nobody is waited for or woken up in them */
	PAUSE_REGION_BEGIN,
	PAUSE_REGION_END,
	PAUSES
};

/* What ended the strand before a pause of a runtime of tasks, and what begins the one after it. */
enum task_end { TASK_END_OTHER, TASK_END_MADE, TASK_END_WAITS, TASK_END_BODY, TASK_ENDS };
enum task_begin { TASK_BEGIN_MADE, TASK_BEGIN_WAITED, TASK_BEGIN_BODY, TASK_BEGINS };

#define TASK_PAUSE_SITES 8

/* Of one site's tasks: how much of their data is copied, and allocated, is the same for all. */
struct task_pauses {
	uint32_t site;
	struct clock_pause of[TASK_ENDS][TASK_BEGINS];
};

struct held {
	uintptr_t key;
	uint32_t site, site_before;
	uint32_t parts; /* of the time that it is held one in so many counts; 0: none, the thread had the lock already */
	uint64_t since; /* the thread's total then */
};

struct thread {
	struct frame *frame;	/* that it works for; null: nothing is booked */
	struct frame *implicit; /* its share of the innermost region */
	bool is_open;		/* a strand is under way: the program's own code runs, not the runtime's */
	bool has_left;		/* the task was handed back to the runtime, which will go on with it elsewhere */
	struct clock_base clock;
	uint64_t total;	   /* of its strands that are over */
	uint32_t begun;	   /* so many codes of the frame's site began with the strand under way; not of the root's */
	uint64_t unbooked; /* of the strand under way, up to the last hook: in no sum yet but those of calls */
	uintptr_t tested; /* a lock that it did not get last */
	uint32_t held_count;
	struct held held[MAX_HELD];
	struct frame *free_frames;
	struct call_context context; /* of the code that it executes */
	uint32_t call_base;	     /* calls below are not of this task or region */
	struct calls *calls;
	struct hook *hooks; /* of the strand under way */
	uint32_t hook_count, hook_room;
	struct clock_pause pauses[PAUSES];
	enum task_end ended_by; /* its last strand */
	uint32_t ended_site;	/* of the task that was in */
	struct task_pauses task_pauses[TASK_PAUSE_SITES]; /* by site, modulo */
};

extern __thread struct thread span_self __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern struct span_record *span_record __attribute__((visibility("hidden")));
extern struct frame span_root __attribute__((visibility("hidden")));
/* The paper's mode: one thread stands for as many as there could be. */
extern bool span_is_serial __attribute__((visibility("hidden")));

/* So many cores shall there be; 0: not said. */
extern uint32_t span_threads_asked __attribute__((visibility("hidden")));
/* No more threads of OpenMP at once. */
extern uint32_t span_thread_limit __attribute__((visibility("hidden")));

void span_yield(void);

static inline void spin_lock(struct spin *spin)
{
	if (LIKELY(span_is_alone()))
		return;
	while (atomic_flag_test_and_set_explicit(&spin->taken, memory_order_acquire))
		span_yield();
}

static inline void spin_unlock(struct spin *spin)
{
	atomic_flag_clear_explicit(&spin->taken, memory_order_release);
}

struct words {
	uint64_t of[CLEARED / 8];
};

/* Where an address belongs in a table of so many entries. */
static inline uint32_t span_place_of(uintptr_t address, uint32_t size)
{
	return (uint32_t)((address * 0x9e3779b97f4a7c15ull) >> 40) % size;
}

/* The entry of an address in a table with open addressing, whose entries begin with theirs (an _Atomic uintptr_t; 0:
 * unused). Where there is none it is made, or not; null then, and where the table is full. */
static inline void *span_entry_of(void *table, size_t entry_bytes, uint32_t size, const void *address, bool is_made)
{
	uint32_t at = span_place_of((uintptr_t)address, size);

	for (uint32_t tries = 0; tries < size; tries++, at = (at + 1) % size) {
		_Atomic uintptr_t *key = (_Atomic uintptr_t *)((char *)table + at * entry_bytes);
		uintptr_t found = atomic_load_explicit(key, memory_order_acquire);

		if (!found && is_made && atomic_compare_exchange_strong(key, &found, (uintptr_t)address))
			return key;
		if (found == (uintptr_t)address)
			return key;
		if (!found)
			return NULL;
	}
	return NULL;
}

/* Clears the begin of a structure, and up to CLEARED - 1 bytes more, which are to be set afterwards. For so few bytes
 * the `rep stos` that compilers make of memset takes longer than the rest of what begins a region. */
static inline void clear_begin(void *structure, size_t bytes)
{
	struct words *at = structure, *end = (struct words *)((char *)structure + bytes);

	for (; at < end; at++) {
		*at = (struct words){{0, 0, 0, 0}};
		__asm__ volatile("" : "+r"(at)); /* keep the loop a loop */
	}
}

/* hooks (span_hooks.c) */
void span_hooks_replay(struct thread *self);

/* strands */
void span_end_strand(struct thread *self);
void span_end_wait(struct thread *self, uint64_t most);
void span_book(struct thread *self, struct frame *frame, uint64_t cycles);
static inline void span_begin_strand(struct thread *self)
{
	if (span_record) {
		self->is_open = true;
		self->implicit->busy += clock_begin(&self->clock);
	}
}

static inline void span_begin_strand_after(struct thread *self, enum pause pause)
{
	if (span_record) {
		self->is_open = true;
		self->implicit->busy += clock_begin_alike(&self->clock, &self->pauses[pause]);
	}
}

/* Whether code of ours made a call: a runtime call that is the last of a program's body, a jump, seems to come from
 * the function that called the body. */
bool span_is_ours(uintptr_t address);

/* sites (span_sites.c) */
uint32_t span_site(enum span_kind kind, uintptr_t address, uintptr_t origin);
uintptr_t span_site_address(uint32_t site);
uintptr_t span_site_origin(uint32_t site);
void span_reset_sites(struct span_record *record);
void span_lock_sites(void);
void span_unlock_sites(void);
uint32_t span_resolve(struct span_record *record, uintptr_t address, uint64_t *vaddr);
void span_describe_call(struct span_call *call, uintptr_t address, uintptr_t callee, uintptr_t caller);

/* calls around a call (span_chains.c) */
uintptr_t span_chain(uintptr_t caller);
void span_reset_chains(struct span_record *record);

/* frames and paths */
struct frame *span_new_frame(struct thread *self);
void span_release(struct thread *self, struct frame *frame);
void span_release_plain(struct thread *self, struct frame *frame);
void span_take_path(struct frame *frame, uint64_t c, struct prof *prof, struct segment *calls);
void span_begin_path(struct frame *child, struct frame *parent);
void span_take_children(struct frame *frame);
void span_report(struct group *group, struct frame *frame);
void span_report_last(struct group *group, struct frame *frame);
void span_report_child(struct frame *parent, struct frame *child);
void span_keep_own_path(struct frame *frame);
void span_count(struct thread *self, uint32_t site);

/* regions (span_regions.c) */

/* A runtime's function for the number of threads of the team that the calling thread is in. */
typedef int size_of_team(void);

/* What a wrapper that starts a team keeps until the team has ended. */
struct region {
	struct thread *self;
	struct frame *frame, *implicit;
	struct team team;
};

bool span_region_begin(struct region *region, void (*body)(void *), void *data, uintptr_t caller);
void span_region_end(struct region *region);
struct calls_kept span_member_enter(struct thread *self, struct team *team, size_of_team *size);
void span_member_leave(struct thread *self, struct calls_kept kept);
void span_team_begin(struct thread *self, struct team *team, void (*body)(void *), void *data, uintptr_t origin);
void span_member_begin(struct thread *self, struct team *team);
void span_init_implicit(struct frame *frame, struct team *team);
struct frame *span_share(struct thread *self, struct team *team);
void span_member_end(struct thread *self);
uint32_t span_at_once(struct team *team);
void span_team_end(struct thread *self, struct team *team, struct frame *frame, struct frame *implicit);
void span_before_barrier(struct thread *self);
void span_after_barrier(struct thread *self, uintptr_t address);

static inline struct phase *phase_of(struct frame *implicit)
{
	return &implicit->team->phases[implicit->generation % 3];
}

/* call sites of a phase (span_calls.c) */
void span_calls_end_phase(struct team *team, struct phase *phase, uint64_t work);

/* loops (span_loops.c) */
void span_loop_begin(struct thread *self, uint32_t site);
void span_chunk_begin(struct thread *self);
void span_chunk_end(struct frame *frame);
void span_chunk_interrupt(struct frame *frame);
void span_chunk_resume(struct frame *frame);
void span_loop_end(struct thread *self);
uint64_t span_loops_add(struct phase *phase, uint32_t size);
void span_loops_forget(struct phase *phase);

/* Where the paths of a loop's code begin: in a chunk with the chunk, elsewhere with the phase. */
static inline uint64_t span_loop_start(const struct frame *frame)
{
	return frame->share.in_chunk ? frame->share.start : 0;
}

/* doacross loops (span_doacross.c) */

/* Of one of the loops of an ordered(n): its first and last iteration, as the runtime calls them, and its step. As in
 * LLVM's kmp.h. */
struct span_bounds {
	int64_t from, to, by;
};

void span_doacross_begin(struct thread *self, uint32_t site, uint32_t dimensions, const struct span_bounds *bounds);
void span_doacross_end(struct thread *self);
void *span_doacross_post(struct thread *self, const int64_t *numbers);
void span_doacross_posted(void *awaited);
void span_doacross_await(struct thread *self, const int64_t *numbers);
void span_doacross_waited(struct thread *self, const int64_t *numbers);
void span_doacross_lock_chunks(struct doacross *loop);
void span_doacross_unlock_chunks(struct doacross *loop);
void span_doacross_chunk_begin(struct thread *self);
void span_doacross_chunk_end(struct frame *frame);
void span_doacrosses_forget(struct phase *phase);

/* Between these two the member asks the runtime for a chunk: members get them in the order that we believe. */
static inline void span_chunk_ask(struct thread *self)
{
	if (UNLIKELY(self->implicit->share.doacross != NULL))
		span_doacross_lock_chunks(self->implicit->share.doacross);
}

static inline void span_chunk_asked(struct thread *self)
{
	if (UNLIKELY(self->implicit->share.doacross != NULL))
		span_doacross_unlock_chunks(self->implicit->share.doacross);
}

/* locks (span_holds.c) */
struct hold {
	uint64_t cycles;
	uint32_t site; /* the critical section that has the most of it */
};

void span_acquired(struct thread *self, uintptr_t key, enum span_kind kind, uintptr_t address);
void span_acquired_with_others(struct thread *self, uintptr_t key, enum span_kind kind, uintptr_t address);
uint64_t span_held(const struct thread *self, uintptr_t key, uint32_t *site);
bool span_releasing(struct thread *self, uintptr_t key);
void span_forget_hold(struct thread *self, uintptr_t key);
struct hold span_longest_hold(struct prof *holds);

/* phases (span_phases.c) */
void span_begin_serial(uintptr_t address);
void span_end_serial(uintptr_t address);
void span_phase_init(struct phase *phase);
void span_phase_finish(struct team *team, struct phase *phase, uint32_t site, bool is_last);
void span_add_plain(const struct team *team, const struct frame *member);
void span_phase_free(struct phase *phase);

/* tasks (span_tasks.c) */

/* What a thread did when a task's body began. */
struct task_run {
	struct frame *before, *implicit;
	struct calls_kept kept;
	bool was_open, had_left;
};

struct frame *span_refer(struct frame *frame);
void span_refer_own(struct frame *frame);
struct frame *span_spawn(struct thread *self, enum span_kind kind, uintptr_t address, bool if_clause, bool is_final);
struct frame *span_spawn_alike(struct thread *self, struct frame *pattern);
void span_take_serial(struct frame *parent, struct frame *child);
void span_task_begin(struct thread *self, struct frame *task, struct task_run *run);
bool span_task_end(struct thread *self, struct frame *task, struct task_run *run);
void span_begin_task_strand(struct thread *self, enum task_begin begin, uint32_t site);
void span_open_group(struct frame *frame);
void span_close_group(struct thread *self, struct frame *frame);
void span_keep_pattern(struct group *group, struct frame *pattern);
void span_release_patterns(struct thread *self, struct group *group);

/* stages of tasks (span_stages.c) */
void span_stage_task(struct frame *member);
void span_stage_end(struct frame *member);
void span_tasks_waited(struct frame *frame);
void span_stages_report(struct phase *phase, struct frame *member);
uint64_t span_stages_extra(struct team *team, struct phase *phase, uint64_t length, uint64_t cores);

/* dependences (span_dependences.c) */
void span_depend_on(struct thread *self, struct frame *parent, struct frame *child, void *address, bool is_in,
		    bool is_kept);
void span_take_predecessors(struct thread *self, struct frame *frame);
void span_forget_dependences(struct thread *self, struct frame *frame);

/* paths that wait for somebody (span_tokens.c) */
struct tokens {
	uint32_t count;
	uint32_t orderless; /* of those */
	uint64_t last_order; /* of all that were left, which are numbered from 1 */
	struct token *all;
};

bool span_tokens_init(struct tokens *tokens);
void span_tokens_clear(struct tokens *tokens, uint32_t orderless);
void span_tokens_leave(struct tokens *tokens, struct frame *frame, uint32_t count);
bool span_tokens_take(struct tokens *tokens, struct frame *frame, uint64_t order);
static inline void span_tokens_leave_orderless(struct tokens *tokens)
{
	tokens->count++;
	tokens->orderless++;
}

/* threads of POSIX (span_threads.c) */
void span_give_up_threads(struct thread *self, uintptr_t address);
bool span_is_posix(struct thread *self);
bool span_has_strand_of_posix(struct thread *self);
bool span_has_posix(void);
bool span_has_threads(void);
uint32_t span_posix_computation(void); /* the number of the current one */
void span_end_threads(struct thread *self);
void span_forget_threads(void);
uint64_t span_done_by_crew(struct crew *crew);
uint64_t span_length_now(struct frame *frame);

/* what of them counts if the process ends now (span_accounts.c) */
void span_leave_account(struct thread *self);
void span_leave_account_unordered(struct thread *self);
void span_after_wait(struct thread *self);
void span_after_unlock(struct thread *self);

/* what they take of what comes (span_items.c) */
void span_begin_item(struct thread *self);
void span_begin_items_here(struct thread *self);
void span_items_end(struct frame *frame);

/* threads that share work out themselves (span_crews.c) */
typedef void *thread_function(void *);

void span_crew_add(struct frame *maker, struct frame *frame, thread_function *function);
void span_crew_remove(struct frame *frame);
void span_crew_order(struct frame *frame);
void span_crew_woken(struct frame *frame, const struct frame *waker);
uint64_t span_crew_waits(const struct frame *frame);
void span_crew_waited(struct frame *frame, uint64_t since_ns);
void span_crew_begin(struct frame *frame);
void span_crew_end(struct frame *frame);
void span_crew_close(struct thread *self);
void span_crew_joined(struct thread *self, struct frame *frame);
void span_crew_leave(struct thread *self);
bool span_crew_report(struct group *group, struct frame *maker, uint64_t total);
bool span_is_length_known(const struct frame *frame);
void span_forget_crews(void);

/* conditions (span_conditions.c) */
void span_guard_locked(struct thread *self, pthread_mutex_t *mutex);
void span_guard_unlocking(struct thread *self, pthread_mutex_t *mutex);
void span_guard_unlocked(struct thread *self);

/* waits by the kernel's futex (span_futex.c) */
void span_prepare_waits(void);
void span_count_wait(void);

void span_load(void);
struct frame *span_leave_process(void);
void span_stay_in_process(struct frame *frame);
void *span_look_up(void **where, const char *name);
void *span_find_real(void **where, const char *name);
void *span_find_beside(void **where, void *function, const char *name);

/* the real function behind a wrapper; ends the process if there is none */
static inline void *span_real(void **where, const char *name)
{
	void *found = __atomic_load_n(where, __ATOMIC_RELAXED);

	return LIKELY(found) ? found : span_find_real(where, name);
}

/* The function of that name in the library that another function is in; null if there is none. */
static inline void *span_beside(void **where, void *function, const char *name)
{
	void *found = __atomic_load_n(where, __ATOMIC_RELAXED);

	return LIKELY(found) ? found : span_find_beside(where, function, name);
}

/* Whether it is in a region, or a task of one. */
static inline bool is_inside(struct thread *self)
{
	return self->is_open && !self->frame->is_root;
}

/* A wrapper's first lines: `call` is the real function, of this type, name and parameters. */
#define REAL(type, name, parameters)                                                                                  \
	static void *real;                                                                                            \
	type(*call) parameters = (type(*) parameters)span_real(&real, #name)

/* In wrappers of functions of any type: where the result goes. They end with `return (type)result`. */
#define RESULT_void
#define RESULT_bool result =
#define RESULT_int result =
#define RESULT_unsigned result =

/* A call at which all members meet; whether the caller is one, each runtime has a function of its own for. */
#define BARRIER(is_member, type, name, parameters, ...)                                                               \
	EXPORT type name parameters                                                                                   \
	{                                                                                                             \
		REAL(type, name, parameters);                                                                         \
		struct thread *self = &span_self;                                                                     \
		unsigned long result = 0;                                                                             \
                                                                                                                      \
		if (!is_member(self))                                                                                 \
			return call(__VA_ARGS__);                                                                     \
		span_end_strand(self);                                                                                \
		span_before_barrier(self);                                                                            \
		RESULT_##type call(__VA_ARGS__);                                                                      \
		span_after_barrier(self, CALLER);                                                                     \
		span_begin_strand(self);                                                                              \
		return (type)result;                                                                                  \
	}

#endif
