// SPDX-License-Identifier: Apache-2.0
/*
 * Made-up programs of futures, for the longest-path oracle: span_futures WORD... A word is a statement:
 *
 *	W n		works n units
 *	S k ...		k statements, one after the other
 *	T ...		makes a task of a statement: a future that this task, and those made after it, can wait for
 *	J i		waits for a future: the i-th that can be waited for here, counted round
 *	Y		waits for all tasks that this one has made
 *
 * Its runtime starts a thread for each task, and tells what it does by parprof_span.h.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parprof_span.h"

#define MAX_FUTURES 64

PARPROF_SPAN_FUNCTION void parprof_span_work(unsigned long units);

struct future {
	pthread_mutex_t lock;
	pthread_cond_t over;
	int is_over;
	parprof_task *task;
};

/* What a task sees: where it is in the words, and which futures there are for it. */
struct task {
	char **words;
	struct future *own, *futures[MAX_FUTURES];
	int count, made_count;
	struct future *made[MAX_FUTURES];
};

static struct future futures[MAX_FUTURES];
static atomic_int future_count;
static atomic_long total;

static char **run(struct task *task, char **words);

static char **skip(char **words)
{
	const char *kind = *words++;
	int count;

	switch (*kind) {
	case 'S':
		for (count = atoi(*words++); count > 0; count--)
			words = skip(words);
		return words;
	case 'T':
		return skip(words);
	case 'Y':
		return words;
	default:
		return words + 1;
	}
}

static void *body(void *argument)
{
	struct task *task = argument;
	struct future *own = task->own;

	parprof_begin(own->task);
	run(task, task->words);
	parprof_end(own->task);
	pthread_mutex_lock(&own->lock);
	own->is_over = 1;
	pthread_cond_broadcast(&own->over);
	pthread_mutex_unlock(&own->lock);
	free(task);
	return NULL;
}

static void spawn(struct task *task, char **words)
{
	struct task *child = calloc(1, sizeof(*child));
	struct future *future = &futures[atomic_fetch_add(&future_count, 1)];
	pthread_t thread;

	if (!child || future >= futures + MAX_FUTURES)
		abort();
	future->task = parprof_spawn(0);
	parprof_keep(future->task);
	parprof_pause();
	pthread_mutex_init(&future->lock, NULL);
	pthread_cond_init(&future->over, NULL);
	memcpy(child->futures, task->futures, sizeof(child->futures));
	child->count = task->count;
	child->own = future;
	child->words = words;
	task->futures[task->count++] = task->made[task->made_count++] = future;
	if (pthread_create(&thread, NULL, body, child))
		abort();
	pthread_detach(thread);
	parprof_resume();
}

static void wait_for(struct future *future)
{
	pthread_mutex_lock(&future->lock);
	while (!future->is_over)
		pthread_cond_wait(&future->over, &future->lock);
	pthread_mutex_unlock(&future->lock);
}

static void join(struct future *future)
{
	parprof_pause();
	wait_for(future);
	parprof_joined(future->task);
	parprof_resume();
}

static void sync_all(struct task *task)
{
	parprof_pause();
	for (int i = 0; i < task->made_count; i++)
		wait_for(task->made[i]);
	parprof_synced();
	parprof_resume();
}

static void work(long units)
{
	atomic_fetch_add(&total, units);
	if (parprof_span_work)
		parprof_span_work((unsigned long)units);
}

/* Returns the word after the statement. */
static char **run(struct task *task, char **words)
{
	const char *kind = *words++;
	int count;

	switch (*kind) {
	case 'W':
		work(atol(*words));
		return words + 1;
	case 'S':
		for (count = atoi(*words++); count > 0; count--)
			words = run(task, words);
		return words;
	case 'T':
		spawn(task, words);
		return skip(words);
	case 'J':
		if (task->count)
			join(task->futures[atoi(*words) % task->count]);
		return words + 1;
	case 'Y':
		sync_all(task);
		return words;
	default:
		abort();
	}
}

int main(int count, char **arguments)
{
	struct task first = {.words = arguments + 1};
	parprof_region *region;

	if (count < 2)
		return 2;
	region = parprof_region_begin(0);
	run(&first, first.words);
	parprof_pause();
	for (int i = 0; i < atomic_load(&future_count); i++)
		wait_for(&futures[i]);
	parprof_resume();
	parprof_region_end(region);
	for (int i = 0; i < future_count; i++)
		parprof_drop(futures[i].task);
	printf("%ld\n", total);
	return 0;
}
