// SPDX-License-Identifier: Apache-2.0
/*
 * events - page faults and context switches, so many by each function: what `parprof record -e page-faults
 * -e context-switches` is held against. Prints `function event count` lines.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))
#define PAGE 4096

static NOINLINE void touch(volatile char *memory, long pages)
{
	for (long i = 0; i < pages; i++)
		memory[i * PAGE] = 1;
}

/* Twice: two call paths to the same innermost function. */
static NOINLINE void faults_many(volatile char *memory)
{
	touch(memory, 24000);
	__asm__ volatile("");
}

static NOINLINE void faults_few(volatile char *memory)
{
	touch(memory, 8000);
	__asm__ volatile("");
}

static NOINLINE void nap(void)
{
	struct timespec t = { 0, 1000 };

	nanosleep(&t, 0);
	__asm__ volatile("");
}

static NOINLINE void sleeps_many(void)
{
	for (int i = 0; i < 3000; i++)
		nap();
}

static NOINLINE void sleeps_few(void)
{
	for (int i = 0; i < 1000; i++)
		nap();
}

int main(void)
{
	size_t size = 32000L * PAGE;
	char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED || madvise(memory, size, MADV_NOHUGEPAGE))
		return 1;
	faults_many(memory);
	faults_few(memory + 24000L * PAGE);
	sleeps_many();
	sleeps_few();
	puts("faults_many page-faults 24000\nfaults_few page-faults 8000\n"
	     "sleeps_many context-switches 3000\nsleeps_few context-switches 1000");
	return 0;
}
