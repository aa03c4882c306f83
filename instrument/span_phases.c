/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Phases: what lies between two barriers of a team, or is executed by the first thread alone. Here the ends of paths
 * become the program's span, and its bounds: the record is written to.
 */
#define _GNU_SOURCE
#include "span.h"

static struct spin root_lock; /* for what is added to the record */

/* Under the lock nobody else writes the generation: no need for a locked instruction. */
static void begin_update(void)
{
	spin_lock(&root_lock);
	__atomic_store_n(&span_record->generation, span_record->generation + 1, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_release); /* the reader sees it odd before it sees a total change */
}

static void end_update(void)
{
	__atomic_store_n(&span_record->generation, span_record->generation + 1, __ATOMIC_RELEASE);
	spin_unlock(&root_lock);
}

/* the program's serial code */

static uintptr_t serial_origin;

/* The call after which the serial code begins. */
void span_begin_serial(uintptr_t address)
{
	serial_origin = address;
}

/* The serial code ends here, and has a name now. */
void span_end_serial(uintptr_t address)
{
	struct span_site *pending = &span_record->sites[SITE_PENDING];
	struct span_site *site;

	if (!pending->work)
		return;
	site = &span_record->sites[span_site(SPAN_SERIAL, address, serial_origin)];
	begin_update();
	site->work += pending->work;
	site->span += pending->span;
	site->bound += pending->bound;
	site->count++;
	site->span_count++;
	pending->work = pending->span = pending->bound = 0;
	end_update();
}

/* a team's phases */

static void forget_stages(struct phase *phase)
{
	phase->makers = 0;
	phase->others = 0;
}

void span_phase_init(struct phase *phase)
{
	atomic_flag_clear(&phase->group.lock.taken);
	atomic_init(&phase->group.best, 0);
	phase->group.outer = NULL;
	phase->group.best_calls = NULL;
	phase->group.patterns = NULL;
	phase->loops = NULL;
	phase->doacrosses = NULL;
	phase->called = phase->busiest = phase->most = 0;
	forget_stages(phase);
	memset(&phase->loop_calls, 0, sizeof(phase->loop_calls));
	prof_init(&phase->group.best_prof);
	prof_init(&phase->work);
	prof_init(&phase->holds);
}

static void reset(struct phase *phase)
{
	span_release_patterns(&span_self, &phase->group);
	span_loops_forget(phase);
	span_doacrosses_forget(phase);
	atomic_store_explicit(&phase->group.best, 0, memory_order_relaxed);
	prof_clear(&phase->group.best_prof);
	prof_clear(&phase->work);
	prof_clear(&phase->holds);
	phase->busiest = phase->most = 0;
	forget_stages(phase);
}

void span_phase_free(struct phase *phase)
{
	prof_free(&phase->group.best_prof);
	prof_free(&phase->work);
	prof_free(&phase->holds);
}

static void rename_pending(struct prof *prof, uint32_t site)
{
	struct prof_entry *entries = prof_entries(prof);

	if (prof->length == 1 && entries->site == SITE_PENDING) {
		entries->site = site;
		prof_place(prof, 0);
		return;
	}
	for (uint32_t i = 0; i < prof->length; i++) {
		if (entries[i].site == SITE_PENDING) {
			struct prof_entry pending = entries[i];

			entries[i] = entries[--prof->length];
			prof_place(prof, i);
			prof_add(prof, site, pending.cycles, pending.count);
			return;
		}
	}
}

static struct prof_entry *largest(struct prof *prof)
{
	struct prof_entry *entries = prof_entries(prof), *found = NULL;

	for (uint32_t i = 0; i < prof->length; i++) {
		if (!found || entries[i].cycles > found->cycles)
			found = &entries[i];
	}
	return found;
}

static void add_bound(struct prof *prof)
{
	struct prof_entry *entries = prof_entries(prof);

	for (uint32_t i = 0; i < prof->length; i++)
		span_record->sites[entries[i].site].bound += entries[i].cycles;
}

/* The longest path, and by its part of the rest what tasks take more that are not on it. */
static void add_stages(struct phase *phase, uint64_t extra)
{
	struct prof rest;

	add_bound(&phase->group.best_prof);
	prof_init(&rest);
	prof_union_rest(&rest, &phase->work, &phase->group.best_prof);
	prof_scale(&rest, extra);
	add_bound(&rest);
	prof_free(&rest);
}

static void note_at_once(struct span_site *site, uint32_t threads)
{
	if (site->at_once < threads)
		site->at_once = threads;
}

/* A path of several threads, of which none did all, is one of threads that waited for each other. */
static void add_uneven(struct team *team, struct phase *phase, struct span_site *site, uint64_t least, uint64_t even)
{
	uint64_t most = phase->most > even ? phase->most : even;

	site->uneven += least - even;
	if (team->is_posix && least > most)
		site->chained += least - most;
}

