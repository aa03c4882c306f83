/* SPDX-License-Identifier: Apache-2.0
 *
 * Raw scheduler tracepoints: which threads are blocked, and the life of threads and processes.
 * Cost: about 0.2 us a context switch of a watched process, two failed map look-ups for all others.
 */

/* A guess for a thread that is switched out against its will or by sched_yield: what was it doing? */
static __always_inline void guess_from_leaf(struct process *p, struct thread *t, u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct pt_regs *regs;
	u64 ip = 0, sp = 0;

	if (!config)
		return;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	bpf_probe_read_kernel(&sp, sizeof(sp), &regs->sp);
	t->base_work = !leaf_waits(config, ip, sp);
	recount(p, t);
}

/* sched_switch(bool preempt, prev, next, prev_state) */
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[1]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = tgid ? processes.lookup(&tgid) : 0;
	struct thread *t;

	if (p && !p->dead) {
		count(STAT_SWITCHES);
		t = threads.lookup(&tid);
		if (t && !(u8)ctx->args[0] && PREVIOUS_STATE) {
			t->blocked = 1;
			recount(p, t);
		} else if (t && t->unknown == 1 && !t->depth && !t->busy) {
			guess_from_leaf(p, t, tgid);
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
	} else if (t->blocked) {
		unblock(p, t);
		recount(p, t);
	}
	return 0;
}

static __always_inline void thread_created(struct process *p, u32 tgid, u32 tid, u32 parent_tid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct thread *parent = threads.lookup(&parent_tid);
	struct thread *t = threads.lookup(&tid);

	if (t)		/* left over from an earlier owner of this tid */
		remove_thread(p, t, tid);
	t = add_thread(p, tgid, tid, 1);	/* until sched_wakeup_new */
	if (!t || !config || !(config->flags & HAS_RUNTIME))
		return;
	if (parent && parent->start_routine) {
		t->base_work = !in_runtime(config, parent->start_routine);
		parent->start_routine = 0;
		set_unknown(p, t, 0);
	}
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
	p->members = 0;
	p->members_max = 0;
	p->dead = 0;
	stop = config->flags & STOP_AT_EXEC;
	config->flags &= ~(HAS_RUNTIME | STOP_AT_LOAD);
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

	if (!p)
		return 0;
	t = threads.lookup(&tid);
	if (t)
		remove_thread(p, t, tid);
	if (tid == tgid)	/* other threads may live on: Python asks the kernel whether the process ended */
		tell(RECORD_EXIT, tgid, tid, p->image, 0, 0, 0);
	return 0;
}
