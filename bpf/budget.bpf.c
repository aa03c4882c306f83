/* SPDX-License-Identifier: Apache-2.0
 *
 * The breaker: what each watched process pays for being profiled is held to a budget here, at once, whatever
 * Python does meanwhile.
 *
 * A process has one bucket of time. Each of its samples of the clock refills it by the budget's share of the period
 * that the sample stands for; each event takes out what it costs: the trap as calibrated on this machine, the program
 * as measured in place. When the bucket is empty, the kind of event that took most since it was full last is cut off:
 * probes and locks do nothing from the next hit on, and n_w comes from leaves or from memory; context switches are
 * not followed, and n_w is what runs on the CPUs at a sample; samples are thinned out, and each stands for more.
 * Probes may take a quarter of a bucket at once, and no more than a sixteenth in a program's first moments: where they
 * come in storms, what they take is of no use, and the program may be a short one. Walks of creators' stacks need half a
 * bucket, and so end by themselves. Python is told, and takes away what is left.
 *
 * Where switches are not followed, where threads sleep is seen in glimpses: each time that the process has used enough CPU
 * time for its share to pay an eighth of a bucket, and there is that to spare, Python is asked to follow switches again
 * until half of that is used up, or more, where that is too soon.
 */
/* By chance, not by count: events come in patterns, task after task, with which a count would run in step. */
#define METERED_RUNS 63	/* one run in 64 is timed */
#define CHARGED_SHIFT 8
#define CHARGED_RUNS 7	/* one in 8 is charged, for all 8 */
#define LONGEST_RUN_NS 20000ULL	/* a probe's program can be preempted */
#define HOOK_NS 20	/* what the kernel does around a tracepoint's program */
#define MOST_THIN 6

enum metered {
	METER_EDGE = 0,
	METER_SWITCH = 1,
	METER_WAKEUP = 2,
	METER_WAIT = 3,
	METER_CALL = 4,
	METER_TRANSFER = 5,
	METER_ALLOCATION = 6,
	METERS = 7,
};

/* How often programs ran on one CPU, and what a run took lately. */
struct meter {
	u64 hits[METERS];
	u32 price_ns[METERS];
	u64 checked_ns;	/* when the rate of context switches was looked at last */
	u64 hot;	/* how often in a row it was too high */
	u64 nothing;	/* see untracked() */
};
BPF_TABLE("percpu_array", u32, struct meter, meters, 1);
BPF_RINGBUF_OUTPUT(alarms, 4);

static __always_inline struct meter *find_meter(void)
{
	u32 zero = 0;

	return meters.lookup(&zero);
}

/* The same value, of which the verifier knows nothing any more: something is added that nobody but us knows to be 0. It follows
 * a program once for each value that a variable is known to have: behind two branches that set one to 0 and to 1 all the rest
 * twice. */
static __always_inline u64 untracked(struct meter *m, u64 value)
{
	return value + *(volatile u64 *)&m->nothing;
}

static __always_inline struct settings *find_settings(void)
{
	u32 zero = 0;

	return settings_map.lookup(&zero);
}

/* Unique without fetching atomics: a counter per CPU, which tracepoints do not preempt; 2^31 ids in all before they come
 * again. Python's ids are below 2^31. */
static __always_inline u32 new_image(void)
{
	u32 which = STAT_IMAGES;
	u64 *n = counters.lookup(&which);
	struct settings *s = find_settings();

	return n && s ? 0x80000000 | (u32)((*n)++ * s->possible_cpus + bpf_get_smp_processor_id()) : 0;
}

/* Counts a run; when it began, if it is to be timed, else 0. `luck` is a random number. */
static __always_inline u64 meter_begin(struct meter *m, u32 what, u32 luck)
{
	if (!m)
		return 0;
	m->hits[what]++;
	return luck & METERED_RUNS && m->price_ns[what] ? 0 : bpf_ktime_get_ns();
}

/* What a run took, as far as that can be its own time. */
static __always_inline u64 at_most_a_run(u64 took_ns)
{
	return took_ns < LONGEST_RUN_NS ? took_ns : LONGEST_RUN_NS;
}

static __always_inline void meter_end(struct meter *m, u32 what, u64 begun)
{
	u64 took;

	if (!m || !begun)
		return;
	took = at_most_a_run(bpf_ktime_get_ns() - begun);
	m->price_ns[what] = m->price_ns[what] ? (7 * m->price_ns[what] + took) >> 3 : took;
}

