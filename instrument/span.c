/* SPDX-License-Identifier: Apache-2.0 */
/* The work-span algorithm: strands, frames, phases of teams, loops, locks. See span.h. */
#define _GNU_SOURCE
#include "span.h"

#define MAX_FREE_FRAMES 512

__thread struct thread span_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

static __thread uint32_t free_count;
static struct spin root_lock; /* for what is added to the record */

/* For programs of tests, which say themselves how long they work: with PARPROF_SPAN_CLOCK=test. */
EXPORT void parprof_span_work(uint64_t cycles)
{
	span_self.clock.ticks += cycles;
}

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

/* strands */

static void book(struct thread *self, struct frame *frame, uint64_t cycles)
{
	self->total += cycles;
	frame->c += cycles;
	if (UNLIKELY(span_has_calls) && cycles)
		span_calls_book(self, frame, cycles);
	if (frame->is_root) {
		struct span_site *site = &span_record->sites[frame->site];

		site->work += cycles;
		site->span += cycles;
		site->bound += cycles;
		return;
	}
	prof_add(&frame->prof, frame->site, cycles, 0);
	prof_add(&self->implicit->work, frame->site, cycles, 0);
}

/* What the thread executed since the last strand began is done, and counts for its frame. */
void span_end_strand(struct thread *self)
{
	if (!self->is_open)
		return;
	self->is_open = false;
	book(self, self->frame, clock_end(&self->clock));
}

/* A site's code begins once more, on the current path. */
void span_count(struct thread *self, uint32_t site)
{
	if (self->frame->is_root) {
		span_record->sites[site].count++;
		span_record->sites[site].span_count++;
		return;
	}
	prof_add(&self->frame->prof, site, 0, 1);
	prof_add(&self->implicit->work, site, 0, 1);
}

/* frames and paths */

struct words {
	uint64_t of[4];
};

/* Clears the begin of a structure, and up to 31 bytes more, which are to be set afterwards. For so few bytes the `rep
 * stos` that compilers make of memset takes longer than the rest of what begins a region. */
static inline void clear_begin(void *structure, size_t bytes)
{
	struct words *at = structure, *end = (struct words *)((char *)structure + bytes);

	for (; at < end; at++) {
		*at = (struct words){{0, 0, 0, 0}};
		__asm__ volatile("" : "+r"(at)); /* keep the loop a loop */
	}
}

struct frame *span_new_frame(struct thread *self)
{
	struct frame *frame = self->free_frames;

	if (frame) {
		self->free_frames = frame->parent;
		free_count--;
	} else {
		frame = malloc(sizeof(*frame));
		if (!frame)
			abort();
	}
	clear_begin(frame, offsetof(struct frame, prof));
	prof_init(&frame->prof);
	prof_init(&frame->longest_prof);
	atomic_init(&frame->references, 1);
	frame->site = SITE_PENDING;
	return frame;
}

static void dispose_calls(struct frame *frame)
{
	span_path_clear(&frame->path);
	span_segment_keep(&frame->longest_calls, NULL);
	free(frame->children.by_depth);
	if (frame->is_implicit) {
		span_path_clear(&frame->share.calls_before);
		call_prof_clear(&frame->share.rest_calls);
		call_prof_clear(&frame->share.longest_calls);
	}
}

static void dispose(struct thread *self, struct frame *frame)
{
	if (UNLIKELY(span_has_calls))
		dispose_calls(frame);
	prof_free(&frame->prof);
	prof_free(&frame->longest_prof);
	if (frame->is_implicit) {
		prof_free(&frame->work);
		prof_free(&frame->holds);
		prof_free(&frame->share.before);
		prof_free(&frame->share.total_prof);
		prof_free(&frame->share.longest_prof);
	}
	if (free_count == MAX_FREE_FRAMES) {
		free(frame);
		return;
	}
	frame->parent = self->free_frames;
	self->free_frames = frame;
	free_count++;
}

/* Give a reference back; a frame without any gives back its parent's. */
void span_release(struct thread *self, struct frame *frame)
{
	while (frame && !frame->is_root) {
		struct frame *parent = frame->parent;

		if (atomic_fetch_sub_explicit(&frame->references, 1, memory_order_acq_rel) != 1)
			return;
		span_forget_dependences(self, frame);
		dispose(self, frame);
		frame = parent;
	}
}

