// SPDX-License-Identifier: Apache-2.0
// Waits in poll(), select() and epoll_wait() for somebody else, of known length. usage: polls MODE [PORT|PATH]
//
// PATH: of a Unix socket, instead of a port.
//
// poll PORT, select PORT, epoll PORT: connects to a server, in asks_by_poll(), asks_by_select() or asks_by_epoll() waits
//     for its answer beside a pipe or a pair of sockets of its own, as clients of libcurl do, and those with a loop of events
//     (asyncio, Node).
// naps:         waits for half a second in nap_by_poll(), and in nap_by_select().
// ticks:        waits for a timer's file in ticks_by_read(), ticks_by_poll() and ticks_by_epoll(), and in naps_by_counter()
//     for half a second at a counter that nobody adds to, as Ruby's sleep does.
// serves PORT:  a server, which waits in waits_for_request() for a request on the connection that it has accepted.
// loops PORT:   the same in loops_for_request(), in epoll_wait(): it looks at that connection, at pipes, and at a
//     connection that it has made itself, as servers do that ask others.
// hands PORT:   a server whose first thread waits for connections in waits_to_hand(), and hands each to a thread, which
//     waits for it in waits_to_serve(), serves it for a tenth of a second, and answers. It ends after three.
// child:        starts a child that sleeps for half a second in naps_as_child() before it writes, and waits for what it writes
//     in collects_by_poll(), at two pipes; the same in collects_by_epoll(), beside a pair of sockets.
// ends:         starts a child that sleeps for half a second in naps_as_child() and ends, and waits for that in
//     awaits_by_pidfd(); in awaits_by_epoll(), beside a counter and a pair of sockets, as loops of events have them; and
//     in awaits_by_signal(), at a file of SIGCHLD and the signals by which it is ended itself.
// locks:        waits for half a second in epoll_wait(), in ProcSleep(), which is where PostgreSQL waits for a row that
//     another process has.
// Says "ready" when it waits for a peer, and at the end for how long as `function seconds`, without what it then waited
// for a core. The other side of it is
// tests/e2e/test_polls.py.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile unsigned long sink;
static int own[2];

static double by_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* For how long this thread was ready to run and had no core so far: who is woken on a busy machine no longer waits. */
static double without_core(void)
{
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	unsigned long long delayed;

	if (!file || fscanf(file, "%*u %llu", &delayed) != 1)
		exit(1);
	fclose(file);
	return delayed * 1e-9;
}

/* Differences of it are what this thread waited, or had a core. */
static double now(void)
{
	return by_clock() - without_core();
}

static void told(const char *name, double since)
{
	printf("%s %.6f\n", name, now() - since);
	fflush(stdout);
}

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static void compute(double seconds)
{
	double end = by_clock() + seconds;

	while (by_clock() < end)
		for (int i = 0; i < 20000; i++)
			sink += i;
}

static NOINLINE void asks_by_poll(int fd)
{
	struct pollfd files[2] = {{.fd = fd, .events = POLLIN}, {.fd = own[0], .events = POLLIN}};

	poll(files, 2, 300000);
	sink++;
}

static NOINLINE void asks_by_select(int fd)
{
	struct timeval most = {.tv_sec = 300};
	fd_set files;

	FD_ZERO(&files);
	FD_SET(fd, &files);
	FD_SET(own[0], &files);
	select(1 + (fd > own[0] ? fd : own[0]), &files, 0, 0, &most);
	sink += 2;
}

static int watched_by_epoll(const int *files, int count)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(0);

	for (int i = 0; i < count; i++)
		if (epoll_ctl(set, EPOLL_CTL_ADD, files[i], &event))
			exit(1);
	return set;
}

