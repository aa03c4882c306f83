/* SPDX-License-Identifier: Apache-2.0
 *
 * Context switches and wake-ups, by raw tracepoints: which threads are blocked.
 * Cost: about 0.2 us a context switch of a watched process, two failed map look-ups for all others. Where that is too
 * much for a process, its switches are not followed any more (see budget.bpf.c), and n_working is counted on the CPUs.
 */

/* Is the current thread, about to sleep, found in the runtime? */
static __always_inline int sleeps_in_runtime(struct process_config *config)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 ip = 0, sp = 0;

	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	bpf_probe_read_kernel(&sp, sizeof(sp), &regs->sp);
	return leaf_waits(config, ip, sp) && !wakes_others(regs);
}

/* A guess for a thread that is switched out against its will or by sched_yield: what was it doing? */
static __always_inline void guess_from_leaf(struct process *p, struct thread *t, u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);

	if (!config)
		return;
	t->base_work = !sleeps_in_runtime(config);
}

/* The current thread is switched out though it could go on: is that in a loop that only waits? Who gives up its CPU in
 * sched_yield is seen here at once, where others want that CPU. */
static __always_inline int waits_in_loop(u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 ip = 0;

	if (!config || !config->spin_end[0])
		return 0;
	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	return in_spin_loop(config, ip);
}

/* The current thread, of which no runtime says that it waits, gives up its CPU in sched_yield while others of its scope work:
 * it waits for them, in a loop of which nobody needs to know that it only waits. What it does once it has a CPU again is not
 * known. One that is known to wait may be let go meanwhile, and want a CPU: see loiterers.bpf.c. */
static __always_inline int gives_up(struct process *p, struct thread *t)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	struct scope *s;

	if (!(frames_say_work(t) | t->caught_working) || entered_by(regs) != YIELD_CALL)
		return 0;
	s = find_scope(p->scope);
	return s && working_in(s->word) > t->counted;
}

/* The futex that the current thread, about to sleep, waits for; 0 if it sleeps elsewhere. */
static __always_inline u64 awaited_futex(void)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	u64 operation = 0, address = 0;

	if (entered_by(regs) != FUTEX_CALL)
		return 0;
	bpf_probe_read_kernel(&operation, 8, &regs->si);
	operation &= FUTEX_OPERATION;
	if (operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET)
		return 0;
	bpf_probe_read_kernel(&address, 8, &regs->di);
	return address;
}

/* The thread sleeps in the futex call of a pthread mutex: its owner makes others wait. */
static __always_inline void begin_lock_wait(struct thread *t, u64 address, u32 tgid, u32 tid)
{
	struct thread *owner;
	u32 mutex[4] = {};

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
	struct interpreter *py = interpreters.lookup(&tgid);
	u64 futex, gil;
	int inside;

	t->awaits = AWAITS_UNKNOWN;
	if (!config)
		return;
	if (config->memory.kind == MEMORY_TEAM) {
		inside = sleeps_in_runtime(config);
		set_blocked_outside(p, t, !inside);
		set_blocked_inside(p, t, inside);
	}
	if (!py && !(config->flags & BLAME_LOCKS))
		return;
	futex = awaited_futex();
	if (!futex)
		return;
	gil = py ? gil_around(py, futex) : 0;
	if (gil)
		t->awaits = AWAITS_GIL;
	if (!(config->flags & BLAME_LOCKS) || t->waits_on)
		return;
	if (gil) {
		count_waiter(gil, tgid, 1);
		t->waits_on = gil;
	} else {
		begin_lock_wait(t, futex, tgid, tid);
	}
}

/* It works, and has to wait for a CPU from now on. */
static __always_inline void begin_ready(struct thread *t, void *task, u64 now)
{
	if (!t->counted || t->ready_since_ns)
		return;
	t->ready_since_ns = now;
	t->ready_delay_ns = run_delay(task);
}

/* The current thread runs. If it is still said to wait for a CPU, the switch to it was not told (some hypervisors' agents, seen
 * as the thread before it, hide theirs): for how long it waited the kernel's own account says. */
static __always_inline void found_running(struct process *p, struct thread *t)
{
	u64 delay_ns;

	if (!t->ready_since_ns)
		return;
	delay_ns = run_delay((void *)bpf_get_current_task()) - t->ready_delay_ns;
	__sync_fetch_and_add(&p->ready_ns, delay_ns & -below(delay_ns, 1ULL << 62));
	t->ready_since_ns = 0;
	count(STAT_MISSED_SWITCHES);
}

/* It runs, though it is said to sleep: neither its wake-up nor the switch to it was told, which is so where such an agent was
 * the thread before it. When it woke up nobody knows; its wait is over now. */
