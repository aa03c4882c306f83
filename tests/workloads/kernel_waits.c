// SPDX-License-Identifier: Apache-2.0
/* Each way to wait in the kernel once, for about as long, ended by a child process (or another thread) that sleeps first.
 * Every way has a function of its own; how long it took, without the time that it was ready to run and had no core, is
 * printed as a line `function seconds`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define WAIT_S 0.25
#define FULL (1 << 17)	/* bytes: more than a pipe holds */

struct message {
	long type;
	char text[4000];
};

static volatile unsigned long sink;
static char buffer[2 * FULL];
static int file = -1, data[2], other[2], pair[2], begun[2], counter, messages, semaphores, watch, signals;
static uint32_t word;
static mqd_t queue;
static char path[] = "/tmp/kernel_waits-XXXXXX", lock_file[64], fifo[64];
static pthread_mutex_t *shared;
static sigset_t told_by;

static void check(long result)
{
	if (result >= 0)
		return;
	perror("kernel_waits");
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* For how long this thread was ready to run and had no core so far. */
static double without_core(void)
{
	unsigned long ran = 0, delayed = 0;
	FILE *told = fopen("/proc/thread-self/schedstat", "r");

	if (!told || fscanf(told, "%lu %lu", &ran, &delayed) != 2)
		check(-1);
	fclose(told);
	return delayed * 1e-9;
}

static NOINLINE void compute(double seconds)
{
	double end = now() + seconds;

	while (now() < end)
		for (int i = 0; i < 20000; i++)
			sink += i;
}

static void nap(void)
{
	struct timespec t = {0, WAIT_S * 1e9};

	nanosleep(&t, NULL);
}

static NOINLINE void waits_by_flock(void)
{
	int mine = open(lock_file, O_RDWR);

	check(flock(mine, LOCK_EX));
	sink++;
	close(mine);
}

static NOINLINE void waits_by_fcntl(void)
{
	struct flock whole = {.l_type = F_WRLCK};

	check(fcntl(file, F_SETLKW, &whole));
	sink++;
	whole.l_type = F_UNLCK;
	fcntl(file, F_SETLK, &whole);
}

static NOINLINE void waits_by_semop(void)
{
	struct sembuf down = {0, -1, 0};

	check(semop(semaphores, &down, 1));
	sink++;
}

static NOINLINE void waits_by_shared_mutex(void)
{
	pthread_mutex_lock(shared);
	sink++;
	pthread_mutex_unlock(shared);
}

static NOINLINE void waits_by_futex_waitv(void)
{
	struct futex_waitv one = {.uaddr = (uintptr_t)&word, .flags = FUTEX_32};

	syscall(SYS_futex_waitv, &one, 1, 0, NULL, 0);
	sink++;
}

static NOINLINE void waits_by_splice(void)
{
	check(splice(data[0], NULL, other[1], NULL, 1, 0));
	sink++;
}

static NOINLINE void waits_by_vmsplice(void)
{
	struct iovec left = {buffer, FULL};

	while (left.iov_len) {
		ssize_t written = vmsplice(data[1], &left, 1, 0);

		check(written);
		left.iov_len -= written;
	}
	sink++;
}

static NOINLINE void waits_by_write(void)
{
	check(write(data[1], buffer, FULL));
	sink++;
}

static NOINLINE void waits_by_recv(void)
{
	check(recv(pair[0], buffer, 1, 0));
	sink++;
}

static NOINLINE void waits_by_open(void)
{
	int mine = open(fifo, O_RDONLY);

	check(mine);
	sink++;
	close(mine);
}

static NOINLINE void waits_by_msgrcv(void)
{
	struct message message;

	check(msgrcv(messages, &message, sizeof(message.text), 0, 0));
	sink++;
}

static NOINLINE void waits_by_msgsnd(void)
{
	struct message message = {.type = 1};

	check(msgsnd(messages, &message, sizeof(message.text), 0));
	sink++;
}

static NOINLINE void waits_by_mq_receive(void)
{
	check(mq_receive(queue, buffer, 16, NULL));
	sink++;
}

static NOINLINE void waits_by_mq_send(void)
{
	check(mq_send(queue, "x", 1, 0));
	sink++;
}

static NOINLINE void waits_by_eventfd(void)
{
	uint64_t count;

	check(read(counter, &count, sizeof(count)));
	sink++;
}

static NOINLINE void waits_by_vfork(void)
{
	if (!vfork()) {
		nap();
		_exit(0);
	}
	sink++;
}

static NOINLINE void waits_by_waitid(void)
{
	siginfo_t info;

	check(waitid(P_ALL, 0, &info, WEXITED));
	sink++;
}

static NOINLINE void waits_by_inotify(void)
{
	check(read(watch, buffer, 512));
	sink++;
}

static NOINLINE void waits_by_sigwait(void)
{
	int number;

	sigwait(&told_by, &number);
	sink++;
}

static NOINLINE void waits_by_signalfd(void)
{
	check(read(signals, buffer, 512));
	sink++;
}

static NOINLINE void waits_by_pause(void)
{
	pause();
	sink++;
}

static NOINLINE void waits_by_stop(void)
{
	raise(SIGSTOP);
	sink++;
}

/* What ends these waits, in a child. */
static void nothing(void)
{
}

static void up(void)
{
	struct sembuf up = {0, 1, 0};

	semop(semaphores, &up, 1);
}

static void writes(void)
{
	check(write(data[1], "x", 1));
}

static void drains(void)
{
	for (long got = 0; got < FULL;)
		got += read(data[0], buffer, sizeof(buffer));
}

static void writes_to_pair(void)
{
	check(write(pair[1], "x", 1));
}

static void opens(void)
{
	close(open(fifo, O_WRONLY));
}

static void sends(void)
{
	struct message message = {.type = 1};

	msgsnd(messages, &message, 1, 0);
}

static void takes(void)
{
	struct message message;

	msgrcv(messages, &message, sizeof(message.text), 0, 0);
}

static void sends_to_queue(void)
{
	mq_send(queue, "x", 1, 0);
}

static void takes_from_queue(void)
{
	mq_receive(queue, buffer, 16, NULL);
}

static void counts(void)
{
	uint64_t one = 1;

	check(write(counter, &one, sizeof(one)));
}

static void touches(void)
{
	close(open(lock_file, O_RDONLY));
}

static void signals_parent(void)
{
	kill(getppid(), SIGUSR2);
}

static void wakes_parent(void)
{
	kill(getppid(), SIGUSR1);
}

static void continues_parent(void)
{
	kill(getppid(), SIGCONT);
}

static void ignores(int number)
{
	sink += number;
}

static void *wakes(void *unused)
{
	nap();
	word = 1;
	syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0);
	return unused;
}

