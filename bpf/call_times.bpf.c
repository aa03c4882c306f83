/* SPDX-License-Identifier: Apache-2.0
 *
 * How long calls of chosen functions take (malony-1987 sec. 3 and 4.4.1): elapsed and CPU time, of the routine itself and
 * with all that it calls. A call begins at a probe of the entry and ends at one of the function's own exits, which are
 * ordinary probes of instructions: nothing on the target's stack is changed, so nothing can break that looks at it.
 *
 * Each thread has a stack of its open calls, told apart by where their return address lies. A call that was left by an
 * exception or longjmp ends at the landing, if that is probed; else it is found out of date when another begins at the
 * same place or above, and nobody knows when it ended. What is done here is taken off the times as far as it is known.
 * Preemptible, as on_call; a thread's own entries are changed by that thread alone.
 */
BPF_TABLE("hash", u32, struct call_thread, call_threads, 1);	/* by tid */
BPF_TABLE("array", u32, struct call_thread, call_thread_template, 1);	/* zeroes: our stack has no room for them */
BPF_TABLE("hash", u64, struct open_call, open_calls, 1);	/* by tid << 32 | depth */
BPF_TABLE("hash", u64, u32, open_by_thread, 1);	/* how often a thread is in a routine: tid << 32 | routine */
BPF_TABLE("array", u32, struct routine_time, routine_times, 1);
BPF_TABLE("hash", struct call_arc, struct arc_time, arc_times, 1);
BPF_TABLE("array", u32, struct arc_time, arc_time_template, 1);

#define MOST_ENDED 1024	/* open calls that one event can end; those left over end with the next */
#define OPEN_TRIES 8
#define OPEN_BITS 16
#define OPEN_MASK ((1ULL << OPEN_BITS) - 1)
#define FAR_BYTES (64 << 10)

enum ending {
	ENDS_AT_EXIT = 0,
	ENDS_AT_LANDING = 1,
	ENDED_UNSEEN = 2,
};

/* One thread more, or fewer, is in the routine: how long at least one was. The time is in the same word as the number. */
static __always_inline void change_open(struct open_time *open, s64 change, u64 now)
{
	u64 seen = *(volatile u64 *)&open->word, old = 0, begun, open_ns = 0;

	/* without branches but the one that ends it: the verifier follows each path of each turn */
	now >>= OPEN_TIME_SHIFT;
#pragma clang loop unroll(disable)
	for (int i = 0; i < OPEN_TRIES; i++) {
		old = seen;
		begun = old >> OPEN_BITS;
		now += (begun - now) & -below(now, begun);	/* another CPU's clock is ahead */
		open_ns = ((now - begun) << OPEN_TIME_SHIFT) & -below(0, old & OPEN_MASK);
		seen = __sync_val_compare_and_swap(&open->word, old, now << OPEN_BITS | ((old + change) & OPEN_MASK));
		if (seen == old)
			break;
	}
	if (seen == old) {
		__sync_fetch_and_add(&open->any_ns, open_ns);
		return;
	}
	count(STAT_UNTIMED_CALLS);
	__sync_fetch_and_add(&open->word, change);
}

static __always_inline struct routine_time *find_routine_time(u32 routine)
{
	return routine_times.lookup(&routine);
}

/* CPU time of a task in its life, as the kernel knows it: exactly at a switch, else as of a tick ago; a kernel that does not
 * say: 0. */
static __always_inline u64 ran_so_far(void *task)
{
	u64 ran_ns = 0;

#ifdef TASK_RAN
	bpf_probe_read_kernel(&ran_ns, 8, task + TASK_RAN);
#endif
	return ran_ns;
}

/* Brings the CPU time up to now, by the kernel's account: some hypervisors' agents hide switches (see found_running), and what
 * a hypervisor took meanwhile was not the thread's. */
static __always_inline void catch_up(struct call_thread *ct, void *task, u64 now)
{
	u64 ran_ns = ran_so_far(task);

	if (ct->ran_ns && ran_ns)
		ct->cpu_ns += ran_ns - ct->ran_ns;
	else if (!ct->is_off)
		ct->cpu_ns += now - ct->since_ns;
	ct->ran_ns = ran_ns;
	ct->since_ns = now;
}

/* CPU time that the thread, which runs now, has used since it was met. */
static __always_inline u64 call_cpu_ns(struct call_thread *ct, u64 now)
{
	u64 since_ns;

	if (ct->is_off) {	/* it runs: the switch to it was not told */
		catch_up(ct, (void *)bpf_get_current_task(), now);
		ct->is_off = 0;
	}
	since_ns = now - ct->since_ns;
	return ct->cpu_ns + (since_ns & -opaque(~since_ns >> 63));	/* it was away since `now` */
}

