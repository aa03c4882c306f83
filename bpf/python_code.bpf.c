/* SPDX-License-Identifier: Apache-2.0
 *
 * What the functions in a Python stack are, sent before the stack that shows them first. A module's body and a class's
 * run once and are freed: when Python looks, other objects have their memory. What is sent are the bytes of the code
 * object, and of what it points to, as they are: their meaning is parprof/languages/cpython/'s affair.
 */

#define FUNCTIONS_PER_CALL 32

/* One for each CPU, as the walks are, and one for those of waits. */
BPF_TABLE("percpu_array", u32, struct code_record, code_records, 1);
BPF_TABLE("percpu_array", u32, struct code_record, wait_code_records, 1);

/* Reads an object, as far as there is room; how much was read. */
static __always_inline u32 read_object(void *to, u32 most, u64 at, u64 size)
{
	if (size > most)
		size = most;
	asm volatile("" : "+r"(size));	/* else clang drops the check, and the verifier the program */
	if (!size || size > most || bpf_probe_read_user(to, size, (void *)at))
		return 0;
	return size;
}

/* Bytes of a str object. */
static __always_inline u64 text_size(struct interpreter *py, u64 at)
{
	u64 length = 0, state = 0;

	if (!read_user(&length, at + py->length) || bpf_probe_read_user(&state, 4, (void *)(at + py->state)))
		return 0;
	if (length > CODE_LINES_BYTES)
		length = CODE_LINES_BYTES;
	return (state & PYTHON_ASCII ? py->ascii_size : py->wide_size) + length * (state >> 2 & 7);
}

/* Bytes of a bytes object. */
static __always_inline u64 bytes_size(struct interpreter *py, u64 at)
{
	u64 length = 0;

	if (!read_user(&length, at + py->bytes_size))
		return 0;
	return length > CODE_LINES_BYTES ? CODE_LINES_BYTES : py->bytes_text + length;
}

/* A pointer in the code object that was read. */
static __always_inline u64 code_word(struct code_record *r, u64 offset)
{
	asm volatile("%0 &= 248" : "+r"(offset));
	return *(u64 *)((void *)r->code + offset);
}

/* Sends what a code object is; 0 if it could not be. */
static __always_inline int send_code(struct walk *w, struct interpreter *py, struct code_record *r, u64 code)
{
	u64 name, file, lines, size;

	if (bpf_probe_read_user(r->code, sizeof(r->code), (void *)code))
		return 0;
	name = code_word(r, py->name);
	file = code_word(r, py->file);
	lines = code_word(r, py->lines);
	r->type = RECORD_CODE;
	r->image = w->key.image;
	r->address = code;
	r->name_size = read_object(r->name, sizeof(r->name), name, text_size(py, name));
	r->file_size = read_object(r->file, sizeof(r->file), file, text_size(py, file));
	size = read_object(r->lines, sizeof(r->lines), lines, bytes_size(py, lines));
	r->lines_size = size;
	size += sizeof(*r) - sizeof(r->lines);
	asm volatile("" : "+r"(size));
	if (size > sizeof(*r))
		return 0;
	return !stacks.ringbuf_output(r, size, BPF_RB_NO_WAKEUP);
}

/* Sends the function of the next one of the walked Python frames, if it was not sent yet; 0 if there is none. Where the ring has
 * no room it is sent with the next new stack that has it. A function by itself, as `walk_frame`. */
u64 send_function(u64 given)
{
	struct walk *w = (struct walk *)given;
	struct interpreter *py;
	struct code_record *r;
	u64 at, code, key;
	u32 one = 1, zero = 0, tgid;

	if (!w || w->functions_seen >= w->record.python_depth)
		return 0;
	tgid = w->tgid;
	py = interpreters.lookup(&tgid);
	r = w->is_waits ? wait_code_records.lookup(&zero) : code_records.lookup(&zero);
	if (!py || !r)
		return 0;
	at = w->depth + 2 * w->functions_seen++;
	asm volatile("%0 &= %1" : "+r"(at) : "i"(STACK_WORDS - 1));
	code = w->record.pc[at] & ~PYTHON_ENTRY;
	at++;
	asm volatile("%0 &= %1" : "+r"(at) : "i"(STACK_WORDS - 1));
	if (!code)
		return 1;
	key = mix(mix(mix(RECORD_CODE, w->key.image), code), w->record.pc[at] >> 32) | 1;
	if (!sent_stacks.lookup(&key) && send_code(w, py, r, code))
		sent_stacks.update(&key, &one);
	return 1;
}
static u64 (*call_send_function)(struct walk *w) = (void *)SHARED_send_function;

/* Those of FUNCTIONS_PER_CALL functions more; 1 if there are still some. */
static __always_inline int send_functions(struct walk *w, u32 is_waits)
{
	w->is_waits = is_waits;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FUNCTIONS_PER_CALL; i++)
		if (!call_send_function(w))
			return 0;
	return 1;
}

/* The end of the walk of a sample whose stack, with Python frames, is new. */
int on_python_code(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0;
	struct walk *w = walks.lookup(&zero);

	if (!w)
		return 0;
	if (send_functions(w, 0))
		unwinders.call(ctx, 4);
	return finish_user_stack(w);
}
