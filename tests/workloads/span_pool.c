// SPDX-License-Identifier: Apache-2.0
/*
 * A thread pool of its own, which tells `parprof scale` what happens (instrument/parprof_span.h), and programs on it
 * whose work and span are known: span_pool FORM N. The clock is the test's, as in span_tree.c. Any number of threads
 * must give the same, so the pool has a few, whatever --threads says.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parprof_span.h"

#define THREADS 3

/* ---- the runtime: a pool that executes the tasks of whoever has made them ---- */

/* What is waited for together: the tasks that one piece of code made. */
struct group {
	atomic_long pending;
};

struct job {
	struct job *next;
	void (*body)(long);
	long argument;
	struct group *group;
	parprof_task *task;
};

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static struct job *queue;
static bool is_closing;

__attribute__((noinline)) static void spawn(struct group *group, void (*body)(long), long argument)
{
	struct job *job = malloc(sizeof(*job));

	if (!job)
		abort();
	/* what a report names is the program's line, not this one */
	*job = (struct job){NULL, body, argument, group, parprof_spawn(__builtin_return_address(0))};
	parprof_pause();
	atomic_fetch_add(&group->pending, 1);
	pthread_mutex_lock(&queue_lock);
	job->next = queue;
	queue = job;
	pthread_cond_signal(&queue_filled);
	pthread_mutex_unlock(&queue_lock);
	parprof_resume();
}

static void execute(struct job *job)
{
	parprof_begin(job->task);
	job->body(job->argument);
	parprof_end(job->task);
	atomic_fetch_sub(&job->group->pending, 1);
	free(job);
}

/* The queue's first; null if it is empty, or of a worker when the pool is closed. */
static struct job *take(bool is_worker)
{
	struct job *job;

	pthread_mutex_lock(&queue_lock);
	while (is_worker && !queue && !is_closing)
		pthread_cond_wait(&queue_filled, &queue_lock);
	job = queue;
	if (job)
		queue = job->next;
	pthread_mutex_unlock(&queue_lock);
	return job;
}

/* Waits for the tasks of a group, and executes any meanwhile. */
static void sync_group(struct group *group)
{
	parprof_pause();
	while (atomic_load(&group->pending)) {
		struct job *job = take(false);

		if (job)
			execute(job);
		else
			sched_yield();
	}
	parprof_synced();
	parprof_resume();
}

static void *worker(void *unused)
{
	struct job *job;

	while ((job = take(true)))
		execute(job);
	return unused;
}

/* A lock that only this runtime knows. */
static atomic_flag spin = ATOMIC_FLAG_INIT;

__attribute__((noinline)) static void lock(void)
{
	parprof_pause();
	while (atomic_flag_test_and_set(&spin))
		sched_yield();
	parprof_acquired(&spin, __builtin_return_address(0));
	parprof_resume();
}

static void unlock(void)
{
	parprof_releasing(&spin);
	atomic_flag_clear(&spin);
}

/* ---- the programs ---- */

PARPROF_SPAN_FUNCTION void parprof_span_work(unsigned long units);

static long n;
static atomic_long done; /* by all, for those who run this alone */

static void work(long units)
{
	atomic_fetch_add(&done, units);
	if (parprof_span_work)
		parprof_span_work((unsigned long)units);
}

/* 10 before two smaller ones, which are spawned, and 5 after them. */
static void tree(long depth)
{
	struct group group = {0};

	work(10);
	if (!depth)
		return;
	spawn(&group, tree, depth - 1);
	spawn(&group, tree, depth - 1);
	sync_group(&group);
	work(5);
}

/* n tasks: the i-th takes i. */
static void triangle(void)
{
	struct group group = {0};

	for (long i = 1; i <= n; i++)
		spawn(&group, work, i);
	sync_group(&group);
}

static void locked_body(long units)
{
	work(units);
	lock();
	work(3);
	unlock();
}

/* n tasks: each takes 2, and 3 while it holds the lock. */
static void locked(void)
{
	struct group group = {0};

	for (long i = 0; i < n; i++)
		spawn(&group, locked_body, 2);
	sync_group(&group);
}

/* Who is not waited for by its maker is over with the region. */
static struct group leftover;

static void leaves_body(long units)
{
	spawn(&leftover, work, 4 * units);
	work(units);
}

static void leaves(void)
{
	struct group group = {0};

	spawn(&group, leaves_body, n);
	sync_group(&group);
	work(n);
	while (atomic_load(&leftover.pending)) {
		struct job *job = take(false);

		if (job)
			execute(job);
	}
}

/* A task with a region of its own. */
static void nested_body(long depth)
{
	parprof_region *region = parprof_region_begin(0);

	tree(depth);
	parprof_region_end(region);
	work(7);
}

static void nested(void)
{
	struct group group = {0};

	spawn(&group, nested_body, n);
	spawn(&group, nested_body, n);
	sync_group(&group);
}

/* As Cilk would have it, with the events where its compiler puts them: the child first, by the thread that spawns it;
 * what is called has a frame of its own, and waits for its own children alone. */
static void cilk_fib(long k)
{
	parprof_task *task;

	work(1);
	if (k < 2)
		return;
	task = parprof_spawn(0); /* cilk_spawn */
	parprof_begin(task);
	cilk_fib(k - 1);
	parprof_end(task);
	task = parprof_call(0);
	parprof_begin(task);
	cilk_fib(k - 2);
	parprof_end(task);
	parprof_synced(); /* cilk_sync */
	work(1);
}

static void cilk(void)
{
	cilk_fib(n);
}

static void whole_tree(void)
{
	tree(n);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*body)(void);
	} forms[] = {{"tree", whole_tree}, {"triangle", triangle}, {"locked", locked},
		     {"leaves", leaves},   {"nested", nested},     {"cilk", cilk}};
	pthread_t threads[THREADS];
	parprof_region *region;

	if (argc < 3)
		return 2;
	n = atol(argv[2]);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, NULL);
	work(100); /* serial code */
	region = parprof_region_begin(0); /* all forms */
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (!strcmp(argv[1], forms[i].name))
			forms[i].body();
	}
	parprof_region_end(region);
	work(50);
	pthread_mutex_lock(&queue_lock);
	is_closing = true;
	pthread_cond_broadcast(&queue_filled);
	pthread_mutex_unlock(&queue_lock);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%ld\n", atomic_load(&done));
	return 0;
}
