/* SPDX-License-Identifier: Apache-2.0
 *
 * What a thread waits for that goes to sleep in poll(), select() or epoll_wait(), where what it looks at tells: for time to
 * pass, if poll() or select() looks at no file, or for a time at nothing but counters (eventfd), by which threads wake each
 * other, and if all looks at nothing but timers; for an answer, if it looks at a connection that it has made itself, as
 * clients with a timeout do, and those that are written around a loop of events; for a pipe, if it looks at nothing but
 * pipes that lead to other processes, as who collects what its children write; and for the end of a child, if it looks at
 * nothing else from outside than that (`pidfd`, or SIGCHLD by `signalfd`). All else, above all what a server looks at, may be
 * a request. And who reads from the end of a pair of sockets, which are a pipe for both directions, waits for a pipe. The
 * rules are those of parprof/process/polled.py.
 */
#define READ_CALL 0
#define RECVFROM_CALL 45
#define RECVMSG_CALL 47
#define POLL_CALL 7
#define SELECT_CALL 23
#define PSELECT_CALL 270
#define PPOLL_CALL 271
#define EPOLL_WAIT_CALL 232
#define EPOLL_PWAIT_CALL 281
#define EPOLL_PWAIT2_CALL 441
#define RING_ENTER_CALL 426
#define AIO_CALL 208	/* io_getevents */
#define AIO_PCALL 333
#define MAX_POLLED 3	/* who looks at more files serves somebody */
#define MAX_EPOLLED 16	/* the same of a set that is kept, which has timers and the like in it */
#define MAX_ASKED 4	/* requests of io_uring that are looked at: the newest */
#define STEPS_EACH 3	/* down to a node of a tree, to what is on the right of it, and up again */
#define CLIENT_PORTS 32768	/* the kernel gives those who connect a port from there on */
#define FILE_KIND 0170000
#define SOCKET_FILE 0140000
#define PIPE_FILE 0010000
#define CHARACTER_FILE 0020000
#define REGULAR_FILE 0100000
#define BLOCK_FILE 0060000
#define RING_FIXED_FILE 1	/* a flag of a request: the file is one that the ring knows by another number */
#define RING_WITHOUT_PLACES (1 << 16)	/* flags of the ring */
#define RING_LONG_REQUESTS (1 << 10)
#define RING_ENTER_REGISTERED (1 << 4)	/* of the call: the ring is one that is known by another number */
#define RING_TIMEOUT 11
#define RING_LINK_TIMEOUT 15
/* Codes of requests, as bits: readv, writev, fixed ones, read and write; and, with these, fsync, sync_file_range, fallocate,
 * openat, close, statx, fadvise, madvise, openat2, renameat, unlinkat, mkdirat and ftruncate. */
#define RING_TRANSFER_CODES (1ULL << 1 | 1ULL << 2 | 1ULL << 4 | 1ULL << 5 | 1ULL << 22 | 1ULL << 23)
#define RING_FILE_CODES \
	(RING_TRANSFER_CODES | 1ULL << 3 | 1ULL << 8 | 1ULL << 17 | 1ULL << 18 | 1ULL << 19 | 1ULL << 21 | 1ULL << 24 | \
	 1ULL << 25 | 1ULL << 28 | 1ULL << 35 | 1ULL << 36 | 1ULL << 37 | 1ULL << 55)
#define UNIX 1
#define INTERNET_4 2
#define INTERNET_6 10
#define LISTENS 10
#define NAME_OF_PIDFD 0x005d64666469705bULL	/* [pidfd] */
#define PIDFS 0x50494446	/* where these have no name, but a file system of their own: since Linux 6.9 */
#define CHILD_ENDS (1ULL << 16)	/* SIGCHLD, and the signals that end a process: SIGHUP, SIGINT, SIGQUIT and SIGTERM */
#define SELF_ENDS (1ULL | 1ULL << 1 | 1ULL << 2 | 1ULL << 14)

/* What files are together is the bits of each. */
enum polled {
	POLLED_OTHER = 64,	/* neither speaks for a request nor against it */
	POLLED_ANSWER = 1,
	POLLED_REQUEST = 2,
	POLLED_PIPE = 4,
	POLLED_EVENTS = 8,	/* signals, say: no pipe, so not pipes alone */
	POLLED_TIMER = 16,
	POLLED_COUNTER = 32,
	POLLED_CHILD = 128,
};

