/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Crews: threads of one function that one thread makes, and joins. They may share their work out themselves, by a counter,
 * say, of which each takes the next item until there are none. Who did how much is chance then: with fewer cores than
 * threads, of who had one. A counter makes no call; but all that share one are through at the same time, when there is
 * nothing left to take. Threads whose parts the program has chosen are not: who has less to do is through earlier.
 *
 * So when the first of a crew is through, it is known what each of them has done. If none has much to do after that,
 * however different those amounts are, the crew takes their mean, and what the one did longest that did most after it.
 * For parts that are the program's choice that is no less than the largest, as long as all had as much of the cores:
 * what two or three threads say is little, and neither do threads that wait. Nor is it known of those that slept: these
 * may have waited for each other unseen, by a pipe or by looking now and then. Whoever made them and works like one of
 * them until it joins them is one.
 *
 * Until all are joined it is not known which it is. The maker goes on as if it were chance, and the path that it has
 * otherwise is kept beside that.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "span.h"

#define LEAST_PER_SECOND 1000 /* less than one in so many parts of a second says nothing */
#define NOTABLE 8	      /* one in so many parts of a path's length */
#define ASLEEP 8	      /* one in so many parts of their time they may have been */

/* A path, should the crew's threads have parts of their own. */
struct other_path {
	uint64_t c;
	uint64_t total; /* of the maker's strands, when it was there */
	struct prof prof;
	struct segment *calls;
};

struct crew {
	struct frame *maker; /* null: it is over, or none of them any more */
	thread_function *function;
	uint32_t count, left; /* left: to be joined */
	bool is_closed;	      /* the maker has begun to join them */
	bool is_ordered;      /* some waited, or were waited for, otherwise */
	bool has_ended;	      /* one is through */
	bool is_unknown;      /* for how long one slept */
	bool has_maker;	      /* as one of them */
	uint64_t starts;      /* sum of their paths' lengths when they began */
	uint64_t done;	      /* by all of them, when the first was through */
	uint64_t rest;	      /* the most that one did since then */
	uint64_t work, alive_ns, asleep_ns;
	struct {
		uint64_t start, at_end; /* its path's length: since the last was made, when the first was through */
		struct prof prof;
	} maker_path;
	struct other_path other;
};

static struct spin crews_lock;

/* how long a thread slept */

/* This thread's time on a CPU and ready for one; 0 where that is not known. */
static uint64_t runnable_ns(void)
{
	char text[64];
	unsigned long long running, waiting;
	int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	ssize_t length;

	if (file < 0)
		return 0;
	length = read(file, text, sizeof(text) - 1);
	close(file);
	if (length <= 0)
		return 0;
	text[length] = 0;
	return sscanf(text, "%llu %llu", &running, &waiting) == 2 ? running + waiting : 0;
}

static void take_sleep(struct crew *crew, const struct frame *frame)
{
	uint64_t alive = clock_ns(CLOCK_MONOTONIC) - frame->began_ns, runnable = runnable_ns() - frame->runnable_ns;

	crew->is_unknown |= !runnable;
	crew->alive_ns += alive;
	runnable += frame->waited_ns;
	crew->asleep_ns += alive > runnable ? alive - runnable : 0;
}

/* what they have done */

static uint64_t least_work(void)
{
	return span_record->cycles_per_second / LEAST_PER_SECOND;
}

static uint32_t members(const struct crew *crew)
{
	return crew->count + crew->has_maker;
}

static uint64_t mean_of(const struct crew *crew, uint64_t sum)
{
	return sum / members(crew);
}

/* What the crew takes without what is left to do when the first is through. */
static uint64_t shared_length(const struct crew *crew)
{
	uint32_t cores = span_is_serial || !span_record->threads ? members(crew) : span_record->threads;

	return mean_of(crew, crew->starts) + crew->done / (cores < members(crew) ? cores : members(crew));
}

/* The fewer they are, the more likely it is that they are through at the same time by chance. */
static uint64_t most_rest(const struct crew *crew)
{
	uint64_t mean = mean_of(crew, crew->work);

	return members(crew) < 4 ? mean / 16 : members(crew) < 16 ? mean / 4 : mean / 2;
}

static bool is_by_chance(const struct crew *crew)
{
	return !crew->is_ordered && !crew->is_unknown && members(crew) > 1 && crew->rest <= most_rest(crew) &&
	       crew->work >= least_work() &&
	       crew->asleep_ns <= crew->alive_ns / ASLEEP;
}

/* What one that is through did since the first was. */
static uint64_t rest_of(const struct frame *frame)
{
	uint64_t own = frame->c - frame->crew_start;

	return own > frame->crew_done ? own - frame->crew_done : 0;
}

static void note_rest(struct crew *crew, uint64_t rest)
{
	crew->rest = rest > crew->rest ? rest : crew->rest;
}

