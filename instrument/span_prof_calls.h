/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prof data structure (schardl-2015 sec. 5, figure 4): amounts by call site, with INIT, ASSIGN, UPDATE and UNION
 * in amortized constant time. It is a log of updates until that has as many entries as there are call sites, and a
 * dense array from then on; so it takes O(call sites) of memory, too. Call sites are found while the program runs:
 * an array that is too short for one logs it, and is replaced when the log is full.
 */
#ifndef PARPROF_SPAN_PROF_CALLS_H
#define PARPROF_SPAN_PROF_CALLS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SPARE_ENTRIES 4096

/* Times are inclusive but for the local ones. "top site": of calls without another of the same site above them;
 * "top caller": of those without another call by the same function above them (sec. 6). */
enum call_amount {
	CALL_COUNT,
	CALL_LOCAL_WORK,
	CALL_LOCAL_SPAN,
	CALL_TOP_SITE_COUNT,
	CALL_TOP_SITE_WORK,
	CALL_TOP_SITE_SPAN,
	CALL_TOP_CALLER_COUNT,
	CALL_TOP_CALLER_WORK,
	CALL_TOP_CALLER_SPAN,
	CALL_AMOUNTS
};

struct call_amounts {
	uint64_t of[CALL_AMOUNTS];
};

struct call_entry {
	struct call_entry *next;
	uint32_t call;
	struct call_amounts amounts;
};

struct call_prof {
	struct call_entry *first, *last;
	uint32_t logged;	    /* entries of that list */
	uint32_t size;		    /* of `dense` */
	struct call_amounts *dense; /* by call site */
};

static __thread struct call_entry *spare_entries;
static __thread uint32_t spare_entry_count;

static inline struct call_entry *new_call_entry(void)
{
	struct call_entry *entry = spare_entries;

	if (entry) {
		spare_entries = entry->next;
		spare_entry_count--;
		return entry;
	}
	entry = malloc(sizeof(*entry));
	if (!entry)
		abort();
	return entry;
}

static inline void free_call_entry(struct call_entry *entry)
{
	if (spare_entry_count == MAX_SPARE_ENTRIES) {
		free(entry);
		return;
	}
	entry->next = spare_entries;
	spare_entries = entry;
	spare_entry_count++;
}

static inline void add_call_amounts(struct call_amounts *into, const struct call_amounts *from)
{
	for (int i = 0; i < CALL_AMOUNTS; i++)
		into->of[i] += from->of[i];
}

/* One by one: of a longer block compilers make a `rep stos`, which takes longer than all else here. */
static inline void clear_call_amounts(struct call_amounts *amounts)
{
	uint64_t *of = amounts->of;

	of[0] = of[1] = of[2] = of[3] = of[4] = of[5] = of[6] = of[7] = of[8] = 0;
	_Static_assert(CALL_AMOUNTS == 9, "all are cleared");
}

static inline int call_prof_is_empty(const struct call_prof *prof)
{
	return !prof->first && !prof->dense;
}

/* The whole list is spare now. */
static inline void free_call_entries(struct call_prof *prof)
{
	struct call_entry *entry;

	if (prof->first && spare_entry_count + prof->logged <= MAX_SPARE_ENTRIES) {
		prof->last->next = spare_entries;
		spare_entries = prof->first;
		spare_entry_count += prof->logged;
		return;
	}
	while ((entry = prof->first)) {
		prof->first = entry->next;
		free_call_entry(entry);
	}
}

/* INIT, of one that exists. */
static inline void call_prof_clear(struct call_prof *prof)
{
	free_call_entries(prof);
	if (prof->dense)
		free(prof->dense);
	*prof = (struct call_prof){NULL, NULL, 0, 0, NULL};
}

/* ASSIGN: the contents move. */
static inline void call_prof_assign(struct call_prof *into, struct call_prof *from)
{
	call_prof_clear(into);
	*into = *from;
	memset(from, 0, sizeof(*from));
}

