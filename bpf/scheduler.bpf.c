/* SPDX-License-Identifier: Apache-2.0
 *
 * Raw scheduler tracepoints: which threads are blocked, and the life of threads and processes.
 * Cost: about 0.2 us a context switch of a watched process, two failed map look-ups for all others.
 */

#define FUTEX_CALL 202
#define FUTEX_OPERATION 127
#define FUTEX_WAIT 0
#define FUTEX_WAIT_BITSET 9

/* Is the current thread, about to sleep, found in the runtime? */
static __always_inline int sleeps_in_runtime(struct process_config *config)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 ip = 0, sp = 0;

	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	bpf_probe_read_kernel(&sp, sizeof(sp), &regs->sp);
	return leaf_waits(config, ip, sp);
}

/* A guess for a thread that is switched out against its will or by sched_yield: what was it doing? */
static __always_inline void guess_from_leaf(struct process *p, struct thread *t, u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);

	if (!config)
		return;
	t->base_work = !sleeps_in_runtime(config);
	recount(p, t);
}

/* The thread sleeps in the futex call of a pthread mutex: its owner makes others wait. */
static __always_inline void begin_lock_wait(struct thread *t, u32 tgid, u32 tid)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 call = 0, operation = 0, address = 0;
	struct thread *owner;
	u32 mutex[4] = {};

	bpf_probe_read_kernel(&call, 8, &regs->orig_ax);
	bpf_probe_read_kernel(&operation, 8, &regs->si);
	operation &= FUTEX_OPERATION;
	if (call != FUTEX_CALL || (operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET))
		return;
	bpf_probe_read_kernel(&address, 8, &regs->di);
	/* glibc's pthread_mutex_t: lock, count, owner. Anything else has no living thread of ours there. */
	if (bpf_probe_read_user(mutex, sizeof(mutex), (void *)address) || mutex[2] == tid || !mutex[0])
		return;
	owner = threads.lookup(&mutex[2]);
	if (!mutex[2] || !owner || owner->tgid != tgid)
		return;
	count_waiter(address, tgid, 1);
	t->waits_on = address;
	owner->last_lock = address;
}

/* The thread goes to sleep. */
static __always_inline void fall_asleep(struct process *p, struct thread *t, u32 tgid, u32 tid)
{
	struct process_config *config = configs.lookup(&tgid);
	int inside;

	t->blocked = 1;
	recount(p, t);
	if (!config)
		return;
	if (config->memory.kind == MEMORY_TEAM) {
		inside = sleeps_in_runtime(config);
		set_blocked_outside(p, t, !inside);
		set_blocked_inside(p, t, inside);
	}
	if ((config->flags & BLAME_LOCKS) && !t->waits_on)
		begin_lock_wait(t, tgid, tid);
}

/* sched_switch(bool preempt, prev, next, prev_state) */
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[1]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = tgid ? processes.lookup(&tgid) : 0;
	struct thread *t;
	u8 busy;

	if (p && !p->dead) {
		count(STAT_SWITCHES);
		t = threads.lookup(&tid);
		if (t) {
			busy = t->busy;
			t->busy = 1;	/* a hardware counter's sample may come in between: it is no maskable interrupt */
			barrier();
			follow_source(p, t);
			if (!(u8)ctx->args[0] && PREVIOUS_STATE)
				fall_asleep(p, t, tgid, tid);
			else if (t->unknown == 1 && !t->depth && !busy)
				guess_from_leaf(p, t, tgid);
			barrier();
			t->busy = busy;
		}
	}
	ids = ids_of((void *)ctx->args[2]);
	tgid = ids >> 32;
	tid = ids;
	p = tgid ? processes.lookup(&tgid) : 0;
	if (!p || p->dead)
		return 0;
	t = threads.lookup(&tid);
	if (!t) {
		if (!is_exiting((void *)ctx->args[2]))
			add_thread(p, tgid, tid, 0);
	} else if (t->blocked) {	/* its wake-up was missed */
		unblock(p, t);
		recount(p, t);
	}
	return 0;
}

/* Where leaves are all that there is to go by: what wakes a thread is mostly work. */
static __always_inline void wakes_to_work(struct thread *t, u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);

	if (config && (config->flags & FROM_LEAVES))
		t->base_work = 1;
}

/* sched_wakeup(task) and sched_wakeup_new(task) */
int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = processes.lookup(&tgid);
	struct thread *t;

	if (!p || p->dead)
		return 0;
	count(STAT_WAKEUPS);
	t = threads.lookup(&tid);
	if (!t) {
		if (!is_exiting((void *)ctx->args[0]))
			add_thread(p, tgid, tid, 0);
	} else if (t->blocked && !(t->blocked_inside && p->from_leaves)) {	/* else when it is switched in */
		follow_source(p, t);
		unblock(p, t);
		if (t->unknown == 1)
			wakes_to_work(t, tgid);
		recount(p, t);
	}
	return 0;
}

