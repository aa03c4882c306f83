/* SPDX-License-Identifier: Apache-2.0
 *
 * The user-stack unwinder: compact tables made from .eh_frame where a file has them, frame pointers where it
 * has none. One program unwinds FRAMES_PER_CALL frames and tail-calls itself.
 *
 * The store is one large array of 64-bit words in chunks, written by Python through mmap:
 *   rows      pc | rule << 32, sorted by pc (an ELF virtual address); see parprof/unwind/rows.py
 *   pages     for each 2^PAGE_SHIFT bytes of a file's code: first row's word << 24 | number of rows; the word
 *             before the first row is always the row that holds at the page's start
 *   mappings  MAPPING_WORDS words for each executable mapping of a process, sorted by start
 *
 * Searches are written without branches on what they find, so that the verifier sees one path.
 */

enum row_type {
	ROW_NONE = 0,
	ROW_RSP = 1,
	ROW_RBP = 2,
	ROW_PLT = 3,
	ROW_SIGNAL = 4,
	ROW_END = 5,
	ROW_RBP_DEREF = 6,
	ROW_R10 = 7,
};

#define ROW_FRAME_POINTER 8	/* ours alone: the file has no table */
#define ROW_RSP_DEREF 9	/* CFA = *(rsp + off) + 8, with the bias added to off */
#define ROW_REGISTER 10	/* CFA = a register of the leaf + off: index in pt_regs, ROW_BY_RBP, off */
#define RSP_DEREF_BIAS (1 << 20)
#define ROW_BY_RBP (1 << 13)	/* the caller's rbp was saved below rbp, not below the CFA */
#define GOING 0xff	/* no end yet */
#define CACHED_RULES 1024
#define WINDOW_WORDS 64	/* of stack memory read at once: a read costs about as much as copying 512 bytes */
#define MAPPING_STEPS 17
#define ROW_STEPS 10
#define STALE_INTERVAL_NS 50000000ULL

/* The rule for an address in one version of one process's load map. */
struct cached_rule {
	u64 target;
	u32 generation;
	u32 rule;
};

enum walk_purpose {
	WALK_SAMPLE = 0,
	WALK_CREATION = 1,	/* of work: filed under created_as */
	WALK_THREAD = 2,	/* creation of a thread */
	WALK_CLOSURES = 3,	/* nothing to walk: the record is complete; it is the context of the thread's innermost frame */
};

struct walk {
	u64 ip, sp, bp, r10;
	u64 mapping_start, mapping_end, bias, pages, first_page;	/* the mapping found last */
	u64 list;	/* word << 32 | count of the process's mappings */
	u64 generation;	/* of that list: no two lists ever share one */
	u64 return_instance, return_slot, return_address;	/* innermost pending return probe */
	u64 period;
	u64 cut_sp;	/* where the frame of the work that another context created begins; ~0 = there is none */
	u64 forgotten;
	u64 window_start;	/* user address of window[0]; 1 = no window: the end of the stack was near */
	u64 window[WINDOW_WORDS];
	struct sample_key key;
	struct work_key created_as, also_created_as;	/* a creation: what its call path is filed under */
	u32 purpose;	/* enum walk_purpose */
	u32 cactus;
	u32 cut;
	u32 tgid;
	u32 depth;
	u32 end;
	u32 exact;	/* ip is not a return address */
	u32 user_mode;
	u32 python_started;
	u64 python_frame;	/* the next one to look at */
	u64 python_raw[16];
	struct stack_record record;
	struct cached_rule cache[CACHED_RULES];	/* stacks share most of their frames with those before */
};
BPF_TABLE("percpu_array", u32, struct walk, walks, 1);
BPF_TABLE("prog", u32, u32, unwinders, 2);	/* on_unwind, on_python */
/* Probes can be preempted, by other probes too: each walk claims a slot of its own. */
#define WALK_SLOTS 128
BPF_TABLE("array", u32, struct walk, edge_walks, WALK_SLOTS);
BPF_TABLE("hash", u32, u32, walk_claims, WALK_SLOTS);
BPF_TABLE("prog", u32, u32, edge_unwinders, 2);	/* on_edge_unwind, on_edge_python */

static __always_inline u64 *word(u64 index)
{
	u32 chunk = index >> CHUNK_SHIFT, at = index & ((1 << CHUNK_SHIFT) - 1);
	void *inner = store.lookup(&chunk);

	return inner ? bpf_map_lookup_elem(inner, &at) : 0;
}

