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
#include "wire_calls.h"
#include "wire_counters.h"
#include "wire_languages.h"
#include "wire_records.h"
#include "thread_state.h"
#include "amounts.h"

#define PF_EXITING 0x4
#define PF_IO_WORKER 0x10
#define PF_KTHREAD 0x200000
#define SIGSTOP 19
#define E2BIG 7
#define EEXIST 17
#ifndef MAX_CPUS	/* parprof/kernel/compiler.py: as many as there may be here, for the verifier goes through each */
#define MAX_CPUS 1024	/* whose run queues are read: see LOST_CPUS; a power of two */
#endif

/* Address of each CPU's run queue, as its samples found it; 0 = not yet. */
struct runqueue_list {
	u64 at[MAX_CPUS];
};

/* What is found out about a thread and those beside it: see n_working_now. */
struct judgement {
	s32 beside;	/* threads of other processes of the scope that work; they are in n_working */
	u16 n_working;
	u8 state;	/* enum thread_state_kind */
	u8 unsure;	/* as in struct sample_key */
};

/* What shared functions are given (parprof/kernel/linking.py): one pointer, to something of a size that is known. */

/* See move_scope, change_loiterers, cut_dearest, insert_thread. */
struct thread_change {
	s64 change;	/* so many more threads work */
	s64 places;	/* by so much its word of this name changes */
	u64 now;	/* the time, if that is known, or 0 */
	u32 number;	/* the scope; where the function is about a process, that */
	u32 tid;	/* the thread that changes */
};

/* See others_by_ticks, memory_working. */
struct look {
	u64 at;		/* what is looked at next: see count_workers, find_queued */
	u64 registers;	/* see registers_at */
	u32 tgid;
	u32 tid;
	u32 is_sample;
	u32 scope;
	u32 next;	/* a number of it: a CPU, a worker; how many were looked at */
	u32 most;	/* there are so many */
};

/* See polls.bpf.c. */
struct poll_look {
	u64 list;	/* of poll(); or the file that epoll_wait() waits at */
	u64 set;	/* of select(), a bit for each file */
	u64 count;
	u64 is_list;
	u64 is_timed;
	u64 file;	/* the one that is looked at just now */
	u64 fd;		/* and its number */
	u64 node;	/* of the tree of epoll_wait(), where that is; and from which it came there */
	u64 from;
	u64 found;
};

BPF_TABLE("hash", struct sample_key, struct sample_value, counts, 65536);
BPF_TABLE("hash", u32, struct process, processes, 8192);
BPF_TABLE("hash", u32, struct process_config, configs, 8192);
BPF_TABLE("hash", u32, struct thread, threads, 16384);
BPF_TABLE("hash", u32, struct scope, scopes, 8192);	/* 1.2 kB each: see FEW_SCOPES in parprof/kernel/sizes.py */
BPF_TABLE("lru_hash", u64, struct wait_site, wait_sites, 16384);
BPF_TABLE("lru_hash", u64, u32, sent_stacks, 65536);
BPF_TABLE("hash", u64, u64, learned, 16384);
BPF_TABLE("hash", u32, struct mapping_list, mapping_lists, 8192);	/* by tgid */
BPF_TABLE("hash", u32, struct interpreter, interpreters, 8192);
BPF_TABLE("hash", u32, struct jvm, jvms, 1024);
BPF_F_TABLE("array", u32, u64, store_chunk, 1 << CHUNK_SHIFT, BPF_F_MMAPABLE);
BPF_ARRAY_OF_MAPS(store, "store_chunk", MAX_CHUNKS);
BPF_TABLE("lru_hash", struct work_key, u64, created, 16384);
/* The thread that was told to have ended last on a CPU, and where it was created: what the kernel still does for it, as a rule
 * there, is its creator's. */
struct ended_thread {
	u64 context;
	u32 tid;
	u32 unused;
};
BPF_TABLE("percpu_array", u32, struct ended_thread, ended_threads, 1);
BPF_TABLE("lru_hash", struct lock_key, s32, lock_waiters, 4096);
BPF_TABLE("percpu_array", u32, u64, counters, COUNTERS);
BPF_TABLE("lru_hash", u32, u32, verdicts, 16384);
BPF_TABLE("lru_hash", u64, u32, plain_programs, 4096);	/* executables that need not be stopped: see program_of */
BPF_TABLE("array", u32, struct runqueue_list, runqueues, 1);
BPF_TABLE("array", u32, struct settings, settings_map, 1);
BPF_RINGBUF_OUTPUT(stacks, 1024);
BPF_RINGBUF_OUTPUT(control, 256);	/* 1 MiB: some seconds of 1,000 processes a second */
BPF_RINGBUF_OUTPUT(trace, 1024);
/* never used: they tell Python the layout of records that travel through ring buffers */
BPF_TABLE("array", u32, struct control_record, layout_control, 1);
BPF_TABLE("array", u32, struct trace_record, layout_trace, 1);
BPF_TABLE("array", u32, struct thread_record, layout_thread, 1);
BPF_TABLE("array", u32, struct path_record, layout_path, 1);
BPF_TABLE("array", u32, struct thread_change, layout_thread_change, 1);
BPF_TABLE("array", u32, struct look, layout_look, 1);
BPF_TABLE("array", u32, struct poll_look, layout_poll_look, 1);

static __always_inline void count(u32 which)
{
	u64 *counter = counters.lookup(&which);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* Makes the verifier forget what it knows of a value: else it follows the code behind a search once for each number of
 * steps that the search can take, and for each word that may be missing. `hidden`: a word of map memory. */
static __always_inline u64 forget_in(u64 *hidden, u64 value)
{
	*(volatile u64 *)hidden = value;
	return *(volatile u64 *)hidden;
}

/* In which slice of the time something is counted that comes now. */
static __always_inline u16 slice_of(struct settings *s, u64 now)
{
	return s->slice_ns && now > s->slices_begin_ns ? (now - s->slices_begin_ns) / s->slice_ns : 0;
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

/* The system call by which a thread has entered the kernel, from its registers there; -1: none, but by an interrupt. */
static __always_inline u64 entered_by(struct pt_regs *regs)
{
	u64 call = ~0ULL;

	bpf_probe_read_kernel(&call, sizeof(call), &regs->orig_ax);
	return call;
}

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

#define IOU_SQP 0x7071732d756f69ULL	/* "iou-sqp" */

/* Whether the current thread is the kernel's, made for io_uring, that looks again and again whether the program wants something
 * (IORING_SETUP_SQPOLL). Only its name tells it from those that read and write. */
static __always_inline int polls_for_io(void)
{
	u64 name = 0;

	if (!(task_flags((void *)bpf_get_current_task()) & PF_IO_WORKER))
		return 0;
	bpf_get_current_comm(&name, sizeof(name));
	return name == IOU_SQP;
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

/* Whether a debugger follows a thread: it would take a stop of ours for the program's own. */
static __always_inline int is_traced(void *task)
{
	u32 ptrace = 0;

	bpf_probe_read_kernel(&ptrace, sizeof(ptrace), task + TASK_PTRACE);
	return ptrace != 0;
}

/* Which of the process's numbers of threads hold. */
static __always_inline u32 parity(struct process *p)
{
	return p->generation & 1;
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
