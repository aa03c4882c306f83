/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a runtime of tasks, or a thread pool, of your own calls so that `parprof scale` measures the work and the span
 * of the programs that run on it. Copy this file: it includes nothing, and there is no library to link with. Under
 * `parprof scale` the functions are there, and at all other times each call is a test of an address.
 *
 * Between two calls a thread executes a *strand*. Which strands must come after each other is what the calls tell:
 *
 *	region = parprof_region_begin(0);	the thread that starts the computation
 *	...
 *	    task = parprof_spawn(0);		code that makes a task, before any thread can execute it
 *	    parprof_pause();			the runtime's own code and its waiting, which are in no strand,
 *	    (queue it)				so neither is what happens to the runtime's own locks
 *	    parprof_resume();
 *	...
 *	    parprof_begin(task);		whichever thread executes it: just before its body,
 *	    (its body)
 *	    parprof_end(task);			and just after, before anybody can learn that it is over
 *	...
 *	    parprof_pause();			code that waits for all tasks which it has made (Cilk's sync)
 *	    (wait, or execute other tasks)
 *	    parprof_synced();
 *	    parprof_resume();
 *	...
 *	parprof_region_end(region);		all tasks are over: the same thread
 *
 * Where code waits for one task, whoever made it (a future, the join of a thread):
 *
 *	    task = parprof_spawn(0);
 *	    parprof_keep(task);
 *	...
 *	    parprof_pause();
 *	    (wait for it)
 *	    parprof_joined(task);
 *	    parprof_resume();
 *	...
 *	    parprof_drop(task);			when nobody will wait for it any more
 *
 * Calls by a thread that is in no region, and in no task of one, do nothing; a null task is one that nobody measures.
 * All tasks of a region count as if N threads (those of `--threads`) could execute them, however many the pool has:
 * one is enough. From its begin to its end a task stays with one thread; where it does not (Cilk's continuations are
 * stolen), run with one worker. Regions may be in tasks. What threads other than the first begin is taken as one after
 * the other.
 *
 * `where` is the code that a report is to name: an address in the program, as __builtin_return_address(0) has it in a
 * function of the runtime that the program calls; 0: the code that calls here.
 */
#ifndef PARPROF_SPAN_RUNTIME_H
#define PARPROF_SPAN_RUNTIME_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct parprof_region parprof_region;
typedef struct parprof_task parprof_task;

#ifdef PARPROF_SPAN_LIBRARY /* itself, which has them; gcc compiles it as a whole program */
#ifdef __clang__
#define PARPROF_SPAN_FUNCTION __attribute__((visibility("default")))
#else
#define PARPROF_SPAN_FUNCTION __attribute__((visibility("default"), externally_visible))
#endif
#elif defined(__has_attribute) && __has_attribute(noplt)
/* Null in a program that runs without the library: nothing is linked with. Without `noplt` a linker would take an
 * executable at a fixed address for complete, and each of them for null for ever. */
#define PARPROF_SPAN_FUNCTION __attribute__((weak, noplt))
#else /* clang: build executables with -fPIE, which is usual, or with -fno-plt */
#define PARPROF_SPAN_FUNCTION __attribute__((weak))
#endif

/* A computation begins: from now on this thread may make tasks. */
PARPROF_SPAN_FUNCTION parprof_region *parprof_span_region_begin(const void *where);
/* It is over, with all of its tasks. The thread that began it. */
PARPROF_SPAN_FUNCTION void parprof_span_region_end(parprof_region *region);
/* The code that calls makes a task. It is to begin once and to end once. */
PARPROF_SPAN_FUNCTION parprof_task *parprof_span_spawn(const void *where);
/* The code that calls is about to call a function that makes tasks and waits for no others, as Cilk's do: begin and end
 * are around that call. It is a part of its caller's path. */
PARPROF_SPAN_FUNCTION parprof_task *parprof_span_call(const void *where);
/* The calling thread is about to execute the task's body. It may be executing another one's, which waits. */
PARPROF_SPAN_FUNCTION void parprof_span_begin(parprof_task *task);
/* The body is over. The same thread; the task is gone then, unless it is kept. */
PARPROF_SPAN_FUNCTION void parprof_span_end(parprof_task *task);
/* Somebody may wait for this task alone, as for a future: its handle is good beyond its end, until it is dropped. Before
 * any thread can execute it. */
PARPROF_SPAN_FUNCTION void parprof_span_keep(parprof_task *task);
/* The executing code has waited for this task, which is kept and over: it goes on after it. As often as there are waits,
 * in any task of the region that it was made in. */
PARPROF_SPAN_FUNCTION void parprof_span_joined(parprof_task *task);
/* Nobody will wait for it again. Once for each that is kept. */
PARPROF_SPAN_FUNCTION void parprof_span_drop(parprof_task *task);
/* All tasks that the executing task (or the region's own code) has made are over: it goes on after the longest. */
PARPROF_SPAN_FUNCTION void parprof_span_synced(void);
/* The program's code ends here: the runtime's begins, or waiting does. Not nested. */
PARPROF_SPAN_FUNCTION void parprof_span_pause(void);
/* It goes on. */
PARPROF_SPAN_FUNCTION void parprof_span_resume(void);
/* A lock of the runtime's own, that the program asked for, is held from now on: between a pause, which begins before
 * waiting for it, and the resume. A pthread mutex needs no such call. A region takes at least what each of its locks
 * was held together. */
PARPROF_SPAN_FUNCTION void parprof_span_acquired(const void *lock, const void *where);
/* It is about to be given back, by the thread that holds it. */
PARPROF_SPAN_FUNCTION void parprof_span_releasing(const void *lock);

/* The same in a program that may run without the library. Macros, so that they are of the line that has them. */
#define parprof_region_begin(where) (parprof_span_region_begin ? parprof_span_region_begin(where) : (parprof_region *)0)
#define parprof_region_end(region) ((void)(parprof_span_region_end && (parprof_span_region_end(region), 1)))
#define parprof_spawn(where) (parprof_span_spawn ? parprof_span_spawn(where) : (parprof_task *)0)
#define parprof_call(where) (parprof_span_call ? parprof_span_call(where) : (parprof_task *)0)
#define parprof_begin(task) ((void)(parprof_span_begin && (parprof_span_begin(task), 1)))
#define parprof_end(task) ((void)(parprof_span_end && (parprof_span_end(task), 1)))
#define parprof_keep(task) ((void)(parprof_span_keep && (parprof_span_keep(task), 1)))
#define parprof_joined(task) ((void)(parprof_span_joined && (parprof_span_joined(task), 1)))
#define parprof_drop(task) ((void)(parprof_span_drop && (parprof_span_drop(task), 1)))
#define parprof_synced() ((void)(parprof_span_synced && (parprof_span_synced(), 1)))
#define parprof_pause() ((void)(parprof_span_pause && (parprof_span_pause(), 1)))
#define parprof_resume() ((void)(parprof_span_resume && (parprof_span_resume(), 1)))
#define parprof_acquired(lock, where) ((void)(parprof_span_acquired && (parprof_span_acquired(lock, where), 1)))
#define parprof_releasing(lock) ((void)(parprof_span_releasing && (parprof_span_releasing(lock), 1)))

#ifdef __cplusplus
}
#endif

#endif