/* Another path joins a frame's: the longer one goes on. */
void span_take_path(struct frame *frame, uint64_t c, struct prof *prof, struct segment *calls)
{
	if (c > frame->c) {
		frame->c = c;
		prof_copy(&frame->prof, prof);
		if (UNLIKELY(span_has_calls))
			span_path_take(&frame->path, calls);
	}
}

/* The child goes on where its parent is now. */
void span_begin_path(struct frame *child, struct frame *parent)
{
	child->c = parent->c;
	prof_copy(&child->prof, &parent->prof);
	if (UNLIKELY(span_has_calls))
		span_path_fork(&parent->path, &child->path);
}

/* All children have ended. */
void span_take_children(struct frame *frame)
{
	if (UNLIKELY(span_has_calls))
		span_calls_take_children(&span_self, frame);
	if (atomic_load_explicit(&frame->longest, memory_order_relaxed) == 0)
		return;
	spin_lock(&frame->lock);
	span_take_path(frame, frame->longest, &frame->longest_prof, frame->longest_calls);
	span_segment_keep(&frame->longest_calls, NULL);
	atomic_store_explicit(&frame->longest, 0, memory_order_relaxed);
	spin_unlock(&frame->lock);
}

/* Of another thread's frame the path by call site is not to be had: it may be changing. */
static struct segment *calls_of_own(struct frame *frame)
{
	if (LIKELY(!span_has_calls) || (frame != span_self.frame && frame != span_self.implicit))
		return NULL;
	return span_path_freeze(&frame->path);
}

/* Of two that are equal, the later one: it may be the other with the calls ended that are around it. */
static bool is_longer(uint64_t c, _Atomic uint64_t *best)
{
	return c > atomic_load_explicit(best, memory_order_relaxed) - (UNLIKELY(span_has_calls) && *best);
}

static void keep_longest(struct spin *lock, _Atomic uint64_t *best, struct prof *best_prof,
			 struct segment **best_calls, struct frame *frame)
{
	if (!is_longer(frame->c, best))
		return;
	spin_lock(lock);
	if (is_longer(frame->c, best)) {
		prof_copy(best_prof, &frame->prof);
		span_segment_keep(best_calls, calls_of_own(frame));
		atomic_store_explicit(best, frame->c, memory_order_relaxed);
	}
	spin_unlock(lock);
}

void span_report(struct group *group, struct frame *frame)
{
	keep_longest(&group->lock, &group->best, &group->best_prof, &group->best_calls, frame);
}

void span_report_child(struct frame *parent, struct frame *child)
{
	keep_longest(&parent->lock, &parent->longest, &parent->longest_prof, &parent->longest_calls, child);
	if (UNLIKELY(span_has_calls))
		span_calls_end_child(parent, child);
}

/* loops */

/* A loop (or sections) begins for a member, whether or not it gets a chunk. */
void span_loop_begin(struct thread *self, uint32_t site)
{
	struct share *share = &self->implicit->share;

	span_loop_end(self);
	share->is_open = true;
	share->index = self->implicit->loops++;
	share->site = site;
	share->total = share->longest = 0;
	call_prof_clear(&share->rest_calls);
	call_prof_clear(&share->longest_calls);
	prof_clear(&share->total_prof);
	prof_clear(&share->longest_prof);
}

static void swap_profs(struct prof *one, struct prof *other)
{
	struct prof kept = *one;

	*one = *other;
	*other = kept;
}

/* The member got a chunk: a path of its own until the chunk ends. */
void span_chunk_begin(struct frame *frame)
{
	struct share *share = &frame->share;

	share->in_chunk = true;
	share->start = frame->c;
	share->site_before = frame->site;
	swap_profs(&share->before, &frame->prof);
	prof_clear(&frame->prof);
	frame->site = share->site;
	share->calls_before = frame->path;
	memset(&frame->path, 0, sizeof(frame->path));
	prof_add(&frame->prof, share->site, 0, 1);
	prof_add(&frame->work, share->site, 0, 1);
}

/* The chunk's path goes to the others'; the longest is kept apart. */
static void keep_chunk_calls(struct share *share, struct call_path *path, bool is_longest)
{
	if (is_longest) {
		span_calls_union(&share->rest_calls, &share->longest_calls);
		span_path_flatten(path, &share->longest_calls);
	} else {
		span_path_flatten(path, &share->rest_calls);
	}
	*path = share->calls_before;
	memset(&share->calls_before, 0, sizeof(share->calls_before));
}

