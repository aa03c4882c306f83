/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are under way, and what those that ended took: the hooks, threads, phases. See span_calls.h. */
#define _GNU_SOURCE
#include "span.h"

#define CACHE_SIZE 512
#define CACHE_STEP 37 /* between the places of a call site under different others */
#define HOOKS 256
#define MAX_DEPTH (1u << 20)

bool span_has_calls;

/* A call that is under way: in one cache line. */
struct call {
	const struct transition *site;
	struct call_context before;
	uintptr_t function, stack;
	uint64_t work, length; /* its frame's at the begin; what the frame took of others' tasks since is added */
	uint64_t local;	       /* what the path does not have yet */
	uint64_t called;       /* work of the calls that it made */
};

/* A thread's; it survives its thread, since it has what is to be reported. */
struct calls {
	struct calls *next;
	bool is_free;
	uint32_t depth, room;
	uint32_t settled; /* so many of the outermost have nothing that their path lacks */
	struct call *stack;
	struct hook hooks[HOOKS];
	const struct transition *cache[CACHE_SIZE];
	struct call_amounts work[SPAN_MAX_CALLS]; /* the on-work profile */
};

static struct spin registry_lock;
static struct calls *registry;

static struct call_prof foreign; /* of paths of threads other than the first */
static struct spin foreign_lock;

static __attribute__((noinline)) const struct transition *find_transition(const struct transition **cached,
									  struct call_context context,
									  uintptr_t address, uintptr_t function)
{
	*cached = span_find_transition(context, address, function);
	return *cached;
}

static inline const struct transition *transition_of(struct calls *calls, struct call_context context,
						     uintptr_t address, uintptr_t function)
{
	const struct transition **cached =
		&calls->cache[((uint32_t)address + context.state * CACHE_STEP) % CACHE_SIZE];

	if (LIKELY(*cached && is_transition(*cached, context.state, address, function)))
		return *cached;
	return find_transition(cached, context, address, function);
}

/* threads */

static struct calls *new_calls(struct thread *self)
{
	struct calls *calls;

	spin_lock(&registry_lock);
	for (calls = registry; calls && !calls->is_free; calls = calls->next)
		;
	if (!calls) {
		calls = calloc(1, sizeof(*calls));
		if (!calls)
			abort();
		calls->next = registry;
		registry = calls;
	}
	calls->is_free = false;
	calls->depth = calls->settled = 0;
	spin_unlock(&registry_lock);
	self->hooks = calls->hooks;
	self->hook_room = HOOKS;
	self->hook_count = 0;
	return calls;
}

static inline struct calls *calls_of(struct thread *self)
{
	if (UNLIKELY(!self->calls))
		self->calls = new_calls(self);
	return self->calls;
}

static inline void add_local(struct calls *calls, struct frame *frame, uint32_t call, uint64_t cycles)
{
	calls->work[call].of[CALL_LOCAL_WORK] += cycles;
	call_prof_at(&frame->path.prof, call, span_known_calls())->of[CALL_LOCAL_SPAN] += cycles;
}

static __attribute__((noinline)) void add_outside(struct thread *self, struct calls *calls, struct frame *frame,
						  uint64_t cycles)
{
	add_local(calls, frame, self->context.call, cycles);
}

/* What a thread executed belongs to the call that is innermost. It goes to the path when the call ends, or when the path
 * is about to be looked at: before each call of the runtime. */
static inline void book_call(struct thread *self, struct calls *calls, struct frame *frame, uint64_t cycles)
{
	uint32_t innermost = calls->depth - 1;

	if (calls->depth == self->call_base) {
		add_outside(self, calls, frame, cycles);
		return;
	}
	calls->stack[innermost].local += cycles;
	if (calls->settled > innermost)
		calls->settled = innermost;
}

IN_CALLERS void span_calls_book(struct thread *self, struct frame *frame, uint64_t cycles)
{
	book_call(self, calls_of(self), frame, cycles);
}

/* The path has everything then. */
void span_calls_settle(struct thread *self, struct frame *frame)
{
	struct calls *calls = calls_of(self);

	for (; calls->settled < calls->depth; calls->settled++) {
		struct call *call = &calls->stack[calls->settled];

		if (call->local)
			add_local(calls, frame, call->site->call, call->local);
		call->local = 0;
	}
}

/* Calls that are made from now on, end before span_calls_leave. */
struct calls_kept span_calls_enter(struct thread *self, struct call_context context)
{
	struct calls_kept kept = {self->context, self->call_base};

	self->context = context;
	self->call_base = self->calls ? self->calls->depth : 0;
	return kept;
}

