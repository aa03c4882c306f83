// SPDX-License-Identifier: Apache-2.0
/*
 * Threads of POSIX that nobody joins: most still run when the program ends. For `parprof scale`: span_left FORM N. The
 * clock is the test's, as in span_tree.c.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void parprof_span_work(unsigned long units);

#define THREADS 4

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t worked;
static unsigned long n;

static _Noreturn void stay(void)
{
	sem_post(&worked);
	for (;;)
		pause();
}

/* Thread i works (i + 1) n and stays. */
static void *stays(void *number)
{
	parprof_span_work(((unsigned long)number + 1) * n);
	stay();
}

/* The same in two parts, the second with a lock, and works n again without it. */
static void *locks(void *number)
{
	parprof_span_work(((unsigned long)number + 1) * n);
	pthread_mutex_lock(&mutex);
	parprof_span_work(2 * n);
	pthread_mutex_unlock(&mutex);
	parprof_span_work(n);
	stay();
}

/* The program ends with its last thread: the first one has left. */
static void *follows(void *number)
{
	usleep(200000);
	parprof_span_work(((unsigned long)number + 1) * n);
	return NULL;
}

/* Ends the program while the first thread is at work. */
static void *ends(void *number)
{
	parprof_span_work(((unsigned long)number + 1) * n);
	if ((long)number < THREADS - 1)
		stay();
	for (int i = 0; i < THREADS; i++)
		sem_wait(&worked);
	exit(0);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void *(*body)(void *);
	} forms[] = {{"stays", stays}, {"locks", locks}, {"follows", follows}, {"ends", ends}};
	void *(*body)(void *) = NULL;
	pthread_t thread;

	for (size_t i = 0; count == 3 && i < sizeof(forms) / sizeof(*forms); i++)
		if (!strcmp(arguments[1], forms[i].name))
			body = forms[i].body;
	if (!body)
		return 2;
	n = strtoul(arguments[2], NULL, 10);
	sem_init(&worked, 0, 0);
	parprof_span_work(n);
	for (long i = 0; i < THREADS; i++) {
		pthread_create(&thread, NULL, body, (void *)i);
		pthread_detach(thread);
	}
	parprof_span_work(n / 2);
	if (body == follows)
		pthread_exit(NULL);
	if (body == ends)
		stay();
	for (int i = 0; i < THREADS; i++)
		sem_wait(&worked);
	return 0;
}