/* Makes the verifier forget what it knows of a value: else it follows the code behind a search once for each
 * number of steps that the search can take, and for each word that may be missing. */
static __always_inline u64 forget(struct walk *w, u64 value)
{
	*(volatile u64 *)&w->forgotten = value;
	return *(volatile u64 *)&w->forgotten;
}

static __always_inline u64 load(struct walk *w, u64 index)
{
	u64 *found = word(index);

	return forget(w, found ? *found : 0);
}

/* Finds the mapping of an address; 0 if there is none. */
static __always_inline int find_mapping(struct walk *w, u64 address)
{
	u64 first = w->list >> 32, base = 0, n = (u32)w->list, at;

	if (address - w->mapping_start < w->mapping_end - w->mapping_start)
		return 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MAPPING_STEPS; i++) {
		u64 half = n >> 1, after;

		if (!n)
			break;
		/* 1 if this mapping begins at or below the address */
		after = 1 - below(address, load(w, first + (base + half) * MAPPING_WORDS));
		base += after * (half + 1);
		n = after * (n - half - 1) + (1 - after) * half;
	}
	base = forget(w, base);
	if (!base)
		return 0;
	at = first + (base - 1) * MAPPING_WORDS;
	w->mapping_start = load(w, at);
	w->mapping_end = load(w, at + 1);
	w->bias = load(w, at + 2);
	w->pages = load(w, at + 3);
	w->first_page = load(w, at + 4);
	return address - w->mapping_start < w->mapping_end - w->mapping_start;
}

/* The rule for an ELF virtual address; 0 (ROW_NONE) when the table has none. */
static __always_inline u32 find_rule(struct walk *w, u64 vaddr)
{
	u64 page = (vaddr >> PAGE_SHIFT) - w->first_page, entry, base, n;

	if (page >= (u32)w->pages)
		return 0;
	entry = load(w, (w->pages >> 32) + page);
	base = entry >> 24;
	n = entry & 0xffffff;
#pragma clang loop unroll(disable)
	for (int i = 0; i < ROW_STEPS; i++) {
		u64 half = n >> 1, after;

		if (!n)
			break;
		after = 1 - below(vaddr, (u32)load(w, base + half));
		base += after * (half + 1);
		n = after * (n - half - 1) + (1 - after) * half;
	}
	base = forget(w, base);
	return load(w, base - 1) >> 32;
}

/* Reads a word of the stack, through the window. */
static __always_inline int read_stack(struct walk *w, u64 *value, u64 address)
{
	u64 at = (address - w->window_start) >> 3;

	if (address & 7 || (at >= WINDOW_WORDS && w->window_start == 1))
		return read_user(value, address);
	if (at >= WINDOW_WORDS) {
		if (bpf_probe_read_user(w->window, sizeof(w->window), (void *)address)) {
			w->window_start = 1;
			return read_user(value, address);
		}
		w->window_start = address;
		at = 0;
	}
	asm volatile("" : "+r"(at));
	*value = w->window[at & (WINDOW_WORDS - 1)];
	return 1;
}

/* Loads the next pending return probe: its kernel entry knows the slot and the address it replaced. */
static __always_inline void next_return_instance(struct walk *w)
{
	w->return_slot = ~0ULL;
	if (!w->return_instance)
		return;
	bpf_probe_read_kernel(&w->return_slot, 8, (void *)w->return_instance + RETURN_INSTANCE_STACK);
	bpf_probe_read_kernel(&w->return_address, 8, (void *)w->return_instance + RETURN_INSTANCE_ADDRESS);
	bpf_probe_read_kernel(&w->return_instance, 8, (void *)w->return_instance + RETURN_INSTANCE_NEXT);
}

/* The return address in the stack slot, as it was before a return probe replaced it. */
static __always_inline u64 true_return_address(struct walk *w, u64 slot, u64 found)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (w->return_slot < slot)
			next_return_instance(w);
	return w->return_slot == slot ? w->return_address : found;
}