static __always_inline void add_time(struct call_time *to, struct open_call *call, u64 gross, u64 elapsed, u64 cpu)
{
	u64 direct = elapsed > call->inner_ns ? elapsed - call->inner_ns : 0;
	u64 direct_cpu = cpu > call->inner_cpu_ns ? cpu - call->inner_cpu_ns : 0;

	__sync_fetch_and_add(&to->ended, 1);
	__sync_fetch_and_add(&to->elapsed_ns, elapsed);
	__sync_fetch_and_add(&to->direct_ns, direct);
	__sync_fetch_and_add(&to->cpu_ns, cpu);
	__sync_fetch_and_add(&to->direct_cpu_ns, direct_cpu);
	__sync_fetch_and_add(&to->direct_gross_ns, gross - call->inner_gross_ns);
	if (call->is_outermost)
		__sync_fetch_and_add(&to->outermost_ns, elapsed);
	if (call->is_first) {
		__sync_fetch_and_add(&to->first_ns, elapsed);
		__sync_fetch_and_add(&to->first_cpu_ns, cpu);
		__sync_fetch_and_add(&to->first_gross_ns, gross);
	}
	if (elapsed > to->longest_ns)
		to->longest_ns = elapsed;
}

static __always_inline void add_arc_time(struct open_call *call, u64 elapsed, u64 cpu)
{
	struct arc_time *time, *none;
	struct call_arc arc = {};
	u32 concurrent = call->is_concurrent & 1, zero = 0;

	arc.caller = call->caller;
	arc.site = call->site;
	arc.epoch = call->epoch;
	arc.image = call->image;
	time = arc_times.lookup(&arc);
	if (!time) {
		none = arc_time_template.lookup(&zero);
		if (none)
			arc_times.insert(&arc, none);
		time = arc_times.lookup(&arc);
	}
	if (!time) {
		count(LOST_CALLERS);
		return;
	}
	__sync_fetch_and_add(&time->ended[concurrent], 1);
	__sync_fetch_and_add(&time->elapsed_ns[concurrent], elapsed);
	__sync_fetch_and_add(&time->cpu_ns[concurrent], cpu);
}

/* The thread is no longer in it. */
static __always_inline void leave_routine(struct routine_time *r, struct open_call *call, u32 tid, u64 now)
{
	u64 key = (u64)tid << 32 | call->routine;
	u32 *level = open_by_thread.lookup(&key);

	if (level && *level > 1) {
		(*level)--;
	} else {
		open_by_thread.delete(&key);
		change_open(&r->inside, -1, now);
	}
	if (!call->is_concurrent)
		__sync_fetch_and_add(&r->open_sequential, -1);
	change_open(&r->directly, -1, now);
}

/* The call has ended together with one that it made: at one event, whose trap and program that one has been charged for as
 * its own end, and this one as well. */
static __always_inline void take_back_end(struct call_thread *ct, struct open_call *call)
{
	u64 twice_ns = ct->leaving.trap_ns + ct->leaving.cost_ns;

	call->taken_ns -= twice_ns + ((call->taken_ns - twice_ns) & -below(call->taken_ns, twice_ns));
}

/* Ends the innermost open call of the thread. `cost_ns`: what this program takes at its end. */
static __always_inline void end_call(struct call_thread *ct, struct open_call *call, u32 tid, u32 how, u64 now, u64 cost_ns)
{
	u64 key = (u64)tid << 32 | (ct->depth - 2), gross = now - call->begun_ns, elapsed, cpu;
	struct routine_time *r = find_routine_time(call->routine), *outer_r;
	struct open_call *outer = ct->depth > 1 ? open_calls.lookup(&key) : 0;

	elapsed = gross > call->taken_ns ? gross - call->taken_ns : 0;
	cpu = call_cpu_ns(ct, now) - call->begun_cpu_ns;
	cpu &= -opaque(~cpu >> 63);	/* the kernel's account is less, where a hypervisor took some */
	cpu = cpu > call->taken_ns ? cpu - call->taken_ns : 0;
	/* what is taken off is known by and large: not more than leaves time for the calls within it */
	elapsed += (call->inner_ns - elapsed) & -below(elapsed, call->inner_ns);
	cpu += (call->inner_cpu_ns - cpu) & -below(cpu, call->inner_cpu_ns);
	if (outer) {
		outer->taken_ns += call->taken_ns + cost_ns;
		outer_r = find_routine_time(outer->routine);
		if (outer_r) {
			change_open(&outer_r->directly, 1, now);
			if (how == ENDED_UNSEEN)
				__sync_fetch_and_add(&outer_r->unseen_within, 1);
		}
		if (how != ENDED_UNSEEN) {
			outer->inner_gross_ns += gross;
			outer->inner_ns += elapsed;
			outer->inner_cpu_ns += cpu;
		}
	}
	if (r) {
		leave_routine(r, call, tid, now);
		if (how == ENDED_UNSEEN) {
			__sync_fetch_and_add(&r->unseen, 1);
		} else {
			add_time(call->is_concurrent ? &r->concurrent : &r->sequential, call, gross, elapsed, cpu);
			add_arc_time(call, elapsed, cpu);
		}
		if (how == ENDS_AT_LANDING)
			__sync_fetch_and_add(&r->unwound, 1);
	}
	ct->depth--;
	key = (u64)tid << 32 | ct->depth;
	open_calls.delete(&key);
}

