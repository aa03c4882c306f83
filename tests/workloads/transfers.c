// SPDX-License-Identifier: Apache-2.0
/*
 * transfers - bytes read and written by system calls, so many by each function: what `parprof record -e read-bytes -e
 * write-bytes` is held against. Two threads take turns between a large and a small call of which both together are
 * 512 KiB: samples at a fixed distance of as much would all be of one of them. Prints `function event bytes` lines.
 * With "rests" or "hastes" it goes on until it is killed, slowly or not.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define TURNS 600
#define LARGE (384 << 10)
#define SMALL (128 << 10)
#define COPIED (64 << 10)

static int zero, null, file, forever;

/* Twice: two call paths to the same system call. */
static NOINLINE void reads_much(char *room)
{
	if (read(zero, room, LARGE) != LARGE)
		abort();
	__asm__ volatile("");
}

static NOINLINE void reads_little(char *room)
{
	if (read(zero, room, SMALL) != SMALL)
		abort();
	__asm__ volatile("");
}

static NOINLINE void writes(char *room)
{
	if (write(null, room, SMALL) != SMALL)
		abort();
	__asm__ volatile("");
}

/* Reads and writes at once. */
static NOINLINE void copies(void)
{
	off_t start = 0;

	if (sendfile(null, file, &start, COPIED) != COPIED)
		abort();
	__asm__ volatile("");
}

static void *work(void *unused)
{
	char *room = malloc(LARGE);

	for (int i = 0; forever || i < TURNS; i++) {
		reads_much(room);
		reads_little(room);
		writes(room);
		copies();
		if (read(-1, room, SMALL) >= 0)	/* fails: no bytes */
			abort();
		if (forever > 1)
			usleep(1000);
	}
	free(room);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t other;

	if (argc > 1)
		forever = !strcmp(argv[1], "hastes") + 2 * !strcmp(argv[1], "rests");
	zero = open("/dev/zero", O_RDONLY);
	null = open("/dev/null", O_WRONLY);
	file = memfd_create("file", 0);
	if (zero < 0 || null < 0 || ftruncate(file, COPIED))
		return 1;
	pthread_create(&other, 0, work, 0);
	work(0);
	pthread_join(other, 0);
	printf("reads_much read-bytes %d\nreads_little read-bytes %d\ncopies read-bytes %d\n"
	       "writes write-bytes %d\ncopies write-bytes %d\n",
	       2 * TURNS * LARGE, 2 * TURNS * SMALL, 2 * TURNS * COPIED, 2 * TURNS * SMALL, 2 * TURNS * COPIED);
	return 0;
}
