// SPDX-License-Identifier: Apache-2.0
/*
 * extremes.c - more threads, and deeper nesting, than a profiler likes.
 *
 *	extremes nested DEPTH REPEAT	regions within regions, work in the innermost, then a plain region
 *	extremes threads COUNT		so many threads at once, each of which works a little
 *	extremes forked REPEAT		plain regions in a forked child, which calls no exec
 *
 * truth.h says what is logged.
 */
#include <omp.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

#include "truth.h"

TRUTH_WORK(innermost)
TRUTH_WORK(plain)
TRUTH_WORK(one_of_many)

TRUTH_NOINLINE static void descend(int depth)
{
#pragma omp parallel num_threads(1)
	{
		if (depth > 1)
			descend(depth - 1);
		else
			innermost(20000000);
	}
}

static void nested(int depth, int repeat)
{
	for (int i = 0; i < repeat; i++) {
		descend(depth);
#pragma omp parallel num_threads(2)
		plain(10000000);
	}
}

static int forked(int repeat)
{
	int status = 1;
	pid_t child = fork();

	if (child == 0) {
		usleep(500000);
		truth_init();
		for (int i = 0; i < repeat; i++) {
#pragma omp parallel num_threads(2)
			plain(omp_get_thread_num() ? 30000000 : 10000000);
		}
		exit(0);
	}
	return child < 0 || waitpid(child, &status, 0) < 0 || status;
}

static pthread_barrier_t all_here;

static void *thread(void *argument)
{
	pthread_barrier_wait(&all_here);
	one_of_many(1000000);
	return argument;
}

static int threads(int count)
{
	pthread_t *ids = calloc((size_t)count, sizeof(*ids));
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 1 << 16);
	pthread_barrier_init(&all_here, NULL, (unsigned)count);
	for (int i = 0; i < count; i++) {
		if (pthread_create(&ids[i], &attributes, thread, NULL)) {
			perror("pthread_create");
			return 1;
		}
	}
	for (int i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
	free(ids);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "forked"))
		return forked(atoi(argv[2]));
	truth_init();
	if (argc == 4 && !strcmp(argv[1], "nested")) {
		nested(atoi(argv[2]), atoi(argv[3]));
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "threads"))
		return threads(atoi(argv[2]));
	fprintf(stderr, "usage: %s nested DEPTH REPEAT | threads COUNT | forked REPEAT\n", argv[0]);
	return 2;
}
