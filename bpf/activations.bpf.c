/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that samples tell apart (froyd-2005 sec. 2.4). The stack of a sample is compared with that of the thread's previous
 * one, from the outermost frame inwards. A frame at the same address with the same return address is taken for the same
 * activation as long as all frames outside of it are; those inward of the first that differs were called since then. A
 * return and another call from the same place between two samples are not seen: what is counted is a lower bound. A sample in
 * the very calls of the one before, which one hash tells, has nothing to compare, and does not come here (as_before).
 *
 * For `record` and `attach`. The daemon loads on_activations when somebody attaches for the first time, and compares the
 * stacks of the processes that somebody attaches to: those whose waits are of interest. Else the map has one entry.
 */

/* The stack of a thread at its previous sample: COMPARED_FRAMES words a thread, of the outermost frames. */
struct last_stack {
	u32 image;
	u32 depth;	/* of the whole stack */
	u64 frames[COMPARED_FRAMES];	/* outermost first: hash of return address and frame address */
};
BPF_TABLE("hash", u32, struct last_stack, last_stacks, 1);	/* by tid; 0 is a template of zeroes */

static __always_inline struct last_stack *last_stack_of(u32 tid)
{
	struct last_stack *known = last_stacks.lookup(&tid), *template;
	u32 zero = 0;

	if (known)
		return known;
	template = last_stacks.lookup(&zero);
	if (!template || last_stacks.insert(&tid, template))
		return 0;
	return last_stacks.lookup(&tid);
}

#define COMPARED_PER_CALL 16	/* the verifier follows each, and looks at the function once */

/* Compares COMPARED_PER_CALL frames more, from the outermost ones inwards, and remembers them; 0 when that is all. A function by
 * itself, as `walk_frame`. No branches on what is found, so that the verifier sees one path. */
u64 compare_frames(u64 given)
{
	struct walk *w = (struct walk *)given;
	struct last_stack *last;
	u64 depth, cut, context, at, outer, frame, change, i;
	u32 tid;

	if (!w)
		return 0;
	tid = w->key.tid;	/* on our stack: Linux 6.1 takes no key from a shared function's argument */
	last = last_stacks.lookup(&tid);
	if (!last)
		return 0;
	depth = w->depth;
	cut = w->cut;
	context = w->key.context;
#pragma clang loop unroll(disable)
	for (u32 turn = 0; turn < COMPARED_PER_CALL; turn++) {
		i = w->alike.next;
		if (i >= w->alike.compared)
			return 0;
		w->alike.next = i + 1;
		at = depth - 1 - i;
		outer = depth - i;
		/* what one context created is another activation than what another did, at the same place or not */
		frame = context & -below(at, cut);
		asm volatile("%0 &= %1" : "+r"(at) : "i"(COMPARED_FRAMES - 1));
		asm volatile("%0 &= %1" : "+r"(outer) : "i"(STACK_WORDS - 1));
		/* nothing called the outermost one */
		frame ^= w->record.pc[outer] & -opaque(is_some(i));
		frame = frame * 0xff51afd7ed558ccdULL ^ w->cfa[at];
		w->alike.differs |= below(i, w->alike.before) ^ 1;
		asm volatile("%0 &= %1" : "+r"(i) : "i"(COMPARED_FRAMES - 1));
		change = last->frames[i] ^ frame;
		w->alike.differs |= (change | -change) >> 63;
		w->alike.shared += w->alike.differs ^ 1;
		last->frames[i] = frame;
	}
	return 1;
}
static u64 (*call_compare_frames)(struct walk *w) = (void *)SHARED_compare_frames;

/* Finds out how many of the innermost frames are new, and remembers the stack for the next sample. 0 if it is not to be
 * compared, or there is no room for the thread. */
static __always_inline int compare_with_last(struct walk *w)
{
	u64 depth = w->depth, compared = depth, before, deeper, differs;
	struct last_stack *last;
	struct thread *t;
	u32 tid = w->key.tid;

	if (!can_compare(w))
		return 0;
	last = last_stack_of(tid);
	if (!last)
		return 0;
	if (compared > COMPARED_FRAMES)
		compared = COMPARED_FRAMES;
	before = last->depth;
	deeper = forget(w, (depth - before) & -below(before, depth));
	differs = last->image ^ w->key.image;
	w->alike.differs = (differs | -differs) >> 63;
	w->alike.before = before;
	w->alike.compared = compared;
	w->alike.shared = w->alike.next = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < COMPARED_FRAMES / COMPARED_PER_CALL; i++)
		if (!call_compare_frames(w))
			break;
	last->image = w->key.image;
	last->depth = depth;
	t = threads.lookup(&tid);
	if (t)
		t->calls = w->calls;
	/* Beyond what is compared only what was not there at all is new. */
	w->key.fresh = w->alike.shared < compared ? depth - w->alike.shared : deeper;
	return 1;
}

int on_activations(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0;
	struct walk *w = walks.lookup(&zero);

	if (!w)
		return 0;
	if (!compare_with_last(w))
		count(STAT_NOT_COMPARED);
	return go_on_behind_walk(ctx, w);
}