void span_chunk_end(struct frame *frame)
{
	struct share *share = &frame->share;
	uint64_t length = frame->c - share->start;

	if (!share->in_chunk)
		return;
	share->in_chunk = false;
	share->total += length;
	prof_union(&share->total_prof, &frame->prof);
	if (UNLIKELY(span_has_calls))
		keep_chunk_calls(share, &frame->path, length > share->longest);
	if (length > share->longest) {
		share->longest = length;
		swap_profs(&share->longest_prof, &frame->prof);
	}
	swap_profs(&frame->prof, &share->before);
	frame->c = share->start;
	frame->site = share->site_before;
}

static struct loop *loop_of_phase(struct phase *phase, uint32_t index, uint32_t site)
{
	struct loop *loop;

	for (loop = phase->loops; loop; loop = loop->next) {
		if (loop->index == index)
			return loop;
	}
	loop = calloc(1, sizeof(*loop));
	if (!loop)
		return NULL;
	prof_init(&loop->total_prof);
	prof_init(&loop->longest_prof);
	loop->index = index;
	loop->site = site;
	loop->next = phase->loops;
	phase->loops = loop;
	return loop;
}

static struct phase *phase_of(struct frame *implicit)
{
	return &implicit->team->phases[implicit->generation % 3];
}

/* The member is through with its loop, if it is in one. */
void span_loop_end(struct thread *self)
{
	struct frame *frame = self->implicit;
	struct share *share = &frame->share;
	struct phase *phase;
	struct loop *loop;

	if (!share->is_open)
		return;
	span_chunk_end(frame);
	share->is_open = false;
	frame->c_before += share->total;
	phase = phase_of(frame);
	spin_lock(&phase->group.lock);
	loop = loop_of_phase(phase, share->index, share->site);
	if (loop) {
		loop->total += share->total;
		prof_union(&loop->total_prof, &share->total_prof);
		span_calls_union(&loop->rest_calls, &share->rest_calls);
		span_calls_union(&loop->rest_calls,
				 share->longest > loop->longest ? &loop->longest_calls : &share->longest_calls);
		if (share->longest > loop->longest) {
			call_prof_assign(&loop->longest_calls, &share->longest_calls);
			loop->longest = share->longest;
			prof_copy(&loop->longest_prof, &share->longest_prof);
		}
	}
	spin_unlock(&phase->group.lock);
}

/* locks */

/* The thread holds a lock from here on. */
void span_acquired(struct thread *self, uintptr_t key, enum span_kind kind, uintptr_t address)
{
	struct held *held;

	if (self->frame->is_root || self->held_count == MAX_HELD)
		return;
	held = &self->held[self->held_count++];
	held->key = key;
	held->since = self->total;
	held->site_before = self->frame->site;
	self->frame->site = held->site = span_site(kind, address, 0);
	span_count(self, self->frame->site);
}

/* The thread is about to give a lock back; its strand has ended. */
void span_releasing(struct thread *self, uintptr_t key)
{
	uint32_t at = self->held_count;
	struct held held;

	while (at > 0 && self->held[at - 1].key != key)
		at--;
	if (!at)
		return;
	held = self->held[at - 1];
	/* a lock that is taken in several places has several parts; `origin` is the critical section */
	prof_add(&self->implicit->holds, span_site(SPAN_LOCK, key, held.site), self->total - held.since, 1);
	if (at == self->held_count)
		self->frame->site = held.site_before;
	memmove(&self->held[at - 1], &self->held[at], (self->held_count - at) * sizeof(held));
	self->held_count--;
}

/* regions */

static void init_phase(struct phase *phase)
{
	atomic_flag_clear(&phase->group.lock.taken);
	atomic_init(&phase->group.best, 0);
	phase->group.outer = NULL;
	phase->group.best_calls = NULL;
	phase->group.patterns = NULL;
	phase->loops = NULL;
	phase->called = 0;
	memset(&phase->loop_calls, 0, sizeof(phase->loop_calls));
	prof_init(&phase->group.best_prof);
	prof_init(&phase->work);
	prof_init(&phase->holds);
}

