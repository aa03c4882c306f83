/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doacross loops, `ordered(n)` with depend(source) and depend(sink): an iteration waits for what others have posted.
 * The path up to each post is kept; who waits for it goes on with the longer one of that path and its own.
 *
 * A post has the numbers of its iteration in each of the n loops. Those of one iteration of the outermost loop are a
 * *row*: mostly one thread makes them, one after the other. A thread that must wait sleeps here until that post is
 * there: libgomp would spin, and with more threads than cores keep the others from working.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "span.h"

#define ROW_SLOTS 1024
#define LEAST_ROWS 256	      /* are kept, if they have not too many posts */
#define MAX_POINTS (1u << 22) /* posts of a loop that are kept */
#define MAX_SLEEP_SECONDS 1

/* The path up to one post. Where chunks are paths of their own it begins with the loop. */
struct point {
	uint64_t inner; /* the iteration in the row */
	uint64_t c;
	uint64_t cycles;	/* of the first entry, instead of what that says */
	uint32_t first, length; /* its entries in the row */
	struct segment *calls;
};

struct row {
	uint64_t outer;
	struct row *next_in_slot, *next; /* next: the one that was made after it */
	_Atomic uint32_t posts;		 /* a futex */
	uint32_t waiting;
	uint64_t number; /* rows that were made before it */
	uint32_t point_count, point_room, entry_count, entry_room;
	struct point *points;
	struct prof_entry *entries;
};

/* One of the team's threads in the model, and the path up to where it is known to be. */
struct modelled {
	bool is_busy;
	uint64_t chunk; /* its last one */
	uint64_t c;
	struct prof prof;
	struct segment *calls;
};

struct doacross {
	struct doacross *next;
	uint32_t index, dimensions;
	uint64_t counts[MAX_DOACROSS];
	int64_t from[MAX_DOACROSS], by[MAX_DOACROSS];
	struct spin lock;
	struct row *slots[ROW_SLOTS];
	struct row *oldest, *newest, *spare;
	uint64_t rows; /* that were made */
	uint64_t kept, points;
	uint64_t farthest;		/* rows that were made after one that was waited for */
	uint64_t forgotten[ROW_SLOTS];	/* by slot: one more than the last row that was forgotten */
	uint64_t posts;
	/* to whom chunks are dealt out: see choose_thread */
	struct spin chunk_lock;
	uint64_t dealt;
	uint32_t team_size;
	struct modelled *threads;
};

static struct doacross *doacross_of_phase(struct phase *phase, uint32_t index)
{
	struct doacross *loop;

	for (loop = phase->doacrosses; loop && loop->index != index; loop = loop->next)
		;
	if (loop)
		return loop;
	loop = calloc(1, sizeof(*loop));
	if (!loop)
		return NULL;
	loop->index = index;
	loop->next = phase->doacrosses;
	phase->doacrosses = loop;
	return loop;
}

/* All members say the same. */
static void set_bounds(struct doacross *loop, uint32_t team_size, uint32_t dimensions,
		       const struct span_bounds *bounds)
{
	loop->team_size = team_size;
	loop->dimensions = dimensions;
	for (uint32_t i = 0; i < dimensions; i++) {
		loop->from[i] = bounds[i].from;
		loop->by[i] = bounds[i].by ? bounds[i].by : 1;
		loop->counts[i] = (uint64_t)((bounds[i].to - bounds[i].from) / loop->by[i]) + 1;
	}
}

static uint32_t team_size(void)
{
	static void *size;

	return (uint32_t)((size_of_team *)span_real(&size, "omp_get_num_threads"))();
}

/* A member begins such a loop. */
void span_doacross_begin(struct thread *self, uint32_t site, uint32_t dimensions, const struct span_bounds *bounds)
{
	struct frame *frame = self->implicit;
	struct phase *phase = phase_of(frame);
	struct doacross *loop = NULL;
	uint32_t members = team_size();

	span_doacross_end(self);
	if (dimensions && dimensions <= MAX_DOACROSS) {
		spin_lock(&phase->group.lock);
		loop = doacross_of_phase(phase, frame->doacrosses++);
		if (loop && !loop->dimensions)
			set_bounds(loop, members, dimensions, bounds);
		spin_unlock(&phase->group.lock);
	}
	if (!loop) {
		span_record->flags |= SPAN_WAITS_LOST;
		return;
	}
	frame->share.doacross = loop;
	frame->share.site_around = frame->site;
	frame->site = site;
	span_count(self, site);
}

void span_doacross_end(struct thread *self)
{
	struct frame *frame = self->implicit;

	if (!frame->share.doacross)
		return;
	frame->share.doacross = NULL;
	frame->site = frame->share.site_around;
}

