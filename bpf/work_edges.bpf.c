/* SPDX-License-Identifier: Apache-2.0
 *
 * The uprobe program: work-acquire and work-release points of the parallel runtimes. One program serves all
 * sites; the attach cookie says what a site means (enum edge_kind and COOKIE_*). Preemptible: the entry of
 * the thread is marked busy while it changes, so that a sample in between leaves it alone.
 */

static __always_inline void learn(u32 tgid, u32 tid, u32 image, u64 function)
{
	u64 key = ((u64)image << 48) ^ function, one = 1;
	int refused;

	if (learned.lookup(&key))
		return;
	refused = learned.insert(&key, &one);
	if (!refused)
		tell(RECORD_LEARNED, tgid, tid, image, 0, function, 0);
	else if (refused != -EEXIST)	/* else another thread was first */
		count(LOST_LEARNED_FULL);
}

static __always_inline void enter(struct process *p, struct thread *t, u32 kind, u64 sp)
{
	int work = kind == EDGE_ENTER_WORK, region = kind == EDGE_ENTER_REGION;

	if (learn_base(t, work, region))
		set_unknown(p, t, 0);
	if (work || region)
		set_member(p, t);
	if (!frame_enter(t, sp, work))
		count(LOST_NESTING);
}

static __always_inline void load_map_changed(struct process *p, u32 tgid, u32 tid)
{
	struct process_config *config = configs.lookup(&tgid);
	u32 stop = config ? config->flags & STOP_AT_LOAD : 0;

	if (stop)
		bpf_send_signal(SIGSTOP);
	__sync_fetch_and_add(&p->epoch, 1);
	tell(RECORD_LOAD_MAP, tgid, tid, p->image, 0, p->epoch, !!stop);
}

int on_edge(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 kind = cookie & COOKIE_KIND_MASK;
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32, tid = id;
	struct process *p = processes.lookup(&tgid);
	struct thread *t;
	int returned;

	/* A session's entry handler that answers 1 spares this call the return probe. */
	if (!p || p->dead)
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	returned = (cookie & COOKIE_RETURN) ||
		   ((cookie & COOKIE_SESSION) && PT_REGS_IP(ctx) != bpf_get_func_ip(ctx));
	count(STAT_EDGES + (kind & 7));
	if (kind == EDGE_LOAD_MAP) {
		load_map_changed(p, tgid, tid);
		return 0;
	}
	t = threads.lookup(&tid);
	if (!t)
		t = add_thread(p, tgid, tid, 0);
	if (!t)
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	t->busy = 1;
	barrier();
	t->probe_hits++;
	if (returned) {
		frame_leave(t, PT_REGS_SP(ctx));
	} else if (kind == EDGE_CREATE_THREAD) {
		t->start_routine = PT_REGS_PARM3(ctx);
	} else if (kind != EDGE_LEARN) {
		enter(p, t, kind, PT_REGS_SP(ctx));
	}
	unblock(p, t);
	recount(p, t);
	barrier();
	t->busy = 0;
	if ((cookie & COOKIE_LEARN) && !returned)
		learn(tgid, tid, p->image, PT_REGS_PARM1(ctx));
	if ((cookie & COOKIE_LEARN_SIXTH) && !returned)
		learn(tgid, tid, p->image, PT_REGS_PARM6(ctx));
	return 0;
}
