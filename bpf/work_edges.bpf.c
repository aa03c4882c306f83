/* SPDX-License-Identifier: Apache-2.0
 *
 * The uprobe programs. on_edge: work-acquire and work-release points of the parallel runtimes. One program serves all
 * sites; the attach cookie says what a site means (enum edge_kind and COOKIE_*). Preemptible: the entry of
 * the thread is marked busy while it changes, so that a sample in between leaves it alone.
 * on_load_map: where the loader tells debuggers of libraries. All that programs without a runtime need, so by itself: the
 * verifier takes as long for on_edge and its unwinders as a tenth of all that an attach takes.
 */

static __always_inline void learn(u32 tgid, u32 tid, u32 image, u64 function)
{
	u64 key = (u64)image * 0x9e3779b97f4a7c15ULL ^ function, owner = image;
	int refused;

	if (learned.lookup(&key))
		return;
	refused = learned.insert(&key, &owner);
	if (!refused)
		tell(RECORD_LEARNED, tgid, tid, image, function);
	else if (refused != -EEXIST)	/* else another thread was first */
		count(LOST_LEARNED_FULL);
}

/* The argument of that number, 1 to 6; 0 for none. */
static __always_inline u64 argument(struct pt_regs *ctx, u32 number)
{
	u64 all[8] = { 0, ctx->di, ctx->si, ctx->dx, ctx->cx, ctx->r8, ctx->r9, 0 };

	barrier();	/* else clang computes an address in ctx, which the verifier refuses */
	return all[number & 7];
}

static __always_inline u64 cookie_argument(struct pt_regs *ctx, u64 cookie, u32 shift)
{
	return argument(ctx, cookie >> shift & 7);
}

/* The function that the work runs: an argument, else the probed function itself. */
static __always_inline u64 work_function(struct pt_regs *ctx, u64 cookie)
{
	if (cookie >> COOKIE_FUNCTION_SHIFT & 7)
		return cookie_argument(ctx, cookie, COOKIE_FUNCTION_SHIFT);
	return PT_REGS_IP(ctx) - (cookie >> COOKIE_DELTA_SHIFT & 0xffff);
}

static __always_inline u64 context_under(u64 function, u64 instance, u32 image)
{
	struct work_key key = {};
	u64 *context;

	key.function = function;
	key.instance = instance;
	key.image = image;
	context = created.lookup(&key);
	return context ? *context : 0;
}

/* Which creation the work that begins here belongs to: by its own data, by the task that created it, or else
 * the newest creation of the same function. */
static __always_inline u64 find_context(struct process_config *config, u64 function, u64 instance, u32 image)
{
	u64 context = instance ? context_under(0, instance, image) : 0, task = 0;

	if (!context && config && config->memory.kind == MEMORY_TEAM) {
		task = current_task(&config->memory);
		if (task && read_user(&task, task) && task)	/* its parent comes first */
			context = context_under(function, task, image);
	}
	if (!context)
		context = context_under(function, 0, image);
	return context ? context : CONTEXT_UNKNOWN;
}

static __always_inline void enter(struct pt_regs *ctx, u64 cookie, struct process *p, struct thread *t, u32 kind, u32 tgid)
{
	int work = kind == EDGE_ENTER_WORK, region = kind == EDGE_ENTER_REGION;
	u64 function;

	if (learn_base(t, work, region))
		set_unknown(p, t, NOT_UNKNOWN);
	if (work || region)
		set_member(p, t);
	if (!frame_enter(t, PT_REGS_SP(ctx), work)) {
		count(LOST_NESTING);
		return;
	}
	function = work || region ? work_function(ctx, cookie) : 0;
	if (region)
		frame_is_region(t, function);
	else if (cookie & COOKIE_BARRIER)
		frame_is_barrier(t);
	else if (work && !is_own_region(t, function))
		frame_has_context(t, find_context(configs.lookup(&tgid), function,
						  cookie_argument(ctx, cookie, COOKIE_INSTANCE_SHIFT), p->image));
}

#define NAMELESS_LOCK 1	/* that of a critical section without a name */

static __always_inline void begin_runtime_lock_wait(struct thread *t, u64 lock)
{
	end_runtime_lock_wait(t);	/* of a return that was missed */
	t->lock_wait = lock ? lock : NAMELESS_LOCK;
	count_waiter(t->lock_wait, t->tgid, 1);
}

#define FORGOTTEN_WALK_NS 10000000000ULL	/* longer than any walk takes, preempted or throttled */

/* Whether this slot is ours now. It may have been claimed for a walk that will never give it back: whose process was
 * unwatched in the middle of it, and its threads forgotten. */
