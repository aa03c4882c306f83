/* SPDX-License-Identifier: Apache-2.0
 *
 * The unwinder where HotSpot made the code: its heaps of compiled code, and its interpreter. What it compiles keeps no frame
 * pointer unless it is told to, and comes and goes all the time: so the machine's own word is taken, at each step. A map of
 * segments leads from an address to the block that it lies in, whose head says how large the frame is. Where things are
 * differs from version to version: parprof/languages/hotspot/.
 * Cost: about three reads of the process's memory for each frame.
 */
#define SEGMENT_HOPS 16	/* back to the beginning of a block; each leads over 254 segments at most */
#define FREE_SEGMENT 0xff
#define MAX_FRAME_WORDS (1 << 14)
#define LEAF_R13 2	/* in struct pt_regs, in words: the interpreter has its place in the bytecode there */
/* of an interpreter's frame, in words from `INTERPRETED_LOWEST` below rbp on */
#define INTERPRETED_LOWEST 64
#define INTERPRETED_WORDS 10
#define INTERPRETED_BYTECODE 0
#define INTERPRETED_METHOD 5
#define INTERPRETED_SENDER 7
#define INTERPRETED_RBP 8
#define INTERPRETED_RETURN 9

/* Rules for frames that are not all there: only the innermost function can be found at its beginning or its end. */
#define ONLY_RETURN_ADDRESS ((u32)ROW_RSP << 28 | 1)
#define SAVED_RBP (2 << 18)
#define RETURN_ADDRESS_AND_RBP ((u32)ROW_RSP << 28 | SAVED_RBP | 2)

/* The rule for compiled code that begins or ends its frame just here; 0 if it has one. By the code that is around. */
static __always_inline u32 partial_frame(struct walk *w, u64 target)
{
	u64 before, here;

	if (bpf_probe_read_user(w->code_words, 16, (void *)(target - 8)))
		return 0;
	before = w->code_words[0];
	here = w->code_words[1];
	if ((here & 0xff) == 0xc3 || (here & 0xffffff) == 0xa73b49)	/* ret; cmp rsp, [r15 + ...], the poll before it */
		return ONLY_RETURN_ADDRESS;
	if ((here & 0xffff) == 0x870f && (before >> 8 & 0xffffff) == 0xa73b49)	/* ja behind that */
		return ONLY_RETURN_ADDRESS;
	if ((here & 0xffffff) == 0x248489)	/* mov [rsp - ...], eax: is there room on the stack? */
		return ONLY_RETURN_ADDRESS;
	if ((here & 0xfdffff) == 0x814855 && (here >> 24 & 0xff) == 0xec)	/* push rbp, before sub rsp */
		return ONLY_RETURN_ADDRESS;
	if ((here & 0xff) == 0x5d)	/* pop rbp */
		return RETURN_ADDRESS_AND_RBP;
	if ((here & 0xfffdff) == 0xec8148 && before >> 56 == 0x55)	/* sub rsp, behind push rbp */
		return RETURN_ADDRESS_AND_RBP;
	return 0;
}

static __always_inline int is_of_jvm(struct jvm *vm, u64 address)
{
	int found = address - vm->interpreter < vm->interpreter_size;

#pragma unroll
	for (int i = 0; i < JVM_HEAPS; i++)
		found |= address - vm->heap[i] < vm->heap_size[i];
	return found;
}