/* rows */

static void clear_row(struct row *row)
{
	for (uint32_t i = 0; UNLIKELY(span_has_calls) && i < row->point_count; i++)
		span_segment_keep(&row->points[i].calls, NULL);
	row->point_count = row->entry_count = 0;
}

static void forget_oldest(struct doacross *loop)
{
	struct row *row = loop->oldest, **at = &loop->slots[row->outer % ROW_SLOTS];

	while (*at != row)
		at = &(*at)->next_in_slot;
	*at = row->next_in_slot;
	loop->oldest = row->next;
	loop->forgotten[row->outer % ROW_SLOTS] = row->outer + 1;
	loop->points -= row->point_count;
	loop->kept--;
	clear_row(row);
	row->next = loop->spare;
	loop->spare = row;
}

static struct row *find_row(struct doacross *loop, uint64_t outer)
{
	struct row *row = loop->slots[outer % ROW_SLOTS];

	while (row && row->outer != outer)
		row = row->next_in_slot;
	return row;
}

/* Rows that are four times as far back as any that was waited for are not waited for. */
static bool has_too_many(const struct doacross *loop)
{
	uint64_t enough = 4 * loop->farthest > LEAST_ROWS ? 4 * loop->farthest : LEAST_ROWS;

	return loop->kept > enough || (loop->points > MAX_POINTS && loop->kept > 1);
}

static struct row *make_row(struct doacross *loop, uint64_t outer)
{
	struct row *row;

	while (has_too_many(loop) && !loop->oldest->waiting)
		forget_oldest(loop);
	row = loop->spare;
	if (row) {
		loop->spare = row->next;
	} else {
		row = calloc(1, sizeof(*row));
		if (!row)
			abort();
	}
	row->outer = outer;
	row->number = loop->rows++;
	row->next = NULL;
	row->next_in_slot = loop->slots[outer % ROW_SLOTS];
	loop->slots[outer % ROW_SLOTS] = row;
	if (loop->kept++)
		loop->newest->next = row;
	else
		loop->oldest = row;
	loop->newest = row;
	return row;
}

/* An iteration: which one it is in the outermost loop, and which in all the others together. */
struct iteration {
	uint64_t outer, inner;
};

/* False where a number is out of bounds: for such an iteration nobody waits. */
static bool find_iteration(const struct doacross *loop, const int64_t *numbers, struct iteration *found)
{
	uint64_t inner = 0;

	for (uint32_t i = 0; i < loop->dimensions; i++) {
		int64_t passed = numbers[i] - loop->from[i];
		uint64_t at = (uint64_t)(loop->by[i] == 1 ? passed : passed / loop->by[i]);

		if (at >= loop->counts[i] || (passed && (passed < 0) != (loop->by[i] < 0)))
			return false;
		if (i)
			inner = inner * loop->counts[i] + at;
		else
			found->outer = at;
	}
	found->inner = inner;
	return true;
}

/* posts */

static bool grow(void **array, uint32_t *room, uint32_t wanted, size_t size)
{
	uint32_t larger = *room ? *room : 4;
	void *more;

	if (wanted <= *room)
		return true;
	while (larger < wanted)
		larger *= 2;
	more = realloc(*array, larger * size);
	if (!more)
		return false;
	*array = more;
	*room = larger;
	return true;
}

/* The entries of a path, the one of the loop's code first. */
static void order_entries(struct prof_entry *into, struct prof *prof, uint32_t site)
{
	memcpy(into, prof_entries(prof), prof->length * sizeof(*into));
	for (uint32_t i = 1; i < prof->length; i++) {
		if (into[i].site == site) {
			struct prof_entry kept = into[0];

			into[0] = into[i];
			into[i] = kept;
			return;
		}
	}
}

/* From one post to the next most paths differ in what the loop's code took only. */
static bool is_alike(const struct row *row, const struct point *last, uint32_t length)
{
	const struct prof_entry *before = row->entries + last->first, *now = row->entries + row->entry_count;

	return last->length == length && length && before->site == now->site && before->count == now->count &&
	       !memcmp(before + 1, now + 1, (length - 1) * sizeof(*now));
}

/* The path by call site, for whoever goes on with it: not as a chain that grows from post to post, of which nothing
 * could be forgotten. */
static struct segment *calls_of_path(struct frame *frame)
{
	struct call_prof whole = {0};

	if (span_path_is_long(&frame->path)) {
		span_chunk_interrupt(frame);
		span_path_flatten(&frame->path, &whole);
		frame->path.prof = whole;
		span_path_freeze(&frame->path);
		span_chunk_resume(frame);
	}
	return span_path_freeze(&frame->path);
}