/* Work of calls that were made in tasks or by the team of the call under way. */
void span_calls_called(struct thread *self, uint64_t work)
{
	struct calls *calls = self->calls;

	if (calls && calls->depth > self->call_base)
		calls->stack[calls->depth - 1].called += work;
	else if (self->frame)
		self->frame->called += work;
}

uint32_t span_calls_depth(struct thread *self)
{
	return self->calls ? self->calls->depth - self->call_base : 0;
}

static bool has_depth(struct children_calls *children, uint32_t depth)
{
	uint32_t room = children->room ? children->room : 4;
	void *more;

	while (room <= depth)
		room *= 2;
	if (room > children->room) {
		more = realloc(children->by_depth, room * sizeof(*children->by_depth));
		if (!more)
			return false;
		children->by_depth = more;
		memset(&children->by_depth[children->room], 0,
		       (room - children->room) * sizeof(*children->by_depth));
		children->room = room;
	}
	if (children->used <= depth)
		children->used = depth + 1;
	return true;
}

/* A task is over. Its work, and that of its own tasks which it did not wait for, belongs to the call that made it. The
 * parent's lock is held. */
void span_calls_end_child(struct frame *parent, struct frame *child)
{
	struct children_calls *children = &parent->children;
	uint64_t work = child->work_done, called = child->called;

	if (__atomic_load_n(&child->children.used, __ATOMIC_RELAXED)) {
		spin_lock(&child->lock);
		for (uint32_t depth = 0; depth < child->children.used; depth++) {
			work += child->children.by_depth[depth].work;
			called += child->children.by_depth[depth].called;
		}
		spin_unlock(&child->lock);
	}
	if (has_depth(children, child->spawn_depth)) {
		children->by_depth[child->spawn_depth].work += work;
		children->by_depth[child->spawn_depth].called += called;
	}
}

/* In OpenMP a taskwait is for all tasks of the task: for those, too, that were made in calls further out. Where children
 * may end meanwhile, the frame's lock is held. */
void span_calls_take_children(struct thread *self, struct frame *frame)
{
	uint32_t depth_now = span_calls_depth(self);

	for (uint32_t depth = 0; depth < frame->children.used; depth++) {
		uint64_t work = frame->children.by_depth[depth].work, called = frame->children.by_depth[depth].called;
		uint32_t at = depth < depth_now ? depth : depth_now;

		frame->work_done += work;
		for (uint32_t inner = at; inner < depth_now; inner++) /* they did not make these */
			self->calls->stack[self->call_base + inner].work += work;
		if (at)
			self->calls->stack[self->call_base + at - 1].called += called;
		else
			frame->called += called;
		frame->children.by_depth[depth].work = frame->children.by_depth[depth].called = 0;
	}
	frame->children.used = 0;
}

/* Of a frame whose calls are over. Returns the work in calls of its children. */
uint64_t span_calls_forget_children(struct frame *frame)
{
	uint64_t called = 0;

	for (uint32_t depth = 0; depth < frame->children.used; depth++) {
		called += frame->children.by_depth[depth].called;
		frame->children.by_depth[depth].work = frame->children.by_depth[depth].called = 0;
	}
	frame->children.used = 0;
	return called;
}

static inline uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

static inline void add_times(struct call_amounts *amounts, enum call_amount count, uint64_t work, uint64_t span)
{
	amounts->of[count]++;
	amounts->of[count + 1] += work;
	amounts->of[count + 2] += span;
}

static void add_top_times(struct call_amounts *on_work, struct call_amounts *on_span, const struct transition *site,
			  uint64_t work, uint64_t span)
{
	if (site->is_top_site) {
		add_times(on_work, CALL_TOP_SITE_COUNT, work, span);
		add_times(on_span, CALL_TOP_SITE_COUNT, work, span);
	}
	if (site->is_top_caller) {
		add_times(on_work, CALL_TOP_CALLER_COUNT, work, span);
		add_times(on_span, CALL_TOP_CALLER_COUNT, work, span);
	}
}

/* A call ends, with these sums of its frame: the paper's UPDATE of both profiles. Returns its work. */
static inline uint64_t book_end(struct calls *calls, struct frame *frame, const struct call *call, uint64_t work_now,
				uint64_t length_now)
{
	const struct transition *site = call->site;
	struct call_amounts *on_work = &calls->work[site->call],
			    *on_span = call_prof_at(&frame->path.prof, site->call, span_known_calls());
	uint64_t work = since(work_now, call->work);

	on_work->of[CALL_COUNT]++;
	on_span->of[CALL_COUNT]++;
	on_work->of[CALL_LOCAL_WORK] += call->local;
	on_span->of[CALL_LOCAL_SPAN] += call->local;
	on_span->of[CALL_LOCAL_WORK] += since(work, call->called);
	if (site->is_top_site | site->is_top_caller)
		add_top_times(on_work, on_span, site, work, since(length_now, call->length));
	return work;
}

