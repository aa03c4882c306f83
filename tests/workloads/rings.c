// SPDX-License-Identifier: Apache-2.0
/* Waits in io_uring and in the kernel's older asynchronous I/O (aio), for a time, a pipe, a socket, and a file that is read
 * past the cache. Every way has a function of its own; how long it took is printed as a line `function seconds`. Ends with
 * 77 where the kernel lets nobody have a ring, or the file system of the working directory cannot be read so. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define WAIT_S 0.25
#define BLOCK (1 << 18)
#define BLOCKS 64

static volatile unsigned long sink;
static int ring, file, data[2], pair[2];
static volatile unsigned *queue_tail, *done_head, *done_tail;
static unsigned *places, queue_mask, done_mask;
static struct io_uring_sqe *wanted;
static struct io_uring_cqe *done;
static void *block;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *map(size_t size, off_t offset)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);

	if (at == MAP_FAILED)
		exit(77);
	return at;
}

static void set_up(void)
{
	struct io_uring_params how = { 0 };
	char *queue, *finished;

	ring = syscall(SYS_io_uring_setup, 8, &how);
	if (ring < 0)
		exit(77);
	queue = map(how.sq_off.array + how.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	finished = map(how.cq_off.cqes + how.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	wanted = map(how.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
	queue_tail = (unsigned *)(queue + how.sq_off.tail);
	queue_mask = *(unsigned *)(queue + how.sq_off.ring_mask);
	places = (unsigned *)(queue + how.sq_off.array);
	done_head = (unsigned *)(finished + how.cq_off.head);
	done_tail = (unsigned *)(finished + how.cq_off.tail);
	done_mask = *(unsigned *)(finished + how.cq_off.ring_mask);
	done = (struct io_uring_cqe *)(finished + how.cq_off.cqes);
}

/* Have the ring do something, and wait until that is done. */
static int do_by_ring(struct io_uring_sqe what)
{
	unsigned tail = *queue_tail;
	int result;

	wanted[tail & queue_mask] = what;
	places[tail & queue_mask] = tail & queue_mask;
	__atomic_store_n(queue_tail, tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		exit(77);
	result = done[*done_head & done_mask].res;
	__atomic_store_n(done_head, *done_head + 1, __ATOMIC_RELEASE);
	return result;
}

static NOINLINE void waits_by_ring_for_time(void)
{
	struct __kernel_timespec t = { 0, WAIT_S * 1e9 };

	for (int i = 0; i < 4; i++)
		do_by_ring((struct io_uring_sqe){ .opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (uintptr_t)&t, .len = 1 });
	sink++;
}

static NOINLINE void waits_by_ring_for_pipe(void)
{
	for (int i = 0; i < 4; i++)
		do_by_ring((struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = data[0], .addr = (uintptr_t)block, .len = 1 });
	sink++;
}

static NOINLINE void waits_by_ring_for_socket(void)
{
	for (int i = 0; i < 4; i++)
		do_by_ring((struct io_uring_sqe){ .opcode = IORING_OP_RECV, .fd = pair[0], .addr = (uintptr_t)block, .len = 1 });
	sink++;
}

static NOINLINE void waits_by_ring_for_file(void)
{
	double end = now() + 4 * WAIT_S;

	for (long i = 0; now() < end; i++)
		if (do_by_ring((struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = file, .addr = (uintptr_t)block,
						      .len = BLOCK, .off = i * 37 % BLOCKS * BLOCK }) < 0)
			exit(77);
	sink++;
}

static NOINLINE void waits_by_aio_for_file(void)
{
	double end = now() + 4 * WAIT_S;
	aio_context_t context = 0;

	if (syscall(SYS_io_setup, 8, &context))
		exit(77);
	for (long i = 0; now() < end; i++) {
		struct iocb what = { .aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)block,
				     .aio_nbytes = BLOCK, .aio_offset = i * 37 % BLOCKS * BLOCK };
		struct iocb *list = &what;
		struct io_event event;

		if (syscall(SYS_io_submit, context, 1, &list) != 1 ||
		    syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1)
			exit(77);
	}
	sink++;
}

static void told(const char *name, void (*way)(void), int to)
{
	double begin;

	if (to >= 0 && !fork()) {
		for (int i = 0; i < 4; i++) {
			usleep(WAIT_S * 1e6);
			sink += write(to, "x", 1);
		}
		_exit(0);
	}
	if (to >= 0)
		close(to);
	begin = now();
	way();
	printf("%s %.6f\n", name, now() - begin);
	fflush(stdout);
	while (wait(NULL) > 0)
		;
}

int main(void)
{
	char name[] = "rings-XXXXXX";
	int plain = mkstemp(name);

	if (posix_memalign(&block, 4096, BLOCK))
		return 77;
	memset(block, 1, BLOCK);
	for (int i = 0; i < BLOCKS; i++)
		if (write(plain, block, BLOCK) != BLOCK)
			return 77;
	fsync(plain);
	file = open(name, O_RDONLY | O_DIRECT);
	unlink(name);
	if (file < 0 || pipe(data) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 77;
	set_up();
	told("waits_by_ring_for_time", waits_by_ring_for_time, -1);
	told("waits_by_ring_for_pipe", waits_by_ring_for_pipe, data[1]);
	told("waits_by_ring_for_socket", waits_by_ring_for_socket, pair[1]);
	told("waits_by_ring_for_file", waits_by_ring_for_file, -1);
	told("waits_by_aio_for_file", waits_by_aio_for_file, -1);
	return 0;
}
