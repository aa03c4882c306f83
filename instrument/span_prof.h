/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Amounts by site: the "prof" that goes with each variable of the work-span algorithm (schardl-2015 sec. 4). A path
 * has few sites, so it is a short list, searched from its end; a list that grows leaves its place in the frame. A long
 * one has an array beside it with the place of each site, so that all methods take amortized constant time for each
 * amount, as the paper's (figure 4). What that array says of a site counts only if the list has the site there: so it
 * need not be cleared.
 */
#ifndef PARPROF_SPAN_PROF_H
#define PARPROF_SPAN_PROF_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PROF_INLINE 6
#define PROF_SEARCHED 24 /* as long a list is searched; a longer one has the array */

struct prof_entry {
	uint32_t site;
	uint32_t count;
	uint64_t cycles;
};

struct prof {
	uint32_t length, room;
	uint32_t known;		 /* sites that `places` has room for */
	uint32_t *places;	 /* by site: where it may be; null: none, or no memory */
	struct prof_entry *more; /* instead of `first`, once that is full */
	struct prof_entry first[PROF_INLINE];
};

static inline struct prof_entry *prof_entries(struct prof *prof)
{
	return prof->more ? prof->more : prof->first;
}

static inline void prof_init(struct prof *prof)
{
	prof->length = 0;
	prof->room = PROF_INLINE;
	prof->more = NULL;
	prof->known = 0;
	prof->places = NULL;
}

/* The paper's INIT on one that exists. */
static inline void prof_clear(struct prof *prof)
{
	prof->length = 0;
}

static inline void prof_free(struct prof *prof)
{
	if (prof->more)
		free(prof->more);
	if (prof->places)
		free(prof->places);
	prof_init(prof);
}

/* As prof_free, of one that seldom has more than its inner place. */
static inline void prof_empty(struct prof *prof)
{
	if (prof->more || prof->places)
		prof_free(prof);
	else
		prof->length = 0;
}

static inline int prof_grow(struct prof *prof, uint32_t wanted)
{
	uint32_t room = prof->room;
	struct prof_entry *more;

	if (wanted <= room)
		return 1;
	while (room < wanted)
		room *= 2;
	more = malloc(room * sizeof(*more));
	if (!more)
		return 0;
	memcpy(more, prof_entries(prof), prof->length * sizeof(*more));
	free(prof->more);
	prof->more = more;
	prof->room = room;
	return 1;
}

static inline void prof_forget_places(struct prof *prof)
{
	free(prof->places);
	prof->places = NULL;
	prof->known = 0;
}

/* Whoever changes the site at a place of a list, or moves an entry there, says so. */
static inline void prof_place(struct prof *prof, uint32_t at)
{
	uint32_t site = prof_entries(prof)[at].site, known = prof->known;
	uint32_t *places;

	if (!prof->places)
		return;
	if (site >= known) {
		while (site >= known)
			known *= 2;
		places = realloc(prof->places, known * sizeof(*places));
		if (!places) {
			prof_forget_places(prof);
			return;
		}
		memset(places + prof->known, 0, (known - prof->known) * sizeof(*places));
		prof->places = places;
		prof->known = known;
	}
	prof->places[site] = at;
}

/* Once for a list that has become long. */
static inline void prof_place_all(struct prof *prof)
{
	if (!prof->places) {
		prof->known = 4 * PROF_SEARCHED;
		prof->places = calloc(prof->known, sizeof(*prof->places));
	}
	for (uint32_t i = 0; i < prof->length; i++)
		prof_place(prof, i);
}

static inline struct prof_entry *prof_find(struct prof *prof, uint32_t site)
{
	struct prof_entry *entries = prof_entries(prof);

	if (prof->length > PROF_SEARCHED && prof->places) {
		uint32_t at = site < prof->known ? prof->places[site] : prof->length;

		return at < prof->length && entries[at].site == site ? &entries[at] : NULL;
	}
	for (uint32_t i = prof->length; i-- > 0;) {
		if (entries[i].site == site)
			return &entries[i];
	}
	return NULL;
}