static __always_inline void thread_created(struct process *p, u32 tgid, u32 tid, u32 parent_tid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct thread *parent = threads.lookup(&parent_tid);
	struct thread *t = threads.lookup(&tid);
	u64 created = 0;

	if (t)		/* left over from an earlier owner of this tid */
		remove_thread(p, t, tid);
	t = add_thread(p, tgid, tid, 1);	/* until sched_wakeup_new */
	if (!t)
		return;
	if (parent && parent->created_context) {
		created = parent->created_context;
		parent->created_context = 0;
	}
	if (config && (config->flags & HAS_RUNTIME) && parent && parent->start_routine) {
		t->base_work = !in_runtime(config, parent->start_routine);
		parent->start_routine = 0;
		if (!(config->flags & FROM_LEAVES))
			set_unknown(p, t, 0);
	}
	if ((t->base_work || (config && config->closures.there)) && created)
		t->base_context = created;
}

static __always_inline void process_forked(u32 parent_tgid, u32 tgid)
{
	struct process_config *config = configs.lookup(&parent_tgid);
	struct process fresh = {};

	if (!config || !(config->flags & FOLLOW_CHILDREN))
		return;
	fresh.image = new_image();
	configs.update(&tgid, config);
	if (processes.insert(&tgid, &fresh)) {
		configs.delete(&tgid);
		count(LOST_PROCESSES_FULL);
		return;
	}
	tell(RECORD_FORK, tgid, tgid, fresh.image, parent_tgid, 0, 0);
}

/* sched_process_fork(parent, child); runs in the parent */
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	u64 parent = ids_of((void *)ctx->args[0]);
	u64 child = ids_of((void *)ctx->args[1]);
	u32 parent_tgid = parent >> 32, tgid = child >> 32, tid = child;
	struct process *p = processes.lookup(&tgid);

	if (tgid != parent_tgid) {
		verdicts.delete(&tgid);	/* Python may have answered after the end of an earlier owner of this PID */
		if (p) {	/* only a fork can reuse a PID: the entry is of a process that is gone */
			u32 image = p->image;

			processes.delete(&tgid);
			configs.delete(&tgid);
			tell(RECORD_REPLACED, tgid, tid, image, parent_tgid, 0, 0);
		}
		p = processes.lookup(&parent_tgid);
		if (!p || p->dead)
			return 0;
		process_forked(parent_tgid, tgid);
		p = processes.lookup(&tgid);
		if (!p)
			return 0;
	} else if (!p || p->dead) {
		return 0;
	}
	thread_created(p, tgid, tid, (u32)parent);
	return 0;
}

/* sched_process_exec(task, old_pid, bprm): one thread is left, with a new image */
int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids, old_tid = ctx->args[1];
	struct process *p = processes.lookup(&tgid);
	struct process_config *config = configs.lookup(&tgid);
	struct thread *t;
	u32 stop;

	verdicts.delete(&tgid);	/* another program may be decided upon otherwise */
	if (!p || !config)
		return 0;
	threads.delete(&tid);
	if (old_tid != tid)
		threads.delete(&old_tid);
	p->image = new_image();
	p->epoch = 0;
	mapping_lists.delete(&tgid);
	p->n_working = 0;
	p->n_unknown = 0;
	p->n_blocked_outside = 0;
	p->n_blocked_inside = 0;
	p->runtime_root = 0;
	p->from_leaves = 0;
	p->members = 0;
	p->members_max = 0;
	p->dead = 0;
	stop = config->flags & STOP_AT_EXEC;
	config->flags &= ~(HAS_RUNTIME | STOP_AT_LOAD | FROM_LEAVES | FROM_MEMORY | CHECK_MEMORY | CACTUS);
	config->memory.kind = MEMORY_NONE;
	config->closures.there = 0;
	if (stop)
		config->flags |= STOP_AT_LOAD;
	t = add_thread(p, tgid, tid, 0);
	if (stop)
		bpf_send_signal(SIGSTOP);
	tell(RECORD_EXEC, tgid, tid, p->image, 0, 0, !!stop);
	return 0;
}

/* sched_process_exit(task, ...) */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = processes.lookup(&tgid);
	struct thread *t;

	if (tid == tgid)
		verdicts.delete(&tgid);
	if (!p)
		return 0;
	t = threads.lookup(&tid);
	if (t)
		remove_thread(p, t, tid);
	if (tid == tgid)	/* other threads may live on: Python asks the kernel whether the process ended */
		tell(RECORD_EXIT, tgid, tid, p->image, 0, 0, 0);
	return 0;
}
