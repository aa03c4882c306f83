/* SPDX-License-Identifier: Apache-2.0
 *
 * The perf_event program: one row of `counts` for each (stacks, thread, state, n_working).
 * The event's index is its attach cookie.
 */

/* Brings the thread's entry up to date with what the sample shows. */
static __always_inline void observe(struct process *p, struct thread *t, u32 tgid, int user_mode, u64 ip, u64 sp)
{
	struct process_config *config;

	if (t->busy)
		return;
	frame_observe(t, sp);
	if (user_mode)	/* it runs: a missed wake-up. In kernel mode it may be on its way to sleep. */
		unblock(p, t);
	config = configs.lookup(&tgid);
	if (config && t->unknown && !t->depth)
		t->base_work = !leaf_waits(config, ip, sp);
	else if (config)	/* the frames say wait, the program's own code runs: some edge has no probe (yet) */
		t->caught_working = !frames_say_work(t) && in_user_code(config, ip);
	recount(p, t);
}

static __always_inline void trace_sample(struct sample_key *key, u64 ip)
{
	struct trace_record r = {};

	r.type = RECORD_SAMPLE;
	r.tid = key->tid;
	r.time_ns = bpf_ktime_get_ns();
	r.ip = ip;
	r.image = key->image;
	r.n_working = key->n_working;
	r.state = key->state;
	r.unsure = key->unsure;
	if (trace.ringbuf_output(&r, sizeof(r), BPF_RB_NO_WAKEUP))
		count(LOST_TRACE_RING);
}

int on_sample(struct bpf_perf_event_data *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32, tid = id, zero = 0;
	struct process *p = tgid ? processes.lookup(&tgid) : 0;
	struct sample_key key = {};
	struct settings *s;
	struct thread *t;
	struct pt_regs *regs;
	struct walk *w;
	int user_mode;
	u64 ip = 0, sp = 0;
	s32 n;

	if (!p || p->dead)
		return 0;
	s = settings_map.lookup(&zero);
	w = walks.lookup(&zero);
	if (!s || !w)
		return 0;
	user_mode = (ctx->regs.cs & 3) == 3;
	/* What the sample interrupted when it hit user mode; else what the thread left user mode with. */
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	bpf_probe_read_kernel(&sp, sizeof(sp), &regs->sp);
	t = threads.lookup(&tid);
	if (!t && !is_exiting((void *)bpf_get_current_task()))
		t = add_thread(p, tgid, tid, 0);
	if (t)
		observe(p, t, tgid, user_mode, ip, sp);

	n = p->n_working;
	key.state = t && !in_work(t) ? STATE_SPINNING : STATE_WORKING;
	if (n < 1 && key.state == STATE_WORKING) {
		if (t && !t->busy && !t->blocked)
			count(STAT_REPAIRED);
		n = 1;
	}
	key.n_working = n < 0 ? 0 : n > 0xffff ? 0xffff : n;
	key.unsure = p->n_unknown > 0 || (t && t->caught_working);
	if (t && t->caught_working)
		count(STAT_CAUGHT);
	key.image = p->image;
	key.epoch = p->epoch;
	key.tid = tid;
	key.event = bpf_get_attach_cookie(ctx);
	key.phase = s->phase;
	if (key.unsure)
		count(STAT_UNSURE);
	if (s->trace && !key.event)
		trace_sample(&key, ip);
	if (!user_mode)
		key.kernel_hash = capture(ctx, &w->record, 0, END_KERNEL);
	w->key = key;
	w->tgid = tgid;
	w->period = ctx->sample_period;
	w->ip = ip;
	w->sp = sp;
	return walk_user_stack(ctx, w, regs);
}