/* One step by frame pointer. */
static __always_inline u32 step_by_frame_pointer(struct walk *w, u32 otherwise)
{
	u64 bp = w->bp, next_bp, ip;

	if (w->return_slot == w->sp - 8 && w->depth == 1) {	/* in the trampoline of a return probe */
		w->ip = w->return_address;
		w->exact = 1;
		next_return_instance(w);
		return GOING;
	}
	if (bp < w->sp || bp - w->sp > STACK_SPAN || bp & 7)
		return otherwise;
	if (!read_stack(w, &next_bp, bp) || !read_stack(w, &ip, bp + 8))
		return otherwise;
	w->ip = true_return_address(w, bp + 8, ip);
	w->sp = bp + 16;
	w->bp = next_bp;
	w->exact = 0;
	return w->ip ? GOING : END_ZERO;
}

static __always_inline u32 step_signal_frame(struct walk *w)
{
	u64 sp = w->sp;

	if (!read_user(&w->bp, sp + 120) || !read_user(&w->sp, sp + 160) || !read_user(&w->ip, sp + 168))
		return END_UNREADABLE;
	w->exact = 1;
	return w->ip ? GOING : END_ZERO;
}

/* The rule for the frame at `target`; ROW_NONE if its table says nothing. 0xffffffff = no mapping. */
static __always_inline u32 rule_of(struct walk *w, u64 target)
{
	u64 at = target * 0x9e3779b97f4a7c15ULL >> 54;
	struct cached_rule *c;
	u32 rule;

	asm volatile("" : "+r"(at));
	c = &w->cache[at & (CACHED_RULES - 1)];
	if (c->target == target && c->generation == (u32)w->generation)
		return c->rule;
	if (!find_mapping(w, target))
		return ~0;
	rule = (u32)w->pages ? find_rule(w, target - w->bias) : (u32)ROW_FRAME_POINTER << 28;
	c->target = target;
	c->generation = w->generation;
	c->rule = rule;
	return rule;
}

/* Reads the caller's rbp, if it was saved, and the return address below the CFA. */
static __always_inline u32 read_frame(struct walk *w, u64 cfa, u32 type, u32 rbp)
{
	u64 saved, ip;

	if (rbp) {	/* first: it lies below the return address, and the window grows upwards */
		saved = type >= ROW_RBP_DEREF ? w->bp - 8 * (rbp - 1) : cfa - 8 * rbp;
		if (!read_stack(w, &w->bp, saved))
			return END_UNREADABLE;
	}
	if (!read_stack(w, &ip, cfa - 8))
		return END_UNREADABLE;
	w->ip = w->return_slot > cfa - 8 ? ip : true_return_address(w, cfa - 8, ip);
	w->sp = cfa;
	w->exact = 0;
	return w->ip ? GOING : END_ZERO;
}

/* A register as it was when the thread was interrupted. */
static __always_inline u64 leaf_register(struct walk *w, u32 index)
{
	u64 value = 0, regs = forget(w, (u64)bpf_task_pt_regs(bpf_get_current_task_btf()));

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(regs + 8 * index));
	return value;
}

/* Moves to the caller's frame; GOING, or why there is none. */
static __always_inline u32 step(struct walk *w)
{
	u64 target = w->ip - 1 + w->exact, cfa;
	u32 rule = forget(w, rule_of(w, target)), type = rule >> 28, rbp;

	rbp = rule >> 18 & 0x3ff;
	cfa = (u64)(rule & 0x3ffff) << 3;
	if (type == ROW_RSP)
		cfa += w->sp;
	else if (type == ROW_RBP)
		cfa += w->bp;
	else if (type == ROW_END)
		return END_COMPLETE;
	else if (type == ROW_SIGNAL)
		return step_signal_frame(w);
	else if (type == ROW_PLT)
		cfa = w->sp + 8 + ((w->ip & 15) >= 11 ? 8 : 0);
	else if (rule == ~0U)
		return step_by_frame_pointer(w, END_NO_MAPPING);
	else if (type == ROW_FRAME_POINTER)
		return step_by_frame_pointer(w, END_NO_TABLE);
	else if (type == ROW_R10 && w->depth == 1)
		cfa += w->r10;
	else if (type == ROW_REGISTER && w->depth == 1) {
		cfa = leaf_register(w, rule >> 14 & 15) + (cfa & ((ROW_BY_RBP - 1) << 3));
		type = rule & ROW_BY_RBP ? ROW_R10 : ROW_RSP;
	} else if (type == ROW_RSP_DEREF && read_user(&cfa, w->sp + cfa - RSP_DEREF_BIAS)) {
		cfa += 8;
		type = ROW_RSP;
	} else if (type != ROW_RBP_DEREF || !read_user(&cfa, w->bp - cfa))
		return END_BAD_ROW;
	type = forget(w, type);
	cfa = forget(w, cfa);
	if (cfa <= w->sp && !(w->cactus && type == ROW_RBP))
		return END_BAD_ROW;
	return read_frame(w, cfa, type, rbp);
}

