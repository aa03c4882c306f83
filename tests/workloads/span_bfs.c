// SPDX-License-Identifier: Apache-2.0
/*
 * Breadth-first search in layers, after the case study of schardl-2015 (sec. 8): span_bfs SIDE GRAIN searches a grid of
 * SIDE x SIDE x SIDE vertices from a corner. A layer lies in nodes of NODE vertices, a size that is good for inserting
 * them. As the paper's, the program at first works through a node serially (GRAIN = NODE), which bounds the span; with
 * a smaller grain process_node divides it. With PARPROF_SPAN_CLOCK=test work is only said to the library: UNITS for a
 * vertex. tests/unit/test_scale_bfs.py has the formulas.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void parprof_span_work(unsigned long units) __attribute__((weak));

#define NO_HOOKS __attribute__((no_instrument_function, noinline))
#define FUNCTION __attribute__((noinline))
#define NODE 128
#define UNITS 10

static int is_test_clock;
static int side;
static long grain;
static int *distance;
static int *layer, *next_layer;
static long next_count;

/* A neighbour: it belongs to the next layer if nobody has been there. */
NO_HOOKS static void visit(int vertex, int from)
{
	int unknown = -1;

	if (!__atomic_compare_exchange_n(&distance[vertex], &unknown, distance[from] + 1, 0, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;
	next_layer[__atomic_fetch_add(&next_count, 1, __ATOMIC_RELAXED)] = vertex;
}

FUNCTION static void visit_neighbours(const int *vertices, long count)
{
	if (is_test_clock)
		parprof_span_work((unsigned long)(count * UNITS));
	for (long i = 0; i < count; i++) {
		int at = vertices[i], x = at % side, y = at / side % side, z = at / side / side;

		if (x > 0)
			visit(at - 1, at);
		if (x < side - 1)
			visit(at + 1, at);
		if (y > 0)
			visit(at - side, at);
		if (y < side - 1)
			visit(at + side, at);
		if (z > 0)
			visit(at - side * side, at);
		if (z < side - 1)
			visit(at + side * side, at);
	}
}

FUNCTION static void process_node(const int *vertices, long count)
{
	for (; count > grain; count -= grain, vertices += grain) {
#pragma omp task firstprivate(vertices)
		visit_neighbours(vertices, grain); /* in parallel */
	}
	visit_neighbours(vertices, count); /* the node, or its rest */
#pragma omp taskwait
}

FUNCTION static long search(void)
{
	long found = 0, count = 1;

	layer[0] = 0;
	distance[0] = 0;
	while (count) {
		found += count;
		next_count = 0;
		for (long at = 0; at < count; at += NODE) {
#pragma omp task firstprivate(at)
			process_node(layer + at, count - at < NODE ? count - at : NODE);
		}
#pragma omp taskwait
		int *kept = layer;

		layer = next_layer;
		next_layer = kept;
		count = next_count;
	}
	return found;
}

int main(int count, char **arguments)
{
	const char *clock = getenv("PARPROF_SPAN_CLOCK");
	size_t vertices;
	long found = 0;

	if (count != 3 || (side = atoi(arguments[1])) < 2 || (grain = atol(arguments[2])) < 1)
		return 2;
	is_test_clock = parprof_span_work && clock && !strcmp(clock, "test");
	vertices = (size_t)side * (size_t)side * (size_t)side;
	distance = malloc(vertices * sizeof(*distance));
	layer = malloc(vertices * sizeof(*layer));
	next_layer = malloc(vertices * sizeof(*next_layer));
	if (!distance || !layer || !next_layer)
		return 1;
	memset(distance, 0xff, vertices * sizeof(*distance));
#pragma omp parallel
#pragma omp single
	found = search();
	printf("%ld\n", found);
	return found != (long)vertices;
}