static void reset_phase(struct phase *phase)
{
	struct loop *loop;

	span_release_patterns(&span_self, &phase->group);
	while ((loop = phase->loops)) {
		phase->loops = loop->next;
		call_prof_clear(&loop->rest_calls);
		call_prof_clear(&loop->longest_calls);
		prof_free(&loop->total_prof);
		prof_free(&loop->longest_prof);
		free(loop);
	}
	atomic_store(&phase->group.best, 0);
	prof_clear(&phase->group.best_prof);
	prof_clear(&phase->work);
	prof_clear(&phase->holds);
}

static uintptr_t serial_origin; /* the call after which the serial code began */

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

void span_team_begin(struct thread *self, struct team *team, void (*body)(void *), void *data, uintptr_t origin)
{
	if (self->frame && self->frame->is_root)
		span_end_serial(origin);
	clear_begin(team, offsetof(struct team, phases));
	for (int i = 0; i < 3; i++)
		init_phase(&team->phases[i]);
	team->is_foreign = !self->frame;
	team->parent = self->frame ? self->frame : &span_root;
	team->parent_implicit = self->frame ? self->implicit : &span_root;
	team->context = self->context;
	team->level = team->parent->team ? team->parent->team->level + 1 : 1;
	team->creator = self;
	team->body = body;
	team->data = data;
	team->origin = origin;
}

/* A frame that books the work of a whole thread. */
void span_init_implicit(struct frame *frame, struct team *team)
{
	frame->is_implicit = true;
	frame->team = team;
	frame->group = &team->phases[0].group;
	clear_begin(&frame->share, offsetof(struct share, before));
	prof_init(&frame->share.before);
	prof_init(&frame->share.total_prof);
	prof_init(&frame->share.longest_prof);
	prof_init(&frame->work);
	prof_init(&frame->holds);
}

void span_member_begin(struct thread *self, struct team *team)
{
	struct frame *frame = span_new_frame(self);

	span_init_implicit(frame, team);
	spin_lock(&team->lock);
	frame->next_member = team->members;
	team->members = frame;
	team->size++;
	spin_unlock(&team->lock);
	self->frame = self->implicit = frame;
	self->held_count = 0;
}

/* Its last strand has ended. The frame lives on: the thread may run tasks while it waits for the team. */
void span_member_end(struct thread *self)
{
	span_loop_end(self);
	span_report(&phase_of(self->implicit)->group, self->implicit);
	self->frame = NULL;
}

/* A member's part of a region begins. */
struct calls_kept span_member_enter(struct thread *self, struct team *team)
{
	struct calls_kept kept = span_calls_enter(self, team->context);

	span_member_begin(self, team);
	span_begin_strand(self);
	return kept;
}

void span_member_leave(struct thread *self, struct calls_kept kept)
{
	span_end_strand(self);
	span_calls_leave(self, kept);
	span_member_end(self);
}

/* What runs in place of a region's body. */
void span_member(void *argument)
{
	struct team *team = argument;
	struct calls_kept kept = span_member_enter(&span_self, team);

	team->body(team->data);
	span_member_leave(&span_self, kept);
}

static void rename_pending(struct prof *prof, uint32_t site)
{
	struct prof_entry *entries = prof_entries(prof);

	for (uint32_t i = 0; i < prof->length; i++) {
		if (entries[i].site == SITE_PENDING) {
			struct prof_entry pending = entries[i];

			entries[i] = entries[--prof->length];
			prof_add(prof, site, pending.cycles, pending.count);
			return;
		}
	}
}

static void add_loop_calls(struct phase *phase, struct loop *loop, bool is_uneven, uint64_t even)
{
	if (!is_uneven) {
		span_calls_union(&loop->longest_calls, &loop->rest_calls);
		span_calls_scale(&loop->longest_calls, even, loop->total);
	}
	span_calls_union(&phase->loop_calls, &loop->longest_calls);
}

/* Each loop takes at least its longest chunk and its work divided by the team: the bound of any schedule. A thread
 * that is alone because the run is serial stands for a team without limit. */
