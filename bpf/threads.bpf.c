/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a thread's entry, and of the numbers of its process: the rules of thread_state.h, with the maps.
 */

#define FUTEX_CALL 202
#define FUTEX_OPERATION 127
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_WAIT_BITSET 9

/* The only place where n_working changes, of its process and of the scope (but for the begin and the end of a thread, the
 * reset at exec, and on_command). The thread has a CPU (`running`), waits for one (`queued`), or neither; `now` as in change_scope. */
static __always_inline void recount_at(struct process *p, struct thread *t, u8 running, u8 queued, u64 now)
{
	u8 want = is_working(t);
	s64 change = (s64)want - t->counted, places;

	stop_loitering(t);
	places = ((s64)queued - t->queued) * (1LL << 32) + ((s64)running - t->running);
	if (!change && !places)
		return;
	t->counted = want;
	t->running = running;
	t->queued = queued;
	if (change)
		__sync_fetch_and_add(&p->n_working[parity(p)], (s32)change);
	change_scope(p->scope, t, change, places, now);
}

/* The same where the thread stays where it is. */
static __always_inline void recount(struct process *p, struct thread *t)
{
	recount_at(p, t, t->running, t->queued, 0);
}

static __always_inline void set_blocked_outside(struct process *p, struct thread *t, u8 want)
{
	if (t->blocked_outside == want)
		return;
	t->blocked_outside = want;
	__sync_fetch_and_add(&p->n_blocked_outside[parity(p)], want ? 1 : -1);
}

static __always_inline void set_blocked_inside(struct process *p, struct thread *t, u8 want)
{
	if (t->blocked_inside == want)
		return;
	t->blocked_inside = want;
	__sync_fetch_and_add(&p->n_blocked_inside[parity(p)], want ? 1 : -1);
}

/* One thread more, or less, waits for a lock. */
static __always_inline void count_waiter(u64 address, u32 tgid, s32 change)
{
	struct lock_key key = {};
	s32 none = 0, *waiters;

	key.address = address;
	key.tgid = tgid;
	waiters = change > 0 ? lock_waiters.lookup_or_try_init(&key, &none) : lock_waiters.lookup(&key);
	if (waiters)
		__sync_fetch_and_add(waiters, change);
}

/* The thread's wait for a pthread mutex, or the GIL, is over: it holds it now, or soon. */
static __always_inline void end_lock_wait(struct thread *t)
{
	if (!t->waits_on)
		return;
	if (t->awaits != AWAITS_GIL)	/* who has that is read from the interpreter */
		t->last_lock = t->waits_on;
	count_waiter(t->waits_on, t->tgid, -1);
	t->waits_on = 0;
}

/* The same for a lock of the runtime. */
static __always_inline void end_runtime_lock_wait(struct thread *t)
{
	if (t->lock_wait)
		count_waiter(t->lock_wait, t->tgid, -1);
	t->lock_wait = 0;
}

static __always_inline void set_unknown(struct process *p, struct thread *t, u8 unknown)
{
	if (t->unknown == unknown)
		return;
	if (t->unknown == GUESSED || unknown == GUESSED)
		__sync_fetch_and_add(&p->n_unknown[parity(p)], unknown == GUESSED ? 1 : -1);
	t->unknown = unknown;
}

/* Does what the thread runs tell whether it works, where no frame does? */
static __always_inline int tells_by_leaves(const struct thread *t)
{
	return t->unknown == GUESSED || t->unknown == UNPROBED;
}

/* Switches were not followed for a while: nobody knows who sleeps. Each thread is counted again when it shows itself;
 * until then it sleeps. Call it before anything else that changes a thread. A wait has lasted all that time if no sample
 * showed the thread meanwhile; what was of it in a glimpse has been counted there. Returns whether that was so. */
static __always_inline int rejoin(struct process *p, struct thread *t)
{
	if (t->generation == (u16)p->generation)
		return 0;
	t->generation = p->generation;
	t->counted = 0;
	if (!t->blocked || t->wait_glimpse)
		t->wait_since_ns = t->wait_user = 0;
	t->blocked = 1;
	t->blocked_outside = t->blocked_inside = 0;
	t->ready_since_ns = 0;
	t->running = t->queued = 0;
	t->loiters = 0;
	if (t->unknown == GUESSED)	/* as it is counted: anew */
		__sync_fetch_and_add(&p->n_unknown[parity(p)], 1);
	return 1;
}

