/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait for their team in a loop of the runtime's and were preempted there. Others have the CPU, but nobody is
 * kept from working by that, until a thread of the team comes to the barrier, or starts the next region: from then on they
 * may go on, and want a CPU. Until then they *loiter*, and do not count as waiting for one. Where a runtime's edges tell of
 * all that lets threads go (LETS_GO), none of them is let go while there is no edge.
 */

#define LOITERERS_BITS 16
#define LOITERERS_MASK ((1ULL << LOITERERS_BITS) - 1)
#define LOITERERS_TRIES 16

enum loiterers_change {
	LOITERERS_JOIN = 1,	/* answers what `loiters` of the thread is then; 0 = too many change it at once */
	LOITERERS_LEAVE = 2,	/* `places` is that; answers 1 if it has been let go, and counts as waiting for a CPU */
	LOITERERS_LET_GO = 3,	/* answers how many there were */
};

/* Number and turn are one word, so that each thread is counted out where it was counted in. */
u64 change_loiterers(u64 given)
{
	struct thread_change *m = (struct thread_change *)given;
	struct process *p;
	u64 old, seen, next, turn, answer;
	u32 tgid, change;
	s64 since;

	if (!m)
		return 0;
	tgid = m->number;
	change = m->change;
	since = m->places;
	p = processes.lookup(&tgid);
	if (!p)
		return 0;
	old = *(volatile u64 *)&p->loiterers;
#pragma clang loop unroll(disable)
	for (int i = 0; i < LOITERERS_TRIES; i++) {
		turn = old >> LOITERERS_BITS;
		if (change == LOITERERS_JOIN) {
			next = old + 1;
			answer = turn + 1;
		} else if (change == LOITERERS_LEAVE) {
			if (turn + 1 != since || !(old & LOITERERS_MASK))
				return 1;
			next = old - 1;
			answer = 0;
		} else {
			next = (turn + 1) << LOITERERS_BITS;
			answer = old & LOITERERS_MASK;
		}
		seen = __sync_val_compare_and_swap(&p->loiterers, old, next);
		if (seen == old)
			return answer;
		old = seen;
	}
	return 0;
}

static u64 (*call_change_loiterers)(struct thread_change *m) = (void *)SHARED_change_loiterers;

static __always_inline u64 ask_loiterers(u32 tgid, u32 change, u64 since)
{
	struct thread_change m = {};

	m.number = tgid;
	m.change = change;
	m.places = since;
	return call_change_loiterers(&m);
}

/* Does the current thread, which is switched out though it could go on, only wait for its team? */
static __always_inline int loiters(struct process *p, struct thread *t, u32 tgid)
{
	struct process_config *config;

	if (p->from_leaves || t->unknown || !waits_for_team(t))
		return 0;
	config = configs.lookup(&tgid);
	return config && (config->flags & LETS_GO);
}

/* Call it when the thread is counted as one that has no CPU and waits for none. */
static __always_inline void begin_to_loiter(struct process *p, struct thread *t, u64 now)
{
	t->loiters = ask_loiterers(t->tgid, LOITERERS_JOIN, 0);
	if (t->loiters)
		return;
	t->queued = 1;
	change_scope(p->scope, t, 0, 1LL << 32, now);
}

/* The thread goes on, or ends: whether it was let go meanwhile says how it counts until now. */
static __always_inline void stop_loitering(struct thread *t)
{
	if (!t->loiters)
		return;
	t->queued = ask_loiterers(t->tgid, LOITERERS_LEAVE, t->loiters);
	t->loiters = 0;
}

/* May what an edge of a thread tells of let others go? Who works again has come out of a barrier, say, or has begun what there
 * is for others, too. Who works no more may be one of those for whom others wait: it was the last one if nobody works. */
static __always_inline int may_let_go(struct process *p, struct thread *t, u32 kind)
{
	return kind == EDGE_ENTER_REGION || in_work(t) || p->n_working[parity(p)] < 1;
}

/* All that loiter may go on: from now on they wait for a CPU. */
static __always_inline void let_go(struct process *p, struct thread *t)
{
	s64 number = ask_loiterers(t->tgid, LOITERERS_LET_GO, 0);

	if (number)
		change_scope(p->scope, t, 0, number << 32, 0);
}
