// SPDX-License-Identifier: Apache-2.0
// Waits that a program codes itself: usage: spins_truth PHASE[,PHASE...] (see phases.h), PHASE being how a worker waits
// for the main thread's serial part: flag (reads a flag until it changes), pause (so, with a pause and a limit to the
// turns), yield (so, with sched_yield), call (calls a function of the program at each turn, and stores something), polite
// (as std::barrier does: calls a function that stores something, with sched_yield at each turn), take (tries at each turn
// to take a lock by an atomic exchange), sleep (in a semaphore, and so does the main thread).
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "phases.h"

static volatile int round_open, round_done;
static int how;

TRUTH_WORK(serial)
TRUTH_WORK(shared)

static sem_t opened, done;

enum { FLAG, PAUSE, YIELD, CALL, POLITE, TAKE, SLEEP };

TRUTH_NOINLINE static void until_flag(int round)
{
	while (round_open < round)
		;
}

TRUTH_NOINLINE static void until_pause(int round)
{
	for (u64 turns = 0; turns < 1ull << 40; turns++) {
		if (round_open >= round)
			return;
		__builtin_ia32_pause();
	}
}

TRUTH_NOINLINE static void until_yield(int round)
{
	while (round_open < round)
		sched_yield();
}

static int taken = 1;

TRUTH_NOINLINE static void until_taken(void)
{
	while (__atomic_exchange_n(&taken, 1, __ATOMIC_ACQUIRE))
		;
}

static volatile u64 polls;

TRUTH_NOINLINE static int poll_round(int round)
{
	for (int i = 0; i < 200; i++)
		polls++;
	return round_open >= round;
}

TRUTH_NOINLINE static void wait_for_work(int round)
{
	while (!poll_round(round))
		polls++;
}

TRUTH_NOINLINE static void wait_politely(int round)
{
	while (!poll_round(round))
		sched_yield();
}

static void *worker(void *rounds)
{
	for (int round = 1; round <= *(int *)rounds; round++) {
		if (how == FLAG)
			until_flag(round);
		else if (how == PAUSE)
			until_pause(round);
		else if (how == YIELD)
			until_yield(round);
		else if (how == POLITE)
			wait_politely(round);
		else if (how == TAKE)
			until_taken();
		else if (how == SLEEP)
			sem_wait(&opened);
		else
			wait_for_work(round);
		shared(unit_ns * 4);
		round_done = round;
		sem_post(&done);
	}
	return NULL;
}

static void run(int which)
{
	pthread_t thread;
	int rounds = 6;

	how = which;
	round_open = round_done = 0;
	taken = 1;
	sem_init(&opened, 0, 0);
	sem_init(&done, 0, 0);
	if (pthread_create(&thread, NULL, worker, &rounds))
		exit(1);
	for (int round = 1; round <= rounds; round++) {
		serial(unit_ns * 5);
		round_open = round;
		__atomic_store_n(&taken, 0, __ATOMIC_RELEASE);
		sem_post(&opened);
		shared(unit_ns * 4);
		if (how == SLEEP)
			sem_wait(&done);
		while (round_done < round)
			;
	}
	pthread_join(thread, NULL);
}

static void flag(void)
{
	run(FLAG);
}

static void pause_(void)
{
	run(PAUSE);
}

static void yield(void)
{
	run(YIELD);
}

static void call(void)
{
	run(CALL);
}

static void polite(void)
{
	run(POLITE);
}

static void take(void)
{
	run(TAKE);
}

static void asleep(void)
{
	run(SLEEP);
}

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
		{ "flag", flag },
		{ "pause", pause_ },
		{ "yield", yield },
		{ "call", call },
		{ "polite", polite },
		{ "take", take },
		{ "sleep", asleep },
		{ NULL, NULL },
	};

	return phases_main(argc, argv, phases);
}
