// SPDX-License-Identifier: Apache-2.0
/*
 * task_sort - merge sort by OpenMP tasks, a task for each half down to --cutoff elements: what do tasks cost that
 * do some work? A unit is one sort of --elements ints (default 16 M, about a second), which fill() makes on one
 * thread before; the merges at the top have few threads too, so cores are idle, by a known time. Output: windows.h.
 */
#define _GNU_SOURCE
#include "windows.h"

#include <string.h>

static int *numbers, *spare;
static u64 elements = 16u << 20, cutoff = 2048;

__attribute__((noinline)) static void fill(void)
{
	u64 x = 1;

	for (u64 i = 0; i < elements; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		numbers[i] = (int)(x >> 33);
	}
}

/* The two halves of @from, sorted, into one. */
__attribute__((noinline)) static void merge(int *into, const int *from, u64 middle, u64 count)
{
	u64 left = 0, right = middle;

	for (u64 i = 0; i < count; i++) {
		bool take = right == count || (left < middle && from[left] <= from[right]);

		into[i] = take ? from[left++] : from[right++];
	}
}

/* Insertion sort of 16 elements at most, merge sort above; no qsort: the functions shall be our own. */
__attribute__((noinline)) static void sort_leaf(int *base, int *space, u64 count)
{
	if (count <= 16) {
		for (u64 i = 1; i < count; i++) {
			int value = base[i];
			u64 at = i;

			for (; at && base[at - 1] > value; at--)
				base[at] = base[at - 1];
			base[at] = value;
		}
		return;
	}
	sort_leaf(base, space, count / 2);
	sort_leaf(base + count / 2, space + count / 2, count - count / 2);
	memcpy(space, base, count * sizeof(*base));
	merge(base, space, count / 2, count);
}

__attribute__((noinline)) static void sort(int *base, int *space, u64 count)
{
	u64 half = count / 2;

	if (count <= cutoff) {
		sort_leaf(base, space, count);
		return;
	}
#pragma omp task firstprivate(base, space, half)
	sort(base, space, half);
#pragma omp task firstprivate(base, space, half, count)
	sort(base + half, space + half, count - half);
#pragma omp taskwait
	memcpy(space, base, count * sizeof(*base));
	merge(base, space, half, count);
}

/* One pair of neighbours in a thousand: it should not show. */
static void check(void)
{
	for (u64 i = 1; i < elements; i += 997)
		if (numbers[i - 1] > numbers[i])
			abort();
}

static void sorts(const struct windows *w, u64 count)
{
	for (u64 i = 0; i < count; i++) {
		fill();
#pragma omp parallel num_threads(w->threads)
#pragma omp single
		sort(numbers, spare, elements);
		check();
	}
}

static u64 tasks(u64 count)
{
	return count <= cutoff ? 0 : 2 + tasks(count / 2) + tasks(count - count / 2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		WINDOWS_OPTIONS,
		{ "elements", required_argument, NULL, 'e' },
		{ "cutoff", required_argument, NULL, 'c' },
		{ "threads", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct windows w = { .program = "task_sort", .unit = "sort", .threads = 2, .event = "task",
			     .count = 60, .work_us = 0, .seconds = 2 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'e') {
			elements = (u64)number(optarg, 2, 1u << 30);
		} else if (opt == 'c') {
			cutoff = (u64)number(optarg, 1, 1u << 30);
		} else if (opt == 't') {
			w.threads = (int)number(optarg, 1, 1024);
		} else if (!windows_option(&w, opt)) {
			fprintf(stderr, "usage: %s [--elements N] [--cutoff N] [--threads T] " WINDOWS_USAGE "\n",
				argv[0]);
			return 2;
		}
	}
	numbers = malloc(elements * sizeof(*numbers));
	spare = malloc(elements * sizeof(*spare));
	if (!numbers || !spare) {
		perror("--elements");
		return 1;
	}
	w.events = tasks(elements);
	run_windows(&w, sorts);
	return 0;
}