static uint64_t add_loops(struct phase *phase, uint32_t size)
{
	uint64_t length = 0;

	for (struct loop *loop = phase->loops; loop; loop = loop->next) {
		uint64_t even = span_is_serial && size == 1 ? 0 : loop->total / size;
		bool is_uneven = loop->longest > even;
		struct prof *prof = is_uneven ? &loop->longest_prof : &loop->total_prof;

		if (!is_uneven)
			prof_scale(prof, even);
		length += is_uneven ? loop->longest : even;
		add_loop_calls(phase, loop, is_uneven, even);
		prof_union(&phase->group.best_prof, prof);
	}
	return length;
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

struct hold {
	uint64_t cycles;
	uint32_t site; /* the critical section that has the most of it */
};

/* The lock that was held longest: the sum over all the places where it is taken. */
static struct hold longest_hold(struct prof *holds)
{
	struct prof_entry *entries = prof_entries(holds);
	struct hold best = {0, 0};

	for (uint32_t i = 0; i < holds->length; i++) {
		uintptr_t key = span_site_address(entries[i].site);
		struct hold hold = {0, 0};
		uint64_t most = 0;

		if (entries[i].site == SITE_OTHER)
			continue;
		for (uint32_t j = 0; j < holds->length; j++) {
			if (span_site_address(entries[j].site) != key)
				continue;
			hold.cycles += entries[j].cycles;
			if (entries[j].cycles >= most) {
				most = entries[j].cycles;
				hold.site = (uint32_t)span_site_origin(entries[j].site);
			}
		}
		if (hold.cycles > best.cycles)
			best = hold;
	}
	return best;
}

static void add_bound(struct prof *prof)
{
	struct prof_entry *entries = prof_entries(prof);

	for (uint32_t i = 0; i < prof->length; i++)
		span_record->sites[entries[i].site].bound += entries[i].cycles;
}

/* What one phase of an outermost region adds to the program's: it takes no less than its longest path, its work
 * divided by the cores that the team can use, and the hold time of any lock. */
static void add_to_record(struct team *team, struct phase *phase, uint64_t length)
{
	struct prof *path = &phase->group.best_prof;
	struct prof_entry *entries = prof_entries(path);
	uint32_t cores = team->size;
	struct hold hold = longest_hold(&phase->holds);
	uint64_t even;

	begin_update();
	/* members of nested teams may use the other cores; and a team may be larger than the cores */
	if (span_record->threads && (atomic_load(&team->has_nested) || cores > span_record->threads))
		cores = span_record->threads;
	even = prof_total(&phase->work) / cores;
	for (uint32_t i = 0; i < path->length; i++) {
		span_record->sites[entries[i].site].span += entries[i].cycles;
		span_record->sites[entries[i].site].span_count += entries[i].count;
	}
	entries = prof_entries(&phase->work);
	for (uint32_t i = 0; i < phase->work.length; i++) {
		span_record->sites[entries[i].site].work += entries[i].cycles;
		span_record->sites[entries[i].site].count += entries[i].count;
	}
	entries = prof_entries(&phase->holds);
	for (uint32_t i = 0; i < phase->holds.length; i++) {
		span_record->sites[entries[i].site].hold += entries[i].cycles;
		span_record->sites[entries[i].site].count += entries[i].count;
	}
	if (length > even && largest(path))
		span_record->sites[largest(path)->site].uneven += length - even;
	if (hold.cycles > length && hold.cycles > even) {
		span_record->sites[hold.site].bound += hold.cycles;
		span_record->sites[hold.site].critical += hold.cycles - (length > even ? length : even);
	} else if (even > length) {
		prof_scale(&phase->work, even);
		add_bound(&phase->work);
	} else {
		add_bound(path);
	}
	span_root.c += length;
	if (team->size > span_record->widest_team)
		span_record->widest_team = team->size;
	if (team->is_foreign)
		span_record->flags |= SPAN_FOREIGN;
	end_update();
}

static void finish_phase(struct team *team, struct phase *phase, uint32_t site)
{
	uint64_t length = atomic_load(&phase->group.best) + add_loops(phase, team->size ? team->size : 1);
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
		add_to_record(team, phase, length);
	} else {
		team->parent->c += length;
		prof_union(&team->parent->prof, &phase->group.best_prof);
		prof_union(&team->parent_implicit->work, &phase->work);
		prof_union(&team->parent_implicit->holds, &phase->holds);
	}
	reset_phase(phase);
}

/* Of calls that are over, the phase knows now; those under way say it when they end. */
static void take_called(struct phase *phase, struct frame *frame)
{
	phase->called += frame->called;
	frame->called = 0;
}