/* The innermost call ends. */
static void end_call(struct thread *self, struct calls *calls)
{
	uint32_t depth = --calls->depth;
	const struct call *call = &calls->stack[depth];
	struct frame *frame = self->frame;
	uint64_t work;

	if (calls->settled > depth)
		calls->settled = depth;
	self->context = call->before;
	if (!frame)
		return;
	work = book_end(calls, frame, call, frame->work_done + self->unbooked,
			frame->c_before + frame->c + self->unbooked);
	*(depth > self->call_base ? &calls->stack[depth - 1].called : &frame->called) += work;
}

static __attribute__((noinline)) void end_calls(struct thread *self, struct calls *calls, uint32_t depth)
{
	while (calls->depth > depth)
		end_call(self, calls);
}

void span_calls_leave(struct thread *self, struct calls_kept kept)
{
	if (self->calls && self->calls->depth > self->call_base)
		end_calls(self, self->calls, self->call_base);
	self->context = kept.context;
	self->call_base = kept.base;
}

static __attribute__((noinline)) bool make_room(struct calls *calls)
{
	struct call *more;
	uint32_t room = calls->room ? 2 * calls->room : 256;

	if (room > MAX_DEPTH)
		return false;
	more = realloc(calls->stack, room * sizeof(*more));
	if (!more)
		return false;
	calls->stack = more;
	calls->room = room;
	return true;
}

/* Those that longjmp left, which said nothing: they were deeper in the stack. */
static void end_left(struct thread *self, struct calls *calls, uintptr_t stack)
{
	uint32_t depth = calls->depth;

	while (depth > self->call_base && calls->stack[depth - 1].stack < stack)
		depth--;
	if (UNLIKELY(depth < calls->depth))
		end_calls(self, calls, depth);
}

static void begin_call(struct thread *self, struct calls *calls, uintptr_t function, uintptr_t address,
		       uintptr_t stack)
{
	const struct frame *frame = self->frame;
	const struct transition *one;
	struct call *call;

	if (UNLIKELY(calls->depth >= calls->room) && !make_room(calls))
		return;
	one = transition_of(calls, self->context, address, function);
	call = &calls->stack[calls->depth++];
	call->site = one;
	call->before = self->context;
	call->function = function;
	call->stack = stack;
	call->work = frame->work_done + self->unbooked;
	call->length = frame->c_before + frame->c + self->unbooked;
	call->local = call->called = 0;
	self->context.call = one->call;
	if (LIKELY(one->call != CALL_OTHER))
		self->context.state = one->next;
}

static __attribute__((noinline)) void end_calls_to(struct thread *self, struct calls *calls, uintptr_t function)
{
	uint32_t at = calls->depth;

	while (at > self->call_base && calls->stack[at - 1].function != function)
		at--;
	if (at > self->call_base) /* else its begin was not seen */
		end_calls(self, calls, at - 1);
}

/* A hook, so many cycles after what was before it. */
void span_calls_hook(struct thread *self, const struct hook *hook, uint64_t cycles)
{
	struct calls *calls = calls_of(self);

	self->unbooked += cycles;
	book_call(self, calls, self->frame, cycles);
	if (hook->address) {
		end_left(self, calls, hook->stack);
		begin_call(self, calls, hook->function, hook->address, hook->stack);
	} else {
		end_calls_to(self, calls, hook->function);
	}
}

