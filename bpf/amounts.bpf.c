/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples by amount, not by time (froyd-2005 sec. 2.1): one with its call path for each so many bytes that go by in what
 * watched processes do, of each kind. Its weight is those bytes. All bytes are counted, so that the samples can be held
 * against them; samples for whose walk there is no time are left out, and counted.
 *
 * By CPU, for what is counted so often must not be shared. A program that is preempted by itself in between may draw one
 * point too many or too few.
 */
BPF_TABLE("array", u32, struct amount_plan, amount_plans, AMOUNT_KINDS);
BPF_TABLE("percpu_array", u32, struct amount, amounts, AMOUNT_KINDS);

/* Counts what went by of a kind. */
static __always_inline void add_total(u32 kind, u64 bytes, u64 times)
{
	struct amount *a = amounts.lookup(&kind);

	if (!a)
		return;
	__sync_fetch_and_add(&a->bytes, bytes);
	__sync_fetch_and_add(&a->times, times);
}

/* Counts bytes of a kind; those that the samples stand for which are due. */
static __always_inline u64 add_amount(u32 kind, u64 bytes)
{
	struct amount_plan *plan = amount_plans.lookup(&kind);
	struct amount *a = amounts.lookup(&kind);
	u64 size;

	if (!plan || !a)
		return 0;
	size = plan->size;
	if (!size)
		return 0;
	add_total(kind, bytes, 1);
	return size * points_within(&a->stratum, bytes, size, bpf_get_prandom_u32());
}

/* Whether there is time to walk a stack for it. A child that was forked has a quarter of a bucket at first: that is enough. */
static __always_inline int affords_amount(struct process *p)
{
	struct settings *s = find_settings();

	return s && p->left_ns > (s64)(s->burst_ns >> 3);
}

static __always_inline void leave_out_amount(u32 kind, u64 bytes)
{
	struct amount *a = amounts.lookup(&kind);

	if (a)
		__sync_fetch_and_add(&a->left_out, bytes);
}

/* What the samples are counted under, but for their stack. */
static __always_inline void begin_amount(struct walk *w, struct process *p, struct thread *t, u32 tgid, u32 tid)
{
	struct process_config *config = configs.lookup(&tgid);

	w->begun_ns = bpf_ktime_get_ns();
	w->tgid = tgid;
	w->purpose = WALK_AMOUNT;
	w->known_stack = 0;
	w->cactus = config && (config->flags & CACTUS);
	w->key.user = w->key.kernel = 0;
	w->key.image = p->image;
	w->key.epoch = p->epoch;
	w->key.tid = tid;
	w->key.state = STATE_WORKING;
	w->key.n_working = w->key.waiters = w->key.fresh = 0;
	w->key.unsure = 0;
	w->key.fine = w->key.away = 0;
	place_in_context(w, t);
#pragma unroll
	for (u32 kind = 0; kind < AMOUNT_KINDS; kind++)
		w->amount[kind] = 0;
}

static __always_inline void count_amount(struct walk *w, u32 kind, u64 bytes)
{
	struct amount_plan *plan = amount_plans.lookup(&kind);
	struct sample_value none = {}, *value;

	if (!bytes || !plan)
		return;
	w->key.event = plan->event;
	value = counts.lookup_or_try_init(&w->key, &none);
	if (!value) {
		count(LOST_COUNTS_FULL);
		return;
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->total, bytes);
	count(STAT_SAMPLES);
}

/* The end of the walk: `w->key.user` is known. */
static __always_inline void finish_amount(struct walk *w)
{
	struct process *p = processes.lookup(&w->tgid);
	struct settings *s = find_settings();
	u64 now = bpf_ktime_get_ns(), took = now - w->begun_ns;

	if (!s)
		return;
	w->key.phase = s->phase;	/* now, for a program may have been preempted since it began */
	w->key.slice = slice_of(s, now);
#pragma unroll
	for (u32 kind = 0; kind < AMOUNT_KINDS; kind++)
		count_amount(w, kind, w->amount[kind]);
	if (p)
		charge(p, w->amount[AMOUNT_ALLOCATED] ? COST_ALLOCATION : COST_TRANSFER, at_most_a_run(took));
}

static __always_inline void finish_amount_stack(struct walk *w)
{
	w->key.user = send_user_stack(w);
	finish_amount(w);
}