/* A team barrier is next; the thread's strand has ended. */
void span_before_barrier(struct thread *self)
{
	struct frame *frame = self->implicit;
	struct phase *phase = phase_of(frame);

	span_loop_end(self);
	span_report(&phase->group, frame);
	if (UNLIKELY(span_has_calls))
		span_calls_take_children(self, frame);
	spin_lock(&phase->group.lock);
	prof_union(&phase->work, &frame->work);
	prof_union(&phase->holds, &frame->holds);
	take_called(phase, frame);
	spin_unlock(&phase->group.lock);
	prof_clear(&frame->work);
	prof_clear(&frame->holds);
}

static void finish_ended(struct team *team)
{
	if (team->has_ended)
		finish_phase(team, &team->phases[team->ended % 3], team->ended_site);
	team->has_ended = false;
}

/* All have met: a new phase. Thread 0 adds up the one before that: of the one that just ended, other members may
 * still have to say which tasks they ran while they waited. */
void span_after_barrier(struct thread *self, uintptr_t address)
{
	struct frame *frame = self->implicit;
	struct team *team = frame->team;
	struct phase *ended = phase_of(frame);

	/* tasks that this thread ran in the barrier */
	spin_lock(&ended->group.lock);
	prof_union(&ended->work, &frame->work);
	prof_union(&ended->holds, &frame->holds);
	spin_unlock(&ended->group.lock);
	prof_clear(&frame->work);
	prof_clear(&frame->holds);
	frame->generation++;
	frame->loops = 0;
	frame->c_before += frame->c;
	frame->c = 0;
	if (UNLIKELY(span_has_calls)) {
		span_calls_take_children(self, frame);
		span_path_clear(&frame->path);
		span_segment_keep(&frame->longest_calls, NULL);
	}
	frame->site = SITE_PENDING;
	frame->group = &phase_of(frame)->group;
	prof_clear(&frame->prof);
	atomic_store(&frame->longest, 0);
	span_forget_dependences(self, frame);
	if (self == team->creator) {
		finish_ended(team);
		team->has_ended = true;
		team->ended = frame->generation - 1;
		team->ended_site = span_is_ours(address) ? span_site(SPAN_REGION, team->origin, 0)
							  : span_site(SPAN_PHASE, address, team->origin);
	}
}

/* The team's last barrier is over: nobody works for it any more. */
void span_team_end(struct thread *self, struct team *team, struct frame *frame, struct frame *implicit)
{
	struct phase *last = &team->phases[0];
	struct frame *member;

	self->frame = frame;
	self->implicit = implicit;
	self->held_count = 0;
	if (team->members)
		last = phase_of(team->members);
	for (member = team->members; member; member = member->next_member) {
		prof_union(&last->work, &member->work);
		prof_union(&last->holds, &member->holds);
		take_called(last, member);
		last->called += span_calls_forget_children(member);
	}
	if (!team->parent->is_root && team->size > 1)
		atomic_store(&team->parent->team->has_nested, true);
	finish_ended(team);
	finish_phase(team, last,
		     team->is_posix ? span_site(SPAN_SERIAL, team->until, team->origin) : span_site(SPAN_REGION, team->origin, 0));
	if (UNLIKELY(span_has_calls))
		span_calls_called(self, team->called);
	if (frame && frame->is_root)
		serial_origin = team->origin;
	__atomic_add_fetch(&span_record->regions, 1, __ATOMIC_RELAXED);
	while ((member = team->members)) {
		team->members = member->next_member;
		span_release(self, member);
	}
	for (int i = 0; i < 3; i++) {
		prof_free(&team->phases[i].group.best_prof);
		prof_free(&team->phases[i].work);
		prof_free(&team->phases[i].holds);
	}
}

/* A wrapper is about to let the runtime start a team; false where nothing is followed. */
bool span_region_begin(struct region *region, void (*body)(void *), void *data, uintptr_t caller)
{
	struct thread *self = &span_self;

	if (!span_record)
		return false;
	span_end_strand(self);
	span_give_up_threads(self, caller);
	region->self = self;
	region->frame = self->frame;
	region->implicit = self->implicit;
	if (span_is_ours(caller) && self->frame && self->frame->team)
		caller = self->frame->team->origin;
	span_team_begin(self, &region->team, body, data, caller);
	return true;
}

void span_region_end(struct region *region)
{
	span_team_end(region->self, &region->team, region->frame, region->implicit);
	if (region->frame)
		span_begin_strand(region->self);
}
