/* SPDX-License-Identifier: Apache-2.0
 *
 * How many threads of a scope work, and for how long it was how many: the terms of n x time = work + ready + idleness +
 * stall, exact where n_working is.
 */

#define SCOPE_TRIES 8
#define SCOPE_N_BITS 16
#define SCOPE_N_MASK ((1ULL << SCOPE_N_BITS) - 1)
#define SCOPE_TIME_MASK ((1ULL << (64 - SCOPE_N_BITS)) - 1)	/* 52 days: longer the same n_working has never lasted */
#define SCOPE_TIME_SHIFT 4

#define SCOPE_N_MOST 0xfc00	/* from there on the number is below none */

/* n_working in a scope's word. Where a thread is woken on one CPU and sleeps again on another, the second change may come first:
 * for microseconds there is one fewer than none. */
static __always_inline u64 working_in(u64 word)
{
	u64 n = word & SCOPE_N_MASK;

	return n & -below(n, SCOPE_N_MOST);
}

static __always_inline struct scope *find_scope(u32 number)
{
	return scopes.lookup(&number);
}

/* Cores that other programs have, or a quota withholds, and that threads of this scope wait for. Cores on which its own
 * threads spin are not among them. */
static __always_inline u64 cores_away(struct scope *s)
{
	s64 places = s->places, running = (s32)places, queued = (places - running) >> 32, left = (s64)s->cores - running;

	if (left > queued)
		left = queued;
	return left < 0 || s->ticks ? 0 : left;
}

/* Adds the time that a scope was as its word says, up to now. */
static __always_inline void account_level(struct scope *s, u64 word, u64 units)
{
	u64 n = working_in(word), took = units << SCOPE_TIME_SHIFT, level = n, away;

	if (!n && s->stopped_tid) {
		__sync_fetch_and_add(&s->stopped_ns, took);
		return;
	}
	if (level >= SCOPE_LEVELS - 1) {
		level = SCOPE_LEVELS - 1;
		__sync_fetch_and_add(&s->beyond_ns, (n - level) * took);
	}
	asm volatile("%0 &= %1" : "+r"(level) : "i"(SCOPE_LEVELS - 1));
	__sync_fetch_and_add(&s->level_ns[level], took);
	away = cores_away(s);
	if (!away)
		return;
	if (n) {
		__sync_fetch_and_add(&s->idle_away_ns, took * away);
		return;
	}
	/* All spin, the last that worked too: those that have a core do it for one that has none, so all cores are lost to it. */
	__sync_fetch_and_add(&s->stall_away_ns, took * (s->stall_sleeps ? away : s->cores));
}

/* The stall is over: charges it to where the thread sleeps that began it. If that one has ended or does not sleep, to where
 * `t` slept, which is the first to work again. Where switches are not followed nobody knows of stalls; in a glimpse of them
 * those count of which it is not known where, too. */
static __always_inline void charge_stall(struct scope *s, struct thread *t, u64 took_ns)
{
	u32 by_waker = !s->stall_user;
	u32 zero = 0;
	struct settings *settings = settings_map.lookup(&zero);
	struct sample_value none = {}, *value;
	struct sample_key key = {};
	u64 now = bpf_ktime_get_ns(), seen_ns;

	key.user = by_waker ? t->wait_user : s->stall_user;
	if (!settings || settings->ticks || s->ticks || (!key.user && !settings->glimpse))
		return;
	key.glimpse = settings->glimpse;
	seen_ns = settings->glimpse ? now - settings->glimpse_since_ns : took_ns;
	took_ns = seen_ns < took_ns ? seen_ns : took_ns;
	key.kernel = by_waker ? t->wait_kernel : s->stall_kernel;
	key.context = by_waker ? t->wait_context : s->stall_context;
	key.image = by_waker ? t->image : s->stall_image;
	key.tid = by_waker ? t->tid : s->stall_tid;
	key.epoch = by_waker ? t->wait_epoch : s->stall_epoch;
	key.awaits = by_waker ? t->awaits : s->stall_awaits;
	key.state = STATE_STALLED;
	key.event = NO_EVENT;
	key.phase = settings->phase;
	key.slice = slice_of(settings, now);
	value = counts.lookup_or_try_init(&key, &none);
	if (!value) {
		count(LOST_WAITS);
		return;
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->total, took_ns);
}

