/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks, execs and exits, by raw tracepoints: the lives of threads and processes.
 */

/* The first thread of a process that was forked does what its parent's did. Where that was in no piece of work and in no wait
 * of a runtime, it is known what it does, whatever edges it will have. */
static __always_inline void go_on_as(struct process *p, struct thread *t, const struct thread *parent)
{
	if (parent->depth || parent->caught_working || tells_by_leaves(parent) || parent->unknown == GUESSED_ASLEEP)
		return;
	t->base_work = parent->base_work;
	set_unknown(p, t, parent->unknown);
	recount(p, t);
}

static __always_inline void thread_created(struct process *p, u32 tgid, u32 tid, u32 parent_tid)
{
	struct process_config *config = configs.lookup(&tgid);
	struct thread *parent = threads.lookup(&parent_tid);
	struct thread *t = threads.lookup(&tid);
	struct settings *s = find_settings();
	u64 created = 0;

	if (tid != tgid)
		p->threads_created++;
	if (t)		/* left over from an earlier owner of this tid */
		remove_thread(p, t, tid);
	t = add_thread(tgid, tid, 1);	/* until sched_wakeup_new */
	if (!t)
		return;
	t->delay_ns = s && by_ticks(p, s);
	if (parent && parent->created_context) {
		created = parent->created_context;
		parent->created_context = 0;
	}
	if (config && (config->flags & HAS_RUNTIME) && parent && parent->start_routine) {
		t->base_work = !in_runtime(config, parent->start_routine);
		if (in_unprobed(config, parent->start_routine))
			set_unknown(p, t, UNPROBED);
		else if (!(config->flags & FROM_LEAVES))
			set_unknown(p, t, NOT_UNKNOWN);
		parent->start_routine = 0;
	}
	if ((t->base_work || (config && config->closures.there)) && created)
		t->base_context = created;
	if (tid == tgid && parent)
		go_on_as(p, t, parent);
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

/* A child has its parent's interpreter, at the same addresses; Python may be late for what it does first. */
static __always_inline void inherit_interpreter(u32 parent_tgid, u32 tgid)
{
	struct interpreter *py = interpreters.lookup(&parent_tgid);

	if (!py || interpreters.update(&tgid, py))
		return;
	py = interpreters.lookup(&tgid);
	if (py)
		py->since_ns = py->told_ns = 0;
}

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
	fresh->probes_owe_ns = s ? probes_owe_at_first(s) : 0;
	configs.update(&tgid, config);
	if (processes.insert(&tgid, fresh)) {
		configs.delete(&tgid);
		count(LOST_PROCESSES_FULL);
		return;
	}
	inherit_interpreter(parent_tgid, tgid);
	tell_calmly(RECORD_FORK, tgid, tgid, fresh->image, parent_tgid, 0);
}

/* sched_process_fork(parent, child); runs in the parent */
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	u64 parent = ids_of((void *)ctx->args[0]);
	u64 child = ids_of((void *)ctx->args[1]);
	u32 parent_tgid = parent >> 32, tgid = child >> 32, tid = child;
	struct process *p = processes.lookup(&tgid);
	u64 begun = tgid == parent_tgid && p ? bpf_ktime_get_ns() : 0;

	if (tgid != parent_tgid) {
		verdicts.delete(&tgid);	/* Python may have answered after the end of an earlier owner of this PID */
		if (p) {	/* only a fork can reuse a PID: the entry is of a process that is gone */
			u32 image = p->image;

			processes.delete(&tgid);
			configs.delete(&tgid);
			interpreters.delete(&tgid);
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
	if (tid != tgid)
		place_creator(ctx, p, tgid, tid, begun);
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
static __always_inline int must_stop(struct process_config *config, u64 program, void *task)
{
	return (config->flags & STOP_AT_EXEC) && !(program && plain_programs.lookup(&program)) && !is_traced(task);
}

/* sched_process_exec(task, old_pid, bprm): one thread is left, with a new image */
int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids, old_tid = ctx->args[1];
	struct process *p = processes.lookup(&tgid);
	struct process_config *config = configs.lookup(&tgid);
	struct settings *s = find_settings();
	struct thread *t;
	u64 program;
	s32 working;
	u32 stop;

	verdicts.delete(&tgid);	/* another program may be decided upon otherwise */
	if (!p || !config)
		return 0;
	t = threads.lookup(&old_tid);	/* the one thread that is left */
	if (t) {
		rejoin(p, t);
		recount_at(p, t, 0, 0, 0);
	}
	threads.delete(&tid);
	if (old_tid != tid)
		threads.delete(&old_tid);
	p->last_image = p->image;
	p->last_ready_ns = p->ready_ns;
	p->image = new_image();
	p->epoch = 0;
	mapping_lists.delete(&tgid);
	interpreters.delete(&tgid);
	working = p->n_working[parity(p)];
	p->n_working[parity(p)] = 0;
	p->n_unknown[parity(p)] = 0;
	p->n_blocked_outside[parity(p)] = 0;
	p->n_blocked_inside[parity(p)] = 0;
	p->cut = 0;
	p->thin = 0;
	p->probes_owe_ns = s ? probes_owe_at_first(s) : 0;
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
	stop = must_stop(config, program, (void *)ctx->args[0]);
	config->flags &= ~(HAS_RUNTIME | STOP_AT_LOAD | FROM_LEAVES | FROM_MEMORY | CHECK_MEMORY | CACTUS |
			   LOADS_ONCE | CREATORS_UNPROBED);
	config->memory.kind = MEMORY_NONE;
	config->closures.there = 0;
	if (stop)
		config->flags |= STOP_AT_LOAD;
	t = add_thread(tgid, tid, 0);
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

/* The last thread of a process is told to have ended before the kernel takes the process's memory apart (Linux 6.16 and later),
 * which takes milliseconds: it works until it leaves its CPU for good, if that is told. Returns whether it is. */
static __always_inline int works_on(struct process *p, struct thread *t, struct settings *s, u32 tid, u64 is_last)
{
#ifdef EXIT_TELLS_LAST
	if (!(u8)is_last || !s || p->dead || by_ticks(p, s) || t->image != p->image)
		return 0;
	rejoin(p, t);
	p->last_tid = tid;
	t->depth = 0;	/* whatever it was about before */
	t->base_work = 1;
	t->spins = 0;
	set_unknown(p, t, NOT_UNKNOWN);
	recount_at(p, t, 1, 0, 0);
	return 1;
#else
	return 0;
#endif
}

/* sched_process_exit(task, bool group_dead: since Linux 6.16) */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 ids = ids_of((void *)ctx->args[0]);
	u32 tgid = ids >> 32, tid = ids;
	struct process *p = processes.lookup(&tgid);
	struct settings *s = find_settings();
	struct ended_thread *ended;
	struct thread *t;
	u32 zero = 0;
	u64 begun;

	if (tid == tgid)
		verdicts.delete(&tgid);
	if (!p)
		return 0;
	begun = bpf_ktime_get_ns();
	t = threads.lookup(&tid);
	ended = ended_threads.lookup(&zero);
	if (ended) {
		ended->tid = tid;
		ended->context = t ? t->base_context : 0;
	}
	if (t) {
		if (t->delay_ns && s)
			account_delay(p, t, s);
		if (works_on(p, t, s, tid, ctx->args[1]))
			return 0;
	}
	end_thread(p, t, tgid, tid);
	if (t && tid != tgid)	/* it goes with its creation, which is what can be done without */
		charge(p, COST_CREATE, HOOK_NS + at_most_a_run(bpf_ktime_get_ns() - begun));
	return 0;
}
