/* SPDX-License-Identifier: Apache-2.0
 *
 * The user-stack unwinder, third part: whole walks, of samples and of probes. One program unwinds FRAMES_PER_CALL
 * frames and tail-calls itself.
 */

/* The process pays for the sample. */
static __always_inline void pay_for_sample(struct process *p, struct walk *w)
{
	struct settings *s = find_settings();
	u64 took = bpf_ktime_get_ns() - w->begun_ns;

	if (!s)
		return;
	p->sample_ns = p->sample_ns ? (7 * (u64)p->sample_ns + took) >> 3 : took;
	charge(p, COST_SAMPLE, took);
}

/* Counts the sample under its stacks: the end of every walk. */
static __always_inline int finish_sample(struct walk *w)
{
	struct process *p = processes.lookup(&w->tgid);
	struct sample_value none = {}, *value;

	value = counts.lookup_or_try_init(&w->key, &none);
	if (value) {
		__sync_fetch_and_add(&value->count, 1ULL << (w->thin & 7));
		__sync_fetch_and_add(&value->total, w->period << (w->thin & 7));
		count(STAT_SAMPLES);
	} else {
		count(LOST_COUNTS_FULL);
	}
	if (!p)
		return 0;
	if (!w->key.event)
		trace_path(p, w->begun_ns, 0, &w->key);
	pay_for_sample(p, w);
	return 0;
}

/* Tells Python that the walk lacks something at an address, if the process was not told of just before. */
static __always_inline void tell_lack(struct walk *w, u32 record, u64 address)
{
	struct process *p = processes.lookup(&w->tgid);
	u64 now = bpf_ktime_get_ns();

	if (!p || now - p->lack_told_ns < LACK_INTERVAL_NS)
		return;
	p->lack_told_ns = now;
	tell(record, w->tgid, w->key.tid, p->image, address);
}

static __always_inline void tell_stale(struct walk *w)
{
	tell_lack(w, RECORD_STALE_MAP, w->ip);
}

/* The id of a whole user stack. */
static __always_inline u64 stack_id(struct walk *w)
{
	return mix(mix(w->record.hash, w->end), w->cut | (u64)w->record.image << 32) | 1;
}

/* Whether it was not sent yet. */
static __always_inline int is_new_stack(struct walk *w)
{
	u64 id = stack_id(w);

	return !sent_stacks.lookup(&id);
}

/* Sends a whole user stack; its id. */
static __always_inline u64 send_user_stack(struct walk *w)
{
	w->record.hash = stack_id(w);
	w->record.cut = w->cut;
	send_stack(&w->record, w->depth, w->end);
	return w->record.hash;
}

/* Sends a whole user stack and counts the sample under it. */
static __always_inline int finish_user_stack(struct walk *w)
{
	w->key.user = send_user_stack(w);
	count(STAT_STACKS + (w->end & 15));
	return finish_sample(w);
}

/* Records the innermost frame that is left and moves on to its caller's; GOING if that is not the end. A function by itself:
 * else the verifier would follow it anew for each frame, in each program that walks. */
u64 walk_frame(u64 given)
{
	struct walk *w = (struct walk *)given;
	u32 depth;

	if (!w)
		return END_TOO_DEEP;
	depth = w->depth;
	asm volatile("" : "+r"(depth));
	if (!w->again) {
		depth &= MAX_FRAMES - 1;
		w->record.pc[depth] = w->exact && depth ? w->ip | FRAME_INTERRUPTED : w->ip;
		w->hash_before = w->record.hash;
		w->record.hash = mix(w->record.hash, w->ip);
		w->depth = depth + 1;
	}
	w->end = step(w);
	w->again = w->end == SEEKING;
	depth = w->depth - 1;
	asm volatile("" : "+r"(depth));
	w->cfa[depth & (COMPARED_FRAMES - 1)] = w->sp;
	if (w->sp > w->cut_sp) {
		w->cut = w->depth;
		w->cut_sp = ~0ULL;
		if (!(WHOLE_WALKS >> (w->purpose & 7) & 1) && w->end == GOING)	/* what is below is the creator's context */
			w->end = END_COMPLETE;
	}
	if (w->end == GOING) {
		w->calls = mix(w->calls, w->ip ^ w->sp);	/* where it returns to, and where its frame lies */
		if (w->depth >= MAX_FRAMES)
			w->end = END_TOO_DEEP;
	}
	return w->end;
}

