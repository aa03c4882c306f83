/* SPDX-License-Identifier: Apache-2.0
 *
 * How many threads work, as the thread sees it that is here now: the one way in which n_working is judged, at a sample
 * (sampler.bpf.c) and at a call (calls.bpf.c).
 */

/* Brings the thread's entry up to date with what a sample, or a call, shows of it. Not while a probe changes it (`busy`). */
static __always_inline void observe(struct process *p, struct thread *t, struct process_config *config, int user_mode, u64 ip,
				    u64 sp)
{
	int anew;

	p->from_leaves = config && ((config->flags & FROM_LEAVES) || (p->cut & 1 << COST_PROBE));
	anew = rejoin(p, t);
	follow_source(p, t);
	if (p->from_leaves)	/* probes that are about to go have pushed frames whose return nobody will see */
		t->depth = 0;
	frame_observe(t, sp);
	if (user_mode) {	/* it runs: a missed wake-up, or switch. In kernel mode it may be on its way to sleep. */
		if (t->blocked && !anew)
			end_unseen_wait(p, t);
		unblock(p, t);
		found_running(p, t);
	}
	if (config && t->unknown == GUESSED && !t->is_main && in_unprobed(config, ip))
		set_unknown(p, t, UNPROBED);	/* attached to: it is seen to be one of those */
	if (config && !t->depth && (t->unknown || p->from_leaves))
		t->base_work = !leaf_waits(config, ip, sp) ||
			       (!user_mode && wakes_others((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf())));
	else if (config && !frames_say_work(t) && runs_program(config, t, ip))
		frame_caught(t, sp);
	else
		t->caught_working = 0;
	t->spins = (config && config->spin_end[0] && in_spin_loop(config, ip)) || (!ip && polls_for_io());
	recount_at(p, t, 1, 0, 0);
	if (p->traced)
		trace_thread(p, t, bpf_ktime_get_ns());
}

/* How n_working is found for this process now: what Python chose, but for what was cut off since. */
static __always_inline u32 source_flags(struct process_config *config, struct process *p)
{
	u32 flags = config ? config->flags : 0;

	if (!(p->cut & 1 << COST_PROBE) || (flags & FROM_LEAVES))
		return flags;
	return flags & CHECK_MEMORY ? flags | FROM_LEAVES | FROM_MEMORY : flags | FROM_LEAVES;
}

/* n_working for a thread that runs, and whether it is partly a guess. `scope` is that of its process. `others`: see
 * others_by_ticks. `sum`: map memory, as there. */
static __always_inline void n_working_now(struct judgement *j, struct process *p, struct thread *t, u32 tgid,
					  struct process_config *config, struct scope *scope, u32 cpus, s32 others,
					  u64 *sum)
{
	u32 flags = source_flags(config, p), ticks = others >= 0;
	s32 n, found, beside;

	j->state = t && !in_work(t) ? STATE_SPINNING : STATE_WORKING;
	n = ticks ? (others & BESIDE_MASK) + (j->state == STATE_WORKING) : p->n_working[parity(p)];
	beside = ticks ? 0 : others_of_scope(p, scope);
	if (n < 1 && j->state == STATE_WORKING) {
		if (t && !t->busy && !t->blocked && !(flags & FROM_LEAVES) && !ticks)
			count(STAT_REPAIRED);
		n = 1;
	}
	j->unsure = (p->n_unknown[parity(p)] > 0 && !(flags & FROM_LEAVES)) || (t && t->caught_working);
	if (ticks) {
		count(STAT_TICKS);
		if (cpus > MAX_CPUS)
			count(LOST_CPUS);
		flags &= ~(FROM_MEMORY | CHECK_MEMORY);	/* which ask who sleeps */
	}
	n = forget_in(sum, n);
	flags = forget_in(sum, flags);
	beside = forget_in(sum, beside);
	if (config && j->state == STATE_WORKING && (flags & (FROM_MEMORY | CHECK_MEMORY)) &&
	    (config->memory.kind != MEMORY_WORKERS || config->memory.root_kind != ROOT_LEARNED || p->runtime_root)) {
		found = memory_working(tgid);
		if (found == UNREADABLE) {	/* just now the runtime builds or ends it, say */
			if (flags & FROM_MEMORY) {
				count(LOST_MEMORY);
				j->unsure = 1;
			}
		} else if ((flags & FROM_MEMORY) || j->unsure) {
			n = found < 1 ? 1 : found;
			j->unsure = t && t->caught_working && !(flags & FROM_MEMORY);
		} else {
			count(STAT_CHECKED);
			if ((found < 1 ? 1 : found) != n)
				count(STAT_DISAGREED);
		}
	}
	n = (n < 0 ? 0 : n) + beside;
	j->n_working = n > 0xffff ? 0xffff : n;
	j->beside = beside;
}
