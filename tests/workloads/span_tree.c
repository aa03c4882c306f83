// SPDX-License-Identifier: Apache-2.0
/*
 * Executes a task program that a test made up, for `parprof scale`: span_tree WORD...
 *
 *   W n      work n               S k x...  one after the other        T x       a task
 *   J        taskwait             G x       a taskgroup                 C l x     with lock l held
 *   I a x    a task, depend(in: a)          O a x    a task, depend(out: a)
 *
 * Work is only said to the library, whose clock is the test's own: tests/unit/test_scale_oracle.py knows the truth.
 */
#include <omp.h>
#include <stdlib.h>

extern void parprof_span_work(unsigned long units);

static char **words;
char addresses[8]; /* what depend clauses name is never read */
static omp_lock_t locks[4];

static int skip(int at)
{
	switch (words[at][0]) {
	case 'W':
		return at + 2;
	case 'J':
		return at + 1;
	case 'T':
	case 'G':
		return skip(at + 1);
	case 'S': {
		int count = atoi(words[at + 1]);

		at += 2;
		while (count--)
			at = skip(at);
		return at;
	}
	default:
		return skip(at + 2);
	}
}

static void run(int at)
{
	int which = words[at][0] == 'J' || words[at][0] == 'T' || words[at][0] == 'G' ? 0 : atoi(words[at + 1]);

	switch (words[at][0]) {
	case 'W':
		parprof_span_work((unsigned long)which);
		break;
	case 'J': {
#pragma omp taskwait
		break;
	}
	case 'T':
#pragma omp task
		run(at + 1);
		break;
	case 'G':
#pragma omp taskgroup
		run(at + 1);
		break;
	case 'S':
		for (int next = at + 2; which--; next = skip(next))
			run(next);
		break;
	case 'C':
		omp_set_lock(&locks[which]);
		run(at + 2);
		omp_unset_lock(&locks[which]);
		break;
	case 'I':
#pragma omp task depend(in : addresses[which])
		run(at + 2);
		break;
	case 'O':
#pragma omp task depend(out : addresses[which])
		run(at + 2);
		break;
	}
}

int main(int count, char **arguments)
{
	words = arguments;
	for (int i = 0; i < 4; i++)
		omp_init_lock(&locks[i]);
	if (count > 1) {
#pragma omp parallel
#pragma omp single
		run(1);
	}
	return 0;
}
