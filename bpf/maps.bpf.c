/* SPDX-License-Identifier: Apache-2.0
 *
 * First part of the one BPF object: types, maps and what all programs share. BCC rewrites map methods only
 * in the main text, so the *.bpf.c files are compiled as one text, in the order of OBJECT_PARTS
 * (parprof/kernel/compiler.py). Kernel offsets come as -D from its BTF.
 * Needs Linux 5.15 (attach cookies, bpf_task_pt_regs).
 */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
struct bpf_perf_event_data {
	struct pt_regs regs;
	u64 sample_period;
	u64 addr;
};

#include <uapi/linux/bpf.h>

#define barrier() asm volatile("" ::: "memory")

#include "wire.h"
#include "thread_state.h"

#define PF_EXITING 0x4
#define PF_KTHREAD 0x200000
#define SIGSTOP 19
#define E2BIG 7
#define EEXIST 17
#ifndef MAX_CPUS	/* parprof/kernel/compiler.py: as many as there may be here, for the verifier goes through each */
#define MAX_CPUS 256	/* whose run queues are read: see LOST_CPUS; a power of two */
#endif

/* Address of each CPU's run queue, as its samples found it; 0 = not yet. */
struct runqueue_list {
	u64 at[MAX_CPUS];
};

BPF_TABLE("hash", struct sample_key, struct sample_value, counts, 65536);
BPF_TABLE("hash", u32, struct process, processes, 8192);
BPF_TABLE("hash", u32, struct process_config, configs, 8192);
BPF_TABLE("hash", u32, struct thread, threads, 16384);
BPF_TABLE("lru_hash", u64, u32, sent_stacks, 65536);
BPF_TABLE("hash", u64, u64, learned, 16384);
BPF_TABLE("hash", u32, struct mapping_list, mapping_lists, 8192);	/* by tgid */
BPF_TABLE("hash", u32, struct interpreter, interpreters, 8192);
BPF_F_TABLE("array", u32, u64, store_chunk, 1 << CHUNK_SHIFT, BPF_F_MMAPABLE);
BPF_ARRAY_OF_MAPS(store, "store_chunk", MAX_CHUNKS);
BPF_TABLE("lru_hash", struct work_key, u64, created, 16384);
BPF_TABLE("lru_hash", u32, u64, last_contexts, 1024);	/* of threads that ended lately: where each was created */
BPF_TABLE("lru_hash", struct lock_key, s32, lock_waiters, 4096);
BPF_TABLE("percpu_array", u32, u64, counters, COUNTERS);
BPF_TABLE("lru_hash", u32, u32, verdicts, 16384);
BPF_TABLE("lru_hash", u64, u32, plain_programs, 4096);	/* executables that need not be stopped: see program_of */
BPF_TABLE("percpu_array", u32, u64, scratch, 1);
BPF_TABLE("array", u32, struct runqueue_list, runqueues, 1);
BPF_TABLE("array", u32, struct settings, settings_map, 1);
BPF_RINGBUF_OUTPUT(stacks, 1024);
BPF_RINGBUF_OUTPUT(control, 256);	/* 1 MiB: some seconds of 1,000 processes a second */
BPF_RINGBUF_OUTPUT(trace, 1024);
/* never used: they tell Python the layout of records that travel through ring buffers */
BPF_TABLE("array", u32, struct control_record, layout_control, 1);
BPF_TABLE("array", u32, struct trace_record, layout_trace, 1);

static __always_inline void count(u32 which)
{
	u64 *counter = counters.lookup(&which);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0xff51afd7ed558ccdULL;
	return hash ^ hash >> 32;
}

#ifdef PID_NAMESPACE
#define NAMESPACE_STEPS 4

