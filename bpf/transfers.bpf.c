/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that the system calls of watched processes bring and take, sampled by amount. At the exit of the call, when it is
 * known how many there were; the stack is walked from where the call was made. Attached only when it is asked for: while
 * it is, the kernel takes each system call of the machine by the longer way.
 *
 * It shares its walk with the waits (waits.bpf.c): neither program can be preempted, nor interrupts the other.
 */

/* Numbers of system calls that do both, between two files. */
static __always_inline int passes(u64 number)
{
	return number == 40 || number == 275 || number == 326;	/* sendfile, splice, copy_file_range */
}

static __always_inline void walk_transfer(struct bpf_raw_tracepoint_args *ctx, struct walk *w, struct pt_regs *regs)
{
	struct mapping_list *list = mapping_lists.lookup(&w->tgid);

#ifdef MAPLE_ROOT
	w->may_seek = 1;
#else
	w->may_seek = 0;
#endif
	read_registers(w, regs);
	if (w->ip && (w->may_seek || (list && list->words))) {
		begin_walk(w, list);
		wait_unwinders.call(ctx, 0);
	}
	count(LOST_USER_STACK);
	finish_amount(w);
}

int on_transfer(struct bpf_raw_tracepoint_args *ctx)
{
	struct pt_regs *regs = (void *)ctx->args[0];
	u64 id = current_ids(), number, begun, brought, taken;
	u32 tgid = id >> 32, tid = id, zero = 0, luck;
	struct process *p = processes.lookup(&tgid);
	s64 bytes = ctx->args[1];
	struct meter *m;
	struct walk *w;

	if (bytes <= 0 || !p || p->dead)
		return 0;
	number = entered_by(regs);
	if (!brings(number) && !takes(number) && !passes(number))
		return 0;
	m = find_meter();
	luck = bpf_get_prandom_u32();
	begun = meter_begin(m, METER_TRANSFER, luck);
	pay(p, m, METER_TRANSFER, COST_TRANSFER, HOOK_NS, luck, tgid, tid);
	if (p->cut & 1 << COST_TRANSFER) {
		count(STAT_LEFT_OUT + COST_TRANSFER);
		return 0;
	}
	brought = takes(number) ? 0 : add_amount(AMOUNT_READ, bytes);
	taken = brings(number) ? 0 : add_amount(AMOUNT_WRITTEN, bytes);
	meter_end(m, METER_TRANSFER, begun);
	if (!brought && !taken)
		return 0;
	w = wait_walks.lookup(&zero);
	if (!w || !affords_amount(p)) {
		leave_out_amount(AMOUNT_READ, brought);
		leave_out_amount(AMOUNT_WRITTEN, taken);
		return 0;
	}
	begin_amount(w, p, threads.lookup(&tid), tgid, tid);
	w->amount[AMOUNT_READ] = brought;
	w->amount[AMOUNT_WRITTEN] = taken;
	walk_transfer(ctx, w, regs);
	return 0;
}