/* The thread runs, or is about to. */
static __always_inline void unblock(struct process *p, struct thread *t)
{
	t->blocked = 0;
	set_blocked_outside(p, t, 0);
	set_blocked_inside(p, t, 0);
	end_lock_wait(t);
	if (t->unknown == GUESSED_ASLEEP)
		set_unknown(p, t, GUESSED);
}

/* The process went over from edges to leaves, or back: what the thread's frames say is out of date. */
static __always_inline void follow_source(struct process *p, struct thread *t)
{
	if (t->from_leaves == (u8)p->from_leaves || t->busy)
		return;
	t->base_work = frames_say_work(t) | t->caught_working;
	t->depth = 0;
	t->caught_working = 0;
	t->from_leaves = p->from_leaves;
	if (t->unknown != UNPROBED)
		set_unknown(p, t, GUESSED);
}

static __always_inline void set_member(struct process *p, struct thread *t)
{
	s32 members;

	if (t->member)
		return;
	t->member = 1;
	__sync_fetch_and_add(&p->members, 1);	/* of 32 bits, it cannot be made to tell what it was: two that join */
	members = p->members;			/* at once may both read the sum, never less than the truth */
	if (members > p->members_max)
		p->members_max = members;
}

/* 1 if start <= address < end, without a branch: the verifier would follow each combination of them. */
static __always_inline u64 within(u64 address, u64 start, u64 end)
{
	return ((address - start) >> 63 ^ 1) & (address - end) >> 63;
}

/* Is it in one of so many ranges, a number that is known when this is compiled? */
static __always_inline int in_ranges(const u64 *start, const u64 *end, const u32 ranges, u64 address)
{
	u64 hit = 0;

#pragma unroll
	for (int i = 0; i < ranges; i++)
		hit |= within(address, start[i], end[i]);
	return hit;
}

/* Is it code of a runtime? */
static __always_inline int in_runtime(struct process_config *c, u64 address)
{
	return in_ranges(c->range_start, c->range_end, MAX_RUNTIME_RANGES, address);
}

/* Is it the code of a file that calls the runtime? */
static __always_inline int in_user_code(struct process_config *c, u64 address)
{
	return in_ranges(c->user_start, c->user_end, MAX_USER_RANGES, address);
}

/* Does a thread wait that runs the runtime's code at this address? */
static __always_inline int in_wait_code(struct process_config *c, u64 address)
{
	return c->wait_end[0] ? in_ranges(c->wait_start, c->wait_end, MAX_WAIT_RANGES, address) : in_runtime(c, address);
}

/* Does a thread only wait for others that runs this code, in the runtime or not? */
static __always_inline int in_spin_loop(struct process_config *c, u64 address)
{
	return in_ranges(c->spin_start, c->spin_end, MAX_SPIN_RANGES, address);
}

static __always_inline int in_libc(struct process_config *c, u64 address)
{
	return in_ranges(c->libc_start, c->libc_end, MAX_LIBC_RANGES, address);
}

/* Is it code of a runtime of which no probe tells, beside one that is probed? */
static __always_inline int in_unprobed(struct process_config *c, u64 address)
{
	return in_ranges(c->unprobed_start, c->unprobed_end, MAX_UNPROBED_RANGES, address);
}

/* Is the leaf runtime code that waits, or a function without a frame that it calls: a libc stub (futex, sched_yield), a few
 * instructions of the runtime's (what time is it, is the flag set)? */
static __always_inline int leaf_waits(struct process_config *c, u64 ip, u64 sp)
{
	u64 caller = 0;

	if (!(c->wait_end[0] | c->range_end[0]))	/* the program has no such code: nothing to look for at each call */
		return 0;
	if (in_wait_code(c, ip))
		return 1;
	if (!in_libc(c, ip) && !in_runtime(c, ip))
		return 0;
	if (bpf_probe_read_user(&caller, sizeof(caller), (void *)sp))
		return 0;
	return in_wait_code(c, caller);
}

/* Is the thread in the system call that wakes those who sleep, at a barrier say? It does not wait itself, though it is in the
 * runtime's code for that: who comes last does it, and who is a team alone comes last each time. */