/* The first of them is through. */
static void take_stock(struct crew *crew)
{
	crew->has_ended = true;
	crew->done = span_done_by_crew(crew);
	crew->maker_path.at_end = span_length_now(crew->maker);
}

/* The path is one of a crew's whose parts are chance. */
static void take_shared_length(struct frame *frame, uint64_t c, struct prof *begin)
{
	struct prof own;
	uint64_t begin_c = prof_total(begin);

	if (c < begin_c)
		return;
	if (UNLIKELY(span_has_calls)) {
		struct call_prof calls = {0};

		span_path_flatten(&frame->path, &calls);
		span_calls_scale(&calls, c, frame->c);
		frame->path.prof = calls;
	}
	prof_init(&own);
	prof_union_rest(&own, &frame->prof, begin);
	prof_scale(&own, c - begin_c);
	prof_copy(&frame->prof, begin);
	prof_union(&frame->prof, &own);
	prof_free(&own);
	frame->c = c;
}

/* the other path */

static uint64_t length_of_other(const struct thread *self, const struct crew *crew)
{
	return crew->other.c + self->total - crew->other.total;
}

/* It goes on with this one, if that is longer. */
static void keep_other(struct thread *self, struct crew *crew, struct frame *frame)
{
	struct other_path *other = &crew->other;

	if (other->c && length_of_other(self, crew) >= frame->c)
		return;
	other->c = frame->c;
	other->total = self->total;
	prof_copy(&other->prof, &frame->prof);
	span_segment_keep(&other->calls, UNLIKELY(span_has_calls) ? span_path_freeze(&frame->path) : NULL);
}

/* Parts are the program's choice: the maker's path is what it would have been. */
static void take_other(struct thread *self, struct crew *crew)
{
	struct frame *frame = self->frame;

	if (!crew->other.c)
		return;
	prof_add(&crew->other.prof, frame->site, self->total - crew->other.total, 0);
	frame->c = length_of_other(self, crew);
	prof_copy(&frame->prof, &crew->other.prof);
	if (UNLIKELY(span_has_calls))
		span_path_take(&frame->path, crew->other.calls);
	crew->other.c = 0;
}

static void forget(struct crew *crew)
{
	prof_free(&crew->maker_path.prof);
	prof_free(&crew->other.prof);
	span_segment_keep(&crew->other.calls, NULL);
	free(crew);
}

/* what happens to it */

/* Of these threads nothing is told. */
static void abandon(struct crew *crew)
{
	crew->is_ordered = true;
	crew->maker->made = NULL;
	crew->maker = NULL;
}

static struct crew *crew_of(struct frame *maker, thread_function *function)
{
	struct crew *crew = maker->made;

	if (crew && !crew->is_closed && crew->function == function)
		return crew;
	if (crew)
		abandon(crew);
	crew = calloc(1, sizeof(*crew));
	if (!crew)
		abort();
	prof_init(&crew->maker_path.prof);
	prof_init(&crew->other.prof);
	crew->maker = maker;
	crew->function = function;
	maker->made = crew;
	return crew;
}

/* The maker makes one more; its strand has ended. */
void span_crew_add(struct frame *maker, struct frame *frame, thread_function *function)
{
	struct crew *crew;

	spin_lock(&crews_lock);
	crew = crew_of(maker, function);
	frame->crew = crew;
	frame->crew_start = frame->c;
	prof_copy(&frame->share.before, &frame->prof);
	crew->count++;
	crew->left++;
	crew->starts += frame->c;
	crew->maker_path.start = maker->c;
	prof_copy(&crew->maker_path.prof, &maker->prof);
	spin_unlock(&crews_lock);
}

/* It could not be made. */
void span_crew_remove(struct frame *frame)
{
	spin_lock(&crews_lock);
	frame->crew->count--;
	frame->crew->left--;
	frame->crew->starts -= frame->crew_start;
	spin_unlock(&crews_lock);
}

/* The frame's thread waits, or another waits for it. */
void span_crew_order(struct frame *frame)
{
	if (frame->crew)
		__atomic_store_n(&frame->crew->is_ordered, true, __ATOMIC_RELAXED);
}

/* The frame's thread has waited, and goes on after another's path: in a crew that is no order among its threads where it is
 * the path of who made them, as with a pool's. `waker` may be over. */
void span_crew_woken(struct frame *frame, const struct frame *waker)
{
	if (frame->crew && __atomic_load_n(&frame->crew->maker, __ATOMIC_RELAXED) != waker)
		span_crew_order(frame);
}

/* Whether it is known how long the frame's path is. */
bool span_is_length_known(const struct frame *frame)
{
	return !frame->made && (!frame->crew || __atomic_load_n(&frame->crew->is_ordered, __ATOMIC_RELAXED));
}