static u64 (*call_walk_frame)(struct walk *w) = (void *)SHARED_walk_frame;

/* Unwinds FRAMES_PER_CALL frames more; GOING if that did not reach the end. */
static __always_inline u32 unwind_frames(struct walk *w)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < FRAMES_PER_CALL; i++)
		if (call_walk_frame(w) != GOING)
			break;
	return w->end;
}

/* The native frames of a sample's stack are known: those of an interpreter, then the end. */
static __always_inline int go_on_behind_walk(struct bpf_perf_event_data *ctx, struct walk *w)
{
	if (interpreters.lookup(&w->tgid))
		unwinders.call(ctx, 1);
	return finish_user_stack(w);
}

/* Whether there is a whole stack to compare: one that is cut short is not, and the next whole one is compared with the last
 * whole one; nor is one that stands for several samples of which the others were left out. */
static __always_inline int can_compare(struct walk *w)
{
	return (w->end == END_COMPLETE || w->end == END_ZERO) && !w->thin;
}

/* Whether the thread is in the very calls that its previous sample was in: most often it is, and that takes no look at frames. */
static __always_inline int as_before(struct walk *w)
{
	w->calls = mix(w->calls, w->key.context ^ w->cut) | 1;
	return w->calls == w->calls_before && can_compare(w);
}

int on_unwind(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0;
	struct walk *w = walks.lookup(&zero);

	if (!w)
		return 0;
	unwind_frames(w);
	if (w->end == GOING || w->end == SEEKING) {
		unwinders.call(ctx, w->end == GOING ? 0 : 2);
		w->end = END_TOO_DEEP;	/* the kernel's limit on tail calls */
	}
	if (w->end == END_NO_MAPPING || w->absent)
		tell_lack(w, w->absent ? RECORD_ABSENT_ROWS : RECORD_STALE_MAP, w->absent ? w->absent : w->ip);
	if (w->compares) {
		if (as_before(w))
			return go_on_behind_walk(ctx, w);
		unwinders.call(ctx, 3);
		count(STAT_NOT_COMPARED);	/* the kernel's limit on tail calls, or the program is not there */
	}
	return go_on_behind_walk(ctx, w);
}

/* The slot that a probe of the current thread claimed; 0 if its process was unwatched meanwhile, and the thread
 * forgotten: then the slot's claim stays behind, see claim_slot. */
static __always_inline struct walk *edge_walk(void)
{
	u32 tid = current_ids();
	struct thread *t = threads.lookup(&tid);
	u32 slot;

	if (!t)
		return 0;
	slot = t->walk_slot;
	return edge_walks.lookup(&slot);
}

#define KNOWN_RUNS 63	/* after that, once in 64 times */
#define RARE_NS 10000000	/* and each time that is so long after the last walk: what is rare costs little to walk */

/* Whether a place where threads create work or wait is to be walked again: one that was met `hits` times, and walked last so
 * long ago. Not after so many times each, but by chance: what comes by turns of two or four would always be met in one. */
static __always_inline int is_due(u64 hits, u64 since_ns)
{
	return hits <= WALKED_FIRST || !(mix(0x9e3779b97f4a7c15ULL, hits) & KNOWN_RUNS) || since_ns > RARE_NS;
}

/* The walked stack becomes known: another creation from the same place need not be walked. */
static __always_inline void know_creation(struct walk *w)
{
	struct creation fresh = {}, *known;

	fresh.stack = send_user_stack(w);
	if (!w->creation)
		return;
	fresh.hits = hits_at_first(w);
	known = creations.lookup_or_try_init(&w->creation, &fresh);
	if (known) {
		look_behind(w, &known->behind, known->stack != fresh.stack);
		known->stack = fresh.stack;
		known->walked_ns = w->begun_ns;
	}
}