/* One thread more, or fewer, works; or others have a CPU or wait for one. The time is in the same word as the number, so each
 * interval is charged once, to the number that held; where many threads change it at once, the number goes first. */
u64 move_scope(u64 given)
{
	struct thread_change *m = (struct thread_change *)given;
	struct scope *s;
	struct thread *t;
	u64 old, seen, stamp, units, begun, behind, now;
	s64 change, places;
	u32 tid;

	if (!m)
		return 0;
	s = find_scope(m->number);
	if (!s)
		return 0;
	change = m->change;
	places = m->places;
	tid = m->tid;
	now = m->now ? m->now : bpf_ktime_get_ns();
	old = *(volatile u64 *)&s->word;
	/* Without branches but for the one way out: else the verifier follows each combination of them at every turn. */
#pragma clang loop unroll(disable)
	for (int i = 0; i < SCOPE_TRIES; i++) {
		begun = old >> SCOPE_N_BITS;
		stamp = now >> SCOPE_TIME_SHIFT & SCOPE_TIME_MASK;
		units = (stamp - begun) & SCOPE_TIME_MASK & -below(0, begun);	/* the first change has no time before it */
		behind = opaque(units >> (63 - SCOPE_N_BITS));	/* 1: another CPU's clock is ahead */
		units &= behind - 1;
		stamp ^= (stamp ^ begun) & -behind;
		seen = __sync_val_compare_and_swap(&s->word, old, stamp << SCOPE_N_BITS | ((old + change) & SCOPE_N_MASK));
		if (seen == old)
			goto changed;
		old = seen;
		now = bpf_ktime_get_ns();
	}
	count(STAT_SCOPE_CONTENDED);
	__sync_fetch_and_add(&s->word, change);
	__sync_fetch_and_add(&s->places, places);
	return 0;
changed:
	if (!(old >> SCOPE_N_BITS))
		s->begun_ns = now;
	account_level(s, old, units);
	if (places)
		__sync_fetch_and_add(&s->places, places);
	if (!change || ((old & SCOPE_N_MASK) && ((old + change) & SCOPE_N_MASK)))
		return 0;
	t = threads.lookup(&tid);
	if (!t)
		return 0;
	if (!(old & SCOPE_N_MASK) && !s->stopped_tid)
		charge_stall(s, t, units << SCOPE_TIME_SHIFT);
	if ((old + change) & SCOPE_N_MASK)
		return 0;
	s->stall_user = 0;
	s->stall_sleeps = t->blocked;
	s->stall_tid = t->tid;
	s->stall_image = t->image;
	return 0;
}

static u64 (*call_move_scope)(struct thread_change *m) = (void *)SHARED_move_scope;

/* `t`: the thread that changes; `now`: the time if that is known, or 0. */
static __always_inline void change_scope(u32 number, struct thread *t, s64 change, s64 places, u64 now)
{
	struct thread_change m = {};

	m.number = number;
	m.tid = t ? t->tid : 0;
	m.change = change;
	m.places = places;
	m.now = now;
	call_move_scope(&m);
}

/* A thread that was stopped goes on, or has ended: call it when its change is counted. */
static __always_inline void end_stop(struct thread *t)
{
	struct scope *s = t->stopped ? find_scope(t->scope) : 0;

	t->stopped = 0;
	if (s && s->stopped_tid == t->tid)
		s->stopped_tid = 0;
}

/* Threads of other processes of the scope that work. */
static __always_inline s32 others_of_scope(struct process *p, struct scope *s)
{
	s32 others;

	if (!s)
		return 0;
	others = (s32)working_in(s->word) - p->n_working[p->generation & 1];
	return others < 0 ? 0 : others;
}

/* For the sample of a thread. */
static __always_inline u32 away_from(struct process *p)
{
	struct scope *s = find_scope(p->scope);

	return s ? cores_away(s) : 0;
}