#ifdef TASK_FILES
static __always_inline u64 kernel_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline u16 kernel_half(u64 address)
{
	u16 half = 0;

	bpf_probe_read_kernel(&half, sizeof(half), (void *)address);
	return half;
}

/* A file that the current process has open; 0: none. */
static __always_inline u64 open_file(u32 fd)
{
	u64 table = kernel_word(kernel_word(bpf_get_current_task() + TASK_FILES) + FILES_TABLE);
	u32 most = 0;

	bpf_probe_read_kernel(&most, sizeof(most), (void *)(table + TABLE_SIZE));
	return fd < most ? kernel_word(kernel_word(table + TABLE_FILES) + (u64)fd * sizeof(u64)) : 0;
}

/* Whether a connection was accepted: it has the backlog of the socket that listens for it. */
static __always_inline int is_accepted(u64 sock)
{
	u32 backlog = 0;

	bpf_probe_read_kernel(&backlog, sizeof(backlog), (void *)(sock + SOCK_BACKLOG));
	return backlog != 0;
}

/* Whether a process has both ends of a pipe, to wake itself up by; or it is what it was started with to read from. */
static __always_inline int is_own_pipe(struct poll_look *look)
{
	u64 pipe = kernel_word(look->file + POLLED_INODE), before, after;

	before = look->fd ? open_file((u32)look->fd - 1) : look->file;
	after = open_file((u32)look->fd + 1);
	return (before && kernel_word(before + POLLED_INODE) == pipe) || (after && kernel_word(after + POLLED_INODE) == pipe);
}

#ifdef UNIX_PEER
/* Whether the server with this name tells of events rather than that it answers: a desktop's, and the bus by which programs
 * ask each other. The names begin so: /tmp/.X1, /run/use(r), /run/dbu(s), and the first of these without a file. */
static __always_inline int tells_events(u64 address)
{
	u64 name = kernel_word(address + UNIX_NAME), x11 = 0x31582e2f706d742fULL;

	return name == x11 || name == x11 << 8 || name == 0x6573752f6e75722fULL || name == 0x7562642f6e75722fULL;
}

/* Which of these a Unix socket is: who was accepted has the name of the socket that listened, who connects has none as a
 * rule, but one at the other end. The ends of a pair have neither. */
static __always_inline u64 kind_of_unix(u64 sock)
{
	u64 peer = kernel_word(sock + UNIX_PEER), theirs;

	if (kernel_word(sock + UNIX_ADDRESS))
		return POLLED_REQUEST;
	theirs = peer ? kernel_word(peer + UNIX_ADDRESS) : 0;
	if (!theirs)
		return POLLED_OTHER;
	return tells_events(theirs) ? POLLED_REQUEST : POLLED_ANSWER;
}
#endif

/* Whether it is a process. */
static __always_inline int is_process(u64 file, u64 name)
{
#ifdef SUPER_BLOCK_MAGIC
	u64 super_block = kernel_word(kernel_word(file + POLLED_INODE) + POLLED_SUPER_BLOCK);

	if (kernel_word(super_block + SUPER_BLOCK_MAGIC) == PIDFS)
		return 1;
#endif
	return name == NAME_OF_PIDFD;
}

/* The same of a file that has no place in a file system, which is told by its name. */
static __always_inline u64 kind_of_events(u64 file)
{
#ifdef FILE_DENTRY
	u64 name = kernel_word(kernel_word(kernel_word(file + FILE_DENTRY) + DENTRY_NAME));

	if (name == 0x646672656d69745bULL)	/* [timerfd] */
		return POLLED_TIMER;
	if (name == 0x6466746e6576655bULL)	/* [eventfd] */
		return POLLED_COUNTER;
	if (is_process(file, name))
		return POLLED_CHILD;
	if (name == 0x666c616e6769735bULL) {	/* [signalfd]: what it has is what it leaves out */
		name = ~kernel_word(kernel_word(file + POLLED_PRIVATE));
		return (name & ~SELF_ENDS) == CHILD_ENDS ? POLLED_CHILD : POLLED_EVENTS;
	}
#endif
	return POLLED_EVENTS;
}