/* Whether an open call may go on, although a newer one is above it: a signal handler has a stack of its own, say. */
static __always_inline int is_elsewhere(struct open_call *call, u64 slot)
{
	u64 there = 0;

	if (slot - call->slot < FAR_BYTES)
		return 0;
	bpf_probe_read_user(&there, sizeof(there), (void *)call->slot);
	return there == call->caller;
}

/* Ends the innermost open call of the thread, if it cannot be open any more; 0: no other ends. A function by itself, as
 * `walk_frame`: the verifier looks at it once. */
u64 end_innermost(u64 given)
{
	struct call_thread *ct = (struct call_thread *)given;
	struct open_call *call;
	u64 key, slot;
	u32 end;

	if (!ct || !ct->depth)
		return 0;
	key = (u64)ct->tid << 32 | (ct->depth - 1);
	call = open_calls.lookup(&key);
	if (!call) {	/* there was no room for it */
		ct->depth--;
		return 1;
	}
	slot = ct->leaving.slot;
	end = ct->leaving.how;
	if (call->slot > slot || (end == ENDED_UNSEEN && is_elsewhere(call, slot)))
		return 0;
	if (end == ENDS_AT_EXIT && (call->slot != slot || call->routine != ct->leaving.routine))
		end = ENDED_UNSEEN;
	if (ct->leaving.ended++)
		take_back_end(ct, call);
	end_call(ct, call, ct->tid, end, ct->leaving.now, ct->leaving.cost_ns);
	return end != ENDS_AT_EXIT;
}
static u64 (*call_end_innermost)(struct call_thread *ct) = (void *)SHARED_end_innermost;

/* Ends all that `ct->leaving` says cannot be open any more. By itself, too, for the turns of its loop. */
u64 end_open_calls(u64 given)
{
	struct call_thread *ct = (struct call_thread *)given;

	if (!ct)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MOST_ENDED; i++)
		if (!call_end_innermost(ct))
			break;
	return 0;
}
static u64 (*call_end_open_calls)(struct call_thread *ct) = (void *)SHARED_end_open_calls;

/* Something happened in the thread with its stack as high as `slot`: ends what cannot be open any more. At an exit of a
 * routine, `routine` says of which; else it is NO_ROUTINE. */
static __always_inline void end_calls(struct call_thread *ct, u32 how, u64 slot, u32 routine, u64 now, u64 cost_ns,
				      u64 trap_ns)
{
	ct->leaving.slot = slot;
	ct->leaving.now = now;
	ct->leaving.cost_ns = cost_ns;
	ct->leaving.trap_ns = trap_ns;
	ct->leaving.ended = 0;
	ct->leaving.how = how;
	ct->leaving.routine = routine;
	call_end_open_calls(ct);
}

static __always_inline struct call_thread *find_call_thread(u32 tid, u64 now)
{
	struct call_thread *ct = call_threads.lookup(&tid), *none;
	u32 zero = 0;

	if (ct)
		return ct;
	none = call_thread_template.lookup(&zero);
	if (!none || call_threads.update(&tid, none))
		return 0;
	ct = call_threads.lookup(&tid);
	if (ct) {
		ct->since_ns = now;
		ct->tid = tid;
	}
	return ct;
}

/* The thread is in the routine once more. */
static __always_inline void enter_routine(struct routine_time *r, struct open_call *call, u32 tid)
{
	u64 key = (u64)tid << 32 | call->routine;
	u32 one = 1, *level = open_by_thread.lookup(&key);

	if (level) {
		(*level)++;
	} else {
		open_by_thread.update(&key, &one);
		change_open(&r->inside, 1, call->begun_ns);
	}
	if (!call->is_concurrent)
		__sync_fetch_and_add(&r->open_sequential, 1);
	change_open(&r->directly, 1, call->begun_ns);
}

static __always_inline int is_in_routine(u32 tid, u32 routine)
{
	u64 key = (u64)tid << 32 | routine;

	return open_by_thread.lookup(&key) != 0;
}

/* Of a call within another: the outer one does not go on itself meanwhile. */
static __always_inline void suspend_outer(struct open_call *outer, struct open_call *call, u64 cost_ns)
{
	struct routine_time *r = find_routine_time(outer->routine);

	if (r)
		change_open(&r->directly, -1, call->begun_ns);
	outer->taken_ns += cost_ns;
}

