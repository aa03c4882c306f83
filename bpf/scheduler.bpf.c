/* SPDX-License-Identifier: Apache-2.0
 *
 * Raw scheduler tracepoints: which threads are blocked, and the life of threads and processes.
 * Cost: about 0.2 us a context switch of a watched process, two failed map look-ups for all others. Where that is too
 * much for a process, its switches are not followed any more (see budget.bpf.c), and n_working is counted on the CPUs.
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
}

/* The current thread was found in a loop that only waits, and is switched out against its will: is it there still? */
static __always_inline int still_spins(u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 ip = 0;

	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	return config && in_spin_loop(config, ip);
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

/* What the thread goes to sleep for. */
static __always_inline void fall_asleep(struct process *p, struct thread *t, u32 tgid, u32 tid)
{
	struct process_config *config = configs.lookup(&tgid);
	int inside;

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

/* It works, and has to wait for a CPU from now on. */
static __always_inline void begin_ready(struct thread *t, u64 now)
{
	if (t->counted && !t->ready_since_ns)
		t->ready_since_ns = now;
}

/* It runs. If it is still said to wait for a CPU, the switch to it was not told (some hypervisors' agents, seen as the
 * thread before it, hide theirs), and nobody knows how long it waited. */
static __always_inline void found_running(struct thread *t)
{
	if (!t->ready_since_ns)
		return;
	t->ready_since_ns = 0;
	count(STAT_MISSED_SWITCHES);
}

/* It has one. */
static __always_inline void end_ready(struct process *p, struct thread *t, u64 now)
{
	if (!t->ready_since_ns)
		return;
	__sync_fetch_and_add(&p->ready_ns, now - t->ready_since_ns);
	t->ready_since_ns = 0;
}

static __always_inline int follows_switches(struct process *p)
{
	return p && !p->dead && !p->ticks;
}

/* A thread of a watched process leaves its CPU. */
static __always_inline void switch_out(struct process *p, u32 tgid, u32 tid, int sleeps, u64 now)
{
	struct thread *t = threads.lookup(&tid);
	u8 busy;

	if (!t)
		return;
	busy = t->busy;
	t->busy = 1;	/* a hardware counter's sample may come in between: it is no maskable interrupt */
	barrier();
	rejoin(p, t);
	follow_source(p, t);
	found_running(t);
	if (sleeps) {
		t->blocked = 1;
		t->spins = 0;
	} else {
		if (t->unknown == 1 && !t->depth && !busy)
			guess_from_leaf(p, t, tgid);
		if (t->spins)
			t->spins = still_spins(tgid);
	}
	recount_at(p, t, 0, !sleeps, now);
	if (sleeps)
		fall_asleep(p, t, tgid, tid);
	else
		begin_ready(t, now);
	trace_thread(p, t, now);
	barrier();
	t->busy = busy;
}

static __always_inline void switch_in(struct process *p, u32 tgid, u32 tid, void *task, u64 now)
{
	struct thread *t = threads.lookup(&tid);

	if (!t) {
		if (!is_exiting(task))
			add_thread(p, tgid, tid, 0);
		return;
	}
	rejoin(p, t);
	end_ready(p, t, now);
	if (t->blocked) {	/* its wake-up was missed */
		end_wait(p, t, tid, now);
		unblock(p, t);
	}
	recount_at(p, t, 1, 0, now);
	trace_thread(p, t, now);
	end_stop(t);
	t->wait_user = 0;
}

/* sched_switch(bool preempt, prev, next, prev_state) */
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	struct meter *m = find_meter();
	u32 luck = bpf_get_prandom_u32();
	u64 begun = meter_begin(m, METER_SWITCH, luck);
	u64 ids = ids_of((void *)ctx->args[1]), next = ids_of((void *)ctx->args[2]);
	u32 own_tgid = ids >> 32, tgid = own_tgid, tid = ids, next_tgid = next >> 32;
	u32 state = (u8)ctx->args[0] ? 0 : PREVIOUS_STATE;
	struct process *p = tgid ? processes.lookup(&tgid) : 0, *q = 0;
	u64 now = 0;
	int sleeps = 0;

	if (follows_switches(p)) {
		count(STAT_SWITCHES);
		now = bpf_ktime_get_ns();
		sleeps = !!state;
		switch_out(p, tgid, tid, sleeps, now);
	}
	spare_bystanders(m);
	if (next_tgid)
		q = processes.lookup(&next_tgid);
	if (follows_switches(q)) {
		if (!now)
			now = bpf_ktime_get_ns();
		switch_in(q, next_tgid, next, (void *)ctx->args[2], now);
	}
	tgid = p ? own_tgid : q ? next_tgid : 0;
	if (!tgid)
		return 0;
	meter_end(m, METER_SWITCH, begun);
	p = processes.lookup(&tgid);	/* once more: clang would make one pointer of two */
	if (p)
		pay(p, m, METER_SWITCH, COST_SWITCH, HOOK_NS, luck, tgid, tid);
	if (sleeps)
		begin_wait(ctx, own_tgid, tid, state, luck, now);
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
	struct meter *m = find_meter();
	u32 luck = bpf_get_prandom_u32();
	u64 begun = meter_begin(m, METER_WAKEUP, luck);
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = processes.lookup(&tgid);
	struct thread *t;

	if (!follows_switches(p))
		return 0;
	count(STAT_WAKEUPS);
	t = threads.lookup(&tid);
	if (!t) {
		if (!is_exiting((void *)ctx->args[0]))
			add_thread(p, tgid, tid, 0);
	} else if (t->blocked && !(t->blocked_inside && p->from_leaves)) {	/* else when it is switched in */
		u64 now = bpf_ktime_get_ns();

		end_wait(p, t, tid, now);
		rejoin(p, t);
		follow_source(p, t);
		unblock(p, t);
		if (t->unknown == 1)
			wakes_to_work(t, tgid);
		recount_at(p, t, 0, 1, now);
		trace_wakeup(p, t, now);
		end_stop(t);
		t->wait_user = 0;
		begin_ready(t, now);
	}
	meter_end(m, METER_WAKEUP, begun);
	pay(p, m, METER_WAKEUP, COST_SWITCH, HOOK_NS, luck, tgid, tid);
	return 0;
}

static __always_inline void thread_created(struct process *p, u32 tgid, u32 tid, u32 parent_tid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct thread *parent = threads.lookup(&parent_tid);
	struct thread *t = threads.lookup(&tid);
	u64 created = 0;

	if (tid != tgid && !p->threads_created++)
		plain_programs.delete(&p->program);
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

/* Neither its threads' switches nor their creators are followed, and no runtime gives them work: what there would be to
 * know of a new one is what its first sample tells. */
static __always_inline int threads_are_anonymous(struct process *p, u32 tgid)
{
	struct process_config *config = p->ticks && (p->cut & 1 << COST_CREATE) ? configs.lookup(&tgid) : 0;

	return config && !(config->flags & HAS_RUNTIME);
}

/* What a new process begins with; too much for the stack. What is not set in process_forked is 0 for ever. */
BPF_TABLE("percpu_array", u32, struct process, new_process, 1);

static __always_inline void process_forked(struct process *parent, u32 parent_tgid, u32 tgid)
{
	struct process_config *config = configs.lookup(&parent_tgid);
	struct settings *s = find_settings();
	u32 zero = 0;
	struct process *fresh = new_process.lookup(&zero);

	if (!fresh || !config || !(config->flags & FOLLOW_CHILDREN))
		return;
	fresh->image = new_image();
	fresh->scope = parent->scope;
	fresh->waits_since_ns = parent->waits_since_ns;
	fresh->traced = parent->traced;
	fresh->left_ns = s ? s->burst_ns >> 2 : 0;	/* children come in thousands */
	configs.update(&tgid, config);
	if (processes.insert(&tgid, fresh)) {
		configs.delete(&tgid);
		count(LOST_PROCESSES_FULL);
		return;
	}
	tell_calmly(RECORD_FORK, tgid, tgid, fresh->image, parent_tgid, 0);
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
			tell(RECORD_REPLACED, tgid, tid, image, 0);
		}
		p = processes.lookup(&parent_tgid);
		if (!p || p->dead)
			return 0;
		process_forked(p, parent_tgid, tgid);
		p = processes.lookup(&tgid);
		if (!p)
			return 0;
	} else if (!p || p->dead || threads_are_anonymous(p, tgid)) {
		return 0;
	}
	thread_created(p, tgid, tid, (u32)parent);
	return 0;
}