static __always_inline int wakes_others(struct pt_regs *regs)
{
	u64 operation = FUTEX_WAIT;

	if (entered_by(regs) != FUTEX_CALL)
		return 0;
	bpf_probe_read_kernel(&operation, sizeof(operation), &regs->si);
	return (operation & FUTEX_OPERATION) == FUTEX_WAKE;
}

/* Is this in the page that the kernel maps for its probes? It is the last one below the stack and what else there is, of 47
 * bits of addresses or of 56 (kernel/events/uprobes.c, xol_add_vma). The way back from a return probe leads through it. */
static __always_inline int in_probe_page(u64 ip)
{
	return ip >> 12 == (1ULL << 35) - 2 || ip >> 12 == (1ULL << 44) - 2;
}

/* Is this the program's own code, or of libraries that it may have called with no runtime in between? Where the C library
 * is not known, as in a static program, only the first can be told: the runtime calls it too. */
static __always_inline int runs_program(struct process_config *c, struct thread *t, u64 ip)
{
	if (in_user_code(c, ip))
		return 1;
	return (c->flags & HAS_RUNTIME) && c->libc_end[0] && awaits_body(t) && !in_runtime(c, ip) && !in_wait_code(c, ip) &&
	       !in_libc(c, ip) && !in_probe_page(ip);
}

/* See add_thread: `number` is the process, `change` whether the thread sleeps. */
u64 insert_thread(u64 given)
{
	struct thread_change *m = (struct thread_change *)given;
	struct process_config *config;
	struct process *p;
	struct thread *t;
	u32 tgid, tid, zero = 0;

	if (!m)
		return 0;
	tgid = m->number;
	tid = m->tid;
	p = processes.lookup(&tgid);
	t = threads.lookup(&zero);	/* entry 0 is a template of zeroes */
	if (!p)
		return 0;
	if (!t || threads.insert(&tid, t) == -E2BIG) {
		count(LOST_THREADS_FULL);
		return 0;
	}
	t = threads.lookup(&tid);
	if (!t)
		return 0;
	t->tgid = tgid;
	t->tid = tid;
	t->scope = p->scope;
	t->image = p->image;
	t->generation = p->generation;
	t->is_main = tid == tgid;
	t->blocked = m->change;
	t->base_work = 1;
	t->unknown = NO_RUNTIME;
	t->from_leaves = p->from_leaves;
	config = configs.lookup(&tgid);
	if (config && (config->flags & HAS_RUNTIME)) {
		t->base_work = t->is_main;
		set_unknown(p, t, GUESSED);
	}
	if (!is_working(t))
		return 0;
	t->counted = 1;
	__sync_fetch_and_add(&p->n_working[parity(p)], 1);
	m->number = p->scope;	/* not change_scope: there is no stack left for another of these */
	m->change = 1;
	m->places = m->now = 0;
	call_move_scope(m);
	return 0;
}

static u64 (*call_insert_thread)(struct thread_change *m) = (void *)SHARED_insert_thread;

/* Adds a thread that no fork event announced: it was there before us. */
static __always_inline struct thread *add_thread(u32 tgid, u32 tid, u8 blocked)
{
	struct thread_change m = {};

	m.number = tgid;
	m.tid = tid;
	m.change = blocked;
	call_insert_thread(&m);
	return threads.lookup(&tid);
}

static __always_inline void remove_thread(struct process *p, struct thread *t, u32 tid)
{
	if (p->image == t->image) {
		trace_end(p, t);
		rejoin(p, t);
		stop_loitering(t);
		if (t->counted)
			__sync_fetch_and_add(&p->n_working[parity(p)], -1);
		if (t->counted | t->queued | t->running)
			change_scope(p->scope, t, -(s64)t->counted, -(s64)t->queued * (1LL << 32) - t->running, 0);
		end_stop(t);
		if (t->member)
			__sync_fetch_and_add(&p->members, -1);
		set_unknown(p, t, NOT_UNKNOWN);
		set_blocked_outside(p, t, 0);
		set_blocked_inside(p, t, 0);
		end_lock_wait(t);
		end_runtime_lock_wait(t);
	}
	threads.delete(&tid);
}