static __always_inline int claim_slot(u32 slot)
{
	u64 now = bpf_ktime_get_ns(), *since;

	if (!walk_claims.insert(&slot, &now))
		return 1;
	since = walk_claims.lookup(&slot);
	if (!since || now - *since < FORGOTTEN_WALK_NS)
		return 0;
	walk_claims.delete(&slot);
	return !walk_claims.insert(&slot, &now);
}

/* A slot for the walk of this thread's stack; 0 if both of this CPU are taken. */
static __always_inline struct walk *claim_walk(struct thread *t)
{
	u32 slot = 2 * bpf_get_smp_processor_id();

	if (!claim_slot(slot)) {
		slot++;
		if (!claim_slot(slot))
			return 0;
	}
	t->walk_slot = slot;
	return edge_walks.lookup(&slot);
}

/* Mixes the next MIXED_WORDS words of the window into `place.hash`, as far as they are addresses of the program's code. A
 * function by itself, as mix_words. */
u64 mix_user_words(u64 given)
{
	struct walk *w = (struct walk *)given;
	u64 hash, mixed, at, first, words;

	if (!w)
		return 0;
	hash = w->place.hash;
	first = w->place.mixed;
	words = w->place.words;
#pragma unroll
	for (u32 i = 0; i < MIXED_WORDS; i++) {
		at = w->window[(first + i) & (PLACE_WORDS - 1)];
		at &= -opaque(in_ranges(w->place.user_start, w->place.user_end, MAX_USER_RANGES, at));
		mixed = mix(hash, at);
		hash ^= (hash ^ mixed) & -below(first + i, words);
	}
	w->place.hash = hash;
	w->place.mixed = first + MIXED_WORDS;
	return 0;
}
static u64 (*call_mix_user_words)(struct walk *w) = (void *)SHARED_mix_user_words;

/* What a creation is known by: where the probe is, and the addresses of the program's code that lie in the innermost
 * words of the stack, as far as they belong to this piece of work; and how far its frames reach, so that recursions of
 * different depths differ. Two call paths may still be the same by that: a walk now and then gives each its share. */
static __always_inline u64 creation_of(struct pt_regs *ctx, struct walk *w, struct process *p, struct process_config *config)
{
	u64 sp = PT_REGS_SP(ctx), reach = reach_of(w, sp), hash;

	if (bpf_probe_read_user(w->window, PLACE_WORDS * sizeof(u64), (void *)sp))
		return 0;
	hash = mix(mix(mix(0x9e3779b97f4a7c15ULL, PT_REGS_IP(ctx)), reach), w->key.image);
	hash = mix(hash, w->window[0]);	/* the return address, unless the probe is behind a push */
	w->place.words = words_within(w, reach, PLACE_WORDS);
	w->place.mixed = 1;
	w->place.hash = hash;
#pragma unroll
	for (u32 i = 0; i < MAX_USER_RANGES; i++) {
		w->place.user_start[i] = config->user_start[i];
		w->place.user_end[i] = config->user_end[i];
	}
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PLACE_WORDS / MIXED_WORDS; i++) {
		if (w->place.mixed >= w->place.words)
			break;
		call_mix_user_words(w);
	}
	begin_place(w, config, sp);
	w->place.sp += PLACE_WORDS * sizeof(u64);
	return place_behind(w, w->place.hash | 1, 0, affords_walk(p));
}

/* There is no time to walk the stack: what begins must not be taken for what was created under the same address before. */
static __always_inline void leave_out_context(struct walk *w, struct thread *t)
{
	count(STAT_LEFT_OUT + COST_WALK);
	if (w->also_created_as.image)
		created.delete(&w->also_created_as);
	if (w->created_as.instance)
		created.delete(&w->created_as);
	walk_claims.delete(&t->walk_slot);
}

