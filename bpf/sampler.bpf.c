/* SPDX-License-Identifier: Apache-2.0
 *
 * The perf_event program: one row of `counts` for each (stacks, thread, state, n_working).
 * The event's index is its attach cookie.
 */

/* n_working for the sample of a thread, as part of its key. */
static __always_inline void judge(struct walk *w, struct process *p, struct thread *t, u32 tgid, u32 cpus)
{
	struct process_config *config = configs.lookup(&tgid);
	struct sample_key *key = &w->key;
	struct judgement *j = &w->judged;

	n_working_now(j, p, t, tgid, config, find_scope(p->scope), cpus, w->others, &w->forgotten);
	key->state = j->state;
	key->unsure = j->unsure;
	key->n_working = j->n_working;
	if (!j->beside && config && (source_flags(config, p) & FROM_MEMORY) && w->others < 0 &&
	    config->memory.kind == MEMORY_TEAM)
		key->fine = phases_are_fine(&config->memory, p, t, key->state == STATE_WORKING);
}

static __always_inline u16 waiters_of(u64 address, u32 tgid)
{
	struct lock_key key = {};
	s32 *waiters;

	key.address = address;
	key.tgid = tgid;
	waiters = lock_waiters.lookup(&key);
	return !waiters || *waiters < 0 ? 0 : *waiters > 0xffff ? 0xffff : *waiters;
}

/* Threads that wait for the GIL, if this one has it. */
static __always_inline u16 waiters_for_gil(u32 tgid)
{
	struct interpreter *py = interpreters.lookup(&tgid);
	u64 gil = py ? call_own_gil(py) : 0;

	return gil & GIL_HELD ? waiters_of(gil & ~(u64)GIL_HELD, tgid) : 0;
}

/* Threads that wait for a mutex, or a lock of a runtime, that this one holds. */
static __always_inline u16 waiters_for(struct thread *t, u32 tgid, u32 tid)
{
	u32 mutex[4] = {};

	if (t->held_lock)
		return waiters_of(t->held_lock, tgid);
	if (bpf_probe_read_user(mutex, sizeof(mutex), (void *)t->last_lock) || !mutex[0] || mutex[2] != tid)
		return 0;
	return waiters_of(t->last_lock, tgid);
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

static __always_inline int is_cactus(u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);

	return config && (config->flags & CACTUS);
}

static __always_inline int blames_locks(u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);

	return config && (config->flags & BLAME_LOCKS);
}

static __always_inline void place_worker(struct walk *w, struct thread *t, u32 tgid)
{
	struct process_config *config = configs.lookup(&tgid);

	if (config && config->closures.there)
		place_in_closures(w, t, &config->closures);
}

/* A process that is not watched uses the CPU: has Python decided about it? */
static __always_inline void discover(u32 tgid, u32 tid)
{
	u32 *verdict = verdicts.lookup(&tgid), asked = VERDICT_ASKED;

	if (verdict && *verdict == VERDICT_DENIED)
		return;
	count(LOST_UNDECIDED);
	if (verdict || (task_flags((void *)bpf_get_current_task()) & (PF_KTHREAD | PF_EXITING)))
		return;
	verdicts.update(&tgid, &asked);
	tell(RECORD_SEEN, tgid, tid, 0, 0);
}

int on_sample(struct bpf_perf_event_data *ctx)
{
	u64 id = current_ids();
	u32 tgid = id >> 32, tid = id, zero = 0;
	struct process *p = tgid ? processes.lookup(&tgid) : 0;
	struct settings *s;
	struct thread *t;
	struct pt_regs *regs;
	struct walk *w;
	int user_mode, left_out;
	u64 ip = 0, sp = 0;

	find_runqueue();
	if (!tgid)
		return 0;
	s = find_settings();
	if (!p && s && s->system_wide && !bpf_get_attach_cookie(ctx))
		discover(tgid, tid);
	if (!p || p->dead)
		return 0;
	w = walks.lookup(&zero);
	if (!s || !w)
		return 0;
	w->thin = p->thin & 7;
	left_out = !one_of_each(p->thinned++, w->thin);
	w->others = -1;
	if (!left_out) {
		w->begun_ns = bpf_ktime_get_ns();
		w->others = others_by_ticks(tgid, tid, 1);
		if (!bpf_get_attach_cookie(ctx))
			refill(p, s, tgid, tid);
		if (!bpf_get_attach_cookie(ctx) && w->others >= 0)
			ask_for_glimpse(p, s, tgid, tid);
	}
	if (!(bpf_get_attach_cookie(ctx) & SAMPLE_NO_INTERRUPT))
		charge_timer(p, s);
	user_mode = (ctx->regs.cs & 3) == 3;
	/* What the sample interrupted when it hit user mode; else what the thread left user mode with. */
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
	bpf_probe_read_kernel(&sp, sizeof(sp), &regs->sp);
	t = threads.lookup(&tid);
	if (!t && !left_out && !is_exiting((void *)bpf_get_current_task()))
		t = add_thread(tgid, tid, 0);
	if (t && w->others >= 0 && !s->glimpse)
		found_unfollowed(p, t);
	if (t && !left_out && !bpf_get_attach_cookie(ctx))
		note_shown(t, w->begun_ns);
	if (t && !t->busy)
		observe(p, t, configs.lookup(&tgid), user_mode, ip, sp);
	if (left_out) {	/* but for what the thread does: the samples of others count on that */
		count(STAT_LEFT_OUT + COST_SAMPLE);
		return 0;
	}

	/* all goes to map memory at once: the verifier does not tell apart what it sees there */
	w->user_mode = user_mode;
	w->key.user = w->key.kernel = 0;
	w->key.waiters = 0;
	w->key.fine = w->key.awaits = w->key.glimpse = 0;
	w->key.away = w->others < 0 ? away_from(p) : w->others >> AWAY_SHIFT;
	if (t && w->others >= 0)
		account_delay(p, t, s);
	else if (t)
		t->delay_ns = 0;
	w->key.fresh = 0;
	w->key.slice = slice_of(s, w->begun_ns);
	w->key.image = p->image;
	w->key.epoch = p->epoch;
	w->key.tid = tid;
	w->key.event = (u8)bpf_get_attach_cookie(ctx);
	w->key.phase = s->phase;
	w->compares = s->activations && (p->waits_since_ns || !s->system_wide) && !w->key.event;
	w->calls = p->image | (u64)s->activations << 32;
	w->calls_before = t ? t->calls : 0;
	judge(w, p, t, tgid, s->cpus);
	if (t && (t->last_lock || t->held_lock))
		w->key.waiters = waiters_for(t, tgid, tid);
	if (blames_locks(tgid))
		w->key.waiters += waiters_for_gil(tgid);
	if (t && t->caught_working)
		count(STAT_CAUGHT);
	if (w->key.unsure)
		count(STAT_UNSURE);
	if (s->trace && !w->key.event)
		trace_sample(&w->key, ip);
	w->tgid = tgid;
	place_in_context(w, t);
	if (t && t->worker && p->from_leaves && w->key.state == STATE_WORKING)
		place_worker(w, t, tgid);
	if (!t)	/* the kernel takes it apart: that work too is its creator's */
		place_ended_thread(w, tid);
	w->period = ctx->sample_period;
	w->ip = ip;
	w->sp = sp;
	w->cactus = is_cactus(tgid);
	if (!w->user_mode)
		w->key.kernel = capture(ctx, w, 0, END_KERNEL);
	return walk_user_stack(ctx, w, regs);
}
