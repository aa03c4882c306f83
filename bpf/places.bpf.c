/* SPDX-License-Identifier: Apache-2.0
 *
 * What a place where threads wait, or create work, is known by: a hash of the return addresses in the innermost words of the
 * stack. Where two call paths are the same in these, or the words end within a large frame, as that of a function with a
 * buffer, it is a place by itself with what is behind that, and so on.
 */
#define PLACE_WORDS 32	/* of the stack that are looked at at a time */
#define LARGE_FRAME (PLACE_WORDS * sizeof(u64))	/* of a function that may hide who called it */
#define LOOKS_BEHIND 3
#define FURTHER_WINDOWS 3	/* so many times as many words are looked at behind */
#define WALKED_FIRST 32	/* so often a place is walked before it counts as known */
#define WALKED_FIRST_BEHIND 8	/* one that tells more than another, of which several are known */
#define FRAMES_BEFORE 64	/* as many have room in the words that are looked at */

#define MIXED_WORDS 8	/* at a time */

/* Mixes the return addresses of the next MIXED_WORDS words of the window into `place.hash`. A function by itself, so that the
 * verifier does not follow it for each of the PLACE_WORDS. */
u64 mix_words(u64 given)
{
	struct walk *w = (struct walk *)given;
	u64 hash, at, first, words;

	if (!w)
		return 0;
	hash = w->place.hash;
	first = w->place.mixed;
	words = w->place.words;
#pragma unroll
	for (u32 i = 0; i < MIXED_WORDS; i++) {
		at = w->window[(first + i) & (PLACE_WORDS - 1)];
		at &= -(below(first + i, words) & in_ranges(w->place.code_start, w->place.code_end, MAX_CODE_SPANS, at));
		if (at)
			hash = forget(w, mix(hash, at));
	}
	w->place.hash = hash;
	w->place.mixed = first + MIXED_WORDS;
	return 0;
}
static u64 (*call_mix_words)(struct walk *w) = (void *)SHARED_mix_words;

/* Mixes the return addresses in the PLACE_WORDS words of the stack from `place.sp` on into `place.hash`, as far as
 * `place.reach` bytes, and goes on to the next so many. A function by itself, as `walk_frame`. */
u64 mix_window(u64 given)
{
	struct walk *w = (struct walk *)given;
	u64 reach;
	s64 failed;	/* negative */

	if (!w)
		return 0;
	failed = bpf_probe_read_user(w->window, PLACE_WORDS * sizeof(u64), (void *)w->place.sp);
	reach = w->place.reach;
	w->place.words = words_within(w, reach & ~forget(w, failed >> 63), PLACE_WORDS);
	w->place.mixed = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PLACE_WORDS / MIXED_WORDS; i++) {
		if (w->place.mixed >= w->place.words)
			break;
		call_mix_words(w);
	}
	w->place.sp += PLACE_WORDS * sizeof(u64);
	w->place.reach = (reach - PLACE_WORDS * sizeof(u64)) & -below(PLACE_WORDS * sizeof(u64), reach);
	return w->place.hash;
}
static u64 (*call_mix_window)(struct walk *w) = (void *)SHARED_mix_window;

/* The return addresses in the words of the stack from `place.sp` on: behind those that were looked at just now. */
static __always_inline u64 further_place(struct walk *w)
{
	u64 hash = 0;

	w->place.hash = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FURTHER_WINDOWS; i++)
		hash = call_mix_window(w);
	return hash;
}

/* Nothing was looked at yet of the stack that begins at `sp`. */
static __always_inline void begin_place(struct walk *w, struct process_config *config, u64 sp)
{
#pragma unroll
	for (u32 i = 0; i < MAX_CODE_SPANS; i++) {
		w->place.code_start[i] = config->code_start[i];
		w->place.code_end[i] = config->code_end[i];
	}
	w->place.sp = w->place.start = sp;
	w->place.looks = 0;
}

/* Whether anybody knows the place; if so, `place.behind` becomes where to go on from there. */
static __always_inline int find_behind(struct walk *w, u64 place)
{
	struct wait_site *site;
	struct creation *creation;

	if (w->place.waits) {
		site = wait_sites.lookup(&place);
		if (!site)
			return 0;
		w->place.behind = site->behind;
		return 1;
	}
	creation = creations.lookup(&place);
	if (!creation)
		return 0;
	w->place.behind = creation->behind;
	return 1;
}

/* The place in `place.known`, and what is behind it as far as that tells more. Not as far as to one that nobody knows, unless
 * `place.may_walk`. A function by itself, as `walk_frame`. */
u64 go_behind(u64 given)
{
	struct walk *w = (struct walk *)given;
	u64 place, further;

	if (!w)
		return 0;
	place = w->place.known;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < LOOKS_BEHIND; i++) {
		if (!find_behind(w, place) || !w->place.behind.tells)
			break;
		w->place.sp = w->place.start + w->place.behind.offset;
		w->place.reach = reach_of(w, w->place.sp);
		further = mix(place, further_place(w)) | 1;
		if (!w->place.may_walk && !find_behind(w, further))
			break;
		place = further;
		w->place.looks = i + 1;
	}
	return place;
}
static u64 (*call_go_behind)(struct walk *w) = (void *)SHARED_go_behind;

static __always_inline u64 place_behind(struct walk *w, u64 place, int waits, int may_walk)
{
	w->place.known = place;
	w->place.waits = waits;
	w->place.may_walk = may_walk;
	return call_go_behind(w);
}

/* The stack of the place in `w->creation` was walked: where its next return address lies, beyond the words that it is known
 * by, and whether that tells more: `differs`: it is not the stack that was walked before. */
static __always_inline void look_behind(struct walk *w, struct behind *behind, int differs)
{
	u64 before = w->place.start, slot;

	behind->tells |= differs;
	behind->offset = 0;
	if (w->depth > COMPARED_FRAMES)	/* where the innermost frames lie is not known any more */
		return;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FRAMES_BEFORE; i++) {
		if (i >= (u32)opaque(w->depth))
			break;
		slot = w->cfa[i & (COMPARED_FRAMES - 1)] - sizeof(u64);
		if (slot >= w->place.sp) {
			behind->offset = slot - w->place.start;
			behind->tells |= slot - before >= LARGE_FRAME;
			break;
		}
		before = slot;
	}
}

/* How often a place counts as met when it is walked for the first time. */
static __always_inline u64 hits_at_first(struct walk *w)
{
	return w->place.looks ? WALKED_FIRST - WALKED_FIRST_BEHIND : 0;
}
