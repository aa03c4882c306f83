/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths that were left where nobody goes on with them yet, each for one who will: by a post of a semaphore, a signal of
 * a condition. Who comes takes the shortest; who slept takes none that was left for others before that.
 *
 * A signal's handler may leave one, in which nothing is allocated by malloc: so they have room of their own.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "span.h"

#define MAX_TOKENS 32 /* that are told apart; with more, one counts as the next that has a shorter path */
#define TOKEN_SITES PROF_SEARCHED

/* As many as were left at the end of one path. */
struct token {
	uint32_t count; /* 0: unused */
	uint64_t order; /* of the last of them, among all that were left */
	uint64_t c;
	struct segment *calls;
	struct prof prof;
	struct prof_entry entries[TOKEN_SITES];
};

/* False where there is no memory. */
bool span_tokens_init(struct tokens *tokens)
{
	struct token *all;

	if (tokens->all)
		return true;
	all = mmap(NULL, MAX_TOKENS * sizeof(*all), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		return false;
	for (int i = 0; i < MAX_TOKENS; i++) {
		all[i].prof.more = all[i].entries; /* which never grows: see keep */
		all[i].prof.room = TOKEN_SITES;
	}
	tokens->all = all;
	return true;
}

void span_tokens_clear(struct tokens *tokens, uint32_t orderless)
{
	for (int i = 0; tokens->all && i < MAX_TOKENS; i++)
		tokens->all[i].count = 0;
	tokens->count = tokens->orderless = orderless;
}

/* A path of more sites than there is room for has the others in one. */
static void keep(struct token *token, struct frame *frame)
{
	uint32_t length = frame->prof.length < TOKEN_SITES ? frame->prof.length : TOKEN_SITES;
	struct prof_entry *from = prof_entries(&frame->prof), *last = &token->entries[TOKEN_SITES - 1];

	memcpy(token->entries, from, length * sizeof(*from));
	token->prof.length = length;
	if (frame->prof.length > TOKEN_SITES) {
		*last = (struct prof_entry){.site = SITE_OTHER};
		for (uint32_t i = TOKEN_SITES - 1; i < frame->prof.length; i++)
			last->cycles += from[i].cycles;
	}
	token->c = frame->c;
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&token->calls, span_path_freeze(&frame->path));
}

/* Those who take one may come as soon as the frame is where it is. */
void span_tokens_leave(struct tokens *tokens, struct frame *frame, uint32_t count)
{
	struct token *unused = NULL, *before = NULL;

	span_crew_order(frame);
	for (int i = 0; i < MAX_TOKENS; i++) {
		struct token *token = &tokens->all[i];

		if (!token->count)
			unused = unused ? unused : token;
		else if (token->c <= frame->c && (!before || token->c > before->c))
			before = token;
	}
	tokens->count += count;
	tokens->last_order++;
	if (before && (before->c == frame->c || !unused)) {
		before->count += count;
		before->order = tokens->last_order;
	} else if (unused) {
		keep(unused, frame);
		unused->count = count;
		unused->order = tokens->last_order;
	} else {
		tokens->orderless += count;
	}
}

static struct token *shortest_since(struct tokens *tokens, uint64_t order)
{
	struct token *shortest = NULL;

	for (int i = 0; i < MAX_TOKENS; i++) {
		struct token *token = &tokens->all[i];

		if (token->count && token->order > order && (!shortest || token->c < shortest->c))
			shortest = token;
	}
	return shortest;
}

/* One that was left after that of this order. False where there is none at all. */
bool span_tokens_take(struct tokens *tokens, struct frame *frame, uint64_t order)
{
	struct token *shortest;

	if (!tokens->count)
		return false;
	tokens->count--;
	if (tokens->orderless) {
		tokens->orderless--;
		return true;
	}
	shortest = shortest_since(tokens, order);
	if (!shortest) /* who woke this one signalled while nobody seemed to wait */
		shortest = shortest_since(tokens, 0);
	span_take_path(frame, shortest->c, &shortest->prof, shortest->calls);
	if (!--shortest->count)
		span_segment_keep(&shortest->calls, NULL);
	return true;
}
