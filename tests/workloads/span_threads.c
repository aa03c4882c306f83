// SPDX-License-Identifier: Apache-2.0
/*
 * Threads of POSIX whose work and span are known, for `parprof scale`: span_threads FORM N. The clock is the test's,
 * as in span_tree.c.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern void parprof_span_work(unsigned long units);

#define THREADS 4

static pthread_barrier_t barrier;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_rwlock_t readers = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spinning;
static long n, turn;
static _Atomic long waiting, worked, joined;

static void until(_Atomic long *count, long value)
{
	while (*count < value)
		usleep(1000);
}

/* Thread i works (i + 1) n. */
static void *triangle(void *number)
{
	parprof_span_work(((unsigned long)number + 1) * (unsigned long)n);
	return NULL;
}

/* In round r, thread r works 10 n and the others n. */
static void *rounds(void *number)
{
	for (long round = 0; round < THREADS; round++) {
		parprof_span_work((unsigned long)(round == (long)number ? 10 * n : n));
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void *locked(void *number)
{
	parprof_span_work((unsigned long)n + 0 * (unsigned long)number);
	pthread_mutex_lock(&mutex);
	parprof_span_work((unsigned long)n);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

/* Who has it takes it again. */
static void *nested(void *number)
{
	parprof_span_work((unsigned long)n + 0 * (unsigned long)number);
	pthread_mutex_lock(&recursive);
	parprof_span_work((unsigned long)n / 2);
	pthread_mutex_lock(&recursive);
	parprof_span_work((unsigned long)n / 2);
	pthread_mutex_unlock(&recursive);
	pthread_mutex_unlock(&recursive);
	return NULL;
}

/* n beside other readers, n alone. */
static void *reads(void *number)
{
	pthread_rwlock_rdlock(&readers);
	parprof_span_work((unsigned long)n + 0 * (unsigned long)number);
	pthread_rwlock_unlock(&readers);
	pthread_rwlock_wrlock(&readers);
	parprof_span_work((unsigned long)n);
	pthread_rwlock_unlock(&readers);
	return NULL;
}

static void *spins(void *number)
{
	parprof_span_work((unsigned long)n + 0 * (unsigned long)number);
	pthread_spin_lock(&spinning);
	parprof_span_work((unsigned long)n);
	pthread_spin_unlock(&spinning);
	return NULL;
}

/* Tests a lock in vain, which the first thread has. */
static void *tries(void *number)
{
	for (long i = 0; i < n; i++) {
		pthread_mutex_trylock(&mutex);
		parprof_span_work(1 + 0 * (unsigned long)number);
	}
	parprof_span_work((unsigned long)n);
	return NULL;
}

static void *timed(void *number)
{
	struct timespec until = {.tv_sec = time(NULL) + 60};

	parprof_span_work((unsigned long)n + 0 * (unsigned long)number);
	pthread_mutex_timedlock(&mutex, &until);
	parprof_span_work((unsigned long)n / 2);
	pthread_mutex_unlock(&mutex);
	pthread_mutex_clocklock(&mutex, CLOCK_REALTIME, &until);
	parprof_span_work((unsigned long)n / 2);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

/* One after the other: thread i waits for its turn, works n, and passes it on. The first begins when the others wait:
 * these say so while they have the mutex, which is free again in the wait alone. */
static void *turns(void *number)
{
	if ((long)number == 0)
		until(&waiting, THREADS - 1);
	pthread_mutex_lock(&mutex);
	waiting++;
	while (turn != (long)number)
		pthread_cond_wait(&turned, &mutex);
	pthread_mutex_unlock(&mutex);
	parprof_span_work((unsigned long)n);
	pthread_mutex_lock(&mutex);
	turn++;
	pthread_cond_broadcast(&turned);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static void tell(void)
{
	pthread_mutex_lock(&mutex);
	turn++;
	pthread_cond_broadcast(&turned);
	pthread_mutex_unlock(&mutex);
}

static void hear(pthread_mutex_t *own, long told)
{
	pthread_mutex_lock(own);
	waiting++;
	while (turn < told)
		pthread_cond_wait(&turned, own);
	pthread_mutex_unlock(own);
}

/* The first tells the second and the third, works 10 n, and tells again. The second hears both, and works n; the third
 * was woken by the first time, but runs again (has its mutex) only after the other has heard both, and works 10 n. */
static void *slow(void *number)
{
	static pthread_mutex_t slept = PTHREAD_MUTEX_INITIALIZER;

	if ((long)number == 0) {
		until(&waiting, 2);
		pthread_mutex_lock(&slept);
		tell();
		until(&waiting, 3);
		parprof_span_work(10 * (unsigned long)n);
		tell();
		until(&worked, 1);
		pthread_mutex_unlock(&slept);
	} else if ((long)number == 1) {
		hear(&mutex, 1);
		hear(&mutex, 2);
		worked++;
		parprof_span_work((unsigned long)n);
	} else if ((long)number == 2) {
		hear(&slept, 1);
		parprof_span_work(10 * (unsigned long)n);
	}
	return NULL;
}

static void *leaves(void *number)
{
	parprof_span_work(((unsigned long)number + 1) * (unsigned long)n);
	pthread_exit(NULL);
}

/* The last one ends the process while the first waits for it. */
static void *ends(void *number)
{
	parprof_span_work(((unsigned long)number + 1) * (unsigned long)n);
	if ((long)number == THREADS - 1) {
		until(&joined, THREADS - 1);
		usleep(10000);
		exit(0);
	}
	return NULL;
}

/* The same, and who is through first has done less than others by then: one of these has not even begun. */
static void *late(void *number)
{
	if ((long)number == 0)
		until(&worked, 2);
	if ((long)number == 2)
		until(&joined, 1);
	parprof_span_work(((unsigned long)number + 1) * (unsigned long)n);
	worked++;
	if ((long)number == 1)
		until(&joined, 1);
	if ((long)number == THREADS - 1) {
		until(&joined, THREADS - 1);
		exit(0);
	}
	return NULL;
}

static pthread_t others[THREADS - 1];

/* The last one joins the others; only then is there an end to join for the first. */
static void *joins(void *number)
{
	if ((long)number == THREADS - 1)
		for (int i = 0; i < THREADS - 1; i++)
			pthread_join(others[i], NULL);
	parprof_span_work((unsigned long)n);
	return NULL;
}

/* Each but the last starts the next when it has worked, and waits for it. */
static void *chains(void *number)
{
	pthread_t next;

	parprof_span_work((unsigned long)n);
	if ((long)number == THREADS - 1)
		return NULL;
	pthread_create(&next, NULL, chains, (void *)((long)number + 1));
	pthread_join(next, NULL);
	return NULL;
}

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void prepare(void)
{
	parprof_span_work((unsigned long)(10 * n));
}

/* What one of them does, before thread i works (i + 1) n. */
static void *once(void *number)
{
	for (int i = 0; i < 2; i++)
		pthread_once(&prepared, prepare);
	parprof_span_work(((unsigned long)number + 1) * (unsigned long)n);
	return NULL;
}

/* As a library's pool that nobody uses: what is done beside it, the first thread does. */
static void *idles(void *number)
{
	return number;
}

/* After a computation of n in turns one of n / 10, at the same condition. */
static void again(void)
{
	pthread_t threads[THREADS];

	n /= 10;
	turn = waiting = 0;
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, turns, (void *)i);
	for (long i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	n *= 10;
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void *(*body)(void *);
	} forms[] = {
		{"triangle", triangle}, {"rounds", rounds}, {"locked", locked}, {"turns", turns}, {"leaves", leaves},
		{"ends", ends},		{"joins", joins},   {"idles", idles}, {"again", turns},
		{"nested", nested},	{"reads", reads},   {"spins", spins},	{"timed", timed},
		{"tries", tries},	{"chains", chains}, {"once", once},	{"late", late},
		{"slow", slow},
	};
	void *(*body)(void *) = NULL;
	pthread_t threads[THREADS];

	for (size_t i = 0; count == 3 && i < sizeof(forms) / sizeof(*forms); i++)
		if (!strcmp(arguments[1], forms[i].name))
			body = forms[i].body;
	if (!body)
		return 2;
	n = atol(arguments[2]);
	pthread_barrier_init(&barrier, NULL, THREADS);
	pthread_spin_init(&spinning, PTHREAD_PROCESS_PRIVATE);
	parprof_span_work((unsigned long)n);
	if (body == tries)
		pthread_mutex_lock(&mutex);
	for (long i = 0; i < (body == chains ? 1 : THREADS); i++) {
		pthread_create(&threads[i], NULL, body, (void *)i);
		if (i < THREADS - 1)
			others[i] = threads[i];
	}
	parprof_span_work((unsigned long)n / 2);
	for (long i = body == joins ? THREADS - 1 : 0; i < (body == chains ? 1 : THREADS); i++, joined++)
		pthread_join(threads[i], NULL);
	if (!strcmp(arguments[1], "again"))
		again();
	parprof_span_work((unsigned long)n);
	return 0;
}