static NOINLINE void asks_by_epoll(int fd)
{
	struct epoll_event found;
	int more[2], pair[2], files[4] = {own[0], fd};

	if (pipe(more) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	files[2] = more[0];
	files[3] = pair[0];
	epoll_wait(watched_by_epoll(files, 4), &found, 1, 300000);
	sink += 7;
}

static NOINLINE void nap_by_poll(void)
{
	poll(0, 0, 500);
	sink += 3;
}

static NOINLINE void nap_by_select(void)
{
	struct timeval half = {.tv_usec = 500000};

	select(0, 0, 0, 0, &half);
	sink += 4;
}

static int timer_of_half_a_second(void)
{
	int file = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec when = {.it_value = {.tv_nsec = 500000000}};

	if (file < 0 || timerfd_settime(file, 0, &when, 0))
		exit(1);
	return file;
}

static NOINLINE void ticks_by_read(void)
{
	unsigned long times;

	sink += read(timer_of_half_a_second(), &times, sizeof(times));
	sink += 20;
}

static NOINLINE void ticks_by_poll(void)
{
	struct pollfd file = {.fd = timer_of_half_a_second(), .events = POLLIN};

	poll(&file, 1, -1);
	sink += 21;
}

static NOINLINE void ticks_by_epoll(void)
{
	int set = epoll_create1(0), file = timer_of_half_a_second();
	struct epoll_event wanted = {.events = EPOLLIN}, found;

	epoll_ctl(set, EPOLL_CTL_ADD, file, &wanted);
	epoll_wait(set, &found, 1, -1);
	sink += 22;
}

static NOINLINE void naps_by_counter(void)
{
	struct pollfd file = {.fd = eventfd(0, 0), .events = POLLIN};
	struct timespec half = {.tv_nsec = 500000000};

	ppoll(&file, 1, &half, 0);
	sink += 23;
}

static NOINLINE void naps_as_child(void)
{
	usleep(500000);
	sink += 9;
}

/* The ends of two pipes that the child of it writes to. */
static pid_t with_child(int *reads)
{
	int pipes[2][2];
	pid_t child;

	if (pipe(pipes[0]) || pipe(pipes[1]))
		exit(1);
	child = fork();
	if (!child) {
		naps_as_child();
		_exit(write(pipes[1][1], "x", 1) != 1);
	}
	for (int i = 0; i < 2; i++) {
		reads[i] = pipes[i][0];
		close(pipes[i][1]);
	}
	return child;
}

static NOINLINE void collects_by_poll(const int *reads)
{
	struct pollfd files[2] = {{.fd = reads[0], .events = POLLIN}, {.fd = reads[1], .events = POLLIN}};

	poll(files, 2, 300000);
	sink += 10;
}

static NOINLINE void collects_by_epoll(const int *reads)
{
	int pair[2], files[3] = {reads[0], reads[1]};
	struct epoll_event found;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	files[2] = pair[0];
	epoll_wait(watched_by_epoll(files, 3), &found, 1, 300000);
	sink += 11;
}

static void collects(const char *name, void (*waits)(const int *))
{
	double begun = now();
	int reads[2];
	pid_t child = with_child(reads);

	waits(reads);
	told(name, begun);
	waitpid(child, 0, 0);
}

static int pidfd_of(pid_t child)
{
	return (int)syscall(SYS_pidfd_open, child, 0);
}

static NOINLINE void awaits_by_pidfd(pid_t child)
{
	struct pollfd one = {.fd = pidfd_of(child), .events = POLLIN};

	poll(&one, 1, 300000);
	sink += 12;
}

static NOINLINE void awaits_by_epoll(pid_t child)
{
	int pair[2], files[3] = {pidfd_of(child), eventfd(0, 0)};
	struct epoll_event found;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	files[2] = pair[0];
	epoll_wait(watched_by_epoll(files, 3), &found, 1, 300000);
	sink += 13;
}

static NOINLINE void awaits_by_signal(pid_t child)
{
	struct pollfd one = {.events = POLLIN};
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	one.fd = signalfd(-1, &signals, 0);
	poll(&one, 1, 300000);
	sink += 14 + (child < 0);
}

static void awaits(const char *name, void (*waits)(pid_t))
{
	struct timespec at_once = {0};
	double begun;
	pid_t child;
	sigset_t ended;

	sigemptyset(&ended);
	sigaddset(&ended, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ended, 0);
	begun = now();
	child = fork();
	if (!child) {
		naps_as_child();
		_exit(0);
	}
	waits(child);
	told(name, begun);
	waitpid(child, 0, 0);
	sigtimedwait(&ended, 0, &at_once);
}

static NOINLINE void ProcSleep(void)
{
	struct epoll_event found;
	int fd = epoll_create1(0);

	epoll_wait(fd, &found, 1, 500);
	close(fd);
	sink += 6;
}

static NOINLINE void waits_for_request(int fd)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};

	poll(&one, 1, 300000);
	sink += 5;
}

static struct sockaddr_in at(int port)
{
	struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port)};

	place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return place;
}

static const char *path;	/* of a Unix socket; else there is none */

static struct sockaddr_un at_path(void)
{
	struct sockaddr_un place = {.sun_family = AF_UNIX};

	strncpy(place.sun_path, path, sizeof(place.sun_path) - 1);
	return place;
}

/* A socket that was connected there, or bound. */
static int placed(int port, int (*places)(int, const struct sockaddr *, socklen_t))
{
	int fd = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM, 0), on = 1;
	struct sockaddr_un named;
	struct sockaddr_in place;

	if (path) {
		named = at_path();
		if (places(fd, (struct sockaddr *)&named, sizeof(named)))
			exit(1);
		return fd;
	}
	place = at(port);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (places(fd, (struct sockaddr *)&place, sizeof(place)))
		exit(1);
	return fd;
}