static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0xff51afd7ed558ccdULL;
	return hash ^ hash >> 32;
}

/* Sends the stack if that was not done yet. */
static __always_inline void send_stack(struct stack_record *s, u32 depth, u32 end)
{
	u64 hash = s->hash, size;
	u32 one = 1;

	if (sent_stacks.lookup(&hash))
		return;
	s->type = RECORD_STACK;
	s->depth = depth;
	s->end = end;
	size = sizeof(*s) - sizeof(s->pc) + (depth + 2 * s->python_depth) * sizeof(u64);
	asm volatile("" : "+r"(size));	/* else clang drops the check, and the verifier the program */
	if (size > sizeof(*s))
		return;
	if (stacks.ringbuf_output(s, size, BPF_RB_NO_WAKEUP))
		count(LOST_STACK_RING);
	else
		sent_stacks.update(&hash, &one);
}

/* Counts the sample under its stacks: the end of every walk. */
static __always_inline int finish_sample(struct walk *w)
{
	struct sample_value none = {}, *value;

	value = counts.lookup_or_try_init(&w->key, &none);
	if (!value) {
		count(LOST_COUNTS_FULL);
		return 0;
	}
	__sync_fetch_and_add(&value->count, 1);
	__sync_fetch_and_add(&value->total, w->period);
	count(STAT_SAMPLES);
	return 0;
}

static __always_inline void tell_stale(struct walk *w)
{
	struct process *p = processes.lookup(&w->tgid);
	u64 now = bpf_ktime_get_ns();

	if (!p || now - p->stale_told_ns < STALE_INTERVAL_NS)
		return;
	p->stale_told_ns = now;
	tell(RECORD_STALE_MAP, w->tgid, w->key.tid, p->image, 0, w->ip, 0);
}

/* Sends a whole user stack and counts the sample under it. */
static __always_inline int finish_user_stack(struct walk *w)
{
	w->record.hash = mix(mix(w->record.hash, w->end), w->cut) | 1;
	w->record.cut = w->cut;
	w->key.user_hash = w->record.hash;
	count(STAT_STACKS + (w->end & 15));
	send_stack(&w->record, w->depth, w->end);
	return finish_sample(w);
}

/* Unwinds FRAMES_PER_CALL frames more; GOING if that did not reach the end. */
static __always_inline u32 unwind_frames(struct walk *w)
{
	u32 depth;

#pragma clang loop unroll(disable)
	for (int i = 0; i < FRAMES_PER_CALL; i++) {
		depth = w->depth;
		asm volatile("" : "+r"(depth));
		depth &= MAX_FRAMES - 1;
		w->record.pc[depth] = w->exact && depth ? w->ip | FRAME_INTERRUPTED : w->ip;
		w->record.hash = mix(w->record.hash, w->ip);
		w->depth = depth + 1;
		w->end = step(w);
		if (w->sp > w->cut_sp) {
			w->cut = w->depth;
			w->cut_sp = ~0ULL;
		}
		if (w->end != GOING)
			break;
		if (w->depth >= MAX_FRAMES) {
			w->end = END_TOO_DEEP;
			break;
		}
	}
	return w->end;
}

int on_unwind(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0;
	struct walk *w = walks.lookup(&zero);

	if (!w)
		return 0;
	if (unwind_frames(w) == GOING) {
		unwinders.call(ctx, 0);
		w->end = END_TOO_DEEP;	/* the kernel's limit on tail calls */
	}
	if (w->end == END_NO_MAPPING)
		tell_stale(w);
	if (interpreters.lookup(&w->tgid))
		unwinders.call(ctx, 1);
	return finish_user_stack(w);
}

/* The slot that a probe of the current thread claimed. */
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