/* The PID that a task has in our own PID namespace; 0 if it lives outside of it. */
static __always_inline u32 pid_here(void *task)
{
	void *pid = 0, *namespace, *at;
	u32 level = 0, number, nr = 0;

	bpf_probe_read_kernel(&pid, sizeof(pid), task + TASK_THREAD_PID);
	if (!pid)
		return 0;
	bpf_probe_read_kernel(&level, sizeof(level), pid + PID_LEVEL);
#pragma unroll
	for (u32 i = 0; i < NAMESPACE_STEPS; i++) {
		if (i > level)
			return 0;
		at = pid + PID_NUMBERS + (u64)(level - i) * UPID_SIZE;
		namespace = 0;
		number = 0;
		bpf_probe_read_kernel(&namespace, sizeof(namespace), at + UPID_NAMESPACE);
		bpf_probe_read_kernel(&number, sizeof(number), namespace + NAMESPACE_NUMBER);
		if (number == PID_NAMESPACE) {
			bpf_probe_read_kernel(&nr, sizeof(nr), at);
			return nr;
		}
	}
	return 0;
}

static __always_inline u64 ids_of(void *task)
{
	void *leader = 0;
	u32 tid = pid_here(task), tgid;

	if (!tid)
		return 0;
	bpf_probe_read_kernel(&leader, sizeof(leader), task + TASK_GROUP_LEADER);
	tgid = pid_here(leader);
	return tgid ? (u64)tgid << 32 | tid : 0;
}

static __always_inline u64 current_ids(void)
{
	return ids_of((void *)bpf_get_current_task());
}
#else
static __always_inline u64 ids_of(void *task)
{
	u64 ids = 0;

	/* pid and tgid are neighbours in task_struct: one read gives pid in the low, tgid in the high half */
	bpf_probe_read_kernel(&ids, sizeof(ids), task + TASK_PID);
	return ids;
}

static __always_inline u64 current_ids(void)
{
	return bpf_get_current_pid_tgid();
}
#endif

static __always_inline u32 task_flags(void *task)
{
	u32 flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), task + TASK_FLAGS);
	return flags;
}

static __always_inline int is_exiting(void *task)
{
	return task_flags(task) & PF_EXITING;
}

#ifdef FILE_INODE
/* The inode of a struct file, with its number and its device; what cannot be read stays as it is. */
static __always_inline u64 inode_of(u64 file, u64 *number, u32 *device)
{
	u64 inode = 0, block = 0;

	bpf_probe_read_kernel(&inode, 8, (void *)file + FILE_INODE);
	bpf_probe_read_kernel(number, 8, (void *)inode + INODE_NUMBER);
	bpf_probe_read_kernel(&block, 8, (void *)inode + INODE_SUPER_BLOCK);
	bpf_probe_read_kernel(device, 4, (void *)block + SUPER_BLOCK_DEVICE);
	return inode;
}
#endif

/* For kernels whose sched_switch does not pass it. */
static __always_inline u32 task_state(void *task)
{
	u32 state = 0;

	bpf_probe_read_kernel(&state, sizeof(state), task + TASK_STATE);
	return state;
}

/* Which of the process's numbers of threads hold. */
static __always_inline u32 parity(struct process *p)
{
	return p->generation & 1;
}

/* The only place where n_working changes (but for the reset at exec, and by on_command of the number not in use). */
static __always_inline void recount(struct process *p, struct thread *t)
{
	u8 want = is_working(t);

	if (want == t->counted)
		return;
	t->counted = want;
	__sync_fetch_and_add(&p->n_working[parity(p)], want ? 1 : -1);
}

static __always_inline void set_blocked_outside(struct process *p, struct thread *t, u8 want)
{
	if (t->blocked_outside == want)
		return;
	t->blocked_outside = want;
	__sync_fetch_and_add(&p->n_blocked_outside[parity(p)], want ? 1 : -1);
}

static __always_inline void set_blocked_inside(struct process *p, struct thread *t, u8 want)
{
	if (t->blocked_inside == want)
		return;
	t->blocked_inside = want;
	__sync_fetch_and_add(&p->n_blocked_inside[parity(p)], want ? 1 : -1);
}

/* One thread more, or less, waits for a lock. */
static __always_inline void count_waiter(u64 address, u32 tgid, s32 change)
{
	struct lock_key key = {};
	s32 none = 0, *waiters;

	key.address = address;
	key.tgid = tgid;
	waiters = change > 0 ? lock_waiters.lookup_or_try_init(&key, &none) : lock_waiters.lookup(&key);
	if (waiters)
		__sync_fetch_and_add(waiters, change);
}