static int connected(int port)
{
	return placed(port, connect);
}

static int listener, own_port;

static int accepted(int port)
{
	own_port = port;
	listener = placed(port, bind);
	if (listen(listener, 1))
		exit(1);
	ready();
	return accept(listener, 0, 0);
}

static NOINLINE void loops_for_request(int fd)
{
	int files[9] = {fd, own[0]};
	struct epoll_event found;

	files[2] = connected(own_port);
	if (accept(listener, 0, 0) < 0)
		exit(1);
	for (int i = 3; i < 9; i++)
		files[i] = dup(own[0]);
	epoll_wait(watched_by_epoll(files, 9), &found, 1, 300000);
	sink += 8;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t handed = PTHREAD_COND_INITIALIZER;
static int at_hand = -1;

static NOINLINE int waits_to_serve(void)
{
	int fd;

	pthread_mutex_lock(&mutex);
	while (at_hand < 0)
		pthread_cond_wait(&handed, &mutex);
	fd = at_hand;
	at_hand = -1;
	pthread_mutex_unlock(&mutex);
	return fd;
}

static void *serves_three(void *unused)
{
	for (int i = 0; i < 3; i++) {
		int fd = waits_to_serve();

		compute(0.1);
		if (write(fd, "x", 1) != 1)
			exit(1);
		close(fd);
	}
	return unused;
}

static NOINLINE double waits_to_hand(int set)
{
	struct epoll_event found;
	double begun = now();

	epoll_wait(set, &found, 1, 300000);
	return now() - begun;
}

static void hands(int port)
{
	double waited = 0;
	pthread_t thread;
	int set;

	close(accepted(port));	/* who comes first says only that we may begin */
	set = watched_by_epoll(&listener, 1);
	if (pthread_create(&thread, 0, serves_three, 0))
		exit(1);
	for (int i = 0; i < 3; i++) {
		waited += waits_to_hand(set);
		pthread_mutex_lock(&mutex);
		at_hand = accept(listener, 0, 0);
		pthread_cond_signal(&handed);
		pthread_mutex_unlock(&mutex);
	}
	pthread_join(thread, 0);
	printf("waits_to_hand %.6f\n", waited);
}

static void tells(const char *name, void (*waits)(int), int fd)
{
	double begun;

	ready();
	begun = now();
	waits(fd);
	told(name, begun);
	compute(0.3);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int port = argc > 2 ? atoi(argv[2]) : 0;
	double begun;

	if (pipe(own))
		return 1;
	if (argc > 2 && strchr(argv[2], '/'))
		path = argv[2];
	if (!strcmp(mode, "poll")) {
		tells("asks_by_poll", asks_by_poll, connected(port));
	} else if (!strcmp(mode, "select")) {
		tells("asks_by_select", asks_by_select, connected(port));
	} else if (!strcmp(mode, "epoll")) {
		tells("asks_by_epoll", asks_by_epoll, connected(port));
	} else if (!strcmp(mode, "loops")) {
		tells("loops_for_request", loops_for_request, accepted(port));
	} else if (!strcmp(mode, "serves")) {
		tells("waits_for_request", waits_for_request, accepted(port));
	} else if (!strcmp(mode, "hands")) {
		hands(port);
	} else if (!strcmp(mode, "naps")) {
		begun = now();
		nap_by_poll();
		told("nap_by_poll", begun);
		begun = now();
		nap_by_select();
		told("nap_by_select", begun);
		compute(0.3);
	} else if (!strcmp(mode, "ticks")) {
#define TELL(what) begun = now(); what(); told(#what, begun);
		TELL(ticks_by_read) TELL(ticks_by_poll) TELL(ticks_by_epoll) TELL(naps_by_counter)
		compute(0.3);
	} else if (!strcmp(mode, "child")) {
		collects("collects_by_poll", collects_by_poll);
		collects("collects_by_epoll", collects_by_epoll);
		compute(0.3);
	} else if (!strcmp(mode, "ends")) {
		awaits("awaits_by_pidfd", awaits_by_pidfd);
		awaits("awaits_by_epoll", awaits_by_epoll);
		awaits("awaits_by_signal", awaits_by_signal);
		compute(0.3);
	} else if (!strcmp(mode, "locks")) {
		begun = now();
		ProcSleep();
		told("ProcSleep", begun);
		compute(0.3);
	} else {
		fprintf(stderr, "usage: %s poll|select|epoll|serves|loops|hands|naps|ticks|child|ends|locks [PORT|PATH]\n", argv[0]);
		return 2;
	}
	return 0;
}