/* What one phase of an outermost region adds to the program's: it takes no less than its longest path, its work
 * divided by the cores that the team can use, the hold time of any lock, and its stages of tasks one after the other. */
static void add_to_record(struct team *team, struct phase *phase, uint32_t site, uint64_t length, bool is_last)
{
	struct prof *path = &phase->group.best_prof;
	struct prof_entry *entries = prof_entries(path);
	uint32_t wide = span_at_once(team), cores = atomic_load(&team->widest_nested) ? wide : team->size;
	struct hold hold = span_longest_hold(&phase->holds);
	uint64_t even, extra, least, alone;

	begin_update();
	alone = span_record->sites[site].bound;
	if (span_record->threads && cores > span_record->threads)
		cores = span_record->threads;
	even = prof_total(&phase->work) / cores;
	extra = span_stages_extra(team, phase, length, cores);
	for (uint32_t i = 0; i < path->length; i++) {
		span_record->sites[entries[i].site].span += entries[i].cycles;
		span_record->sites[entries[i].site].span_count += entries[i].count;
	}
	entries = prof_entries(&phase->work);
	for (uint32_t i = 0; i < phase->work.length; i++) {
		span_record->sites[entries[i].site].work += entries[i].cycles;
		span_record->sites[entries[i].site].count += entries[i].count;
		note_at_once(&span_record->sites[entries[i].site], wide);
	}
	entries = prof_entries(&phase->holds);
	for (uint32_t i = 0; i < phase->holds.length; i++) {
		span_record->sites[entries[i].site].hold += entries[i].cycles;
		span_record->sites[entries[i].site].count += entries[i].count;
	}
	least = length + extra > even ? length + extra : even;
	if (least > even && largest(path))
		add_uneven(team, phase, &span_record->sites[largest(path)->site], least, even);
	if (hold.cycles > least) {
		span_record->sites[hold.site].bound += hold.cycles;
		span_record->sites[hold.site].critical += hold.cycles - least;
	} else if (extra && length + extra > even) {
		add_stages(phase, extra);
	} else if (even > length) {
		prof_scale(&phase->work, even);
		add_bound(&phase->work);
	} else {
		add_bound(path);
	}
	least = hold.cycles > least ? hold.cycles : least;
	/* the first thread's code between others' threads is serial code of the record, whose bound the reader adds */
	alone = team->is_posix ? span_record->sites[site].bound - alone : 0;
	span_record->scheduled += (phase->busiest > least ? phase->busiest : least) - alone;
	span_root.c += length;
	if (wide > span_record->widest_team)
		span_record->widest_team = wide;
	if (team->is_foreign)
		span_record->flags |= SPAN_FOREIGN;
	if (is_last) {
		span_record->regions += 1 + team->nested;
		span_record->tasks += team->tasks;
	}
	end_update();
}

/* The same of a region that is plain, whose one thread did this one thing: all bounds are its own path. */
void span_add_plain(const struct team *team, const struct frame *member)
{
	struct span_site *site = &span_record->sites[span_site(SPAN_REGION, team->origin, 0)];
	uint32_t count = member->prof.first[0].count + 1;

	begin_update();
	site->work += member->c;
	site->span += member->c;
	site->bound += member->c;
	site->count += count;
	site->span_count += count;
	note_at_once(site, 1);
	span_record->scheduled += member->busy > member->c ? member->busy : member->c;
	span_record->regions++;
	span_root.c += member->c;
	if (!span_record->widest_team)
		span_record->widest_team = 1;
	end_update();
}

/* Nobody works in it any more: it is named after `site`, and what it took goes to where its team was started. */
void span_phase_finish(struct team *team, struct phase *phase, uint32_t site, bool is_last)
{
	uint64_t length = atomic_load(&phase->group.best) + span_loops_add(phase, team->size ? team->size : 1);
	uint64_t known;

	prof_add(&phase->group.best_prof, SITE_PENDING, 0, 1);
	prof_add(&phase->work, SITE_PENDING, 0, 1);
	known = prof_total(&phase->group.best_prof);
	if (length > known) /* paths that began inside a chunk */
		prof_add(&phase->group.best_prof, SITE_PENDING, length - known, 0);
	length = length > known ? length : known;
	if (UNLIKELY(span_has_calls))
		span_calls_end_phase(team, phase, prof_total(&phase->work));
	rename_pending(&phase->group.best_prof, site);
	rename_pending(&phase->work, site);
	if (team->parent->is_root) {
		add_to_record(team, phase, site, length, is_last);
	} else {
		team->parent->c += length;
		prof_union(&team->parent->prof, &phase->group.best_prof);
		prof_union(&team->parent_implicit->work, &phase->work);
		prof_union(&team->parent_implicit->holds, &phase->holds);
		team->parent_implicit->busy += phase->busiest;
	}
	reset(phase);
}
