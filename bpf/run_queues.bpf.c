/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs on the CPUs at this moment, read from their run queues: how many threads work, and how many cores others have,
 * where context switches are not followed. And, from the scheduler's own account, how long threads waited for a CPU.
 */
#define FOREIGN_SHIFT 16	/* in a sum: threads below, CPUs that other programs have above */
#define QUEUED_LOOKS 64	/* threads of a process that are looked at */
#define YIELD_CALL 24	/* sched_yield */

/* Nobody saw it wake up, nor when, nor go on after it was stopped. */
static __always_inline void found_unfollowed(struct process *p, struct thread *t)
{
	t->blocked = 0;
	if (!t->stopped)
		return;
	change_scope(p->scope, t, 0, 0, 0);	/* what is up to now was while it was stopped */
	end_stop(t);
}

/* A sample hits the thread: it is awake. Who asks for how long one slept that nobody followed is told by this. */
static __always_inline void note_shown(struct thread *t, u64 now)
{
	if (t->shown_ns && now - t->shown_ns > GAP_NS) {
		t->gap_begun_ns = t->shown_ns;
		t->gap_ended_ns = now;
	}
	t->shown_ns = now;
}

/* Whether context switches are not followed: of the process, or of any of its scope. */
static __always_inline u32 by_ticks_in(struct process *p, struct settings *s, struct scope *scope)
{
	return p->ticks | s->ticks | (scope ? scope->ticks : 0);
}

static __always_inline u32 by_ticks(struct process *p, struct settings *s)
{
	return by_ticks_in(p, s, find_scope(p->scope));
}

/* What a kernel without the fields of the scheduler that we read says of its run queues: nothing. */
static __always_inline void *current_of(u64 runqueue)
{
	void *task = 0;

#ifdef RUNQUEUE_CURRENT
	bpf_probe_read_kernel(&task, sizeof(task), (void *)runqueue + RUNQUEUE_CURRENT);
#endif
	return task;
}

/* Remembers where this CPU's run queue is. */
static __always_inline void find_runqueue(void)
{
#ifdef RUNQUEUE_CURRENT
	u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct runqueue_list *known = runqueues.lookup(&zero);
	u64 at = 0;

	if (!known || cpu >= MAX_CPUS || known->at[cpu & (MAX_CPUS - 1)])
		return;
	bpf_probe_read_kernel(&at, 8, (void *)bpf_get_current_task() + TASK_CFS_QUEUE);
	bpf_probe_read_kernel(&at, 8, (void *)at + CFS_RUNQUEUE);
	known->at[cpu & (MAX_CPUS - 1)] = at;
#endif
}

/* 1 if it is not 0, without a branch. */
static __always_inline u64 is_some(u64 value)
{
	return (value | -value) >> 63;
}

#ifdef PID_NAMESPACE
/* Finding the number of each CPU's thread in our namespace would be too much for the verifier: by the kernel's own
 * numbers it is told whether the thread is of this process; that it works has to be taken for granted. */
static __always_inline u64 works_beside(void *task, u32 tgid, u32 own, u32 scope)
{
	u64 ids = 0, mine = bpf_get_current_pid_tgid(), ours;

	bpf_probe_read_kernel(&ids, sizeof(ids), task + TASK_PID);
	ours = is_some((ids >> 32) ^ (mine >> 32)) ^ 1;
	return (ours & is_some((u32)(ids ^ mine))) | (is_some(ids) & ~ours) << FOREIGN_SHIFT;
}
#else
/* 1 if it is another thread of the scope, and works. Of those that nobody met yet only the process's own count. Above
 * FOREIGN_SHIFT: 1 if it is another program's. */
