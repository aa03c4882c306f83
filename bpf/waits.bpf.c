/* SPDX-License-Identifier: Apache-2.0
 *
 * Where threads sleep, and for how long. The stack is walked as the thread leaves its CPU, the only time when it can be
 * read, so before anybody knows how long the wait will be. That is paid for once for each place: a place is known by what
 * its innermost stack shows, and after its first waits is only walked now and then. All waits are timed: none is too short,
 * nor one too rare among short ones. What that takes is held to the budget (COST_WAIT, cut off before switches are).
 */
#define FURTHER_WAITS_NS 1000000	/* where a thread has not gone to sleep for so long: beside that 1 us is not much */
#define TASK_STOPPED_OR_TRACED 0xc
#define TASK_FROZEN 0x8000	/* by a control group of version 1, or as the machine is suspended; Linux 6.1 and later */
#define JOBCTL_TRAP_FREEZE (1ULL << 23)	/* by one of version 2 */
#define WAIT_WALK_NS 2000000ULL	/* a thread is not walked more often than that where there is no time for it */

BPF_TABLE("percpu_array", u32, struct walk, wait_walks, 1);
BPF_TABLE("prog", u32, u32, wait_unwinders, 4);	/* on_wait_unwind, on_wait_python, on_wait_seek, on_wait_code */

/* What a place is known by: the system call, where it is made, and the return addresses in the innermost words of the
 * stack, which may have others among them from calls before. */
static __always_inline u64 place_of_wait(struct walk *w, struct process_config *config, u64 call)
{
	u64 reach = reach_of(w, w->sp);

	begin_place(w, config, w->sp);
	w->place.reach = reach;
	w->place.hash = mix(mix(mix(mix(0x9e3779b97f4a7c15ULL, w->ip), reach), w->key.image), call);
	w->place.hash = mix(w->place.hash, w->key.context);
	return call_mix_window(w) | 1;
}

/* Which function the frame in `python_raw` is of, and where in it. */
static __always_inline u64 function_place(struct walk *w, struct interpreter *py, u64 hash)
{
	u64 code = raw_word(w, py->code), tag = 0;

	read_tag(w, py, code, &tag);
	return mix(hash, mix(mix(code, tag), raw_word(w, py->instruction)));
}

/* Two functions of an interpreted language look the same on the native stack. */
static __always_inline u64 python_place(struct walk *w, u64 hash)
{
	struct interpreter *py = interpreters.lookup(&w->tgid);
	u64 size;

	if (!py)
		return hash;
	first_python_frame(w, py);
	size = py->frame_size;
	asm volatile("%0 &= 127" : "+r"(size));
	if (!w->python_frame || !size || bpf_probe_read_user(w->python_raw, size, (void *)w->python_frame))
		return hash;
	hash = function_place(w, py, mix(hash, w->python_frame));
	w->python_frame = raw_word(w, py->previous);
	if (bpf_probe_read_user(w->python_raw, size, (void *)w->python_frame))
		return hash | 1;
	return function_place(w, py, hash) | 1;
}

/* The stacks of the wait that has begun are known: with them goes the stall that it began, if it did. */
static __always_inline void place_wait(struct thread *t, u64 user, u64 kernel)
{
	struct scope *s = find_scope(t->scope);

	t->wait_user = user;
	t->wait_kernel = kernel;
	if (!s || s->stall_tid != t->tid || working_in(s->word))
		return;
	s->stall_kernel = kernel;
	s->stall_context = t->wait_context;
	s->stall_epoch = t->wait_epoch;
	s->stall_awaits = t->awaits;
	s->stall_user = user;
	s->stall_sleeps = 1;
}

static __always_inline void note_stop(struct thread *t)
{
	struct scope *s = find_scope(t->scope);

	t->stopped = 1;
	if (s)
		s->stopped_tid = t->tid;
}

/* Is the current thread frozen, as it goes to sleep in this state? */
static __always_inline int is_frozen(u32 state)
{
	u64 jobctl = 0;

	if (state & TASK_FROZEN)
		return 1;
	bpf_probe_read_kernel(&jobctl, sizeof(jobctl), (void *)bpf_get_current_task() + TASK_JOBCTL);
	return !!(jobctl & JOBCTL_TRAP_FREEZE);
}

static __always_inline void finish_creator(struct walk *w);

