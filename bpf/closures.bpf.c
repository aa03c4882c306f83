/* SPDX-License-Identifier: Apache-2.0
 *
 * Cilk-5: the ancestors of a stolen function are on no stack but in a chain of closures, from the worker's deque on.
 * Where things lie comes with the plan (parprof/plans.py); the way along them is Cilk-5's own, and is written out here: as
 * data it would be a program for an interpreter that the verifier had to follow.
 */
#define MAX_CLOSURES 256
#define CLOSURES_PER_CALL 8

/* Records the closure at `ip`, if it lies past the one of the frame `sp`, and moves on to its parent; `bp`: whether that frame
 * was found. */
static __always_inline void next_closure(struct walk *w, struct process_config *config)
{
	u64 frame, function, past;
	u32 depth;

	read_user(&frame, w->ip + config->closures.frame);
	read_user(&function, frame + config->closures.signature);
	read_user(&function, function + config->closures.inlet);
	read_user(&w->ip, w->ip + config->closures.parent);
	past = w->bp;
	depth = w->depth;
	asm volatile("" : "+r"(depth));
	depth &= MAX_CLOSURES - 1;
	if (past) {
		w->record.pc[depth] = function | (depth ? FRAME_INTERRUPTED : 0);
		w->record.hash = mix(w->record.hash, function);
		w->depth = depth + 1;
	}
	w->bp = past | opaque(is_some(frame ^ w->sp) ^ 1);
}

/* CLOSURES_PER_CALL of them. GOING while there is another. A function by itself, as `walk_frame`. */
u64 next_closures(u64 given)
{
	struct walk *w = (struct walk *)given;
	struct process_config *config;
	u32 tgid;

	if (!w)
		return END_TOO_DEEP;
	tgid = w->tgid;
	config = configs.lookup(&tgid);
	if (!config)
		return END_COMPLETE;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < CLOSURES_PER_CALL; i++) {
		if (!w->ip)
			return END_COMPLETE;
		next_closure(w, config);
	}
	return w->ip ? GOING : END_COMPLETE;
}

static u64 (*call_next_closures)(struct walk *w) = (void *)SHARED_next_closures;

/* Puts the chain into the record of a walk, less what is on the stack of the frame `own` in which the worker `ws` went on:
 * `depth` functions. Whether that frame was found in it. */
static __always_inline u32 gather_closures(struct walk *w, u64 ws, u64 own, struct closure_chain *c)
{
	u64 at = 0;
	u32 self = 0;

	w->creation = w->known_stack = 0;
	w->record.hash = 0x9e3779b97f4a7c15ULL;
	w->record.image = 0;
	w->record.python_depth = 0;
	w->record.python_end = PYTHON_NO_STATE;
	w->depth = w->cut = 0;
	w->end = END_COMPLETE;
	w->ip = w->bp = 0;
	w->sp = own;
	bpf_probe_read_user(&self, 4, (void *)ws + c->ws_self);
	if (!read_user(&at, ws + c->ws_context) || !read_user(&at, at + c->context_ro) ||
	    !read_user(&at, at + c->ro_deques) ||
	    !read_user(&w->ip, at + (u64)self * c->deque_size + c->deque_bottom) || !w->ip)
		return 0;
	w->end = GOING;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_CLOSURES / CLOSURES_PER_CALL; i++) {
		w->end = call_next_closures(w);
		if (w->end != GOING)
			break;
	}
	if (w->end == GOING)
		w->end = END_TOO_DEEP;
	return !!w->bp;
}

/* The sample of a worker whose edges are not followed: what it works at was created by the functions of the closures. */
static __always_inline void place_in_closures(struct walk *w, struct thread *t, struct closure_chain *c)
{
	u64 stack = 0, own = 0, context;

	if (!read_user(&stack, t->worker + c->ws_stack) || !read_user(&own, stack) ||
	    !gather_closures(w, t->worker, own, c)) {
		w->key.context = CONTEXT_UNKNOWN;
		return;
	}
	context = file_context(w);
	if (context)	/* else it is the first procedure */
		w->key.context = context;
}
