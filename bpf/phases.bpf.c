/* SPDX-License-Identifier: Apache-2.0
 *
 * Work and span of a running process, as far as barriers tell (instruments.md sec. 3.6): a phase is what lies between
 * two barriers of a team, or a region's begin and end; it takes as long as the largest of its threads' shares, and the
 * code between regions as long as it is. Work is CPU time, so neither waiting nor preemption is in it: on_timed_switch
 * follows that, see call_times.bpf.c. The probes are the work edges of n_working, with a program of their own; it is
 * loaded only when it is asked for, and until then its maps have one entry each.
 *
 * Preemptible, as on_edge; a thread's entry is changed by that thread alone. The largest share is kept while the phase
 * goes on, and what it grows by is added to the span: so nobody has to know when a phase is over.
 */
BPF_TABLE("array", u32, struct phase_process, phase_processes, 1);
BPF_TABLE("lru_hash", u32, struct phase_thread, phase_threads, 1);	/* by tid */
BPF_TABLE("hash", struct phase_site, struct phase_sum, phase_sums, 1);

#define SHARE_BITS 48
#define SHARE_MASK ((1ULL << SHARE_BITS) - 1)
#define SHARE_TRIES 8

static __always_inline struct phase_thread *find_phase_thread(u32 tid)
{
	struct phase_thread none = {}, *t = phase_threads.lookup(&tid);

	if (t)
		return t;
	phase_threads.update(&tid, &none);
	return phase_threads.lookup(&tid);
}

/* By how much the longest share of the thread's phase grows by its own; `is_first`: it had none before. */
static __always_inline u64 growth(struct phase_process *at, struct phase_thread *t, int *is_first)
{
	u64 tag = ((u64)t->region * 0x9e37 + t->phase) & 0xffff, share = t->part_ns & SHARE_MASK;
	u64 *slot = &at->slots[(t->region + t->phase) & (PHASE_SLOTS - 1)], old, seen, known;

	old = *(volatile u64 *)slot;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SHARE_TRIES; i++) {
		known = old >> SHARE_BITS == tag ? old & SHARE_MASK : 0;
		if (share <= known)
			return 0;
		seen = __sync_val_compare_and_swap(slot, old, tag << SHARE_BITS | share);
		if (seen == old) {
			*is_first = !known;
			return share - known;
		}
		old = seen;
	}
	return 0;
}

static __always_inline void add_phase(struct phase_site *site, u64 work_ns, u64 span_ns, u64 phases)
{
	struct phase_sum none = {}, *sum = phase_sums.lookup_or_try_init(site, &none);

	if (!sum) {
		count(LOST_CALLERS);
		return;
	}
	__sync_fetch_and_add(&sum->work_ns, work_ns);
	__sync_fetch_and_add(&sum->span_ns, span_ns);
	__sync_fetch_and_add(&sum->phases, phases);
}

/* What the thread did in its phase so far is added to the sums. */
static __always_inline void tell_share(struct phase_process *at, struct phase_thread *t, u64 barrier)
{
	struct phase_site site = {};
	int is_first = 0;
	u64 more;

	if (!t->part_ns || !at->region || t->region != at->region)
		return;
	site.function = at->function;
	site.barrier = barrier;
	site.kind = PHASE_SHARES;
	more = t->helps ? 0 : growth(at, t, &is_first);	/* beside a member, whose share is as long */
	add_phase(&site, t->part_ns - t->told_ns, more, is_first);
	t->told_ns = t->part_ns;
}

/* What the thread has worked since its last event is part of its share. The kernel's account, which is taken over when it
 * was away, may be less than the clock's until then, where a hypervisor took some: what has been told stays told. */
static __always_inline void add_part(struct phase_thread *t, u64 cpu_ns)
{
	s64 part_ns = t->part_ns + cpu_ns - t->mark_ns;

	t->part_ns = part_ns > (s64)t->told_ns ? part_ns : t->told_ns;
}

static __always_inline void begin_phase(struct phase_thread *t)
{
	t->part_ns = t->told_ns = 0;
}