/* All hooks of a strand, up to the last one: as span_calls_hook for each, with what changes in variables. */
void span_calls_replay(struct thread *self, const struct hook *hook, uint32_t count)
{
	struct calls *calls = self->calls;
	struct frame *frame = self->frame;
	struct call_context context = self->context;
	uint32_t base = self->call_base, depth = calls->depth, settled = calls->settled;
	uint64_t work = frame->work_done, length = frame->c_before + frame->c, done = self->unbooked;

	for (const struct hook *end = hook + count; hook < end; hook++) {
		uint64_t cycles = clock_end_at(&self->clock, hook->at);
		struct call *call = &calls->stack[depth]; /* the next one */
		bool is_begin = hook->address != 0, has_call = depth > base;

		if (UNLIKELY(is_begin ? depth >= calls->room || (has_call && call[-1].stack < hook->stack)
				      : !has_call || call[-1].function != hook->function)) {
			calls->depth = depth;
			calls->settled = settled;
			self->context = context;
			self->unbooked = done;
			span_calls_hook(self, hook, cycles);
			depth = calls->depth;
			settled = calls->settled;
			context = self->context;
			done = self->unbooked;
			continue;
		}
		done += cycles;
		if (has_call) {
			call[-1].local += cycles;
			settled = settled < depth ? settled : depth - 1;
		} else {
			add_local(calls, frame, context.call, cycles);
		}
		if (is_begin) {
			const struct transition *site = transition_of(calls, context, hook->address, hook->function);

			call->site = site;
			call->before = context;
			call->function = hook->function;
			call->stack = hook->stack;
			call->work = work + done;
			call->length = length + done;
			call->local = call->called = 0;
			context.call = site->call;
			context.state = site->call == CALL_OTHER ? context.state : site->next;
			depth++;
		} else {
			uint64_t taken = book_end(calls, frame, --call, work + done, length + done);

			context = call->before;
			depth--;
			settled = settled < depth ? settled : depth;
			*(depth > base ? &call[-1].called : &frame->called) += taken;
		}
	}
	calls->depth = depth;
	calls->settled = settled;
	self->context = context;
	self->unbooked = done;
}

/* the process */

/* What a thread that is gone leaves, goes on with the next. */
void span_calls_end_thread(struct thread *self)
{
	if (!self->calls)
		return;
	self->calls->is_free = true;
	self->calls = NULL;
	self->hooks = NULL;
	self->hook_room = self->hook_count = 0;
}

static void add_on_work(struct span_call *into, const struct call_amounts *from)
{
	uint64_t *to = into->on_work;

	for (int i = 0; i < CALL_AMOUNTS; i++)
		to[i] += from->of[i];
}

static void add_on_span(struct call_prof *prof)
{
	call_prof_flush(prof, span_known_calls());
	for (uint32_t call = 0; call < prof->size; call++) {
		for (int i = 0; i < CALL_AMOUNTS; i++)
			span_record->calls[call].on_span[i] += prof->dense[call].of[i];
	}
	call_prof_clear(prof);
}

/* The first thread's own path, unless that thread may be at work on it right now. */
static bool is_root_at_rest(const struct thread *self)
{
	const struct frame *frame = self->frame;

	return frame && (frame->is_root || !frame->team || !frame->team->is_foreign);
}

/* The process ends: what is still under way ends with it. */
void span_calls_end(struct thread *self)
{
	struct call_prof path = {0};

	if (!span_has_calls)
		return;
	if (self->calls)
		end_calls(self, self->calls, 0);
	spin_lock(&registry_lock);
	for (struct calls *calls = registry; calls; calls = calls->next) {
		for (uint32_t call = 0; call < span_known_calls(); call++)
			add_on_work(&span_record->calls[call], &calls->work[call]);
	}
	spin_unlock(&registry_lock);
	if (is_root_at_rest(self)) {
		span_path_flatten(&span_root.path, &path);
		add_on_span(&path);
	}
	spin_lock(&foreign_lock);
	add_on_span(&foreign);
	spin_unlock(&foreign_lock);
}

/* A phase is over. Its path goes on in the path of who began the team. */
void span_calls_end_phase(struct team *team, struct phase *phase, uint64_t work)
{
	struct call_path path = {phase->loop_calls, phase->group.best_calls};
	struct call_prof whole = {0};

	memset(&phase->loop_calls, 0, sizeof(phase->loop_calls));
	phase->group.best_calls = NULL;
	team->called += phase->called;
	phase->called = 0;
	span_path_flatten(&path, &whole);
	if (team->is_foreign) {
		spin_lock(&foreign_lock);
		call_prof_union(&foreign, &whole, span_known_calls());
		spin_unlock(&foreign_lock);
		return;
	}
	call_prof_union(&team->parent->path.prof, &whole, span_known_calls());
	team->parent->work_done += work;
}

/* A new record, maybe after a fork, of which only the calling thread is left. */
void span_calls_reset(struct span_record *record)
{
	struct thread *self = &span_self;
	struct calls *own = self->calls;

	span_hooks_replay(self); /* of the strand in which the process forked */
	atomic_flag_clear(&registry_lock.taken);
	atomic_flag_clear(&foreign_lock.taken);
	span_path_clear(&span_root.path);
	call_prof_clear(&foreign);
	for (struct calls *calls = registry; calls; calls = calls->next) {
		calls->is_free = calls != own;
		memset(calls->work, 0, span_known_calls() * sizeof(calls->work[0]));
	}
	span_reset_call_sites(record);
	if (span_has_calls)
		record->flags |= SPAN_CALLS;
}