static __always_inline u64 works_beside(void *task, u32 tgid, u32 own, u32 scope)
{
	u64 ids = ids_of(task), ours, other, same;	/* of no task: 0 */
	struct thread *t;
	u32 tid;

	ours = opaque(is_some(opaque((ids >> 32) ^ tgid)) ^ 1);
	other = is_some(opaque((u64)(u32)ids ^ own));
	tid = ids * other;	/* entry 0 is the template: it does not work, and has no scope */
	t = threads.lookup(&tid);
	if (!t)
		return (ours & other) | (ours ^ 1) << FOREIGN_SHIFT;
	same = is_some(opaque(t->scope ^ scope)) ^ 1;
	return (in_work(t) & same) | (is_some(tid) & ~same) << FOREIGN_SHIFT;
}
#endif

/* What `works_beside` says of who has the CPU `next`. A function by itself, as `walk_frame`: the verifier looks at it once. */
u64 look_at_cpu(u64 given)
{
	struct look *look = (struct look *)given;
	struct runqueue_list *known;
	u32 zero = 0, at;

	if (!look)
		return 0;
	known = runqueues.lookup(&zero);
	if (!known)
		return 0;
	at = look->next;
	asm volatile("" : "+r"(at));	/* keeps the mask, which the verifier needs */
	return works_beside(current_of(known->at[at & (MAX_CPUS - 1)]), look->tgid, look->tid, look->scope);
}
static u64 (*call_look_at_cpu)(struct look *look) = (void *)SHARED_look_at_cpu;

/* Other threads of this one's scope that are in work and on a CPU at this moment, and CPUs that other programs have: see
 * FOREIGN_SHIFT. */
static __always_inline s32 others_on_cpus(struct look *look, u32 cpus)
{
	u64 working = 0;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_CPUS; i++) {
		/* else the end is computed before, and compared in a way from which Linux 6.1's verifier learns no bound */
		if (i >= (u32)opaque(cpus))
			break;
		look->next = i;
		working += call_look_at_cpu(look);
	}
	return working;
}

/* Where a task's registers of user mode are, from the begin of its kernel stack: for all tasks the same. */
static __always_inline u64 registers_at(void)
{
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 at = 0, stack = 0;

	bpf_probe_read_kernel(&at, 8, &registers);	/* so it is a number: the verifier has no differences of pointers */
#ifdef TASK_ON_CPU
	bpf_probe_read_kernel(&stack, 8, (void *)bpf_get_current_task() + TASK_STACK);
#endif
	return at - stack;
}

/* 1 if a task is ready and has no CPU, and works as far as is known. Not who gave up its CPU in sched_yield. */
static __always_inline u64 is_queued(void *task, u64 registers)
{
#ifdef TASK_ON_CPU
	u32 on_cpu = 1, state = task_state(task);
	u64 stack = 0, call = YIELD_CALL;

	bpf_probe_read_kernel(&on_cpu, 4, task + TASK_ON_CPU);
#ifndef PID_NAMESPACE	/* as in works_beside */
	u32 tid = 0;
	struct thread *t;

	bpf_probe_read_kernel(&tid, 4, task + TASK_PID);
	t = threads.lookup(&tid);
	if (t)
		on_cpu |= in_work(t) ^ 1;
#endif
	if (state | on_cpu)
		return 0;
	bpf_probe_read_kernel(&stack, 8, task + TASK_STACK);
	stack += registers + __builtin_offsetof(struct pt_regs, orig_ax);
	bpf_probe_read_kernel(&call, 8, (void *)stack);
	return is_some(call ^ YIELD_CALL);
#else
	return 0;
#endif
}

/* Whether the thread at `at` in the list of its process does, see `is_queued`; goes on to the next one. A function by itself. */
u64 find_queued(u64 given)
{
	struct look *look = (struct look *)given;
#ifdef TASK_ON_CPU
	u64 at;

	if (!look)
		return 0;
	at = look->at;
	bpf_probe_read_kernel(&look->at, 8, (void *)at);
	return is_queued((void *)at - TASK_THREAD_NODE, look->registers);
#else
	return 0;
#endif
}
static u64 (*call_find_queued)(struct look *look) = (void *)SHARED_find_queued;

