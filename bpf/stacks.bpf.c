/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks on their way to Python: each is sent once, under its hash. Those that the kernel's own walker has read.
 */

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

#define HASHED_FRAMES 8	/* at a time */

/* Mixes the next HASHED_FRAMES frames that `capture` put into the record into its hash. A function by itself, as mix_words. */
u64 hash_frames(u64 given)
{
	struct walk *w = (struct walk *)given;
	u64 hash, mixed, at;

	if (!w)
		return 0;
	hash = w->record.hash;
	at = w->hashed;
#pragma unroll
	for (u32 i = 0; i < HASHED_FRAMES; i++) {
		mixed = mix(hash, w->record.pc[(at + i) & MAX_KERNEL_FRAMES]);
		hash ^= (hash ^ mixed) & -below(at + i, w->captured);
	}
	w->record.hash = hash;
	w->hashed = at + HASHED_FRAMES;
	return 0;
}
static u64 (*call_hash_frames)(struct walk *w) = (void *)SHARED_hash_frames;

/* The hash of the frames that `capture` put into the record. A function by itself, as `walk_frame`. */
u64 hash_captured(u64 given)
{
	struct walk *w = (struct walk *)given;

	if (!w)
		return 1;
	w->record.hash = 0x9e3779b97f4a7c15ULL;
	w->hashed = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < (MAX_KERNEL_FRAMES + HASHED_FRAMES) / HASHED_FRAMES; i++) {
		if (w->hashed >= w->captured)
			break;
		call_hash_frames(w);
	}
	return w->record.hash | 1;
}
static u64 (*call_hash_captured)(struct walk *w) = (void *)SHARED_hash_captured;

/* A stack by the kernel's own walker; its hash, or 0 if it could not be read. */
static __always_inline u64 capture(void *ctx, struct walk *w, u64 flags, u32 end)
{
	struct stack_record *s = &w->record;
	u64 hash;
	s32 bytes = bpf_get_stack(ctx, s->pc, MAX_KERNEL_FRAMES * sizeof(u64), flags);
	u32 depth;

	if (bytes <= 0)
		return 0;
	depth = w->captured = (u32)bytes / sizeof(u64);
	hash = call_hash_captured(w);
	s->hash = hash;
	s->image = 0;
	s->python_depth = 0;
	s->cut = 0;
	send_stack(s, depth, end);
	return hash;
}
