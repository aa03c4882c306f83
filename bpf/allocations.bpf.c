/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that programs allocate, sampled by amount. In a command at a call of parprof_allocated, in what is preloaded into it
 * (instrument/alloc.c): that counts by itself, and calls it for samples alone. In a program that runs already at each call
 * of malloc and its family, as long as the budget allows for that. It is loaded only when it is asked for.
 *
 * Preemptible, as on_edge, with which it shares its walks.
 */

/* The call of a function that may make the same allocation by calling another: where it and its stack were, who called it. */
struct outer_call {
	u64 ip;
	u64 sp;
	u64 caller;
};
BPF_TABLE("lru_hash", u32, struct outer_call, outer_calls, 1);	/* by tid */

#define OUTER_FRAMES 512	/* bytes of stack between the two, at most */
#define ALLOCATOR_BYTES (64 << 10)	/* of code: the call is in there, with the one or the other function */

static __always_inline int is_nearby(u64 code, u64 function)
{
	return code - function + ALLOCATOR_BYTES <= 2 * ALLOCATOR_BYTES;
}

/* Whether this call is another's of the family, and so counted: made by it, from code nearby, or instead of it, by a jump.
 * The same function at the same place is called anew, in a loop. */
static __always_inline int is_inner(struct pt_regs *ctx, u32 tid, u64 caller)
{
	struct outer_call *outer = outer_calls.lookup(&tid);

	if (!outer || outer->ip == PT_REGS_IP(ctx) || outer->sp - PT_REGS_SP(ctx) > OUTER_FRAMES)
		return 0;
	if (!is_nearby(caller, PT_REGS_IP(ctx)) && !is_nearby(caller, outer->ip) &&
	    (outer->sp != PT_REGS_SP(ctx) || outer->caller != caller))
		return 0;
	outer_calls.delete(&tid);
	return 1;
}

/* The bytes that a probed call asks for; 0: none, or they are counted already. */
static __always_inline u64 bytes_asked_for(struct pt_regs *ctx, u64 cookie, u32 tid)
{
	u64 bytes = argument(ctx, cookie & ALLOCATION_BYTES_MASK), times_at = cookie >> ALLOCATION_TIMES_SHIFT & 7, times;
	struct outer_call here = {};

	here.ip = PT_REGS_IP(ctx);
	here.sp = PT_REGS_SP(ctx);
	bpf_probe_read_user(&here.caller, sizeof(here.caller), (void *)here.sp);
	if (is_inner(ctx, tid, here.caller))
		return 0;
	if (cookie & ALLOCATION_OUTER)
		outer_calls.update(&tid, &here);
	if (times_at) {
		times = argument(ctx, times_at);
		bytes = bytes >> 32 || times >> 32 ? 0 : bytes * times;
	}
	return bytes > ALLOCATION_MOST ? 0 : bytes;
}

/* Walks from the function that is probed; from its caller where that only tells. */
static __always_inline void walk_allocation(struct pt_regs *ctx, struct walk *w, struct thread *t, int tells)
{
	struct mapping_list *list = mapping_lists.lookup(&w->tgid);

	w->ip = PT_REGS_IP(ctx);
	w->sp = PT_REGS_SP(ctx);
	w->bp = PT_REGS_FP(ctx);
	w->r10 = ctx->r10;
	w->may_seek = 0;
	if (tells) {
		w->ip = 0;
		bpf_probe_read_user(&w->ip, 8, (void *)w->sp);
		w->sp += 8;
	}
	if (w->ip && list && list->words) {
		begin_walk(w, list);
		w->exact = !tells;	/* else it is a return address */
		edge_unwinders.call(ctx, 0);
	}
	count(LOST_USER_STACK);
	finish_amount(w);
	walk_claims.delete(&t->walk_slot);
}

int on_allocation(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx), id = current_ids(), due, begun;
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
	pay(p, m, METER_ALLOCATION, COST_ALLOCATION, cookie & COOKIE_DEAR ? s->dear_ns : s->entry_ns, luck, tgid, tid);
	if (!cookie) {
		add_total(AMOUNT_ALLOCATED, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
		due = PT_REGS_PARM3(ctx);
	} else if (p->cut & 1 << COST_ALLOCATION) {
		count(STAT_LEFT_OUT + COST_ALLOCATION);
		return 0;
	} else {
		due = bytes_asked_for(ctx, cookie, tid);
		due = due ? add_amount(AMOUNT_ALLOCATED, due) : 0;
	}
	meter_end(m, METER_ALLOCATION, begun);
	if (!due)
		return 0;
	t = threads.lookup(&tid);
	if (!t)
		t = add_thread(tgid, tid, 0);
	w = t && affords_amount(p) && !(p->cut & 1 << COST_ALLOCATION) ? claim_walk(t) : 0;
	if (!w) {
		leave_out_amount(AMOUNT_ALLOCATED, due);
		return 0;
	}
	begin_amount(w, p, t, tgid, tid);
	w->amount[AMOUNT_ALLOCATED] = due;
	walk_allocation(ctx, w, t, !cookie);
	return 0;
}