/* Threads of the current process, of its first QUEUED_LOOKS, that work and wait for a CPU. */
static __always_inline u64 queued_threads(struct look *look)
{
	u64 queued = 0;
#ifdef TASK_ON_CPU
	u64 head = 0;

	look->registers = registers_at();
	bpf_probe_read_kernel(&head, 8, (void *)bpf_get_current_task() + TASK_SIGNAL);
	head += SIGNAL_THREADS;
	bpf_probe_read_kernel(&look->at, 8, (void *)head);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < QUEUED_LOOKS; i++) {
		if (look->at == head || !look->at)
			break;
		queued += call_find_queued(look);
	}
#endif
	return queued;
}

/* What is known of a scope's other threads where switches are not followed. One word: the verifier has enough to follow. */
#define BESIDE_MASK 0xffff	/* those that work and have a CPU, or would have one but for other programs */
#define AWAY_SHIFT FOREIGN_SHIFT	/* cores that other programs have and that threads of this process wait for */
#define LATELY_SHIFT 8		/* a mean is kept in 1/256 */
#define LATELY_WEIGHT 4		/* a sample counts for 1/16 of it */

static __always_inline void update_mean(u32 *mean, u32 value)
{
	*mean += ((s32)(value << LATELY_SHIFT) - (s32)*mean) >> LATELY_WEIGHT;
}

/* The other threads of the scope that work now, as above, where switches are not followed; else -1. Those that only wait for
 * one another count no more than they would if somebody looked at the CPUs alone. Only at a sample, whose instant is nobody's
 * choice, it is looked how many wait; at a call as many do as lately. */
u64 look_beside(u64 given)
{
	struct look *look = (struct look *)given;
	u32 found, foreign, queued, away, tgid;
	struct process *p;
	struct settings *s = find_settings();

	if (!look)
		return -1;
	tgid = look->tgid;
	p = processes.lookup(&tgid);
	if (!p || !s || !by_ticks(p, s))
		return -1;
	look->scope = p->scope;
	found = others_on_cpus(look, s->cpus);
	foreign = found >> FOREIGN_SHIFT;
	queued = (p->queued_lately + (1 << LATELY_SHIFT >> 1)) >> LATELY_SHIFT;
	if (look->is_sample) {
		queued = queued_threads(look);
		update_mean(&p->foreign_lately, foreign);
		update_mean(&p->queued_lately, queued);
	}
	away = queued < foreign ? queued : foreign;
	return (found & BESIDE_MASK) + away + (away << AWAY_SHIFT);
}

static u64 (*call_look_beside)(struct look *look) = (void *)SHARED_look_beside;

static __always_inline s32 others_by_ticks(u32 tgid, u32 tid, u32 is_sample)
{
	struct look look = {};

	look.tgid = tgid;
	look.tid = tid;
	look.is_sample = is_sample;
	return call_look_beside(&look);
}

/* How long a task has waited for a CPU in its life, until it had one last; a kernel that does not say: 0. */
static __always_inline u64 run_delay(void *task)
{
	u64 delay_ns = 0;

#ifdef TASK_RUN_DELAY
	bpf_probe_read_kernel(&delay_ns, 8, task + TASK_RUN_DELAY);
#endif
	return delay_ns;
}

/* Where switches are not followed: the current thread's time without a CPU since its last sample, or since it began. Threads
 * wait for one another too: of their waiting that part counts which is of cores that others had. One CPU is not looked at, the
 * current one: of CPUs others have as many more as that is one of all. */
static __always_inline void account_delay(struct process *p, struct thread *t, struct settings *s)
{
	u64 delay_ns = run_delay((void *)bpf_get_current_task()), before_ns = t->delay_ns;
	u64 foreign = p->foreign_lately, queued = p->queued_lately;

	t->delay_ns = delay_ns;
	if (!before_ns || !in_work(t) || delay_ns <= before_ns)
		return;
	delay_ns -= before_ns;
	if (s->cpus > 1)
		foreign = foreign * s->cpus / (s->cpus - 1);
	if (s->cpus > 1 && foreign < queued)
		delay_ns = delay_ns * foreign / queued;
	__sync_fetch_and_add(&p->ready_ns, delay_ns);
}
