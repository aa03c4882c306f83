/* SPDX-License-Identifier: Apache-2.0 */
/* A server that has hardly anything to do: a thread for each client answers byte by byte, and another one looks around each
 * millisecond. `asked` prints its port, and ends when it is killed. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile long looks;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

__attribute__((noinline)) static int is_asked(int queue)
{
	struct epoll_event event;

	return epoll_wait(queue, &event, 1, -1) == 1;
}

static void *answers(void *accepted)
{
	int client = (int)(long)accepted, queue = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	char byte;

	if (queue < 0 || epoll_ctl(queue, EPOLL_CTL_ADD, client, &event))
		fail("epoll");
	while (is_asked(queue) && read(client, &byte, 1) == 1 && write(client, &byte, 1) == 1)
		;
	return NULL;
}

static void *looks_around(void *unused)
{
	(void)unused;
	for (;;) {
		usleep(1000);
		looks++;
	}
	return NULL;
}

int main(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	pthread_t thread;
	int listener, client;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 8) ||
	    getsockname(listener, (struct sockaddr *)&address, &size))
		fail("listen");
	pthread_create(&thread, NULL, looks_around, NULL);
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	while ((client = accept(listener, NULL, NULL)) >= 0)
		pthread_create(&thread, NULL, answers, (void *)(long)client);
	fail("accept");
}
