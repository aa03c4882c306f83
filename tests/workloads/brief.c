// SPDX-License-Identifier: Apache-2.0
// A process that is over soon, as those of a build are. usage: brief MILLISECONDS [thread | then COMMAND [ARG ...] | memory MB]
//
// Uses so much CPU time in burn(), called by outer(): in a thread of its own, or before it becomes another program, or with
// so much memory in small pages, which the kernel has to take apart at its end.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

static double cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

__attribute__((noinline)) static void burn(double ms)
{
	double end = cpu_ms() + ms;

	while (cpu_ms() < end)
		for (int i = 0; i < 20000; i++)
			sink += i;
}

__attribute__((noinline)) static void *outer(void *ms)
{
	burn(*(double *)ms);
	return 0;
}

static void fill(size_t bytes)
{
	char *all = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		exit(1);
	madvise(all, bytes, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < bytes; at += 4096)
		all[at] = 1;
}

int main(int argc, char **argv)
{
	double ms = argc > 1 ? atof(argv[1]) : 10;
	pthread_t thread;

	if (argc > 2 && !strcmp(argv[2], "thread")) {
		pthread_create(&thread, 0, outer, &ms);
		pthread_join(thread, 0);
		return 0;
	}
	outer(&ms);
	if (argc > 3 && !strcmp(argv[2], "memory"))
		fill((size_t)atoi(argv[3]) << 20);
	if (argc > 3 && !strcmp(argv[2], "then"))
		execvp(argv[3], argv + 3);
	return 0;
}
