/* SPDX-License-Identifier: Apache-2.0
 *
 * The Python frames of a thread of CPython, put behind its native frames in the stack record. on_unwind calls
 * this for processes that have an entry in `interpreters`; the others pay one failed look-up. Where things are
 * differs from version to version: parprof/languages/cpython/layouts.py.
 * Cost: about 65 ns a frame, hot.
 */
#define PYTHON_FRAMES_PER_CALL 128
#define PYTHON_YOUNG_NS 1000000000ULL
#define PTHREAD_BLOCK 32	/* thread-specific data in one block, 16 bytes each */

/* The thread state's address if it is that of this thread, else 0. */
static __always_inline u64 checked_state(struct interpreter *py, u64 fsbase, u64 state)
{
	u64 id = 0;

	if (!state || !read_user(&id, state + py->thread_id) || id != fsbase)
		return 0;
	return state;
}

/* The current thread's Python thread state; 0 if it has none. */
static __always_inline u64 thread_state(struct interpreter *py)
{
	void *task = (void *)bpf_get_current_task();
	u64 fsbase = 0, state = 0, tss = 0, slots;
	u32 key;

	bpf_probe_read_kernel(&fsbase, 8, task + TASK_FSBASE);
	if (!fsbase)
		return 0;
	/* the GIL's holder first: with subinterpreters a thread has several states */
	if (py->current && read_user(&state, py->current)) {
		state = checked_state(py, fsbase, state);
		if (state)
			return state;
	}
	if (!read_user(&tss, py->tss_key) || !(u32)tss)
		return 0;
	key = tss >> 32;
	slots = fsbase + py->thread_slots;
	if (key >= PTHREAD_BLOCK) {
		if (key >= PTHREAD_BLOCK * PTHREAD_BLOCK)
			return 0;
		slots += PTHREAD_BLOCK * 16 + (key / PTHREAD_BLOCK) * 8;
		if (!read_user(&slots, slots) || !slots)
			return 0;
	}
	if (!read_user(&state, slots + (key % PTHREAD_BLOCK) * 16 + 8))
		return 0;
	return checked_state(py, fsbase, state);
}

/* Finds the innermost frame. */
static __always_inline u32 first_python_frame(struct walk *w, struct interpreter *py)
{
	u64 state = thread_state(py), at;

	w->python_frame = 0;
	if (!state)
		return PYTHON_NO_STATE;
	if (!read_user(&at, state + py->thread_frame))
		return PYTHON_UNREADABLE;
	if (at && py->cframe != NOT_THERE && !read_user(&at, at + py->cframe))
		return PYTHON_UNREADABLE;
	w->python_frame = at;
	return PYTHON_COMPLETE;
}

static __always_inline u64 raw_word(struct walk *w, u64 offset)
{
	asm volatile("%0 &= 120" : "+r"(offset));
	return *(u64 *)((void *)w->python_raw + offset);
}

static __always_inline u8 raw_byte(struct walk *w, u64 offset)
{
	asm volatile("%0 &= 127" : "+r"(offset));
	return *(u8 *)((void *)w->python_raw + offset);
}

/* What tells code objects apart that have the same address in turn: those of modules and classes are freed as soon as they ran,
 * and the next one of that size gets their memory, and its line table that of theirs. A module's file name is still there.
 * As in parprof/languages/cpython/functions.py. */
static __always_inline int read_tag(struct walk *w, struct interpreter *py, u64 code, u64 *tag)
{
	u64 at = py->lines - py->file;

	if (bpf_probe_read_user(w->code_words, sizeof(w->code_words), (void *)(code + py->file)))
		return 0;
	asm volatile("%0 &= 24" : "+r"(at));
	*tag = (u32)(*(u64 *)((void *)w->code_words + at) >> 4) ^ (u32)(w->code_words[0] >> 4) * PYTHON_TAG_FACTOR;
	return 1;
}

static __always_inline void add_word(struct walk *w, u64 at, u64 value)
{
	asm volatile("%0 &= %1" : "+r"(at) : "i"(STACK_WORDS - 1));
	w->record.pc[at] = value;
	w->record.hash = mix(w->record.hash, value);
}

