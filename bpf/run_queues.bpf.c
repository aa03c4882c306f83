/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs on the CPUs at this moment, read from their run queues: how many threads work, where context switches are not
 * followed.
 */

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

#ifdef PID_NAMESPACE
/* Finding the number of each CPU's thread in our namespace would be too much for the verifier: by the kernel's own
 * numbers it is told whether the thread is of this process; that it works has to be taken for granted. */
static __always_inline u64 works_beside(void *task, u32 tgid, u32 own, u32 scope)
{
	u64 ids = 0, mine = bpf_get_current_pid_tgid(), other;

	bpf_probe_read_kernel(&ids, sizeof(ids), task + TASK_PID);
	other = (ids >> 32) ^ (mine >> 32);
	return ((other | -other) >> 63 ^ 1) & (((((ids ^ mine) & 0xffffffff) - 1) >> 63) ^ 1);
}
#else
/* 1 if it is another thread of the scope, and works. Of those that nobody met yet only the process's own count. */
static __always_inline u64 works_beside(void *task, u32 tgid, u32 own, u32 scope)
{
	u64 ids = ids_of(task), ours, other, same;	/* of no task: 0 */
	struct thread *t;
	u32 tid;

	ours = opaque((ids >> 32) ^ tgid);
	ours = opaque(((ours | -ours) >> 63) ^ 1);
	other = ((opaque((u64)(u32)ids ^ own) - 1) >> 63) ^ 1;
	tid = ids * other;	/* entry 0 is the template: it does not work, and has no scope */
	t = threads.lookup(&tid);
	if (!t)
		return ours & other;
	same = opaque(t->scope ^ scope);
	return in_work(t) & (((same | -same) >> 63) ^ 1);
}
#endif

/* Other threads of this one's scope that are in work and on a CPU at this moment. Without branches on what is found, and summed up
 * in map memory, as in memory.bpf.c. */
static __always_inline s32 others_on_cpus(u32 tgid, u32 own, u32 scope, u32 cpus, u64 *working)
{
	u32 zero = 0;
	struct runqueue_list *known = runqueues.lookup(&zero);

	if (!known)
		return 0;
	*working = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_CPUS; i++) {
		u32 at = opaque(i);

		/* else the end is computed before, and compared in a way from which Linux 6.1's verifier learns no bound */
		if (i >= (u32)opaque(cpus))
			break;
		*(volatile u64 *)working += works_beside(current_of(known->at[at & (MAX_CPUS - 1)]), tgid, own, scope);
	}
	return *(volatile u64 *)working;
}