/* The thread's wait for a pthread mutex is over: it holds it now, or soon. */
static __always_inline void end_lock_wait(struct thread *t)
{
	if (!t->waits_on)
		return;
	t->last_lock = t->waits_on;
	count_waiter(t->waits_on, t->tgid, -1);
	t->waits_on = 0;
}

/* The same for a lock of the runtime. */
static __always_inline void end_runtime_lock_wait(struct thread *t)
{
	if (t->lock_wait)
		count_waiter(t->lock_wait, t->tgid, -1);
	t->lock_wait = 0;
}

static __always_inline void set_unknown(struct process *p, struct thread *t, u8 unknown)
{
	if (t->unknown == unknown)
		return;
	if (t->unknown == 1 || unknown == 1)
		__sync_fetch_and_add(&p->n_unknown[parity(p)], unknown == 1 ? 1 : -1);
	t->unknown = unknown;
}

/* Switches were not followed for a while: nobody knows who sleeps. Each thread is counted again when it shows itself;
 * until then it sleeps. Call it before anything else that changes a thread. */
static __always_inline void rejoin(struct process *p, struct thread *t)
{
	if (t->generation == (u8)p->generation)
		return;
	t->generation = p->generation;
	t->counted = 0;
	t->blocked = 1;
	t->blocked_outside = t->blocked_inside = 0;
	t->ready_since_ns = 0;
	if (t->unknown == 1)	/* as it is counted: anew */
		__sync_fetch_and_add(&p->n_unknown[parity(p)], 1);
}

/* The thread runs, or is about to. */
static __always_inline void unblock(struct process *p, struct thread *t)
{
	t->blocked = 0;
	set_blocked_outside(p, t, 0);
	set_blocked_inside(p, t, 0);
	end_lock_wait(t);
	if (t->unknown == 2)
		set_unknown(p, t, 1);
}

/* The process went over from edges to leaves, or back: what the thread's frames say is out of date. */
static __always_inline void follow_source(struct process *p, struct thread *t)
{
	if (t->from_leaves == (u8)p->from_leaves || t->busy)
		return;
	t->base_work = in_work(t);
	t->depth = 0;
	t->caught_working = 0;
	t->from_leaves = p->from_leaves;
	set_unknown(p, t, 1);
}

static __always_inline void set_member(struct process *p, struct thread *t)
{
	s32 members;

	if (t->member)
		return;
	t->member = 1;
	__sync_fetch_and_add(&p->members, 1);	/* BCC's BPF has no fetching atomics: two joining at once may */
	members = p->members;			/* both read the sum, never less than the truth */
	if (members > p->members_max)
		p->members_max = members;
}

/* 1 if start <= address < end, without a branch: the verifier would follow each combination of them. */
static __always_inline u64 within(u64 address, u64 start, u64 end)
{
	return ((address - start) >> 63 ^ 1) & (address - end) >> 63;
}

/* In which runtime range does the address lie? */
static __always_inline int in_runtime(struct process_config *c, u64 address)
{
	u64 hit = 0;

#pragma unroll
	for (int i = 0; i < MAX_RUNTIME_RANGES; i++)
		hit |= within(address, c->range_start[i], c->range_end[i]);
	return hit;
}

/* Is it the code of a file that calls the runtime? */
static __always_inline int in_user_code(struct process_config *c, u64 address)
{
	u64 hit = 0;

#pragma unroll
	for (int i = 0; i < MAX_USER_RANGES; i++)
		hit |= within(address, c->user_start[i], c->user_end[i]);
	return hit;
}

/* Does a thread wait that runs the runtime's code at this address? */
static __always_inline int in_wait_code(struct process_config *c, u64 address)
{
	u64 hit = 0;

	if (!c->wait_end[0])
		return in_runtime(c, address);
#pragma unroll
	for (int i = 0; i < MAX_WAIT_RANGES; i++)
		hit |= within(address, c->wait_start[i], c->wait_end[i]);
	return hit;
}