/* The rule for the innermost frame that is left, where HotSpot made its code; 0 where it did not. */
u64 jvm_rule(u64 given)
{
	struct walk *w = (struct walk *)given;
	u64 target, start = 0, segments = 0, segment;
	struct jvm *vm;
	u32 tgid, words = 0, partial;
	u8 back = FREE_SEGMENT;

	if (!w)
		return 0;
	tgid = w->tgid;
	vm = jvms.lookup(&tgid);
	if (!vm)
		return 0;
	target = w->ip - 1 + w->exact;
	if (target - vm->interpreter < vm->interpreter_size) {
		w->record.image = w->key.image;
		return (u64)ROW_INTERPRETED << 28;
	}
#pragma unroll
	for (int i = 0; i < JVM_HEAPS; i++) {
		if (target - vm->heap[i] < vm->heap_size[i]) {
			start = vm->heap[i];
			segments = vm->segments[i];
		}
	}
	if (!start)
		return 0;
	w->record.image = w->key.image;
	segment = (target - start) >> (vm->segment_shift & 31);
#pragma clang loop unroll(disable)
	for (int i = 0; i < SEGMENT_HOPS; i++) {
		if (bpf_probe_read_user(&back, 1, (void *)(segments + segment)) || back == FREE_SEGMENT || !back)
			break;
		segment -= back;
	}
	if (back || bpf_probe_read_user(&words, 4, (void *)(start + (segment << (vm->segment_shift & 31)) + vm->frame_words)))
		return (u64)ROW_FRAME_POINTER << 28;
	if (!words || words >= MAX_FRAME_WORDS)	/* stubs: most of them keep a frame pointer */
		return (u64)ROW_FRAME_POINTER << 28;
	partial = w->exact ? partial_frame(w, target) : 0;
	if (partial)
		return partial;
	/* what compares strings in line keeps a word below the frame meanwhile (C2); callers are all in code of HotSpot's */
	if (w->exact && !bpf_probe_read_user(w->code_words, 16, (void *)(w->sp + 8 * (words - 1)))
	    && !is_of_jvm(vm, w->code_words[0]) && is_of_jvm(vm, w->code_words[1]))
		return (u32)ROW_RSP << 28 | SAVED_RBP | (words + 1);
	return ROW_RSP << 28 | SAVED_RBP | words;
}

static u64 (*call_jvm_rule)(struct walk *w) = (void *)SHARED_jvm_rule;

/* Which function is interpreted in the frame that `python_raw` has, and where in it: takes the place of the address in the
 * interpreter, which is none of the program's. */
static __always_inline void record_method(struct walk *w, struct jvm *vm)
{
	u64 method = w->python_raw[INTERPRETED_METHOD], bytecode = w->python_raw[INTERPRETED_BYTECODE], code = 0, at, place;

	if (method & 7 || method >> METHOD_BITS || !read_user(&code, method + vm->const_method))
		return;
	code += vm->bytecodes;
	if (w->depth == 1) {
		u64 r13 = 0, regs = forget(w, (u64)bpf_task_pt_regs(bpf_get_current_task_btf()));

		bpf_probe_read_kernel(&r13, sizeof(r13), (void *)(regs + 8 * LEAF_R13));
		if (r13 - code < MAX_BYTECODES)
			bytecode = r13;
	}
	place = forget(w, bytecode - code < MAX_BYTECODES ? bytecode - code : MAX_BYTECODES);
	place = FRAME_METHOD | place << METHOD_BITS | method;
	at = (w->depth - 1) & (MAX_FRAMES - 1);
	asm volatile("" : "+r"(at));
	w->record.pc[at & (MAX_FRAMES - 1)] = w->depth == 1 ? place : place | FRAME_INTERRUPTED;
	w->record.hash = mix(w->hash_before, place);
}

/* Moves from an interpreted function to its caller. It may have given its callee's arguments more room than it had itself:
 * where its own stack ended is in the frame. */
static __always_inline u32 step_interpreted(struct walk *w)
{
	u64 bp = w->bp, sender;
	u32 tgid = w->tgid;	/* on our stack: Linux 6.1 takes no key from a shared function's argument */
	struct jvm *vm = jvms.lookup(&tgid);

	if (!vm || bp < w->sp || bp - w->sp > STACK_SPAN || bp & 7)
		return END_BAD_ROW;
	if (bpf_probe_read_user(w->python_raw, INTERPRETED_WORDS * 8, (void *)(bp - INTERPRETED_LOWEST)))
		return END_UNREADABLE;
	record_method(w, vm);
	sender = w->python_raw[INTERPRETED_SENDER];
	w->ip = w->python_raw[INTERPRETED_RETURN];
	w->bp = w->python_raw[INTERPRETED_RBP];
	w->sp = forget(w, sender - bp - 16 < STACK_SPAN && !(sender & 7) ? sender : bp + 16);
	w->exact = 0;
	return w->ip ? GOING : END_ZERO;
}