/* Its stack if that is known and need not be looked at again; or cannot be, as there is no time to walk it: what created
 * work here before is then the best guess. */
static __always_inline u64 known_stack(struct walk *w, int may_walk)
{
	u64 creation = w->creation, stack;
	struct creation *known = creation ? creations.lookup(&creation) : 0;

	if (!known)
		return 0;
	if (may_walk && is_due(++known->hits, w->begun_ns - known->walked_ns))
		return 0;
	stack = known->stack;
	return sent_stacks.lookup(&stack) ? stack : 0;	/* else Python has forgotten it */
}

/* The process pays for the walk. */
static __always_inline void pay_for_walk(struct walk *w)
{
	struct process *p = processes.lookup(&w->tgid);
	u64 took = bpf_ktime_get_ns() - w->begun_ns;

	if (p)
		charge(p, w->known_stack ? COST_PROBE : COST_WALK, at_most_a_run(took));
}

static __always_inline void finish_amount_stack(struct walk *w);

/* Files the walked stack, or the known one, as a context, and returns its id; 0: there is none. */
static __always_inline u64 file_context(struct walk *w)
{
	struct context_record r = {};
	u32 one = 1;

	if (!w->known_stack) {
		if (!w->depth)
			return 0;
		know_creation(w);
	}
	r.type = RECORD_CONTEXT;
	r.image = w->key.image;
	r.user_hash = w->known_stack ? w->known_stack : w->record.hash;
	r.parent = w->key.context;
	r.id = mix(mix(r.user_hash, r.parent), r.image) | 1;
	if (!sent_stacks.lookup(&r.id)) {
		if (stacks.ringbuf_output(&r, sizeof(r), BPF_RB_NO_WAKEUP))
			count(LOST_CONTEXTS);
		else
			sent_stacks.update(&r.id, &one);
	}
	count(STAT_CONTEXTS);
	return r.id;
}

/* The walked stack, or the known one, becomes the context of what is being created; the slot is given back. */
static __always_inline void finish_context(struct walk *w)
{
	u32 tid = current_ids(), slot;
	struct thread *t = threads.lookup(&tid);
	u64 context;

	if (!t)
		return;
	if (w->purpose == WALK_AMOUNT) {
		finish_amount_stack(w);
		goto release;
	}
	context = file_context(w);
	if (!context)
		goto out;
	if (w->purpose == WALK_THREAD) {
		t->created_context = context;
	} else if (w->purpose == WALK_CLOSURES) {
		if (t->depth)
			frame_has_context(t, context);
	} else {
		created.update(&w->created_as, &context);
		if (w->also_created_as.image)
			created.update(&w->also_created_as, &context);
	}
out:
	pay_for_walk(w);
release:
	slot = t->walk_slot;
	walk_claims.delete(&slot);
}

/* What a probe's program answers at the end: 1 spares the call a return probe that nobody wants. */
static __always_inline int edge_answer(struct pt_regs *ctx)
{
	return (bpf_get_attach_cookie(ctx) & COOKIE_ENTRY) ? 1 : 0;
}

int on_edge_unwind(struct pt_regs *ctx)
{
	struct walk *w = edge_walk();

	if (!w)
		return edge_answer(ctx);
	if (unwind_frames(w) == GOING) {
		edge_unwinders.call(ctx, 0);
		w->end = END_TOO_DEEP;
	}
	if (w->absent)
		tell_lack(w, RECORD_ABSENT_ROWS, w->absent);
	if (interpreters.lookup(&w->tgid))
		edge_unwinders.call(ctx, 1);
	finish_context(w);
	return edge_answer(ctx);
}

