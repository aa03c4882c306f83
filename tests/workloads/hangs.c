// SPDX-License-Identifier: Apache-2.0
// A program that hangs, for whoever attaches to it. usage: hangs deadlock | joined | kept | pipe | requests
//
// deadlock: two threads, each in take_both(), each with the lock that the other wants.
// joined:   the same, and the main thread waits for their end.
// kept:     a thread has the lock that the main thread wants in take_it(), and waits for an item in await_item().
// pipe:     the main thread reads standard input in read_forever(); another one waits for it in await_item().
// requests: the main thread waits for a connection in serve().
// Says "ready" when it is about to hang, and ends with standard input where it reads that.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static pthread_mutex_t locks[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t item = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t both;
static volatile int items;

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

__attribute__((noinline)) static void take_both(int first)
{
	pthread_mutex_lock(&locks[first]);
	pthread_barrier_wait(&both);
	pthread_mutex_lock(&locks[!first]);
	items++;
}

static void *one_of_two(void *which)
{
	take_both(which != 0);
	return which;
}

static void *second(void *unused)
{
	take_both(1);
	return unused;
}

__attribute__((noinline)) static int read_forever(void)
{
	char line[16];
	int got = read(STDIN_FILENO, line, sizeof(line));

	items += got;
	return got;
}

__attribute__((noinline)) static void *await_item(void *unused)
{
	pthread_mutex_lock(&guard);
	while (!items)
		pthread_cond_wait(&item, &guard);
	pthread_mutex_unlock(&guard);
	return unused;
}

static void *keeps(void *unused)
{
	pthread_mutex_lock(&locks[0]);
	pthread_barrier_wait(&both);
	await_item(unused);
	pthread_mutex_unlock(&locks[0]);
	return unused;
}

__attribute__((noinline)) static void take_it(void)
{
	pthread_mutex_lock(&locks[0]);
	items++;
	pthread_mutex_unlock(&locks[0]);
}

__attribute__((noinline)) static int serve(void)
{
	struct sockaddr_un any = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), found;

	if (bind(listener, (struct sockaddr *)&any, sizeof(any.sun_family)) || listen(listener, 1))
		return 1;
	ready();
	found = accept(listener, 0, 0);
	items++;
	return found;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc == 2 && !strcmp(argv[1], "joined")) {
		pthread_t other;

		pthread_barrier_init(&both, 0, 2);
		pthread_create(&thread, 0, one_of_two, 0);
		pthread_create(&other, 0, one_of_two, locks);
		ready();
		pthread_join(thread, 0);
		pthread_join(other, 0);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "deadlock")) {
		pthread_barrier_init(&both, 0, 2);
		pthread_create(&thread, 0, second, 0);
		ready();
		take_both(0);
	} else if (argc == 2 && !strcmp(argv[1], "kept")) {
		pthread_barrier_init(&both, 0, 2);
		pthread_create(&thread, 0, keeps, 0);
		pthread_barrier_wait(&both);
		ready();
		take_it();
	} else if (argc == 2 && !strcmp(argv[1], "pipe")) {
		pthread_create(&thread, 0, await_item, 0);
		ready();
		while (read_forever() > 0)
			;
		return 0;
	} else if (argc == 2 && !strcmp(argv[1], "requests")) {
		return serve();
	}
	return 2;
}