/* Code between regions has ended, and one begins. */
static __always_inline void begin_phases(struct phase_process *at, struct phase_thread *t, u64 function)
{
	struct phase_site site = {};

	if (at->open) {
		__sync_fetch_and_add(&at->nested, 1);
		if (t->region != at->region)
			__sync_fetch_and_add(&at->beside, 1);
		return;
	}
	site.function = function;
	site.kind = PHASE_SERIAL;
	if (t->part_ns)
		add_phase(&site, t->part_ns, t->part_ns, 1);
	begin_phase(t);
	t->begins = t->depth;
	at->function = function;
	at->members = 0;
	at->region++;
	barrier();
	at->open = 1;
}

/* The region's body is entered by a thread of its team; `helps`: that of a region within it, by one that is not. */
static __always_inline void join_phases(struct phase_process *at, struct phase_thread *t, int helps)
{
	u32 members;

	t->region = at->region;
	t->helps = helps;
	t->phase = 0;
	t->base = t->depth - 1;
	begin_phase(t);
	__sync_fetch_and_add(&at->members, 1);
	members = at->members;
	if (members > at->widest)
		at->widest = members;
}

static __always_inline void enter_phase(struct pt_regs *ctx, u64 cookie, struct phase_process *at, struct phase_thread *t,
					u64 cpu_ns)
{
	u32 kind = cookie & COOKIE_KIND_MASK;
	u64 function = kind == EDGE_ENTER_WAIT ? 0 : work_function(ctx, cookie);

	if (t->on)
		add_part(t, cpu_ns);
	t->states = t->states << 1 | (t->on & 1);
	t->depth++;
	t->on = kind == EDGE_ENTER_WORK;
	t->mark_ns = cpu_ns;
	if (kind == EDGE_ENTER_REGION) {
		begin_phases(at, t, function);
	} else if (kind == EDGE_ENTER_WORK && at->open && t->region != at->region) {
		join_phases(at, t, function != at->function);
	}
}

/* `back`: where the function returns to. */
static __always_inline void leave_phase(u64 cookie, u64 back, struct phase_process *at, struct phase_thread *t, u64 cpu_ns)
{
	u32 kind = cookie & COOKIE_KIND_MASK;

	if (!t->depth)	/* it was entered before we came */
		return;
	if (t->on)
		add_part(t, cpu_ns);
	t->on = t->states & 1;
	t->states >>= 1;
	t->depth--;
	t->mark_ns = cpu_ns;
	if (kind == EDGE_ENTER_REGION) {
		if (!t->begins || t->begins != t->depth + 1)
			return;
		t->begins = 0;
		begin_phase(t);
		t->on = 1;	/* serial code, until the next one begins */
		at->open = 0;
	} else if (kind == EDGE_ENTER_WORK) {
		if (t->depth == t->base)	/* the body, or a task after it */
			tell_share(at, t, 0);
	} else if (cookie & COOKIE_BARRIER) {
		tell_share(at, t, back);
		begin_phase(t);
		t->phase++;
	}
}

int on_phase(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx), id = current_ids(), now, begun, cpu_ns;
	u32 tgid = id >> 32, tid = id, zero = 0, luck;
	struct process *p = processes.lookup(&tgid);
	struct phase_process *at = phase_processes.lookup(&zero);
	struct phase_thread *t;
	struct call_thread *ct;
	struct meter *m;
	int returned;

	if (!p || p->dead || !at)
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	m = find_meter();
	luck = bpf_get_prandom_u32();
	begun = meter_begin(m, METER_CALL, luck);
	returned = (cookie & COOKIE_RETURN) || ((cookie & COOKIE_SESSION) && PT_REGS_IP(ctx) != bpf_get_func_ip(ctx));
	pay(p, m, METER_CALL, COST_CALL, trap_ns(cookie, returned), luck, tgid, tid);
	if (p->cut & 1 << COST_CALL) {
		count(STAT_LEFT_OUT + COST_CALL);
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	}
	__sync_fetch_and_add(&at->hits, 1);
	now = bpf_ktime_get_ns();
	t = find_phase_thread(tid);
	ct = find_call_thread(tid, now);
	if (t && ct) {
		cpu_ns = call_cpu_ns(ct, now);
		if (returned)
			leave_phase(cookie, PT_REGS_IP(ctx), at, t, cpu_ns);
		else
			enter_phase(ctx, cookie, at, t, cpu_ns);
	}
	meter_end(m, METER_CALL, begun);
	return returned ? 0 : edge_answer(ctx);
}
