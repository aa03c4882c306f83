// SPDX-License-Identifier: Apache-2.0
// Stands in for an MPI library: its barrier waits as MPICH and Open MPI do, by calling whoever may have received something,
// through pointers, again and again. No loop of that only looks at memory.
#include <stdint.h>

struct shared {
	volatile int arrived, turn;
};
static volatile uint64_t polled[8];

#ifndef OPEN_MPI
static int poll_one(struct shared *s, int turn)
{
	polled[turn & 7] += s->turn != turn;
	return s->turn != turn;
}

static int poll_other(struct shared *s, int turn)
{
	polled[(turn + 1) & 7]++;
	return 0;
}

static int (*volatile progress[])(struct shared *, int) = {poll_other, poll_one};
#endif

/* Open MPI has what polls in a library of its own. The loop around it is in libmpi, beside code that does real work, and
 * is told by its name; here that loop takes as long as what it calls. */
#ifdef OPEN_MPI
int any_progress(struct shared *s, int turn);

void ompi_request_default_wait(struct shared *s, int turn)
{
	while (!any_progress(s, turn))
		for (int i = 0; i < 8; i++)
			polled[i] += i;
}
#else
int any_progress(struct shared *s, int turn)
{
	int done = 0;

	for (unsigned i = 0; i < sizeof(progress) / sizeof(*progress); i++)
		done += progress[i](s, turn);
	return done;
}

static inline void ompi_request_default_wait(struct shared *s, int turn)
{
	while (!any_progress(s, turn))
		;
}
#endif

int MPI_Barrier(struct shared *s, int ranks)
{
	int turn = s->turn;

	if (__sync_add_and_fetch(&s->arrived, 1) == ranks) {
		s->arrived = 0;
		__sync_add_and_fetch(&s->turn, 1);
		return 0;
	}
	ompi_request_default_wait(s, turn);
	return 0;
}