/* Files the walked stack as the context of what is being created, and gives the slot back. */
static __always_inline int finish_context(struct walk *w)
{
	u32 tid = current_ids(), slot;
	struct thread *t = threads.lookup(&tid);
	struct context_record r = {};
	u32 one = 1;

	if (!t)
		return 0;
	if (!w->depth)
		goto out;
	w->record.hash = mix(mix(w->record.hash, w->end), w->cut) | 1;
	w->record.cut = w->cut;
	send_stack(&w->record, w->depth, w->end);
	r.type = RECORD_CONTEXT;
	r.image = w->key.image;
	r.user_hash = w->record.hash;
	r.parent = w->key.context;
	r.id = mix(mix(r.user_hash, r.parent), r.image) | 1;
	if (!sent_stacks.lookup(&r.id)) {
		if (stacks.ringbuf_output(&r, sizeof(r), BPF_RB_NO_WAKEUP))
			count(LOST_CONTEXTS);
		else
			sent_stacks.update(&r.id, &one);
	}
	count(STAT_CONTEXTS);
	if (w->purpose == WALK_THREAD) {
		t->created_context = r.id;
	} else if (w->purpose == WALK_CLOSURES) {
		if (t->depth)
			frame_has_context(t, r.id);
	} else {
		created.update(&w->created_as, &r.id);
		if (w->also_created_as.image)
			created.update(&w->also_created_as, &r.id);
	}
out:
	slot = t->walk_slot;
	walk_claims.delete(&slot);
	return 0;
}

int on_edge_unwind(struct pt_regs *ctx)
{
	struct walk *w = edge_walk();

	if (!w)
		return 0;
	if (unwind_frames(w) == GOING) {
		edge_unwinders.call(ctx, 0);
		w->end = END_TOO_DEEP;
	}
	if (interpreters.lookup(&w->tgid))
		edge_unwinders.call(ctx, 1);
	return finish_context(w);
}

/* A stack by the kernel's own walker; its hash, or 0 if it could not be read. */
static __always_inline u64 capture(struct bpf_perf_event_data *ctx, struct stack_record *s, u64 flags, u32 end)
{
	u64 hash = 0x9e3779b97f4a7c15ULL;
	s32 bytes = bpf_get_stack(ctx, s->pc, MAX_KERNEL_FRAMES * sizeof(u64), flags);
	u32 depth;

	if (bytes <= 0)
		return 0;
	depth = (u32)bytes / sizeof(u64);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_KERNEL_FRAMES; i++) {
		u32 at = i;

		if (i >= depth)
			break;
		asm volatile("" : "+r"(at));	/* keeps the mask, which the verifier needs */
		hash = mix(hash, s->pc[at & MAX_KERNEL_FRAMES]);
	}
	s->hash = hash | 1;
	s->image = 0;
	s->python_depth = 0;
	s->cut = 0;
	send_stack(s, depth, end);
	return hash | 1;
}

/* Makes the walk begin at the registers in `ip`, `sp`, `bp` and `r10`. */
static __always_inline void begin_walk(struct walk *w, struct mapping_list *list)
{
	void *task = (void *)bpf_get_current_task();
	u64 utask = 0;

	w->list = list->words;
	w->generation = list->generation;
	w->mapping_start = w->mapping_end = 0;
	w->window_start = ~0ULL << 12;	/* far from any user address */
	w->return_instance = 0;
	bpf_probe_read_kernel(&utask, 8, task + TASK_UTASK);
	if (utask)
		bpf_probe_read_kernel(&w->return_instance, 8, (void *)utask + UTASK_RETURN_INSTANCES);
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

/* Starts the walk of the current user stack for the sample in `w->key`. */
static __always_inline int walk_user_stack(struct bpf_perf_event_data *ctx, struct walk *w, struct pt_regs *regs)
{
	struct mapping_list *list = mapping_lists.lookup(&w->tgid);

	if (!w->ip || is_exiting((void *)bpf_get_current_task())) {	/* in exec or exit: there is no user stack (any more) */
		w->key.user_hash = 0;
		count(LOST_USER_STACK);
		return finish_sample(w);
	}
	if (!list || !list->words) {
		w->key.user_hash = capture(ctx, &w->record, BPF_F_USER_STACK, END_FRAME_POINTERS);
		if (!w->key.user_hash)
			count(LOST_USER_STACK);
		else
			count(STAT_STACKS + END_FRAME_POINTERS);
		return finish_sample(w);
	}
	bpf_probe_read_kernel(&w->bp, 8, &regs->bp);
	bpf_probe_read_kernel(&w->r10, 8, &regs->r10);
	begin_walk(w, list);
	unwinders.call(ctx, 0);
	return 0;
}
