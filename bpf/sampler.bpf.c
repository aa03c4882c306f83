/* SPDX-License-Identifier: Apache-2.0
 *
 * The perf_event program: one row of `counts` for each (stacks, thread, state, n_working).
 * The event's index is its attach cookie.
 */

/* A 64-bit hash of the frames; 0 is kept for "no stack". */
static __always_inline u64 hash_frames(struct stack_record *s, u32 depth)
{
	u64 hash = 0x9e3779b97f4a7c15ULL ^ depth;

	for (u32 i = 0; i < MAX_FRAMES; i++) {
		u32 at = i;

		if (i >= depth)
			break;
		asm volatile("" : "+r"(at));	/* keeps the mask, which the verifier needs */
		hash = (hash ^ s->pc[at & MAX_FRAMES]) * 0xff51afd7ed558ccdULL;
		hash ^= hash >> 32;
	}
	return hash ? hash : 1;
}

/* Reads a stack, sends it to Python if that was not done yet, and returns its hash; 0 = unreadable. */
static __always_inline u64 capture(struct bpf_perf_event_data *ctx, u64 flags)
{
	u32 zero = 0, depth, one = 1;
	struct stack_record *s = scratch.lookup(&zero);
	s32 bytes;
	u64 hash, size;

	if (!s)
		return 0;
	bytes = bpf_get_stack(ctx, s->pc, MAX_FRAMES * sizeof(u64), flags);
	if (bytes <= 0)
		return 0;
	depth = (u32)bytes / sizeof(u64);
	if (depth >= MAX_FRAMES)
		count(STAT_TRUNCATED);
	hash = hash_frames(s, depth);
	if (sent_stacks.lookup(&hash))
		return hash;
	s->type = RECORD_STACK;
	s->depth = depth;
	s->hash = hash;
	size = sizeof(*s) - sizeof(s->pc) + (u32)bytes;
	asm volatile("" : "+r"(size));	/* else clang drops the check, and the verifier the program */
	if (size > sizeof(*s))
		return 0;
	if (stacks.ringbuf_output(s, size, BPF_RB_NO_WAKEUP))
		count(LOST_STACK_RING);
	else
		sent_stacks.update(&hash, &one);
	return hash;
}

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
	struct sample_value none = {}, *value;
	struct settings *s;
	struct thread *t;
	struct pt_regs *regs;
	int user_mode;
	u64 ip = 0, sp = 0;
	s32 n;

	if (!p || p->dead)
		return 0;
	s = settings_map.lookup(&zero);
	if (!s)
		return 0;
	user_mode = (ctx->regs.cs & 3) == 3;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	if (user_mode) {
		ip = ctx->regs.ip;
		sp = ctx->regs.sp;
	} else {
		bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
		bpf_probe_read_kernel(&sp, sizeof(sp), &regs->sp);
	}
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
	key.tid = tid;
	key.event = bpf_get_attach_cookie(ctx);
	key.phase = s->phase;
	key.user_hash = capture(ctx, BPF_F_USER_STACK);
	if (!key.user_hash)
		count(LOST_USER_STACK);
	if (!user_mode)
		key.kernel_hash = capture(ctx, 0);
	if (key.unsure)
		count(STAT_UNSURE);
	if (s->trace && !key.event)
		trace_sample(&key, ip);

	value = counts.lookup_or_try_init(&key, &none);
	if (!value) {
		count(LOST_COUNTS_FULL);
		return 0;
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->total, ctx->sample_period);
	count(STAT_SAMPLES);
	return 0;
}