/* Which of these a file is that the current thread looks at. */
u64 kind_polled(u64 given)
{
	struct poll_look *look = (struct poll_look *)given;
	u64 sock, file;
	u16 kind, family, near, far;

	if (!look || !look->file)
		return POLLED_OTHER;
	file = look->file;
	kind = kernel_half(kernel_word(file + POLLED_INODE) + INODE_MODE) & FILE_KIND;
	if (kind == CHARACTER_FILE)	/* a terminal: keys */
		return POLLED_REQUEST;
	if (kind == PIPE_FILE)
		return is_own_pipe(look) ? POLLED_OTHER : POLLED_PIPE;
	if (kind != SOCKET_FILE)
		return kind_of_events(file);
	sock = kernel_word(kernel_word(file + POLLED_PRIVATE) + SOCKET_SOCK);
	family = kernel_half(sock + SOCK_COMMON + SOCK_FAMILY);
#ifdef UNIX_PEER
	if (family == UNIX)
		return kind_of_unix(sock);
#endif
	if (family != INTERNET_4 && family != INTERNET_6)
		return POLLED_EVENTS;
	near = kernel_half(sock + SOCK_COMMON + SOCK_PORT);
	far = kernel_half(sock + SOCK_COMMON + SOCK_FAR_PORT);
	if ((kernel_half(sock + SOCK_COMMON + SOCK_STATE) & 0xff) == LISTENS || !far)
		return POLLED_REQUEST;
	return near >= CLIENT_PORTS && !is_accepted(sock) ? POLLED_ANSWER : POLLED_REQUEST;
}
#else
static __always_inline u64 open_file(u32 fd)
{
	return 0;
}

u64 kind_polled(u64 given)
{
	return POLLED_REQUEST;
}
#endif

/* What is waited for at files that are all of this together. `is_timed`: for a time. */
static __always_inline u64 awaited_of(u64 found, u64 is_timed)
{
	if ((found & ~(POLLED_OTHER | POLLED_CHILD)) == POLLED_PIPE)
		return AWAITS_PIPE;
	if ((found & POLLED_CHILD) && !(found & (POLLED_ANSWER | POLLED_REQUEST | POLLED_PIPE | POLLED_EVENTS)))
		return AWAITS_CHILD;
	if (found == POLLED_TIMER || (is_timed && found && !(found & ~(POLLED_TIMER | POLLED_COUNTER))))
		return AWAITS_TIME;
	return (found & (POLLED_ANSWER | POLLED_REQUEST)) == POLLED_ANSWER ? AWAITS_ANSWER : AWAITS_UNKNOWN;
}

static u64 (*call_kind_polled)(struct poll_look *look) = (void *)SHARED_kind_polled;

/* The number of the lowest bit of a set, which is taken out. By halves: LLVM has no code for BPF that counts bits. */
static __always_inline u64 take_lowest(u64 *set)
{
	u64 left = *set, number = 0;

#pragma clang loop unroll(full)
	for (u32 width = 32; width; width >>= 1) {
		if (left & ((1ULL << width) - 1))
			continue;
		left >>= width;
		number += width;
	}
	*set &= *set - 1;
	return number;
}

/* A place in the list of poll(), or in a set of select(): the file there, or none. */
static __always_inline u64 file_there(struct poll_look *look, u64 *set)
{
	u64 entry = 0;

	if (look->is_list) {
		if (bpf_probe_read_user(&entry, sizeof(entry), (void *)look->list))
			return ~0ULL;
		look->list += sizeof(entry);
		return (u32)entry;
	}
	return take_lowest(set);
}

/* What is known of the files that the current thread looks at. */
u64 look_at_polled(u64 given)
{
	struct poll_look *look = (struct poll_look *)given;
	u64 set, left, fd, found = 0;

	if (!look)
		return AWAITS_UNKNOWN;
	set = look->set;
	left = look->count;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_POLLED; i++) {
		if (look->is_list ? i >= left : !set)
			break;
		fd = file_there(look, &set);
		if (fd == ~0ULL)
			return AWAITS_UNKNOWN;
		look->file = open_file((u32)fd);
		look->fd = fd;
		found |= call_kind_polled(look);
	}
	return set ? AWAITS_UNKNOWN : awaited_of(found, look->is_timed);
}

static u64 (*call_look_at_polled)(struct poll_look *look) = (void *)SHARED_look_at_polled;

/* From a node of the tree of epoll_wait() to the next: down to the left, to the file there, and to what is on the right of
 * it, and up again. */