/* Work or a thread is created here: walks the creator's stack and files it. */
static __always_inline void keep_context(struct pt_regs *ctx, u64 cookie, struct process *p, struct thread *t, u32 tgid, u32 tid)
{
	struct mapping_list *list = mapping_lists.lookup(&tgid);
	struct process_config *config = configs.lookup(&tgid);
	u32 kind = cookie & COOKIE_KIND_MASK, inside = cookie >> COOKIE_INSIDE_SHIFT & 63;
	struct walk *w;
	u64 function, instance;

	if (!list || !list->words || !config)
		return;
	w = claim_walk(t);
	if (!w) {
		count(LOST_CONTEXTS);
		return;
	}
	w->begun_ns = bpf_ktime_get_ns();
	w->created_as.instance = 0;
	w->also_created_as.image = 0;
	place_in_context(w, t);
	w->key.image = p->image;
	w->key.tid = tid;
	w->tgid = tgid;
	w->cactus = !!(config->flags & CACTUS);
	w->purpose = kind == EDGE_CREATE_THREAD ? WALK_THREAD : WALK_CREATION;
	if (kind != EDGE_CREATE_THREAD) {
		function = cookie >> COOKIE_FUNCTION_SHIFT & 7 ? cookie_argument(ctx, cookie, COOKIE_FUNCTION_SHIFT) : 0;
		instance = cookie_argument(ctx, cookie, COOKIE_INSTANCE_SHIFT);
		if (inside)
			read_user(&function, instance + 8 * inside);
		w->created_as.function = instance ? 0 : function;
		w->created_as.instance = instance;
		w->created_as.image = p->image;
		w->also_created_as.function = function;
		w->also_created_as.instance = instance ? 0 : current_task(&config->memory);
		w->also_created_as.image = function ? p->image : 0;
	}
	w->creation = creation_of(ctx, w, p, config);
	w->known_stack = known_stack(w, 1);
	if (!w->known_stack && kind != EDGE_CREATE_THREAD && !affords_walk(p)) {	/* threads are cut off where they come in thousands */
		w->known_stack = known_stack(w, 0);
		if (!w->known_stack && !affords_first_walk(p)) {
			leave_out_context(w, t);
			return;
		}
	}
	if (w->known_stack) {
		count(STAT_KNOWN_CREATIONS);
		finish_context(w);
		return;
	}
	w->ip = PT_REGS_IP(ctx);
	w->sp = PT_REGS_SP(ctx);
	w->bp = PT_REGS_FP(ctx);
	w->r10 = ctx->r10;
	w->may_seek = 0;
	begin_walk(w, list);
	edge_unwinders.call(ctx, 0);
	w->end = END_TOO_DEEP;	/* never reached */
	finish_context(w);
}

/* Cilk-5: the slow version of a stolen function begins on this thread. Its ancestors become the context of its frame. */
static __always_inline void keep_closures(struct pt_regs *ctx, struct process *p, struct thread *t, struct closure_chain *c)
{
	struct walk *w = claim_walk(t);

	if (!w) {
		count(LOST_CONTEXTS);
		return;
	}
	w->begun_ns = bpf_ktime_get_ns();
	w->tgid = t->tgid;
	w->key.image = p->image;
	w->key.context = t->base_context;
	gather_closures(w, argument(ctx, 1), argument(ctx, 2), c);
	if (!w->depth && t->depth)	/* the first procedure: nothing is before it but what created the thread */
		frame_has_context(t, t->base_context);
	w->purpose = WALK_CLOSURES;
	finish_context(w);
}

static __always_inline void load_map_changed(struct process *p, u32 tgid, u32 tid)
{
	struct process_config *config = configs.lookup(&tgid);
	u32 stop = config ? config->flags & STOP_AT_LOAD : 0;

	if (!p->epoch && !(config && config->flags & LOADS_ONCE))	/* nothing is mapped yet */
		stop = 0;
	if (stop && is_traced((void *)bpf_get_current_task()))
		stop = 0;
	if (stop) {
		p->our_stop = 1;
		bpf_send_signal(SIGSTOP);
		count(STAT_STOPS);
	}
	__sync_fetch_and_add(&p->epoch, 1);
	tell_stopped(RECORD_LOAD_MAP, tgid, tid, p->image, p->epoch, !!stop);
}

/* Under what a hit is charged. */
static __always_inline u32 cost_of(u32 kind)
{
	if (kind == EDGE_CREATE_THREAD)
		return COST_CREATE;
	return kind == EDGE_LOCK || kind == EDGE_UNLOCK ? COST_LOCK : COST_PROBE;
}

/* What the trap of a hit takes. */
static __always_inline u32 trap_ns(u64 cookie, int returned)
{
	struct settings *s = find_settings();

	if (!s)
		return 0;
	return returned ? s->return_ns : cookie & COOKIE_DEAR ? s->dear_ns : s->entry_ns;
}

/* Whether hits of this kind are to do nothing: there is no time for them, or n_working does not come from them. */
static __always_inline int is_idle_edge(struct process *p, u32 kind, u32 cost)
{
	if (p->cut & 1 << (cost & 7))
		return 1;
	return p->from_leaves && kind != EDGE_CREATE_THREAD;
}

static __always_inline void trace_edge(struct pt_regs *ctx, struct thread *t, u64 cookie, int returned)
{
	u64 function = work_function(ctx, cookie);

	t->told = what_it_does(t);
	send_thread(t, bpf_ktime_get_ns(), 0, cookie, returned ? 0 : function);
}