static __always_inline int in_libc(struct process_config *c, u64 address)
{
	u64 hit = 0;

#pragma unroll
	for (int i = 0; i < MAX_LIBC_RANGES; i++)
		hit |= within(address, c->libc_start[i], c->libc_end[i]);
	return hit;
}

/* Is the leaf runtime code that waits, or a libc stub (futex, sched_yield) called by it? */
static __always_inline int leaf_waits(struct process_config *c, u64 ip, u64 sp)
{
	u64 caller = 0;

	if (in_wait_code(c, ip))
		return 1;
	if (!in_libc(c, ip))
		return 0;
	if (bpf_probe_read_user(&caller, sizeof(caller), (void *)sp))
		return 0;
	return in_wait_code(c, caller);
}

/* Adds a thread that no fork event announced: it was there before us. */
static __always_inline struct thread *add_thread(struct process *p, u32 tgid, u32 tid, u8 blocked)
{
	struct process_config *config = configs.lookup(&tgid);
	u32 zero = 0;
	struct thread *t = threads.lookup(&zero);	/* entry 0 is a template of zeroes */

	if (!t || threads.insert(&tid, t) == -E2BIG) {
		count(LOST_THREADS_FULL);
		return 0;
	}
	t = threads.lookup(&tid);
	if (!t)
		return 0;
	t->tgid = tgid;
	t->image = p->image;
	t->generation = p->generation;
	t->is_main = tid == tgid;
	t->blocked = blocked;
	t->base_work = 1;
	t->unknown = 3;
	t->from_leaves = p->from_leaves;
	if (config && (config->flags & HAS_RUNTIME)) {
		t->base_work = t->is_main;
		set_unknown(p, t, 1);
	}
	recount(p, t);
	return t;
}

static __always_inline void remove_thread(struct process *p, struct thread *t, u32 tid)
{
	if (p->image == t->image) {
		rejoin(p, t);
		if (t->counted)
			__sync_fetch_and_add(&p->n_working[parity(p)], -1);
		if (t->member)
			__sync_fetch_and_add(&p->members, -1);
		set_unknown(p, t, 0);
		set_blocked_outside(p, t, 0);
		set_blocked_inside(p, t, 0);
		end_lock_wait(t);
		end_runtime_lock_wait(t);
	}
	threads.delete(&tid);
}

static __always_inline void fill_record(struct control_record *r, u32 type, u32 tgid, u32 tid, u32 image, u64 address)
{
	r->type = type;
	r->tgid = tgid;
	r->tid = tid;
	r->image = image;
	r->address = address;
	r->time_ns = bpf_ktime_get_ns();
}

static __always_inline void send_record(struct control_record *r, u64 wakeup)
{
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	if (control.ringbuf_output(r, sizeof(*r), wakeup))
		count(LOST_CONTROL_RING);
}

static __always_inline void tell(u32 type, u32 tgid, u32 tid, u32 image, u64 address)
{
	struct control_record r = {};

	fill_record(&r, type, tgid, tid, image, address);
	send_record(&r, BPF_RB_FORCE_WAKEUP);
}

/* That the process waits, stopped, for Python. */
static __always_inline void tell_stopped(u32 type, u32 tgid, u32 tid, u32 image, u64 address, u32 stopped)
{
	struct control_record r = {};

	fill_record(&r, type, tgid, tid, image, address);
	r.stopped = stopped;
	send_record(&r, BPF_RB_FORCE_WAKEUP);
}

/* What nothing waits for: Python looks often enough, and has many at a time then. To be woken for each takes more of the
 * machine than all else that is done for a short process. */
static __always_inline void tell_calmly(u32 type, u32 tgid, u32 tid, u32 image, u32 parent, u64 address)
{
	struct control_record r = {};

	fill_record(&r, type, tgid, tid, image, address);
	r.parent_tgid = parent;
	send_record(&r, BPF_RB_NO_WAKEUP);
}