/* The end of a walk at a tracepoint. */
static __always_inline int finish_wait(struct walk *w)
{
	u32 tid = w->key.tid;
	struct thread *t = threads.lookup(&tid);
	struct process *p = processes.lookup(&w->tgid);
	struct wait_site fresh = {}, *known;
	u64 took = bpf_ktime_get_ns() - w->begun_ns;

	if (w->purpose == WALK_AMOUNT) {	/* see transfers.bpf.c */
		finish_amount_stack(w);
		return 0;
	}
	if (w->purpose == WALK_FORK) {	/* see creators.bpf.c */
		finish_creator(w);
		return 0;
	}
	fresh.user = send_user_stack(w);
	fresh.kernel = w->key.kernel;
	fresh.hits = hits_at_first(w);
	known = wait_sites.lookup_or_try_init(&w->creation, &fresh);
	if (known) {
		look_behind(w, &known->behind, known->user != fresh.user);
		known->user = fresh.user;
		known->kernel = fresh.kernel;
		known->awaits = t && t->awaits != AWAITS_THAW && t->awaits != AWAITS_GIL ? t->awaits : AWAITS_UNKNOWN;
		known->walked_ns = w->begun_ns;
		known->hits++;
	}
	if (t)
		place_wait(t, fresh.user, fresh.kernel);
	if (p)
		charge(p, COST_WAIT, at_most_a_run(took));
	count(STAT_WALKED_WAITS);
	return 0;
}

int on_wait_unwind(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0;
	struct walk *w = wait_walks.lookup(&zero);

	if (!w)
		return 0;
	unwind_frames(w);
	if (w->end == GOING || w->end == SEEKING) {
		wait_unwinders.call(ctx, w->end == GOING ? 0 : 2);
		w->end = END_TOO_DEEP;	/* the kernel's limit on tail calls */
	}
	if (w->absent)
		tell_lack(w, RECORD_ABSENT_ROWS, w->absent);
	if (interpreters.lookup(&w->tgid))
		wait_unwinders.call(ctx, 1);
	return finish_wait(w);
}

int on_wait_python(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0, end;
	struct walk *w = wait_walks.lookup(&zero);
	struct interpreter *py;

	if (!w)
		return 0;
	py = interpreters.lookup(&w->tgid);
	if (!py)
		return finish_wait(w);
	end = walk_python(w, py);
	if (end == GOING) {
		wait_unwinders.call(ctx, 1);
		end = PYTHON_TOO_DEEP;
	}
	end_python(w, end);
	if (w->record.python_depth && is_new_stack(w))
		wait_unwinders.call(ctx, 3);
	return finish_wait(w);
}

/* As on_python_code. */
int on_wait_code(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0;
	struct walk *w = wait_walks.lookup(&zero);

	if (!w)
		return 0;
	if (send_functions(w, 1))
		wait_unwinders.call(ctx, 3);
	return finish_wait(w);
}

int on_wait_seek(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0;
	struct walk *w = wait_walks.lookup(&zero);

	if (!w)
		return 0;
	seek_mapping(w, w->sought);
	wait_unwinders.call(ctx, 0);
	w->end = END_TOO_DEEP;
	return finish_wait(w);
}

/* Whether the wait at this place is to be walked; if not, its stacks are those that are known, if any. A place that nobody
 * knows may be the one long wait among many: it is walked even where all time is used up, if not too often. */
static __always_inline int is_to_be_walked(struct thread *t, struct process *p, u64 place, u64 seldom)
{
	struct wait_site *known = wait_sites.lookup(&place);
	u64 user, kernel;

	if (!known)
		return p->left_ns > 0 || t->wait_since_ns - t->wait_walked_ns > WAIT_WALK_NS;
	user = known->user;
	kernel = known->kernel;
	if (!sent_stacks.lookup(&user) || (kernel && !sent_stacks.lookup(&kernel)))	/* Python has forgotten it */
		return affords_walk(p);
	if (!t->awaits && seldom)
		t->awaits = known->awaits;
	place_wait(t, user, kernel);
	known->hits++;
	return affords_walk(p) && is_due(known->hits, t->wait_since_ns - known->walked_ns);
}