/* _FLUSHLIST: into an array for so many call sites. */
static inline void call_prof_flush(struct call_prof *prof, uint32_t known)
{
	struct call_entry *entry;

	if (prof->size < known) {
		struct call_amounts *dense = calloc(known, sizeof(*dense));

		if (!dense)
			abort();
		if (prof->dense)
			memcpy(dense, prof->dense, prof->size * sizeof(*dense));
		free(prof->dense);
		prof->dense = dense;
		prof->size = known;
	}
	while ((entry = prof->first)) {
		prof->first = entry->next;
		add_call_amounts(&prof->dense[entry->call], &entry->amounts);
		free_call_entry(entry);
	}
	prof->last = NULL;
	prof->logged = 0;
}

static __attribute__((noinline, unused)) struct call_amounts *call_prof_log(struct call_prof *prof, uint32_t call,
								     uint32_t known)
{
	struct call_entry *entry;

	if (prof->logged >= known) {
		call_prof_flush(prof, known);
		return &prof->dense[call];
	}
	entry = new_call_entry();
	entry->next = NULL;
	entry->call = call;
	clear_call_amounts(&entry->amounts);
	if (prof->last)
		prof->last->next = entry;
	else
		prof->first = entry;
	prof->last = entry;
	prof->logged++;
	return &entry->amounts;
}

/* UPDATE, in place: where the amounts of a call site are to be added. `known`: how many call sites there are. */
static inline struct call_amounts *call_prof_at(struct call_prof *prof, uint32_t call, uint32_t known)
{
	if (call < prof->size)
		return &prof->dense[call];
	if (prof->last && prof->last->call == call)
		return &prof->last->amounts;
	return call_prof_log(prof, call, known);
}

static inline void call_prof_update(struct call_prof *prof, uint32_t call, const struct call_amounts *amounts,
				    uint32_t known)
{
	add_call_amounts(call_prof_at(prof, call, known), amounts);
}

/* UNION: `from` is empty afterwards. The smaller array is added to the larger. */
static inline void call_prof_union(struct call_prof *into, struct call_prof *from, uint32_t known)
{
	if (from->size > into->size) {
		struct call_amounts *dense = into->dense;
		uint32_t size = into->size;

		into->dense = from->dense;
		into->size = from->size;
		from->dense = dense;
		from->size = size;
	}
	for (uint32_t call = 0; call < from->size; call++)
		add_call_amounts(&into->dense[call], &from->dense[call]);
	free(from->dense);
	if (from->first) {
		if (into->last)
			into->last->next = from->first;
		else
			into->first = from->first;
		into->last = from->last;
		into->logged += from->logged;
	}
	memset(from, 0, sizeof(*from));
	if (into->logged >= known && into->logged)
		call_prof_flush(into, known);
}

/* As UNION, but `from` stays as it is: in time of its size. */
static inline void call_prof_add(struct call_prof *into, const struct call_prof *from, uint32_t known)
{
	for (const struct call_entry *entry = from->first; entry; entry = entry->next)
		call_prof_update(into, entry->call, &entry->amounts, known);
	for (uint32_t call = 0; call < from->size; call++)
		call_prof_update(into, call, &from->dense[call], known);
}

/* Times in proportion; counts stay. */
static inline void call_prof_scale(struct call_prof *prof, uint64_t wanted, uint64_t total, uint32_t known)
{
	call_prof_flush(prof, known);
	for (uint32_t call = 0; call < prof->size; call++) {
		for (int i = CALL_LOCAL_WORK; i < CALL_AMOUNTS; i++) {
			uint64_t *amount = &prof->dense[call].of[i];

			if (i != CALL_TOP_SITE_COUNT && i != CALL_TOP_CALLER_COUNT)
				*amount = (uint64_t)((__uint128_t)*amount * wanted / total);
		}
	}
}

#endif