static __always_inline void found_awake(struct process *p, struct thread *t, u32 tid, u64 now)
{
	end_wait(p, t, tid, now);
	unblock(p, t);
	recount_at(p, t, 1, 0, now);
	trace_thread(p, t, now);
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

/* The current thread is seen for the first time, as it leaves its CPU: it worked until now. If it goes to sleep that changes no
 * number, but the time of its scope begins. */
static __always_inline void begin_scope(struct process *p, struct thread *t, u64 now)
{
	struct scope *s = find_scope(p->scope);

	if (s && !(s->word >> SCOPE_N_BITS))
		change_scope(p->scope, t, 0, 0, now);
}

static __always_inline int follows_switches(struct process *p)
{
	return p && !p->dead && !p->ticks;
}

/* A thread of a watched process leaves its CPU; `sleeps`: not to go on at once, as its `state` says. */
static __always_inline void switch_out(struct process *p, struct meter *m, u32 tgid, u32 tid, void *task, u32 state, int sleeps,
				       u64 now)
{
	struct thread *t = threads.lookup(&tid);
	int queued = untracked(m, !sleeps), loitering = 0;
	u8 busy;

	if (!t)
		return;
	busy = t->busy;
	t->busy = 1;	/* a hardware counter's sample may come in between: it is no maskable interrupt */
	barrier();
	if (rejoin(p, t)) {	/* it ran until now: when it woke up, if it slept at all, nobody knows */
		t->wait_since_ns = 0;
		if (sleeps)
			begin_scope(p, t, now);
		else
			unblock(p, t);
	} else if (t->blocked) {
		found_awake(p, t, tid, now);
	}
	follow_source(p, t);
	found_running(p, t);
	if (sleeps) {
		t->blocked = 1;
		t->spins = 0;
		queued = untracked(m, !!(state & TASK_STOPPED_OR_TRACED) & !!p->our_stop);	/* it would have a core without us */
	} else {
		if (tells_by_leaves(t) && !t->depth && !busy)
			guess_from_leaf(p, t, tgid);
		loitering = loiters(p, t, tgid);
		if (polls_for_io()) {	/* nobody misses it */
			queued = 0;
			t->spins = SPINS;
		} else {
			queued = !gives_up(p, t);
			t->spins = waits_in_loop(tgid) ? SPINS : queued ? 0 : GAVE_UP;
		}
	}
	queued = untracked(m, queued);
	loitering = untracked(m, loitering);
	sleeps = untracked(m, sleeps);
	recount_at(p, t, 0, queued & ~loitering, now);
	if (loitering)
		begin_to_loiter(p, t, now);
	if (sleeps)
		fall_asleep(p, t, tgid, tid);
	else
		begin_ready(t, task, now);
	trace_thread(p, t, now);
	barrier();
	t->busy = busy;
}

static __always_inline void switch_in(struct process *p, u32 tgid, u32 tid, void *task, u64 now)
{
	struct thread *t = threads.lookup(&tid);

	if (!t) {
		if (!is_exiting(task))
			add_thread(tgid, tid, 0);
		return;
	}
	if (rejoin(p, t))	/* it was woken before we came, or while switches were not followed: nobody knows when */
		t->wait_since_ns = 0;
	end_ready(p, t, now);
	if (t->blocked) {	/* its wake-up was missed */
		end_wait(p, t, tid, now);
		unblock(p, t);
	}
	if (t->spins == GAVE_UP)
		t->spins = 0;
	recount_at(p, t, 1, 0, now);
	trace_thread(p, t, now);
	end_stop(t);
	t->wait_user = 0;
}

#define TASK_DEAD 0x80

/* Nothing is counted for a thread any more. If it is a process's first, others may live on: Python asks the kernel whether the
 * process ended. */
static __always_inline void end_thread(struct process *p, struct thread *t, u32 tgid, u32 tid)
{
	if (t)
		remove_thread(p, t, tid);
	last_stacks.delete(&tid);
	if (tid == tgid)
		tell_calmly(RECORD_EXIT, tgid, tid, p->image, 0, 0);
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

	if (!m)
		return 0;
	if (follows_switches(p)) {
		count(STAT_SWITCHES);
		now = bpf_ktime_get_ns();
		sleeps = untracked(m, !!state);
		switch_out(p, m, tgid, tid, (void *)ctx->args[1], state, sleeps, now);
	}
#ifdef EXIT_TELLS_LAST
	if (p && p->last_tid == tid && (state & TASK_DEAD)) {	/* it has left its CPU for good */
		end_thread(p, threads.lookup(&tid), tgid, tid);
		p->last_tid = 0;
		sleeps = 0;
	}
#endif
	sleeps = untracked(m, sleeps);
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

	if (t->unknown == UNPROBED || (config && (config->flags & FROM_LEAVES)))
		t->base_work = 1;
}

/* A thread is woken. One that sleeps in its runtime may go on sleeping: where only leaves tell, that is seen when it is switched
 * in. */
static __always_inline void wake_up(struct process *p, struct thread *t, u32 tgid, u32 tid, void *task)
{
	u64 now;

	rejoin(p, t);
	if (!t->blocked || (t->blocked_inside && p->from_leaves))
		return;
	now = bpf_ktime_get_ns();
	end_wait(p, t, tid, now);
	follow_source(p, t);
	unblock(p, t);
	if (tells_by_leaves(t))
		wakes_to_work(t, tgid);
	recount_at(p, t, 0, 1, now);
	trace_wakeup(p, t, now);
	end_stop(t);
	t->wait_user = 0;
	begin_ready(t, task, now);
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
	if (t)
		wake_up(p, t, tgid, tid, (void *)ctx->args[0]);
	else if (!is_exiting((void *)ctx->args[0]))
		add_thread(tgid, tid, 0);
	meter_end(m, METER_WAKEUP, begun);
	pay(p, m, METER_WAKEUP, COST_SWITCH, HOOK_NS, luck, tgid, tid);
	return 0;
}