/* The current thread goes to sleep. The last that its program does: it may go on in the unwinder. */
static __always_inline void begin_wait(struct bpf_raw_tracepoint_args *ctx, u32 tgid, u32 tid, u32 state, u32 luck, u64 now)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	struct process_config *config = configs.lookup(&tgid);
	struct mapping_list *list = mapping_lists.lookup(&tgid);
	struct process *p = processes.lookup(&tgid);
	struct thread *t = threads.lookup(&tid);
	struct settings *s = find_settings();
	struct meter *m = find_meter();
	u64 begun = meter_begin(m, METER_WAIT, luck), place, call = entered_by(regs), seldom, slept_ns;
	u32 zero = 0;
	struct walk *w = wait_walks.lookup(&zero);

	if (!p || !t || !w || !s || !m || !config || !t->blocked)
		return;
	slept_ns = t->slept_ns;
	t->wait_since_ns = t->slept_ns = now;
	t->wait_user = 0;
	t->wait_glimpse = s->glimpse;
	if (state & TASK_STOPPED_OR_TRACED) {
		note_stop(t);
		if (p->our_stop) {
			p->our_stop = 0;
			t->wait_since_ns = 0;
			return;
		}
	} else if (is_frozen(state)) {
		note_stop(t);
		t->awaits = AWAITS_THAW;
	}
	if (!p->waits_since_ns || (s->glimpse && s->ticks))	/* what is before a glimpse counts for nothing */
		return;
	count(STAT_WAITS);
	if (p->cut & 1 << COST_WAIT) {
		count(STAT_PLACELESS_WAITS);
		return;
	}
	w->begun_ns = t->wait_since_ns;
	w->tgid = tgid;
	w->key.tid = tid;
	w->key.image = p->image;
	w->purpose = WALK_WAIT;
	w->cactus = !!(config->flags & CACTUS);
	place_in_context(w, t);
	t->wait_context = w->key.context;
	t->wait_epoch = p->epoch;
	read_registers(w, regs);
	w->may_seek = w->key.image >> 31;
	if (!w->ip || ((!list || !list->words) && !w->may_seek)) {
		count(STAT_PLACELESS_WAITS);
		return;
	}
	if (!t->awaits)
		t->awaits = awaited_outside(regs, call);
	seldom = untracked(m, told_seldom(call));
	call = untracked(m, call);
	place = place_of_wait(w, config, call);
	if (now - slept_ns > FURTHER_WAITS_NS)
		place = mix(place, further_place(w)) | 1;
	place = place_behind(w, python_place(w, place), 1, p->left_ns > 0);
	if (!is_to_be_walked(t, p, place, seldom)) {
		if (!t->wait_user)
			count(STAT_PLACELESS_WAITS);
		meter_end(m, METER_WAIT, begun);
		pay(p, m, METER_WAIT, COST_WAIT, 0, luck, tgid, tid);
		return;
	}
	if (seldom && t->awaits != AWAITS_THAW)
		t->awaits = untracked(m, seldom == TOLD_OF_RING ? awaited_of_ring(regs) : awaited_of_read(regs));
	t->wait_walked_ns = t->wait_since_ns;
	w->creation = place;
	w->key.kernel = capture(ctx, w, 0, END_KERNEL);
	begin_walk(w, list);
	wait_unwinders.call(ctx, 0);
}

/* Since when waits count: since they are of interest, and the time of their scope is counted. */
static __always_inline u64 wanted_since(struct process *p, u64 now)
{
	u64 wanted = p->waits_since_ns, begun;
	struct scope *scope = wanted ? find_scope(p->scope) : 0;

	if (!scope)
		return wanted;
	begun = scope->word >> SCOPE_N_BITS ? scope->begun_ns : now;
	return wanted < begun ? begun : wanted;
}

/* The wait is over. */
static __always_inline void end_wait(struct process *p, struct thread *t, u32 tid, u64 now)
{
	struct sample_value none = {}, *value;
	struct settings *s = find_settings();
	struct sample_key key = {};
	u64 since = t->wait_since_ns, wanted = wanted_since(p, now);

	t->wait_since_ns = 0;
	if (!since || !s || !wanted || wanted >= now || (t->wait_glimpse && s->ticks))
		return;
	if (since < wanted)
		since = wanted;
	if (t->wait_glimpse && since < s->glimpse_since_ns)
		since = s->glimpse_since_ns;
	key.glimpse = t->wait_glimpse;
	key.user = t->wait_user;
	key.kernel = key.user ? t->wait_kernel : 0;
	key.context = key.user ? t->wait_context : 0;
	key.epoch = t->wait_epoch;
	key.image = t->image;
	key.tid = tid;
	key.state = STATE_BLOCKED;
	key.awaits = t->awaits;
	key.event = NO_EVENT;
	key.phase = s->phase;
	key.slice = slice_of(s, now);
	value = counts.lookup_or_try_init(&key, &none);
	if (!value) {
		count(LOST_WAITS);
		return;
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->total, now - since);
	trace_path(p, now, since, &key);
}

/* The current thread runs, though it is said to sleep: nobody told of its wake-up, nor of the switch to it (see found_awake). */
static __always_inline void end_unseen_wait(struct process *p, struct thread *t)
{
	end_wait(p, t, t->tid, bpf_ktime_get_ns());
	count(STAT_MISSED_SWITCHES);
}