/* Makes the walk begin at the registers in `ip`, `sp`, `bp` and `r10`. */
static __always_inline void begin_walk(struct walk *w, struct mapping_list *list)
{
	void *task = (void *)bpf_get_current_task();
	u64 utask = 0;

	w->list = list ? list->words : 0;
	w->generation = list ? list->generation : w->key.image;	/* those of the kernel's images are far higher than any list's */
	w->sought = w->again = w->by_seek = w->absent = 0;
	w->mapping_start = w->mapping_end = 0;
	w->window_start = ~0ULL << 12;	/* far from any user address */
	w->return_instance = 0;
	bpf_probe_read_kernel(&utask, 8, task + TASK_UTASK);
	w->slot = 0;
	if (utask) {
		bpf_probe_read_kernel(&w->return_instance, 8, (void *)utask + UTASK_RETURN_INSTANCES);
		bpf_probe_read_kernel(&w->slot, 8, (void *)utask + UTASK_SLOT);
		bpf_probe_read_kernel(&w->stepped, 8, (void *)utask + UTASK_STEPPED);
	}
	next_return_instance(w);
	w->depth = 0;
	w->cut = 0;
	w->exact = 1;
	w->python_started = 0;
	w->record.image = 0;
	w->record.python_depth = 0;
	w->record.python_end = PYTHON_NO_STATE;
	w->record.hash = 0x9e3779b97f4a7c15ULL;
}

/* What the thread does now was created elsewhere: where, and which of its frames belong to it. */
static __always_inline void place_in_context(struct walk *w, struct thread *t)
{
	u64 frame = t ? context_frame(t) : MAX_NESTING;

	w->cut_sp = ~0ULL;
	w->key.context = t ? t->base_context : 0;
	if (frame >= MAX_NESTING)
		return;
	w->cut_sp = t->sp[slot(frame)];
	w->key.context = t->context[slot(frame)];
}

/* Where the walk of a user stack begins that a tracepoint asks for: what its thread had when it entered the kernel. */
static __always_inline void read_registers(struct walk *w, struct pt_regs *regs)
{
	bpf_probe_read_kernel(&w->ip, 8, &regs->ip);
	bpf_probe_read_kernel(&w->sp, 8, &regs->sp);
	bpf_probe_read_kernel(&w->bp, 8, &regs->bp);
	bpf_probe_read_kernel(&w->r10, 8, &regs->r10);
}

static __always_inline void place_ended_thread(struct walk *w, u32 tid)
{
	u32 zero = 0;
	struct ended_thread *ended = ended_threads.lookup(&zero);

	if (ended && ended->tid == tid)
		w->key.context = ended->context;
}

#define BREAKPOINT 0xcc

/* A breakpoint has sent the thread into the kernel, which has not looked yet whose it is: the instruction behind is not
 * the next one, but that which the breakpoint replaced. Timers wait for that very moment, in which interrupts come on
 * again. (Other interrupts and faults of one behind an emulated push are taken for it, too: seldom, and a frame is lost.) */
static __always_inline void step_before_breakpoint(struct walk *w, struct pt_regs *regs)
{
	u8 before = 0;

	if (w->user_mode || (s64)entered_by(regs) >= 0 || bpf_probe_read_user(&before, 1, (void *)w->ip - 1))
		return;
	w->ip -= before == BREAKPOINT;
}

/* Starts the walk of the current user stack for the sample in `w->key`. */
static __always_inline int walk_user_stack(struct bpf_perf_event_data *ctx, struct walk *w, struct pt_regs *regs)
{
	struct mapping_list *list = mapping_lists.lookup(&w->tgid);

	if (!w->ip || is_exiting((void *)bpf_get_current_task())) {	/* in exec or exit: there is no user stack (any more) */
		w->key.user = 0;
		return finish_sample(w);
	}
#ifdef MAPLE_ROOT
	w->may_seek = 1;
#else
	w->may_seek = 0;
#endif
	if ((!list || !list->words) && !w->may_seek) {
		w->key.user = capture(ctx, w, BPF_F_USER_STACK, END_FRAME_POINTERS);
		if (!w->key.user)
			count(LOST_USER_STACK);
		else
			count(STAT_STACKS + END_FRAME_POINTERS);
		if (w->compares)
			count(STAT_NOT_COMPARED);
		return finish_sample(w);
	}
	bpf_probe_read_kernel(&w->bp, 8, &regs->bp);
	bpf_probe_read_kernel(&w->r10, 8, &regs->r10);
	step_before_breakpoint(w, regs);
	begin_walk(w, list);
	unwinders.call(ctx, 0);
	return 0;
}