u64 epoll_step(u64 given)
{
#if defined(TASK_FILES) && defined(EPOLL_TREE)
	struct poll_look *look = (struct poll_look *)given;
	u64 node, left, right, above, came;

	if (!look)
		return 0;
	node = look->node;
	above = kernel_word(node) & ~3ULL;	/* the lowest bits are its colour */
	left = kernel_word(node + NODE_LEFT);
	right = kernel_word(node + NODE_RIGHT);
	came = look->from;
	look->from = node;
	if (came == above && left) {
		look->node = left;
		return 0;
	}
	look->node = above;
	if (came != above && came != left)
		return 0;
	look->file = kernel_word(node + EPOLLED_FILE);
	look->fd = (u32)kernel_word(node + EPOLLED_FILE + sizeof(u64));
	look->found |= call_kind_polled(look);
	if (right)
		look->node = right;
#endif
	return 0;
}

static u64 (*call_epoll_step)(struct poll_look *look) = (void *)SHARED_epoll_step;

/* The same of a set that epoll_wait() looks at, which is a tree: from left to right, for as long as nothing in it may bring
 * a request. */
u64 look_at_epoll(u64 given)
{
#if defined(TASK_FILES) && defined(EPOLL_TREE)
	struct poll_look *look = (struct poll_look *)given;

	if (!look)
		return AWAITS_UNKNOWN;
	look->node = kernel_word(kernel_word(open_file((u32)look->list) + POLLED_PRIVATE) + EPOLL_TREE);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < STEPS_EACH * MAX_EPOLLED; i++) {
		if (!look->node || look->found & POLLED_REQUEST)
			break;
		call_epoll_step(look);
	}
	return look->node ? AWAITS_UNKNOWN : awaited_of(look->found, 0);
#else
	return AWAITS_UNKNOWN;
#endif
}

static u64 (*call_look_at_epoll)(struct poll_look *look) = (void *)SHARED_look_at_epoll;

/* What a request of io_uring is for, by its code and the file that it names, if it names one by its number. */
static __always_inline u64 awaited_of_request(struct poll_look *look, u32 first)
{
#ifdef TASK_FILES
	u32 code = first & 0xff, names_file = !(first >> 8 & RING_FIXED_FILE), kind;

	if (code == RING_TIMEOUT || code == RING_LINK_TIMEOUT)
		return AWAITS_TIME;
	if (code >= 64 || !(RING_FILE_CODES >> code & 1))
		return AWAITS_UNKNOWN;
	if (!names_file || !(RING_TRANSFER_CODES >> code & 1))
		return AWAITS_FILE;
	look->file = open_file((u32)look->fd);
	kind = kernel_half(kernel_word(look->file + POLLED_INODE) + INODE_MODE) & FILE_KIND;
	if (kind == PIPE_FILE)
		return is_own_pipe(look) ? AWAITS_UNKNOWN : AWAITS_PIPE;
	return kind == REGULAR_FILE || kind == BLOCK_FILE ? AWAITS_FILE : AWAITS_UNKNOWN;
#else
	return AWAITS_UNKNOWN;
#endif
}

/* What is waited for at an io_uring: what the newest request is for, if none of the newest may bring something to do, and
 * any is not done yet. Which of them are not done nobody tells; a server asks for such things again and again. Who waits
 * there without having asked for anything, waits for what others ask. */
u64 look_at_ring(u64 given)
{
#if defined(TASK_FILES) && defined(RING_DONE)
	struct poll_look *look = (struct poll_look *)given;
	u64 ring, requests, places, first, found = AWAITS_UNKNOWN, one;
	u32 taken, size, at, flags;

	if (!look)
		return AWAITS_UNKNOWN;
	ring = kernel_word(look->file + POLLED_PRIVATE);
	flags = (u32)kernel_word(ring + RING_FLAGS);
	requests = kernel_word(ring + RING_REQUESTS);
	places = flags & RING_WITHOUT_PLACES ? 0 : kernel_word(ring + RING_PLACES);
	taken = (u32)kernel_word(ring + RING_TAKEN);
	size = (u32)kernel_word(ring + RING_SIZE);
	if (taken == (u32)kernel_word(ring + RING_DONE))
		return AWAITS_UNKNOWN;
#pragma clang loop unroll(disable)
	for (u32 i = 1; i <= MAX_ASKED; i++) {
		if (i > taken || i > size)
			break;
		at = (taken - i) & (size - 1);
		if (places)
			at = (u32)kernel_word(places + (u64)at * sizeof(u32)) & (size - 1);
		first = kernel_word(requests + ((u64)at << (flags & RING_LONG_REQUESTS ? 7 : 6)));
		look->fd = first >> 32;
		one = awaited_of_request(look, (u32)first);
		if (!one)
			return AWAITS_UNKNOWN;
		if (i == 1)
			found = one;
	}
	return found;
#else
	return AWAITS_UNKNOWN;
#endif
}

