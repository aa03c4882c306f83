/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python asks the programs to change, since only they may: see enum command.
 */

/* Takes so many away from the scope of a process. */
static __always_inline void leave_scope(struct process *p, s32 working)
{
	u32 template = 0;
	struct thread *t = threads.lookup(&template);

	if (t && working)
		change_scope(p->scope, t, -(s64)working, 0, 0);
}

/* Arguments from the third on: tid, since when it sleeps, its stacks there, the epoch of the load map, what it awaits. If it
 * has woken up since, it is no matter any more: the next wait is looked at as it begins. */
static __always_inline void tell_place(struct process *p, struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = ctx->args[2];
	struct thread *t = threads.lookup(&tid);

	if (!t || t->image != p->image || !t->blocked || t->wait_user || t->wait_since_ns != ctx->args[3])
		return;
	t->wait_context = 0;
	t->wait_epoch = ctx->args[6];
	t->awaits = ctx->args[7];
	place_wait(t, ctx->args[4], ctx->args[5]);
}

/* Run by Python itself (BPF_PROG_TEST_RUN), never attached: changes a process's entry where the programs change it too.
 * Arguments: enum command, tgid, and for COMMAND_WAITS a time, for COMMAND_RECOUNT what a glimpse may cost or 0, for
 * COMMAND_TRACE 0 or 1, for COMMAND_PLACE see tell_place; or COMMAND_ALLOW, scope, cores. */
int on_command(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tgid = ctx->args[1], command = ctx->args[0], unused, last_tid;
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
		change_scope(p->scope, 0, 0, 0, p->waits_since_ns);	/* a stall, too, is cut where the waits are */
		return 0;
	}
	if (command == COMMAND_TRACE) {
		p->traced = !!ctx->args[2];
		return 0;
	}
	if (command == COMMAND_PLACE) {
		tell_place(p, ctx);
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
		p->probes_owe_ns = 0;
	} else if (command == COMMAND_RECOUNT) {
		p->n_working[unused] = 0;
		p->n_unknown[unused] = 0;
		p->n_blocked_outside[unused] = 0;
		p->n_blocked_inside[unused] = 0;
		p->loiterers = 0;
		barrier();
		p->generation++;
		__sync_fetch_and_add(&p->n_working[unused ^ 1], -working);	/* what is left there is for COMMAND_SETTLE */
		leave_scope(p, working);
		p->cut &= ~(1 << COST_SWITCH);
		p->glimpsed = !!ctx->args[2];
		if (p->glimpsed)
			p->cut &= ~(1 << COST_WAIT);
		p->ticks = 0;
		scope = find_scope(p->scope);
		if (scope) {
			scope->ticks = 0;
			scope->places = 0;
			scope->glimpse_left_ns = ctx->args[2];
		}
	} else if (command == COMMAND_SETTLE) {
		p->n_working[unused] = 0;
		leave_scope(p, working);
	} else if (command == COMMAND_LEAVE) {
		p->dead = 1;
		last_tid = p->last_tid;	/* nobody saw it leave its CPU for good */
		if (last_tid)
			threads.delete(&last_tid);
		p->n_working[unused ^ 1] = 0;
		leave_scope(p, working);
	}
	return 0;
}