/* Adds one frame and moves on to its caller; 0 if it cannot be read. */
static __always_inline int python_step(struct walk *w, struct interpreter *py)
{
	u64 at = w->depth + 2 * w->record.python_depth, code, place, size = py->frame_size;
	u64 tag = 0;
	u32 kind = py->entry_kind;
	u8 mark;

	asm volatile("%0 &= 127" : "+r"(size));
	if (!size || bpf_probe_read_user(w->python_raw, size, (void *)w->python_frame))
		return 0;
	code = raw_word(w, py->code);
	place = raw_word(w, py->instruction);
	mark = raw_byte(w, py->entry);
	if (kind == ENTRY_OWNER && mark == py->entry_value) {
		code = PYTHON_ENTRY;
		place = 0;
	} else {
		if (!read_tag(w, py, code, &tag))
			return 0;
		if (py->code_start)
			place -= code + py->code_start;
		if (kind == ENTRY_EVERY_FRAME || (kind == ENTRY_FLAG && mark))
			code |= PYTHON_ENTRY;
	}
	add_word(w, at, code);
	add_word(w, at + 1, (u32)place | tag << 32);
	w->record.python_depth++;
	w->python_frame = raw_word(w, py->previous);
	return 1;
}

/* The same for all programs that walk. */
u64 python_frame(u64 given)
{
	struct walk *w = (struct walk *)given;
	struct interpreter *py;
	u32 tgid;

	if (!w)
		return 0;
	tgid = w->tgid;
	py = interpreters.lookup(&tgid);
	return py ? python_step(w, py) : 0;
}

static u64 (*call_python_frame)(struct walk *w) = (void *)SHARED_python_frame;

/* Where work was created, functions are not sent with the stack (python_code.bpf.c). Programs that have just started run code
 * once that they throw away then, and some end at once: Python is told of such stacks at intervals that grow with their age,
 * until its own polling does as well. */
static __always_inline void tell_python(struct walk *w, struct interpreter *py)
{
	u64 now = bpf_ktime_get_ns(), age;

	if (!py->since_ns)
		py->since_ns = now;
	age = now - py->since_ns;
	if (age > PYTHON_YOUNG_NS || now - py->told_ns <= age / 8)
		return;
	py->told_ns = now;
	tell(RECORD_PYTHON, w->tgid, w->key.tid, w->key.image, 0);
}

/* Walks PYTHON_FRAMES_PER_CALL frames more; GOING if there are still some. */
static __always_inline u32 walk_python(struct walk *w, struct interpreter *py)
{
	u32 end = PYTHON_COMPLETE;

	if (!w->python_started) {
		w->python_started = 1;
		end = forget(w, first_python_frame(w, py));
	}
#pragma clang loop unroll(disable)
	for (int i = 0; i < PYTHON_FRAMES_PER_CALL; i++) {
		if (!w->python_frame)
			break;
		if (w->record.python_depth >= MAX_PYTHON_FRAMES) {
			end = PYTHON_TOO_DEEP;
			break;
		}
		if (!call_python_frame(w)) {
			end = PYTHON_UNREADABLE;
			break;
		}
	}
	return end == PYTHON_COMPLETE && w->python_frame ? GOING : end;
}

/* Closes the record of the Python frames. */
static __always_inline void end_python(struct walk *w, u32 end)
{
	if (w->record.python_depth) {	/* the addresses mean nothing elsewhere */
		w->record.image = w->key.image;
		w->record.hash = mix(w->record.hash, (u64)w->key.image << 8 | end);
	}
	w->record.python_end = end;
	w->functions_seen = 0;
}

int on_python(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0, end;
	struct walk *w = walks.lookup(&zero);
	struct interpreter *py;

	if (!w)
		return 0;
	py = interpreters.lookup(&w->tgid);
	if (!py)
		return finish_user_stack(w);
	end = walk_python(w, py);
	if (end == GOING) {
		unwinders.call(ctx, 1);
		end = PYTHON_TOO_DEEP;
	}
	end_python(w, end);
	count(STAT_PYTHON + (end & 3));
	if (w->record.python_depth && is_new_stack(w))
		unwinders.call(ctx, 4);
	return finish_user_stack(w);
}

int on_edge_python(struct pt_regs *ctx)
{
	struct walk *w = edge_walk();
	struct interpreter *py;
	u32 end;

	if (!w)
		return edge_answer(ctx);
	py = interpreters.lookup(&w->tgid);
	if (py) {
		end = walk_python(w, py);
		if (end == GOING) {
			edge_unwinders.call(ctx, 1);
			end = PYTHON_TOO_DEEP;
		}
		end_python(w, end);
	}
	finish_context(w);
	if (py && w->record.python_depth)
		tell_python(w, py);
	return edge_answer(ctx);
}
