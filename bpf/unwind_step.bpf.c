/* SPDX-License-Identifier: Apache-2.0
 *
 * The user-stack unwinder, second part: from a frame to its caller's, by the tables where a file has them, by frame
 * pointers where it has none.
 */

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

#define LONGEST_INSTRUCTION 15

/* From the copy of an instruction that a uprobe replaced, which the kernel has executed out of line, to the original. */
static __always_inline u32 step_out_of_slot(struct walk *w)
{
	w->ip = w->stepped + (w->ip - w->slot);
	w->exact = 1;
	return GOING;
}

/* One step by frame pointer. */
static __always_inline u32 step_by_frame_pointer(struct walk *w, u32 otherwise)
{
	u64 bp = w->bp, next_bp, ip;

	if (w->slot && w->ip - w->slot <= LONGEST_INSTRUCTION && w->depth == 1)
		return step_out_of_slot(w);
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
	if (!find_mapping(w, target)) {
		rule = call_jvm_rule(w);
		return rule ? rule : ~0;
	}
	if ((u32)w->regions) {
		rule = find_rule(w, target - w->bias);
		if (rule == (u32)ROW_ABSENT << 28)	/* until they are */
			return rule;
	} else {
		rule = call_jvm_rule(w);
		if (rule)	/* which holds as long as that code is there */
			return rule;
		rule = (u32)ROW_FRAME_POINTER << 28;
	}
	if (!w->by_seek) {	/* else another file may be there the next time */
		c->target = target;
		c->generation = w->generation;
		c->rule = rule;
	}
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
	if (type == ROW_RSP) {
		cfa += w->sp;
	} else if (type == ROW_RBP) {
		cfa += w->bp;
	} else if (type == ROW_END) {
		return END_COMPLETE;
	} else if (type == ROW_SIGNAL) {
		return step_signal_frame(w);
	} else if (type == ROW_PLT) {
		cfa = w->sp + 8 + ((w->ip & 15) >= 11 ? 8 : 0);
	} else if (rule == ~0U) {
		if (w->may_seek && w->sought != target) {
			w->sought = target;
			return SEEKING;
		}
		return step_by_frame_pointer(w, END_NO_MAPPING);
	} else if (type == ROW_ABSENT) {
		w->absent = target;
		return step_by_frame_pointer(w, END_NO_TABLE);
	} else if (type == ROW_FRAME_POINTER) {
		return step_by_frame_pointer(w, END_NO_TABLE);
	} else if (type == ROW_NONE) {	/* code of an assembler, say V8's builtins: it may keep frames all the same */
		return step_by_frame_pointer(w, END_BAD_ROW);
	} else if (type == ROW_INTERPRETED) {
		return step_interpreted(w);
	} else if (type == ROW_R10 && w->depth == 1) {
		cfa += w->r10;
	} else if (type == ROW_REGISTER && w->depth == 1) {
		cfa = leaf_register(w, rule >> 14 & 15) + (cfa & ((ROW_BY_RBP - 1) << 3));
		type = rule & ROW_BY_RBP ? ROW_R10 : ROW_RSP;
	} else if (type == ROW_RETURN && w->depth == 1) {
		w->ip = leaf_register(w, rule >> 14 & 15);
		w->sp += cfa & ((ROW_BY_RBP - 1) << 3);
		w->exact = 0;
		return w->ip ? GOING : END_ZERO;
	} else if (type == ROW_LARGE) {
		cfa = w->sp + ((u64)(rule & 0xffffff) << 3);
		rbp = rule >> 24 & 0xf;
		type = ROW_RSP;
	} else if (type == ROW_CLONE && w->depth == 1) {
		if (!leaf_register(w, LEAF_RAX))
			return END_COMPLETE;
		cfa = w->sp + 8;
		type = ROW_RSP;
	} else if (type == ROW_RSP_DEREF || type == ROW_RBP_DEREF) {
		u64 low = (rule & (ROW_KEPT_OFFSETS - 1)) << 3, beyond = rule >> ROW_BEYOND_SHIFT & (ROW_BEYOND_LIMIT - 1);

		if (!read_user(&cfa, type == ROW_RSP_DEREF ? w->sp + low - RSP_DEREF_BIAS : w->bp - low))
			return END_BAD_ROW;
		cfa += beyond << 3;
		type = beyond ? ROW_RSP : type;
	} else {
		return END_BAD_ROW;
	}
	type = forget(w, type);
	cfa = forget(w, cfa);
	if (cfa <= w->sp && !(w->cactus && type == ROW_RBP))
		return END_BAD_ROW;
	return read_frame(w, cfa, type, rbp);
}
