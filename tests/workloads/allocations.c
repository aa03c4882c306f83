// SPDX-License-Identifier: Apache-2.0
/*
 * allocations - bytes allocated by each function, in two threads: what `parprof record -e malloc-bytes` is held against.
 * A large and a small one take turns; all of the family are called. Prints `function event bytes` lines. With "exit"
 * it ends by _exit, which tells nobody; with "fork" a child that has allocated nothing itself ends as it should; with "rests" and "hastes"
 * it goes on until it is killed, slowly or not.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define TURNS 20011
#define LARGE 3000
#define SMALL 1000

static int forever;

/* Keeps the compiler from leaving out what nobody uses. */
static NOINLINE void use(void *room)
{
	__asm__ volatile("" : : "r"(room) : "memory");
	free(room);
}

/* Twice: two call paths to the same malloc. */
static NOINLINE void allocates_much(void)
{
	use(malloc(LARGE));
	__asm__ volatile("");
}

static NOINLINE void allocates_little(void)
{
	use(malloc(SMALL));
	__asm__ volatile("");
}

static NOINLINE void clears(void)
{
	use(calloc(10, SMALL / 10));
	__asm__ volatile("");
}

static NOINLINE void grows(void)
{
	void *room = realloc(0, SMALL);

	use(realloc(room, 2 * SMALL));
	__asm__ volatile("");
}

static NOINLINE void aligns(void)
{
	void *room = 0;

	use(aligned_alloc(64, 64));
	use(memalign(8, 100));
	if (posix_memalign(&room, 16, SMALL - 64 - 100))
		abort();
	use(room);
	__asm__ volatile("");
}

static void *work(void *unused)
{
	for (long i = 0; forever || i < TURNS; i++) {
		if (forever > 1)
			usleep(1000);
		allocates_much();
		allocates_little();
		clears();
		grows();
		aligns();
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t other;

	if (argc > 1)
		forever = !strcmp(argv[1], "hastes") + 2 * !strcmp(argv[1], "rests");
	pthread_create(&other, 0, work, 0);
	work(0);
	pthread_join(other, 0);
	if (argc > 1 && !strcmp(argv[1], "fork") && !fork())
		return 0;
	printf("allocates_much malloc-bytes %d\nallocates_little malloc-bytes %d\nclears malloc-bytes %d\n"
	       "grows malloc-bytes %d\naligns malloc-bytes %d\n",
	       2 * TURNS * LARGE, 2 * TURNS * SMALL, 2 * TURNS * SMALL, 2 * TURNS * 3 * SMALL, 2 * TURNS * SMALL);
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "exit"))
		_exit(0);
	return 0;
}
