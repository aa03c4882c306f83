/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the threads of programs without a parallel runtime are created: the tracepoint that tells of a new thread runs in its
 * creator, whose stack is walked there. No probe is needed, so neither the program nor anybody else who maps its C library
 * executes a breakpoint. (With a runtime the probe on pthread_create says what the thread is to run, too; but a static program
 * that is stripped has no name to place it by.)
 *
 * It shares its walk with the waits (waits.bpf.c): neither program can be preempted, nor interrupts the other.
 */

/* The creator is known: it is where the new thread comes from. */
static __always_inline void finish_creator(struct walk *w)
{
	u64 context = file_context(w), took = bpf_ktime_get_ns() - w->begun_ns;
	struct process *p = processes.lookup(&w->tgid);
	struct settings *s = find_settings();
	u32 tid = w->key.tid;
	struct thread *t = threads.lookup(&tid);

	if (t && context)
		t->base_context = context;
	if (!p || !s)
		return;
	charge(p, COST_CREATE, HOOK_NS + at_most_a_run(took));
	hold_to_budget(p, s, w->tgid, (u32)current_ids());
}

/* What a creation is known by. Between the system call and who wanted a thread is pthread_create, which alone has 400 bytes
 * of the stack, and perhaps a language's library: return addresses are looked for further out than where a thread waits. */
static __always_inline u64 place_of_creation(struct walk *w, struct process_config *config)
{
	u64 near = place_of_wait(w, config, WALK_FORK);

	return mix(near, further_place(w)) | 1;
}

/* A thread of a watched process has been created by the current one. The last that its program does, which began at `begun`:
 * it may go on in the unwinder. */
static __always_inline void place_creator(struct bpf_raw_tracepoint_args *ctx, struct process *p, u32 tgid, u32 tid, u64 begun)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	struct process_config *config = configs.lookup(&tgid);
	struct mapping_list *list = mapping_lists.lookup(&tgid);
	u32 zero = 0, creator = current_ids();
	struct walk *w = wait_walks.lookup(&zero);

	if (!w || !config || ((config->flags & HAS_RUNTIME) && !(config->flags & CREATORS_UNPROBED)))
		return;
	if (p->cut & 1 << COST_CREATE) {
		count(STAT_LEFT_OUT + COST_CREATE);
		return;
	}
	w->begun_ns = begun;
	w->tgid = tgid;
	w->key.tid = tid;
	w->key.image = p->image;
	w->purpose = WALK_FORK;
	w->cactus = !!(config->flags & CACTUS);
	place_in_context(w, threads.lookup(&creator));
	read_registers(w, regs);
	w->may_seek = w->key.image >> 31;
	if (!w->ip || ((!list || !list->words) && !w->may_seek)) {
		count(LOST_CONTEXTS);
		return;
	}
	w->creation = place_behind(w, python_place(w, place_of_creation(w, config)), 0, affords_walk(p));
	w->known_stack = known_stack(w, 1);
	if (w->known_stack) {
		count(STAT_KNOWN_CREATIONS);
		finish_creator(w);
		return;
	}
	begin_walk(w, list);
	wait_unwinders.call(ctx, 0);
	count(LOST_CONTEXTS);	/* the unwinder is not loaded yet */
}