/* Where in the row the post of an iteration is, or belongs. LLVM's runtime does not say which loops are collapsed with
 * the outermost one: there several threads may post in a row. */
static uint32_t place_of(const struct row *row, uint64_t inner)
{
	uint32_t low = 0, high = row->point_count;

	if (!high || row->points[high - 1].inner < inner)
		return high;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (row->points[middle].inner < inner)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct point *find_point(const struct row *row, uint64_t inner)
{
	uint32_t at = place_of(row, inner);

	return at < row->point_count && row->points[at].inner == inner ? &row->points[at] : NULL;
}

static void add_point(struct doacross *loop, struct row *row, struct frame *frame, uint64_t inner)
{
	struct prof *prof = &frame->prof;
	struct point point = {inner, frame->c - span_loop_start(frame), 0, row->entry_count, prof->length, NULL};
	uint32_t at = place_of(row, inner);

	if (!grow((void **)&row->points, &row->point_room, row->point_count + 1, sizeof(*row->points)) ||
	    !grow((void **)&row->entries, &row->entry_room, row->entry_count + prof->length, sizeof(*row->entries))) {
		span_record->flags |= SPAN_WAITS_LOST;
		return;
	}
	if (prof->length) {
		order_entries(row->entries + row->entry_count, prof, frame->site);
		point.cycles = row->entries[row->entry_count].cycles;
	}
	if (at && is_alike(row, &row->points[at - 1], prof->length))
		point.first = row->points[at - 1].first;
	else
		row->entry_count += prof->length;
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&point.calls, calls_of_path(frame));
	memmove(&row->points[at + 1], &row->points[at], (row->point_count - at) * sizeof(point));
	row->points[at] = point;
	row->point_count++;
	loop->points++;
}

/* chunks */

static bool has_threads(struct doacross *loop)
{
	if (loop->threads || span_is_serial) /* serial: as if each chunk had a thread */
		return loop->threads != NULL;
	loop->threads = calloc(loop->team_size, sizeof(*loop->threads));
	for (uint32_t i = 0; loop->threads && i < loop->team_size; i++)
		prof_init(&loop->threads[i].prof);
	return loop->threads != NULL;
}

void span_doacross_lock_chunks(struct doacross *loop)
{
	spin_lock(&loop->chunk_lock);
}

void span_doacross_unlock_chunks(struct doacross *loop)
{
	spin_unlock(&loop->chunk_lock);
}

/* Chunks are dealt out in the order of the loop, each to the first thread that is through with its own. Which one that
 * is in a run on few cores is a matter of chance; here it is the one whose path is shortest. The last N - 1 chunks may
 * be under way. Those before must be over; if in this run they are not, they are nearly, as the later ones waited for
 * them: what they do behind their last post is left out then. */
static struct modelled *choose_thread(const struct doacross *loop)
{
	struct modelled *best = NULL;

	for (uint32_t i = 0; i < loop->team_size; i++) {
		struct modelled *one = &loop->threads[i];

		if ((!one->is_busy || one->chunk + loop->team_size <= loop->dealt) && (!best || one->c < best->c))
			best = one;
	}
	return best;
}

/* A member got a chunk: it goes on where one of the threads is, which may be another. */
void span_doacross_chunk_begin(struct thread *self)
{
	struct frame *frame = self->implicit;
	struct doacross *loop = frame->share.doacross;
	struct modelled *thread = NULL;

	spin_lock(&loop->lock);
	if (has_threads(loop))
		thread = choose_thread(loop);
	frame->share.thread = thread;
	frame->share.chunk = loop->dealt++;
	if (thread) {
		thread->is_busy = true;
		thread->chunk = frame->share.chunk;
	}
	if (thread && thread->c) {
		frame->c += thread->c;
		prof_copy(&frame->prof, &thread->prof);
		if (UNLIKELY(span_has_calls))
			span_path_take(&frame->path, thread->calls);
		span_chunk_resume(frame);
	}
	spin_unlock(&loop->lock);
}

/* How far the thread is that has the member's chunk, unless it has another one already. */
static void advance(struct frame *frame, bool is_busy)
{
	struct modelled *thread = frame->share.thread;

	if (!frame->share.in_chunk || !thread || thread->chunk != frame->share.chunk)
		return;
	thread->is_busy = is_busy;
	thread->c = frame->c - frame->share.start;
	prof_copy(&thread->prof, &frame->prof);
	if (UNLIKELY(span_has_calls))
		span_segment_keep(&thread->calls, calls_of_path(frame));
}

void span_doacross_chunk_end(struct frame *frame)
{
	struct doacross *loop = frame->share.doacross;

	spin_lock(&loop->lock);
	advance(frame, false);
	spin_unlock(&loop->lock);
}

