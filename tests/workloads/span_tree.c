// SPDX-License-Identifier: Apache-2.0
/*
 * Executes a task program that a test made up, for `parprof scale`: span_tree WORD...
 *
 *   W n      work n               S k x...  one after the other        T x       a task
 *   J        taskwait             G x       a taskgroup                 C l x     with lock l held
 *   I a x    a task, depend(in: a)          O a x    a task, depend(out: a)
 *   F s x    a call, at place s of the function that it is in, of function s % 3
 *
 * Work is only said to the library, whose clock is the test's own: tests/unit/test_scale_oracle.py knows the truth.
 */
#include <omp.h>
#include <stdlib.h>

extern void parprof_span_work(unsigned long units);
extern void __cyg_profile_func_enter(void *function, void *address);
extern void __cyg_profile_func_exit(void *function, void *address);

enum { MAIN = 3 };

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

/* As if the compiler had put them there. */
static void *function_of(int function)
{
	return (void *)(long)(0x200 + function);
}

static void *address_of(int caller, int place)
{
	return (void *)(long)(0x400 + 16 * caller + place);
}

static void run(int at, int in)
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
		run(at + 1, in);
		break;
	case 'G':
#pragma omp taskgroup
		run(at + 1, in);
		break;
	case 'F':
		__cyg_profile_func_enter(function_of(which % 3), address_of(in, which));
		run(at + 2, which % 3);
		__cyg_profile_func_exit(function_of(which % 3), address_of(in, which));
		break;
	case 'S':
		for (int next = at + 2; which--; next = skip(next))
			run(next, in);
		break;
	case 'C':
		omp_set_lock(&locks[which]);
		run(at + 2, in);
		omp_unset_lock(&locks[which]);
		break;
	case 'I':
#pragma omp task depend(in : addresses[which])
		run(at + 2, in);
		break;
	case 'O':
#pragma omp task depend(out : addresses[which])
		run(at + 2, in);
		break;
	}
}

int main(int count, char **arguments)
{
	int has_calls = 0;

	words = arguments;
	for (int i = 0; i < 4; i++)
		omp_init_lock(&locks[i]);
	for (int i = 1; i < count; i++)
		has_calls |= arguments[i][0] == 'F';
	if (has_calls)
		__cyg_profile_func_enter(function_of(MAIN), address_of(4, 0));
	if (count > 1) {
#pragma omp parallel
#pragma omp single
		run(1, MAIN);
	}
	if (has_calls)
		__cyg_profile_func_exit(function_of(MAIN), address_of(4, 0));
	return 0;
}