/* Begins a call; `slot` is where its return address lies. Of what the traps at its entry and its exit take about a half is
 * within the call, the other half without. */
static __always_inline void begin_call(struct process *p, struct judgement *j, u64 cookie, u32 tid, u64 slot, u64 entered_ns,
				       u64 entry_trap_ns, u64 exit_trap_ns)
{
	u64 trap_ns = (entry_trap_ns + exit_trap_ns) / 2;
	u32 routine = cookie >> CALL_ROUTINE_SHIFT & CALL_ROUTINE_MASK;
	struct call_thread *ct = find_call_thread(tid, entered_ns);
	struct routine_time *r = find_routine_time(routine);
	struct open_call *call, *outer;
	u32 has_ended = 0;
	u64 key;

	if (!ct || !r) {
		count(STAT_UNTIMED_CALLS);
		return;
	}
	if (ct->depth) {
		end_calls(ct, ENDED_UNSEEN, slot, NO_ROUTINE, entered_ns, 0, exit_trap_ns);
		has_ended = ct->leaving.ended;
	}
	call = &ct->fresh;
	__builtin_memset(call, 0, sizeof(*call));
	call->slot = slot;
	call->site = cookie & CALL_SITE_MASK;
	call->routine = routine;
	call->epoch = p->epoch;
	call->image = p->image;
	call->is_concurrent = j->n_working > 1;
	bpf_probe_read_user(&call->caller, sizeof(call->caller), (void *)slot);
	key = (u64)tid << 32 | (ct->depth - 1);
	outer = ct->depth ? open_calls.lookup(&key) : 0;
	if (outer && has_ended)
		take_back_end(ct, outer);
	/* sec. 4.4.1: whoever enters sequentially has entered for all threads */
	call->is_first = !is_in_routine(tid, routine);
	call->is_outermost = call->is_first && !r->open_sequential;
	call->begun_ns = bpf_ktime_get_ns();
	call->begun_cpu_ns = call_cpu_ns(ct, call->begun_ns);
	call->taken_ns = trap_ns;
	key = (u64)tid << 32 | ct->depth;
	if (open_calls.update(&key, call)) {
		count(STAT_UNTIMED_CALLS);
		return;
	}
	ct->depth++;
	enter_routine(r, call, tid);
	if (outer)
		suspend_outer(outer, call, trap_ns + (call->begun_ns - entered_ns));
}

/* An event at which no call ended, within one that goes on: a landing in that itself, where it cleans up. */
static __always_inline void pay_for_event(struct call_thread *ct, u32 tid)
{
	u64 key = (u64)tid << 32 | (ct->depth - 1);
	struct open_call *call = ct->depth ? open_calls.lookup(&key) : 0;

	if (call)
		call->taken_ns += ct->leaving.trap_ns + ct->leaving.cost_ns;
}

/* An exit of a routine, or where a thread goes on after an exception or longjmp. */
static __always_inline void on_leaving(struct pt_regs *ctx, u64 cookie, struct meter *m, u32 tid, u64 trap_ns)
{
	u64 now = bpf_ktime_get_ns(), cost_ns = m ? m->price_ns[METER_CALL] : 0;
	struct call_thread *ct = call_threads.lookup(&tid);

	if (!ct)	/* it was entered before we came */
		return;
	end_calls(ct, cookie & CALL_LANDS ? ENDS_AT_LANDING : ENDS_AT_EXIT, PT_REGS_SP(ctx),
		  cookie & CALL_LANDS ? NO_ROUTINE : cookie >> CALL_ROUTINE_SHIFT & CALL_ROUTINE_MASK, now, cost_ns, trap_ns);
	if (!ct->leaving.ended)
		pay_for_event(ct, tid);
}

/* The thread is gone, or is another program: what it was in has ended. */
static __always_inline void forget_call_thread(struct call_thread *ct, u32 tid, u64 now)
{
	if (ct->depth)
		end_calls(ct, ENDED_UNSEEN, ~0ULL, NO_ROUTINE, now, 0, 0);
	call_threads.delete(&tid);
}

/* sched_switch(bool preempt, prev, next, prev_state): attached only while calls are timed. */
int on_timed_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = ids_of((void *)ctx->args[1]), next = ids_of((void *)ctx->args[2]);
	struct call_thread *ct = call_threads.lookup(&tid);
	u64 now = bpf_ktime_get_ns();

	if (ct) {
		catch_up(ct, (void *)ctx->args[1], now);
		ct->is_off = 1;
		if (is_exiting((void *)ctx->args[1]))
			forget_call_thread(ct, tid, now);
	}
	ct = call_threads.lookup(&next);
	if (ct) {
		catch_up(ct, (void *)ctx->args[2], now);
		ct->is_off = 0;
	}
	return 0;
}
