/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Amounts by site: the "prof" that goes with each variable of the work-span algorithm (schardl-2015 sec. 4). A path
 * has few sites, so it is a short list, searched from its end; a list that grows leaves its place in the frame.
 */
#ifndef PARPROF_SPAN_PROF_H
#define PARPROF_SPAN_PROF_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PROF_INLINE 6

struct prof_entry {
	uint32_t site;
	uint32_t count;
	uint64_t cycles;
};

struct prof {
	uint32_t length, room;
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
	prof_init(prof);
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

/* The paper's UPDATE. */
static inline void prof_add(struct prof *prof, uint32_t site, uint64_t cycles, uint32_t count)
{
	struct prof_entry *entries = prof_entries(prof);

	for (uint32_t i = prof->length; i-- > 0;) {
		if (entries[i].site == site) {
			entries[i].cycles += cycles;
			entries[i].count += count;
			return;
		}
	}
	if (!prof_grow(prof, prof->length + 1))
		return;
	prof_entries(prof)[prof->length++] = (struct prof_entry){site, count, cycles};
}

/* The paper's UNION; `from` stays as it is. */
static inline void prof_union(struct prof *into, struct prof *from)
{
	struct prof_entry *entries = prof_entries(from);

	for (uint32_t i = 0; i < from->length; i++)
		prof_add(into, entries[i].site, entries[i].cycles, entries[i].count);
}

/* The paper's ASSIGN, by copy: both go on. */
static inline void prof_copy(struct prof *into, struct prof *from)
{
	into->length = 0;
	if (!prof_grow(into, from->length))
		return;
	memcpy(prof_entries(into), prof_entries(from), from->length * sizeof(struct prof_entry));
	into->length = from->length;
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
