/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of chosen functions, counted exactly (malony-1987 sec. 3): by site, by the state of the program at the entry
 * (sequential: n_working is 1; concurrent: it is more), by CPU, and by caller. Entries alone are probed, never returns:
 * a return probe kills a program that throws through it, and an entry probe sees recursion, tail calls and longjmp as
 * what they are. Loaded only when it is asked for; until then its maps have one entry each.
 *
 * Preemptible, as on_edge: what is counted here is added atomically, also where it is of one CPU.
 */
BPF_TABLE("percpu_array", u32, struct call_count, call_counts, 1);	/* by number of the site */
BPF_TABLE("percpu_hash", struct call_arc, struct call_count, call_arcs, 1);

static __always_inline void add_call(struct call_count *counted, struct judgement *j)
{
	__sync_fetch_and_add(j->n_working > 1 ? &counted->concurrent : &counted->sequential, 1);
	if (j->unsure)
		__sync_fetch_and_add(&counted->unsure, 1);
}

/* Brings the thread up to date, which runs the program's code, and judges n_working as a sample would. */
static __always_inline void judge_call(struct judgement *j, struct process *p, struct thread *t, struct settings *s, u32 tgid,
				       u32 tid, u64 ip, u64 sp)
{
	struct process_config *config = configs.lookup(&tgid);
	struct scope *scope = find_scope(p->scope);
	s32 others = by_ticks_in(p, s, scope) ? others_by_ticks(tgid, tid, 0) : -1;	/* it looks all of this up again */

	rejoin(p, t);
	follow_source(p, t);
	t->busy = 1;
	barrier();
	observe(p, t, config, 1, ip, sp);
	barrier();
	t->busy = 0;
	n_working_now(j, p, t, tgid, config, scope, s->cpus, others, &t->call_sum);
}

/* Counts the call under who made it: the probe is where the return address is on top of the stack still. */
static __always_inline void add_caller(struct process *p, struct judgement *j, u32 site, u64 sp)
{
	struct call_count none = {}, *counted;
	struct call_arc arc = {};

	arc.site = site;
	arc.epoch = p->epoch;
	arc.image = p->image;
	if (bpf_probe_read_user(&arc.caller, sizeof(arc.caller), (void *)sp)) {
		count(LOST_CALLERS);
		return;
	}
	counted = call_arcs.lookup_or_try_init(&arc, &none);
	if (counted)
		add_call(counted, j);
	else
		count(LOST_CALLERS);
}

int on_call(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx), id = current_ids(), begun, entered_ns = 0;
	u32 tgid = id >> 32, tid = id, site = cookie & CALL_SITE_MASK, luck;
	struct process *p = processes.lookup(&tgid);
	struct settings *s = find_settings();
	struct call_count *counted;
	struct judgement j = {};
	struct meter *m;
	struct thread *t;

	if (!p || p->dead || !s)
		return 0;
	m = find_meter();
	luck = bpf_get_prandom_u32();
	begun = meter_begin(m, METER_CALL, luck);
	pay(p, m, METER_CALL, COST_CALL, cookie & CALL_DEAR ? s->dear_ns : s->entry_ns, luck, tgid, tid);
	if (p->cut & 1 << COST_CALL) {
		count(STAT_LEFT_OUT + COST_CALL);
		return 0;
	}
	if (cookie & (CALL_LEAVES | CALL_LANDS)) {
		on_leaving(ctx, cookie, m, tid, s->dear_ns);
		meter_end(m, METER_CALL, begun);
		return 0;
	}
	if (cookie & CALL_TIMED)
		entered_ns = bpf_ktime_get_ns();
	t = threads.lookup(&tid);
	if (!t)
		t = add_thread(tgid, tid, 0);
	counted = call_counts.lookup(&site);
	if (!t || !counted) {
		count(LOST_CALLS);
		return 0;
	}
	judge_call(&j, p, t, s, tgid, tid, PT_REGS_IP(ctx), PT_REGS_SP(ctx));
	add_call(counted, &j);
	if (!(cookie & CALL_KNOWS_CALLER))
		add_caller(p, &j, site, PT_REGS_SP(ctx));
	if (entered_ns)
		begin_call(p, &j, cookie, tid, PT_REGS_SP(ctx), entered_ns, cookie & CALL_DEAR ? s->dear_ns : s->entry_ns,
			   s->dear_ns);
	meter_end(m, METER_CALL, begun);
	return 0;
}