/* Waits, while a child does first this, and later that; it says when it has done the first, and is given time to fall
 * asleep. */
static void wait_by(const char *name, void (*wait_here)(void), void (*before)(void), void (*after)(void))
{
	double begin, delayed;
	char byte = 0;

	if (after && !fork()) {
		if (before)
			before();
		check(write(begun[1], &byte, 1));
		nap();
		after();
		_exit(0);
	}
	if (after)
		check(read(begun[0], &byte, 1));
	compute(0.03);
	delayed = without_core();
	begin = now();
	wait_here();
	begin = now() - begin;
	printf("%s %.6f\n", name, begin - (without_core() - delayed));
	fflush(stdout);
	while (wait(NULL) > 0)
		;
	compute(0.03);
}

#define WAIT_BY(way, before, after) wait_by("waits_by_" #way, waits_by_##way, before, after)

static void locks(void)
{
	check(flock(open(lock_file, O_RDWR), LOCK_EX));
}

static void locks_by_fcntl(void)
{
	struct flock whole = {.l_type = F_WRLCK};

	check(fcntl(file, F_SETLKW, &whole));
}

static void locks_shared(void)
{
	pthread_mutex_lock(shared);
}

static void unlocks_shared(void)
{
	pthread_mutex_unlock(shared);
}

static void for_locks(void)
{
	pthread_mutexattr_t across;
	pthread_t thread;

	WAIT_BY(flock, locks, nothing);
	WAIT_BY(fcntl, locks_by_fcntl, nothing);
	check(semaphores = semget(IPC_PRIVATE, 1, 0600));
	WAIT_BY(semop, NULL, up);
	semctl(semaphores, 0, IPC_RMID);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_init(&across);
	pthread_mutexattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(shared, &across);
	WAIT_BY(shared_mutex, locks_shared, unlocks_shared);
	pthread_create(&thread, NULL, wakes, NULL);
	WAIT_BY(futex_waitv, NULL, NULL);
	pthread_join(thread, NULL);
}

static void for_data(void)
{
	struct mq_attr small = {.mq_maxmsg = 1, .mq_msgsize = 16};
	struct message message = {.type = 1};

	WAIT_BY(splice, NULL, writes);
	WAIT_BY(vmsplice, NULL, drains);
	WAIT_BY(write, NULL, drains);
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	WAIT_BY(recv, NULL, writes_to_pair);
	check(mkfifo(fifo, 0600));
	WAIT_BY(open, NULL, opens);
	unlink(fifo);
	check(messages = msgget(IPC_PRIVATE, 0600));
	WAIT_BY(msgrcv, NULL, sends);
	while (!msgsnd(messages, &message, sizeof(message.text), IPC_NOWAIT))
		;
	WAIT_BY(msgsnd, NULL, takes);
	msgctl(messages, IPC_RMID, NULL);
	check(queue = mq_open(path + 4, O_RDWR | O_CREAT | O_EXCL, 0600, &small));	/* below no folder */
	mq_unlink(path + 4);
	WAIT_BY(mq_receive, NULL, sends_to_queue);
	check(mq_send(queue, "x", 1, 0));
	WAIT_BY(mq_send, NULL, takes_from_queue);
	check(counter = eventfd(0, 0));
	WAIT_BY(eventfd, NULL, counts);
}

static void for_events(void)
{
	check(watch = inotify_init());
	check(inotify_add_watch(watch, lock_file, IN_OPEN));
	WAIT_BY(inotify, NULL, touches);
	sigemptyset(&told_by);
	sigaddset(&told_by, SIGUSR2);
	sigprocmask(SIG_BLOCK, &told_by, NULL);
	WAIT_BY(sigwait, NULL, signals_parent);
	check(signals = signalfd(-1, &told_by, 0));
	WAIT_BY(signalfd, NULL, signals_parent);
	signal(SIGUSR1, ignores);
	WAIT_BY(pause, NULL, wakes_parent);
	WAIT_BY(stop, NULL, continues_parent);
}

int main(void)
{
	check(file = mkstemp(path));
	snprintf(lock_file, sizeof(lock_file), "%s", path);
	snprintf(fifo, sizeof(fifo), "%s.fifo", path);
	check(pipe(begun));
	check(pipe(data));
	check(pipe(other));
	compute(0.1);
	for_locks();
	for_data();
	WAIT_BY(vfork, NULL, NULL);
	WAIT_BY(waitid, NULL, nothing);
	for_events();
	unlink(path);
	return 0;
}