/* The runtime's state passes by, that of the worker which this thread is; to be kept whatever n_working comes from. */
static __always_inline void learn_root(struct pt_regs *ctx, struct process *p, struct thread *t, u64 cookie)
{
	u64 root = cookie_argument(ctx, cookie, COOKIE_ROOT_SHIFT);

	if (!root)
		return;
	p->runtime_root = root;
	if (t)
		t->worker = root;
}

int on_edge(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx), begun;
	u32 kind = cookie & COOKIE_KIND_MASK, cost = cost_of(kind);
	u64 id = current_ids();
	u32 tgid = id >> 32, tid = id;
	struct process *p = processes.lookup(&tgid);
	struct meter *m;
	struct thread *t;
	int returned;
	u32 luck;

	/* A session's entry handler that answers 1 spares this call the return probe. */
	if (!p || p->dead)
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	m = find_meter();
	if (!m)
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	luck = bpf_get_prandom_u32();
	begun = meter_begin(m, METER_EDGE, luck);
	returned = (cookie & COOKIE_RETURN) ||
		   ((cookie & COOKIE_SESSION) && PT_REGS_IP(ctx) != bpf_get_func_ip(ctx));
	count(STAT_EDGES + (kind & 15));
	__sync_fetch_and_add(&p->probe_hits, 1);
	pay(p, m, METER_EDGE, cost, trap_ns(cookie, returned), luck, tgid, tid);
	if (is_idle_edge(p, kind, cost)) {
		if (p->cut & 1 << (cost & 7))
			count(STAT_LEFT_OUT + cost);
		if (!returned)
			learn_root(ctx, p, threads.lookup(&tid), cookie);
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	}
	t = threads.lookup(&tid);
	if (!t)
		t = add_thread(tgid, tid, 0);
	if (!t)
		return (cookie & COOKIE_SESSION) ? 1 : 0;
	rejoin(p, t);
	follow_source(p, t);
	t->busy = 1;
	barrier();
	if (returned) {
		frame_leave(t, PT_REGS_SP(ctx));
		if (kind == EDGE_LOCK && t->lock_wait) {
			t->held_lock = t->lock_wait;
			end_runtime_lock_wait(t);
		}
	} else if (kind == EDGE_UNLOCK) {
		t->held_lock = 0;
	} else if (kind == EDGE_CREATE_THREAD) {
		t->start_routine = PT_REGS_PARM3(ctx);
	} else if (kind == EDGE_BEGIN || kind == EDGE_END) {
		begin_or_end(t, kind == EDGE_BEGIN);
		set_unknown(p, t, NOT_UNKNOWN);
		set_member(p, t);
	} else if (kind <= EDGE_ENTER_REGION || kind == EDGE_LOCK) {
		enter(ctx, cookie, p, t, kind, tgid);
		if (kind == EDGE_LOCK)
			begin_runtime_lock_wait(t, cookie_argument(ctx, cookie, COOKIE_INSTANCE_SHIFT));
	}
	unblock(p, t);
	recount(p, t);
	if ((p->loiterers & LOITERERS_MASK) && may_let_go(p, t, kind))
		let_go(p, t);
	if (p->traced)
		trace_edge(ctx, t, cookie, returned);
	barrier();
	t->busy = 0;
	meter_end(m, METER_EDGE, begun);
	if (returned)
		return 0;
	if (kind == EDGE_ENTER_WORK) {
		struct process_config *config = configs.lookup(&tgid);

		if (config && config->closures.there)
			keep_closures(ctx, p, t, &config->closures);
	}
	learn_root(ctx, p, t, cookie);
	if (cookie & COOKIE_LEARN)
		learn(tgid, tid, p->image, cookie_argument(ctx, cookie, COOKIE_FUNCTION_SHIFT));
	if (kind == EDGE_ENTER_REGION || kind == EDGE_CREATE_TASK || kind == EDGE_CREATE_THREAD)
		keep_context(ctx, cookie, p, t, tgid, tid);
	return edge_answer(ctx);
}

int on_load_map(struct pt_regs *ctx)
{
	u64 id = current_ids();
	u32 tgid = id >> 32, tid = id;
	struct process *p = processes.lookup(&tgid);

	if (p && !p->dead) {
		count(STAT_EDGES + EDGE_LOAD_MAP);
		__sync_fetch_and_add(&p->probe_hits, 1);
		load_map_changed(p, tgid, tid);
	}
	return edge_answer(ctx);
}