/* The thread's strand has ended, and it is about to post. Returns what span_doacross_posted takes. */
void *span_doacross_post(struct thread *self, const int64_t *numbers)
{
	struct doacross *loop = self->implicit->share.doacross;
	struct iteration iteration;
	struct row *row;
	bool is_awaited;

	if (!loop || !find_iteration(loop, numbers, &iteration))
		return NULL;
	spin_lock(&loop->lock);
	row = find_row(loop, iteration.outer);
	if (!row)
		row = make_row(loop, iteration.outer);
	add_point(loop, row, self->implicit, iteration.inner);
	advance(self->implicit, true);
	is_awaited = row->waiting != 0;
	atomic_fetch_add_explicit(&row->posts, 1, memory_order_release);
	loop->posts++;
	spin_unlock(&loop->lock);
	return is_awaited ? &row->posts : NULL;
}

/* The runtime knows, too: those that wait will find it there. */
void span_doacross_posted(void *awaited)
{
	if (awaited)
		syscall(SYS_futex, awaited, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* waits */

static bool sleep_until_next(struct row *row, uint32_t posts)
{
	struct timespec most = {MAX_SLEEP_SECONDS, 0};

	return syscall(SYS_futex, &row->posts, FUTEX_WAIT_PRIVATE, posts, &most, NULL, 0) == 0 || errno != ETIMEDOUT;
}

/* Sleep until the iteration has posted; but not where nobody posts at all: what is missing then, the runtime knows. */
void span_doacross_await(struct thread *self, const int64_t *numbers)
{
	struct doacross *loop = self->implicit->share.doacross;
	struct iteration iteration;
	struct row *row;

	if (!loop || !find_iteration(loop, numbers, &iteration))
		return;
	spin_lock(&loop->lock);
	row = find_row(loop, iteration.outer);
	if (!row && loop->forgotten[iteration.outer % ROW_SLOTS] != iteration.outer + 1)
		row = make_row(loop, iteration.outer);
	while (row && !find_point(row, iteration.inner)) {
		uint32_t posts = atomic_load_explicit(&row->posts, memory_order_relaxed);
		uint64_t seen = loop->posts;
		bool has_come;

		row->waiting++;
		spin_unlock(&loop->lock);
		has_come = sleep_until_next(row, posts);
		spin_lock(&loop->lock);
		row->waiting--;
		if (!has_come && loop->posts == seen)
			break;
	}
	spin_unlock(&loop->lock);
}

static void take_point(struct thread *self, const struct row *row, const struct point *point)
{
	struct frame *frame = self->implicit;
	uint64_t start = span_loop_start(frame);

	if (point->c + start <= frame->c)
		return;
	span_chunk_interrupt(frame);
	frame->c = start + point->c;
	prof_clear(&frame->prof);
	for (uint32_t i = 0; i < point->length; i++) {
		const struct prof_entry *one = &row->entries[point->first + i];

		prof_add(&frame->prof, one->site, i ? one->cycles : point->cycles, one->count);
	}
	if (UNLIKELY(span_has_calls))
		span_path_take(&frame->path, point->calls);
	span_chunk_resume(frame);
}

/* The iteration has posted. */
void span_doacross_waited(struct thread *self, const int64_t *numbers)
{
	struct doacross *loop = self->implicit->share.doacross;
	struct iteration iteration;
	struct row *row;
	struct point *point;

	if (!loop || !find_iteration(loop, numbers, &iteration))
		return;
	spin_lock(&loop->lock);
	row = find_row(loop, iteration.outer);
	point = row ? find_point(row, iteration.inner) : NULL;
	if (point) {
		if (loop->rows - row->number > loop->farthest)
			loop->farthest = loop->rows - row->number;
		take_point(self, row, point);
	} else {
		span_record->flags |= SPAN_WAITS_LOST;
	}
	spin_unlock(&loop->lock);
}

static void free_rows(struct row *row)
{
	struct row *next;

	for (; row; row = next) {
		next = row->next;
		clear_row(row);
		free(row->points);
		free(row->entries);
		free(row);
	}
}

void span_doacrosses_forget(struct phase *phase)
{
	struct doacross *loop;

	while ((loop = phase->doacrosses)) {
		phase->doacrosses = loop->next;
		free_rows(loop->oldest);
		free_rows(loop->spare);
		for (uint32_t i = 0; loop->threads && i < loop->team_size; i++) {
			span_segment_keep(&loop->threads[i].calls, NULL);
			prof_free(&loop->threads[i].prof);
		}
		free(loop->threads);
		free(loop);
	}
}