/* One of them may have to wait for a lock: that is no order. */
uint64_t span_crew_waits(const struct frame *frame)
{
	return frame->crew ? clock_ns(CLOCK_MONOTONIC) : 0;
}

void span_crew_waited(struct frame *frame, uint64_t since_ns)
{
	if (since_ns)
		frame->waited_ns += clock_ns(CLOCK_MONOTONIC) - since_ns;
}

/* The thread of one of them is about to begin. */
void span_crew_begin(struct frame *frame)
{
	frame->runnable_ns = runnable_ns();
	frame->began_ns = clock_ns(CLOCK_MONOTONIC);
}

/* One of them is through; its strand has ended. */
void span_crew_end(struct frame *frame)
{
	struct crew *crew = frame->crew;
	uint64_t own = frame->c - frame->crew_start;

	if (!crew || crew->is_ordered)
		return;
	spin_lock(&crews_lock);
	if (!crew->has_ended) {
		take_stock(crew);
		crew->done += own - frame->crew_done;
		frame->crew_done = own;
	}
	note_rest(crew, rest_of(frame));
	crew->work += own;
	take_sleep(crew, frame);
	spin_unlock(&crews_lock);
}

/* Who made a crew has done as much as those in it, and is one of them. */
static void take_maker(struct thread *self, struct crew *crew)
{
	struct frame *frame = self->frame;
	uint64_t own = frame->c - crew->maker_path.start, rest = 0, done;

	if (own < least_work() || (!crew->has_ended && own * crew->count < span_done_by_crew(crew)))
		return;
	if (!crew->has_ended)
		take_stock(crew);
	else if (frame->c > crew->maker_path.at_end)
		rest = frame->c - crew->maker_path.at_end;
	done = own > rest ? own - rest : 0;
	if (rest && done * crew->count < crew->done)
		return;
	crew->has_maker = true;
	crew->starts += crew->maker_path.start;
	crew->done += done;
	crew->work += own;
	note_rest(crew, rest);
	take_shared_length(frame, shared_length(crew) + rest, &crew->maker_path.prof);
}

/* The maker is about to join one: there will be no more of them. */
void span_crew_close(struct thread *self)
{
	struct crew *crew = self->frame->made;

	if (!crew || crew->is_closed)
		return;
	spin_lock(&crews_lock);
	crew->is_closed = true;
	keep_other(self, crew, self->frame);
	if (!crew->is_ordered)
		take_maker(self, crew);
	spin_unlock(&crews_lock);
}

static void decide(struct thread *self, struct crew *crew)
{
	uint64_t other = length_of_other(self, crew), c = self->frame->c;

	if (!is_by_chance(crew) || other < c)
		take_other(self, crew);
	else if (other - c > c / NOTABLE)
		span_record->flags |= SPAN_DEALT_OUT;
}

/* One of them was joined, whose path is about to join that of who did. */
void span_crew_joined(struct thread *self, struct frame *frame)
{
	struct crew *crew = frame->crew;

	if (!crew)
		return;
	spin_lock(&crews_lock);
	crew->is_ordered |= crew->maker != self->frame;
	if (crew->maker == self->frame)
		keep_other(self, crew, frame);
	if (!crew->is_ordered)
		take_shared_length(frame, shared_length(crew) + rest_of(frame), &frame->share.before);
	span_take_path(self->frame, frame->c, &frame->prof, span_path_freeze(&frame->path));
	if (--crew->left == 0) {
		if (crew->maker == self->frame)
			decide(self, crew);
		if (crew->maker)
			crew->maker->made = NULL;
		forget(crew);
	}
	spin_unlock(&crews_lock);
}

/* Who has made a crew is over before all of it was joined. */
void span_crew_leave(struct thread *self)
{
	struct crew *crew = self->frame->made;

	if (!crew)
		return;
	spin_lock(&crews_lock);
	take_other(self, crew);
	abandon(crew);
	spin_unlock(&crews_lock);
}

/* The process ends while who made a crew joins it, and has strands of this total: what the crew is taken to have shared
 * out is not known to be so, and there is the other path. False: nobody is joining one. */
bool span_crew_report(struct group *group, struct frame *maker, uint64_t total)
{
	struct other_path *other = maker->made ? &maker->made->other : NULL;
	uint64_t c = other ? other->c + total - other->total : 0;

	if (!other || !other->c)
		return false;
	if (c <= group->best)
		return true;
	prof_add(&other->prof, maker->site, total - other->total, 0);
	atomic_store(&group->best, c);
	prof_copy(&group->best_prof, &other->prof);
	span_segment_keep(&group->best_calls, other->calls);
	return true;
}

/* In the child of a fork. */
void span_forget_crews(void)
{
	atomic_flag_clear(&crews_lock.taken);
}
