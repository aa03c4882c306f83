// SPDX-License-Identifier: Apache-2.0
/*
 * pthread_truth - phases of known idleness in plain pthreads. Every phase makes
 * its own threads; the main thread works in `serial` only, else it joins.
 * README.md has the truth of each phase.
 */
#include "phases.h"

#include <pthread.h>

TRUTH_WORK(serial_work)
TRUTH_WORK(balanced_work)
TRUTH_WORK(skewed_long)
TRUTH_WORK(skewed_short)
TRUTH_WORK(barrier_long)
TRUTH_WORK(barrier_short)
TRUTH_WORK(locked_work)
TRUTH_WORK(unlocked_work)
TRUTH_WORK(produce_work)
TRUTH_WORK(consume_work)
TRUTH_WORK(io_client_work)
TRUTH_WORK(io_server_work)
TRUTH_WORK(oversubscribed_work)

static void die(const char *what, int error)
{
	fprintf(stderr, "%s: %s\n", what, strerror(error));
	exit(1);
}

/* Runs @body in @count threads, with the thread's index as its argument. */
static void run_threads(int count, void *(*body)(void *))
{
	pthread_t tids[MAX_THREADS];

	for (intptr_t i = 0; i < count; i++) {
		int error = pthread_create(&tids[i], NULL, body, (void *)i);

		if (error)
			die("pthread_create", error);
	}
	for (int i = 0; i < count; i++)
		pthread_join(tids[i], NULL);
}

static void phase_serial(void)
{
	serial_work(2 * unit_ns);
}

static void *balanced_thread(void *index)
{
	(void)index;
	balanced_work(3 * unit_ns);
	return NULL;
}

static void phase_balanced(void)
{
	run_threads(threads, balanced_thread);
}

static void *skewed_thread(void *index)
{
	if ((intptr_t)index == 0)
		skewed_long(6 * unit_ns);
	else
		skewed_short(2 * unit_ns);
	return NULL;
}

static void phase_skewed(void)
{
	run_threads(threads, skewed_thread);
}

static pthread_barrier_t barrier;

static void *barrier_thread(void *index)
{
	for (int round = 0; round < 2; round++) {
		if ((intptr_t)index == round % threads)
			barrier_long(3 * unit_ns);
		else
			barrier_short(unit_ns);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void phase_barrier(void)
{
	pthread_barrier_init(&barrier, NULL, (unsigned)threads);
	run_threads(threads, barrier_thread);
	pthread_barrier_destroy(&barrier);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *lock_thread(void *index)
{
	(void)index;
	for (int round = 0; round < 3; round++) {
		unlocked_work(unit_ns / 2);
		pthread_mutex_lock(&mutex);
		locked_work(3 * unit_ns / 2);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static void phase_lock(void)
{
	run_threads(threads, lock_thread);
}

/* A queue with room for one item, between one producer and one slower consumer. */
#define ITEMS 4

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool full;

static void set_full(bool value)
{
	pthread_mutex_lock(&mutex);
	while (full == value)
		pthread_cond_wait(&changed, &mutex);
	full = value;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
}

static void *cond_thread(void *index)
{
	for (int i = 0; i < ITEMS; i++) {
		if ((intptr_t)index == 0) {
			produce_work(unit_ns);
			set_full(true);
		} else {
			set_full(false);
			consume_work(2 * unit_ns);
		}
	}
	return NULL;
}

static void phase_cond(void)
{
	run_threads(2, cond_thread);
}

/* Request and answer over pipes: never more than one of the two threads works. */
static int request[2], answer[2];

static void pass(int fd, bool out)
{
	char byte = 0;
	ssize_t n;

	do
		n = out ? write(fd, &byte, 1) : read(fd, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1)
		die("pipe", n < 0 ? errno : EPIPE);
}

static void sleep_ns(u64 ns)
{
	struct timespec left = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static void *io_thread(void *index)
{
	for (int round = 0; round < 2; round++) {
		if ((intptr_t)index == 0) {
			io_client_work(unit_ns);
			pass(request[1], true);
			pass(answer[0], false);
			sleep_ns(unit_ns);
		} else {
			pass(request[0], false);
			io_server_work(unit_ns);
			pass(answer[1], true);
		}
	}
	return NULL;
}

static void phase_io(void)
{
	if (pipe(request) || pipe(answer))
		die("pipe", errno);
	run_threads(2, io_thread);
	for (int i = 0; i < 2; i++) {
		close(request[i]);
		close(answer[i]);
	}
}

static void *oversubscribed_thread(void *index)
{
	(void)index;
	oversubscribed_work(4 * unit_ns);
	return NULL;
}

static void phase_oversubscribed(void)
{
	run_threads(2 * threads, oversubscribed_thread);
}

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
		{ "serial", phase_serial },
		{ "balanced", phase_balanced },
		{ "skewed", phase_skewed },
		{ "barrier", phase_barrier },
		{ "lock", phase_lock },
		{ "cond", phase_cond },
		{ "io", phase_io },
		{ "oversubscribed", phase_oversubscribed },
		{ NULL, NULL },
	};

	return phases_main(argc, argv, phases);
}