static u64 (*call_look_at_ring)(struct poll_look *look) = (void *)SHARED_look_at_ring;

/* What the current thread waits for that has called io_uring_enter() with these registers. */
static __always_inline u8 awaited_of_ring(struct pt_regs *regs)
{
	struct poll_look look = {};
	u64 how = 0;

	bpf_probe_read_kernel(&look.fd, sizeof(look.fd), &regs->di);
	bpf_probe_read_kernel(&how, sizeof(how), &regs->r10);
	if (how & RING_ENTER_REGISTERED)
		return AWAITS_UNKNOWN;
	look.file = open_file((u32)look.fd);
	return look.file ? call_look_at_ring(&look) : AWAITS_UNKNOWN;
}

/* Whether this call reads from one file. */
static __always_inline int is_read(u64 call)
{
	return call == READ_CALL || call == RECVFROM_CALL || call == RECVMSG_CALL;
}

#define TOLD_OF_READ 1
#define TOLD_OF_RING 2

/* Whether it is told as seldom as stacks are walked what is waited for in this call, as it takes a dozen words of the kernel:
 * by which way; 0 if not. */
static __always_inline u64 told_seldom(u64 call)
{
	return call == RING_ENTER_CALL ? TOLD_OF_RING : is_read(call) ? TOLD_OF_READ : 0;
}

/* What the current thread waits for that has called that with these registers. */
static __always_inline u8 awaited_of_read(struct pt_regs *regs)
{
	struct poll_look look = {};

	bpf_probe_read_kernel(&look.fd, sizeof(look.fd), &regs->di);
	look.fd = (u32)look.fd;
	look.file = open_file((u32)look.fd);
	return look.file && call_kind_polled(&look) == POLLED_OTHER ? AWAITS_PIPE : AWAITS_UNKNOWN;
}

/* The same of one that has entered the kernel by any other call. */
static __always_inline u8 awaited_outside(struct pt_regs *regs, u64 call)
{
	struct poll_look look = {};
	u64 first = 0, second = 0, third = 0, other = 0;

	if (call == EPOLL_WAIT_CALL || call == EPOLL_PWAIT_CALL || call == EPOLL_PWAIT2_CALL) {
		bpf_probe_read_kernel(&look.list, sizeof(look.list), &regs->di);
		return call_look_at_epoll(&look);
	}
	if (call == AIO_CALL || call == AIO_PCALL) {	/* who looks again after a time may have asked for nothing */
		bpf_probe_read_kernel(&look.is_timed, sizeof(look.is_timed), &regs->r8);
		return look.is_timed ? AWAITS_UNKNOWN : AWAITS_FILE;
	}
	if (call != POLL_CALL && call != PPOLL_CALL && call != SELECT_CALL && call != PSELECT_CALL)
		return AWAITS_UNKNOWN;
	bpf_probe_read_kernel(&first, sizeof(first), &regs->di);
	bpf_probe_read_kernel(&second, sizeof(second), &regs->si);
	look.is_list = call == POLL_CALL || call == PPOLL_CALL;
	bpf_probe_read_kernel(&look.is_timed, sizeof(look.is_timed), look.is_list ? &regs->dx : &regs->r8);
	if (call == POLL_CALL)	/* milliseconds; the others have the address of a time */
		look.is_timed = (s32)look.is_timed > 0;
	look.list = first;
	look.count = (u32)(look.is_list ? second : first);
	if (!look.count)
		return AWAITS_TIME;
	if (look.is_list && look.count > MAX_POLLED)
		return AWAITS_UNKNOWN;
	if (look.is_list)
		goto known;
	bpf_probe_read_kernel(&third, sizeof(third), &regs->dx);
	if (look.count > 64 || (second && bpf_probe_read_user(&look.set, sizeof(look.set), (void *)second)) ||
	    (third && bpf_probe_read_user(&other, sizeof(other), (void *)third)))
		return AWAITS_UNKNOWN;
	look.set = (look.set | other) & ~0ULL >> ((64 - look.count) & 63);
known:
	return call_look_at_polled(&look);
}