static __always_inline void pay_for_glimpse(struct process *p, u64 ns)
{
	struct scope *scope = find_scope(p->scope);

	if (scope)
		__sync_fetch_and_add(&scope->glimpse_left_ns, -(s64)ns);
}

/* Whether the glimpse that lasts has used up what it may cost, or the process all that it has: nothing else is to pay for
 * it. */
static __always_inline int glimpse_is_over(struct process *p, struct settings *s)
{
	struct scope *scope;

	if (!p->glimpsed || !s->glimpse)
		return 0;
	scope = find_scope(p->scope);
	return p->left_ns < 0 || !scope || scope->glimpse_left_ns < 0;
}

static __always_inline void charge(struct process *p, u32 kind, u64 ns)
{
	__sync_fetch_and_add(&p->spent_ns[kind], ns);
	__sync_fetch_and_add(&p->left_ns, -(s64)ns);
	if (kind == COST_PROBE)
		__sync_fetch_and_add(&p->probes_owe_ns, ns);
	if ((kind == COST_SWITCH || kind == COST_WAIT) && p->glimpsed)
		pay_for_glimpse(p, ns);
}

/* The interrupt of a sample is paid for, but nothing here can save it. */
static __always_inline void charge_timer(struct process *p, struct settings *s)
{
	__sync_fetch_and_add(&p->spent_ns[COST_TIMER], s->interrupt_ns);
}

static __always_inline u64 probes_may_owe(struct settings *s)
{
	return s->burst_ns >> 2;
}

/* Begins with a debt: what a program may pay that runs for long is too much for one that is over in 50 ms. */
static __always_inline u64 probes_owe_at_first(struct settings *s)
{
	return probes_may_owe(s) - (s->burst_ns >> 4);
}

static __always_inline void fill_budget(struct process *p, struct settings *s)
{
#pragma unroll
	for (int kind = 0; kind < COST_KINDS; kind++)
		p->full_ns[kind] = p->spent_ns[kind];
	p->left_ns = s->burst_ns;
}

static __always_inline void raise_alarm(u32 tgid, u32 tid, u32 image, u32 kind)
{
	struct control_record r = {};

	fill_record(&r, RECORD_CUT, tgid, tid, image, kind);
	if (alarms.ringbuf_output(&r, sizeof(r), BPF_RB_FORCE_WAKEUP))
		count(LOST_CONTROL_RING);
}

#define HOT_LOOKS 16

/* All programs of the machine pay for our being told of context switches, those that are not watched too: where they
 * come so fast that this takes more than the budget, they are followed no more. */
static __always_inline void spare_bystanders(struct meter *m)
{
	struct settings *s;
	u64 now, before;

	if (!m || (m->hits[METER_SWITCH] & (HOOK_RUNS - 1)))
		return;
	now = bpf_ktime_get_ns();
	before = m->checked_ns;
	m->checked_ns = now;
	s = find_settings();
	if (!s || s->ticks)
		return;
	m->hot = now - before < s->hooks_ns ? m->hot + 1 : 0;
	if (m->hot < HOT_LOOKS)
		return;
	m->hot = 0;
	raise_alarm(0, 0, 0, COST_SWITCH);
}

/* Nobody knows any more who sleeps: n_working is counted on the CPUs, that of the whole scope. */
static __always_inline void leave_switches(struct process *p)
{
	struct scope *scope = find_scope(p->scope);

	p->ticks = 1;
	if (scope)
		scope->ticks = 1;
}

/* Cuts off the dearest kind of event if the budget is used up. Two CPUs that do so at once choose the same. */
u64 cut_dearest(u64 given)
{
	struct thread_change *m = (struct thread_change *)given;
	struct settings *s = find_settings();
	struct process *p;
	u64 dearest = COST_KINDS, most, taken, more;
	u32 tgid, tid, cuttable;

	if (!m || !s)
		return 0;
	tgid = m->number;
	tid = m->tid;
	p = processes.lookup(&tgid);
	if (!p)
		return 0;
	if (glimpse_is_over(p, s)) {
		p->glimpsed = 0;
		p->cut |= 1 << COST_WAIT;
		dearest = COST_SWITCH;
		goto cut;
	}
	if (p->left_ns >= 0) {
		if (p->probes_owe_ns <= probes_may_owe(s) || p->cut & 1 << COST_PROBE)
			return 0;
		dearest = COST_PROBE;
		goto cut;
	}
	cuttable = ~(p->cut | 1 << COST_WALK | 1 << COST_TIMER);
	most = s->burst_ns >> 3;	/* what took less is not what emptied it */
#pragma unroll
	for (int kind = 0; kind < COST_KINDS; kind++) {
		taken = p->spent_ns[kind] - p->full_ns[kind];
		more = (cuttable >> kind & 1) & below(most, taken);	/* without a branch, for the verifier's sake */
		most ^= (most ^ taken) & -more;
		dearest ^= (dearest ^ kind) & -more;
	}
	fill_budget(p, s);
	if (dearest == COST_KINDS)
		return 0;
	if (dearest == COST_SAMPLE) {
		p->thin += p->thin < MOST_THIN;
		return 0;
	}
cut:
	p->cut |= 1 << dearest;
	if (dearest == COST_PROBE)
		p->from_leaves = 1;
	if (dearest == COST_SWITCH)
		leave_switches(p);
	raise_alarm(tgid, tid, p->image, dearest);
	return 0;
}