/* Identifies the executable that a struct linux_binprm is about, for as long as nobody changes it: a hash; 0 = this kernel
 * does not say. */
static __always_inline u64 program_of(u64 bprm)
{
	u64 hash = 0;

#ifdef BINPRM_FILE
	u64 file = 0, inode, number = 0, size = 0;
	u32 device = 0, generation = 0;

	bpf_probe_read_kernel(&file, 8, (void *)bprm + BINPRM_FILE);
	inode = inode_of(file, &number, &device);
	bpf_probe_read_kernel(&size, 8, (void *)inode + INODE_SIZE);
	bpf_probe_read_kernel(&generation, 4, (void *)inode + INODE_GENERATION);
	if (number)
		hash = mix(mix(mix(number, size), (u64)generation << 32 | device), 1) | 1;
#endif
	return hash;
}

/* Is the new program to be stopped until Python has seen to it? */
static __always_inline int must_stop(struct process_config *config, u64 program)
{
	return (config->flags & STOP_AT_EXEC) && !(program && plain_programs.lookup(&program));
}

/* sched_process_exec(task, old_pid, bprm): one thread is left, with a new image */
int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids, old_tid = ctx->args[1];
	struct process *p = processes.lookup(&tgid);
	struct process_config *config = configs.lookup(&tgid);
	struct thread *t;
	u64 program;
	s32 working;
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
	working = p->n_working[parity(p)];
	p->n_working[parity(p)] = 0;
	p->n_unknown[parity(p)] = 0;
	p->n_blocked_outside[parity(p)] = 0;
	p->n_blocked_inside[parity(p)] = 0;
	p->cut = 0;
	p->thin = 0;
	p->ready_ns = 0;
