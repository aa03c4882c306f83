/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that programs allocate, sampled by amount: at a call of parprof_allocated in what is preloaded into a command
 * (instrument/alloc.c), which counts by itself and calls that for samples alone. It is loaded only when it is asked for.
 *
 * Preemptible, as on_edge, with which it shares its walks.
 */

/* Walks from the caller of the function that is probed, at its very beginning. */
static __always_inline void walk_allocation(struct pt_regs *ctx, struct walk *w, struct thread *t)
{
	struct mapping_list *list = mapping_lists.lookup(&w->tgid);

	w->ip = 0;
	w->sp = PT_REGS_SP(ctx) + 8;
	w->bp = PT_REGS_FP(ctx);
	w->r10 = ctx->r10;
	w->may_seek = 0;
	bpf_probe_read_user(&w->ip, 8, (void *)PT_REGS_SP(ctx));
	if (w->ip && list && list->words) {
		begin_walk(w, list);
		w->exact = 0;	/* a return address */
		edge_unwinders.call(ctx, 0);
	}
	count(LOST_USER_STACK);
	finish_amount(w);
	walk_claims.delete(&t->walk_slot);
}

int on_allocation(struct pt_regs *ctx)
{
	u64 id = current_ids(), bytes = PT_REGS_PARM1(ctx), times = PT_REGS_PARM2(ctx), due = PT_REGS_PARM3(ctx), begun;
	u32 tgid = id >> 32, tid = id, luck;
	struct process *p = processes.lookup(&tgid);
	struct settings *s = find_settings();
	struct thread *t;
	struct meter *m;
	struct walk *w;

	if (!p || p->dead || !s)
		return 0;
	m = find_meter();
	luck = bpf_get_prandom_u32();
	begun = meter_begin(m, METER_ALLOCATION, luck);
	pay(p, m, METER_ALLOCATION, COST_ALLOCATION, s->entry_ns, luck, tgid, tid);
	add_total(AMOUNT_ALLOCATED, bytes, times);
	meter_end(m, METER_ALLOCATION, begun);
	if (!due)
		return 0;
	t = threads.lookup(&tid);
	if (!t)
		t = add_thread(p, tgid, tid, 0);
	w = t && affords_walk(p) && !(p->cut & 1 << COST_ALLOCATION) ? claim_walk(t) : 0;
	if (!w) {
		leave_out_amount(AMOUNT_ALLOCATED, due);
		return 0;
	}
	begin_amount(w, p, t, tgid, tid);
	w->amount[AMOUNT_ALLOCATED] = due;
	walk_allocation(ctx, w, t);
	return 0;
}