static u64 (*call_cut_dearest)(struct thread_change *m) = (void *)SHARED_cut_dearest;

static __always_inline void hold_to_budget(struct process *p, struct settings *s, u32 tgid, u32 tid)
{
	struct thread_change m = {};

	if (p->left_ns >= 0 && p->probes_owe_ns <= probes_may_owe(s) && !p->glimpsed)
		return;
	m.number = tgid;
	m.tid = tid;
	call_cut_dearest(&m);
}

/* One event in CHARGED_RUNS + 1 pays for all. `luck` is a random number. */
static __always_inline void pay(struct process *p, struct meter *m, u32 what, u32 kind, u32 trap_ns, u32 luck, u32 tgid,
				u32 tid)
{
	struct settings *s;

	if (!m || (luck >> CHARGED_SHIFT & CHARGED_RUNS))
		return;
	charge(p, kind, (CHARGED_RUNS + 1) * ((u64)trap_ns + m->price_ns[what]));
	s = find_settings();
	if (s)
		hold_to_budget(p, s, tgid, tid);
}

/* A sample of the clock has come: the process has used that much CPU time. */
static __always_inline void refill(struct process *p, struct settings *s, u32 tgid, u32 tid)
{
	u64 more = s->refill_ns << (p->thin & 7), owed = p->probes_owe_ns;
	s64 left = p->left_ns + (s64)more;

	p->probes_owe_ns = owed > more ? owed - more : 0;
	if (left < (s64)s->burst_ns) {
		p->left_ns = left;
		hold_to_budget(p, s, tgid, tid);
		return;
	}
	fill_budget(p, s);
	if (p->thin && p->sample_ns < s->refill_ns << ((p->thin - 1) & 7) >> 1)
		p->thin--;
}

/* Switches are not followed at this sample of the clock. Counts it, and asks for a glimpse when that can be paid: from the
 * share of what the job used since it asked last, so that a quiet hour does not buy a hundred at once, and from what is
 * saved up, so that samples that take all there is leave none. */
static __always_inline void ask_for_glimpse(struct process *p, struct settings *s, u32 tgid, u32 tid)
{
	struct scope *scope = find_scope(p->scope);

	if (!scope)
		return;
	__sync_fetch_and_add(&scope->unfollowed, 1ULL << (p->thin & 7));
	if (!p->waits_since_ns || s->glimpse || p->left_ns < (s64)(s->burst_ns >> 1))
		return;
	if ((scope->unfollowed - scope->asked) * s->refill_ns < s->burst_ns >> 3)
		return;
	scope->asked = scope->unfollowed;
	tell_calmly(RECORD_GLIMPSE, tgid, tid, p->image, 0, 0);
}

/* Whether there is time for a walk that something else than a sample asks for. */
static __always_inline int affords_walk(struct process *p)
{
	struct settings *s = find_settings();

	return s && p->left_ns > (s64)(s->burst_ns >> 1);
}

#define CREATIONS_WALKED_FIRST 64

/* Whether to walk to a place that creates work and that nobody knows, though there is no time. The first of a process take
 * a millisecond in all, once, and tell where its work belongs: a child that was forked has a quarter of a bucket for a
 * second, and where samples take nearly all there is, it never gets to the half that recursion, with a new place each
 * time, must leave. */
static __always_inline int affords_first_walk(struct process *p)
{
	if (p->creations_walked >= CREATIONS_WALKED_FIRST)
		return 0;
	__sync_fetch_and_add(&p->creations_walked, 1);
	return 1;
}