#pragma unroll
	for (int kind = 0; kind < COST_KINDS; kind++)
		p->spent_ns[kind] = p->full_ns[kind] = 0;
	p->runtime_root = 0;
	p->from_leaves = 0;
	p->members = 0;
	p->members_max = 0;
	p->dead = 0;
	p->threads_created = 0;
	program = p->program = program_of(ctx->args[2]);
	stop = must_stop(config, program);
	config->flags &= ~(HAS_RUNTIME | STOP_AT_LOAD | FROM_LEAVES | FROM_MEMORY | CHECK_MEMORY | CACTUS);
	config->memory.kind = MEMORY_NONE;
	config->closures.there = 0;
	if (stop)
		config->flags |= STOP_AT_LOAD;
	t = add_thread(p, tgid, tid, 0);
	if (t && working)	/* after the new one, lest the scope be idle for an instant */
		change_scope(p->scope, t, -(s64)working, 0, 0);
	if (stop) {
		p->our_stop = 1;
		bpf_send_signal(SIGSTOP);
		count(STAT_STOPS);
	}
	if (stop || !(config->flags & STOP_AT_EXEC))
		tell_stopped(RECORD_EXEC, tgid, tid, p->image, program, stop);
	else
		tell_calmly(RECORD_EXEC, tgid, tid, p->image, 0, program);
	return 0;
}

/* sched_process_exit(task, ...) */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = processes.lookup(&tgid);
	struct thread *t;
	u64 context;

	if (tid == tgid)
		verdicts.delete(&tgid);
	if (!p)
		return 0;
	t = threads.lookup(&tid);
	if (t) {
		context = t->base_context;
		if (context)
			last_contexts.update(&tid, &context);
		else	/* of an earlier owner of this tid */
			last_contexts.delete(&tid);
		remove_thread(p, t, tid);
	}
	last_stacks.delete(&tid);
	if (tid == tgid)	/* other threads may live on: Python asks the kernel whether the process ended */
		tell_calmly(RECORD_EXIT, tgid, tid, p->image, 0, 0);
	return 0;
}

/* Takes so many away from the scope of a process. */
static __always_inline void leave_scope(struct process *p, s32 working)
{
	u32 template = 0;
	struct thread *t = threads.lookup(&template);

	if (t && working)
		change_scope(p->scope, t, -(s64)working, 0, 0);
}

/* Run by Python itself (BPF_PROG_TEST_RUN), never attached: changes a process's entry where the programs change it too.
 * Arguments: enum command, tgid, and for COMMAND_WAITS a time, for COMMAND_TRACE 0 or 1; or COMMAND_ALLOW, scope, cores. */
int on_command(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tgid = ctx->args[1], command = ctx->args[0], unused;
	struct process *p = processes.lookup(&tgid);
	struct scope *scope;
	s32 working;

	if (command == COMMAND_ALLOW) {
		scope = find_scope(tgid);
		if (scope)
			scope->cores = ctx->args[2];
		return 0;
	}
	if (!p)
		return 1;
	if (command == COMMAND_WAITS) {
		p->waits_since_ns = ctx->args[2];
		change_scope(p->scope, 0, 0, 0, 0);
		return 0;
	}
	if (command == COMMAND_TRACE) {
		p->traced = !!ctx->args[2];
		return 0;
	}
	if (command == COMMAND_FREEZE) {
		p->dead = 1;
		return 0;
	}
	unused = parity(p) ^ 1;
	working = p->n_working[command == COMMAND_SETTLE ? unused : unused ^ 1];
	if (command == COMMAND_PROBE) {
		p->cut &= ~(1 << COST_PROBE | 1 << COST_LOCK);
	} else if (command == COMMAND_RECOUNT) {
		p->n_working[unused] = 0;
		p->n_unknown[unused] = 0;
		p->n_blocked_outside[unused] = 0;
		p->n_blocked_inside[unused] = 0;
		barrier();
		p->generation++;
		__sync_fetch_and_add(&p->n_working[unused ^ 1], -working);	/* what is left there is for COMMAND_SETTLE */
		leave_scope(p, working);
		p->cut &= ~(1 << COST_SWITCH);
		p->ticks = 0;
		scope = find_scope(p->scope);
		if (scope) {
			scope->ticks = 0;
			scope->places = 0;
		}
	} else if (command == COMMAND_SETTLE) {
		p->n_working[unused] = 0;
		leave_scope(p, working);
	} else if (command == COMMAND_LEAVE) {
		p->dead = 1;
		p->n_working[unused ^ 1] = 0;
		leave_scope(p, working);
	}
	return 0;
}