/* The paper's UPDATE. */
static inline void prof_add(struct prof *prof, uint32_t site, uint64_t cycles, uint32_t count)
{
	struct prof_entry *found = prof_find(prof, site);

	if (found) {
		found->cycles += cycles;
		found->count += count;
		return;
	}
	if (!prof_grow(prof, prof->length + 1))
		return;
	prof_entries(prof)[prof->length++] = (struct prof_entry){site, count, cycles};
	if (prof->length == PROF_SEARCHED + 1)
		prof_place_all(prof);
	else if (prof->length > PROF_SEARCHED)
		prof_place(prof, prof->length - 1);
}

/* UPDATE by a strand. Most are of the site of the one before, or the first of all. */
static inline void prof_add_next(struct prof *prof, uint32_t site, uint64_t cycles, uint32_t count)
{
	uint32_t length = prof->length;

	if (length) {
		struct prof_entry *last = prof_entries(prof) + length - 1;

		if (last->site == site) {
			last->cycles += cycles;
			last->count += count;
		} else {
			prof_add(prof, site, cycles, count);
		}
	} else if (!prof->more) {
		prof->first[0] = (struct prof_entry){site, count, cycles};
		prof->length = 1;
	} else {
		prof_add(prof, site, cycles, count);
	}
}

/* The paper's UNION; `from` stays as it is. */
static inline void prof_union(struct prof *into, struct prof *from)
{
	struct prof_entry *entries = prof_entries(from);

	for (uint32_t i = 0; i < from->length; i++)
		prof_add(into, entries[i].site, entries[i].cycles, entries[i].count);
}

/* UNION of what a path has more than another that it began with. */
static inline void prof_union_rest(struct prof *into, struct prof *from, struct prof *begin)
{
	struct prof_entry *entries = prof_entries(begin);

	prof_union(into, from);
	for (uint32_t i = 0; i < begin->length; i++)
		prof_add(into, entries[i].site, -entries[i].cycles, -entries[i].count);
}

static __attribute__((noinline)) void prof_copy_long(struct prof *into, struct prof *from)
{
	into->length = 0;
	if (!prof_grow(into, from->length))
		return;
	into->length = from->length;
	memcpy(prof_entries(into), prof_entries(from), from->length * sizeof(struct prof_entry));
	if (into->length > PROF_SEARCHED)
		prof_place_all(into);
}

/* The paper's ASSIGN, by copy: both go on. Up to two entries, as most tasks' paths have, are copied whether they are
 * there or not. */
static inline __attribute__((always_inline)) void prof_copy(struct prof *into, struct prof *from)
{
	if (into->more || from->more) {
		prof_copy_long(into, from);
		return;
	}
	into->length = from->length;
	memcpy(into->first, from->first, 2 * sizeof(into->first[0]));
	if (from->length > 2)
		memcpy(into->first + 2, from->first + 2, sizeof(into->first) - 2 * sizeof(into->first[0]));
}

static inline uint64_t prof_total(struct prof *prof)
{
	struct prof_entry *entries = prof_entries(prof);
	uint64_t total = 0;

	for (uint32_t i = 0; i < prof->length; i++)
		total += entries[i].cycles;
	return total;
}

/* Make the total `wanted`, each site's part in proportion; rounding goes to the first. */
static inline void prof_scale(struct prof *prof, uint64_t wanted)
{
	struct prof_entry *entries = prof_entries(prof);
	uint64_t total = prof_total(prof), given = 0;

	if (!total || !prof->length)
		return;
	for (uint32_t i = 0; i < prof->length; i++) {
		entries[i].cycles = (uint64_t)((__uint128_t)entries[i].cycles * wanted / total);
		given += entries[i].cycles;
	}
	entries[0].cycles += wanted - given;
}

#endif
