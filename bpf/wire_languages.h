/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the contract with Python (see wire.h) about languages with stacks of their own: where in a process they
 * keep their frames and their code. Python knows that, by their version; the programs read it.
 */
#ifndef PARPROF_WIRE_LANGUAGES_H
#define PARPROF_WIRE_LANGUAGES_H

/* What an `interpreter` says of the frames that begin a C activation. */
enum python_entry {
	ENTRY_EVERY_FRAME = 0,	/* one activation for each frame */
	ENTRY_FLAG = 1,		/* the byte at `entry` is not 0 */
	ENTRY_OWNER = 2,	/* the byte at `entry` is `entry_value`: a frame on the C stack without code */
};

/* Where a CPython interpreter keeps things; key: tgid. Offsets in bytes. Owned by Python but for the times. */
struct interpreter {
	u64 tss_key;		/* address of its Py_tss_t: initialized, key */
	u64 current;		/* address of the pointer to the thread state that holds the GIL; 0 = not there */
	u64 gil;		/* address of the GIL; 0 = each interpreter may have its own */
	u16 thread_slots;	/* of glibc's first block of thread-specific data, from the thread's fsbase on */
	u16 thread_id;		/* in the thread state: pthread_self() */
	u16 thread_frame;	/* in the thread state: pointer to the current frame, or to what has that pointer */
	u16 cframe;		/* where the latter has it; NOT_THERE = the former */
	u16 frame_size;		/* bytes of a frame that are read */
	u16 previous;		/* in a frame, as the next three */
	u16 code;
	u16 instruction;	/* pointer, or 32-bit index when code_start is 0 */
	u16 entry;
	u16 entry_kind;		/* enum python_entry */
	u16 entry_value;
	u16 code_start;		/* in a code object: its first instruction; 0 = not in there */
	u16 lines;		/* in a code object: pointer to its line table, up to 24 bytes behind that to its file name */
	u16 name;		/* in a code object, as the next: pointer to a str object */
	u16 file;
	u16 length;		/* in a str object, as the next: how many characters */
	u16 state;		/* how they are kept */
	u16 ascii_size;		/* bytes of a str object before ASCII characters */
	u16 wide_size;		/* before others */
	u16 bytes_size;		/* in a bytes object: how many */
	u16 bytes_text;		/* where they begin */
	u16 thread_interpreter;	/* in the thread state: pointer to the interpreter's */
	u16 interpreter_gil;	/* in that: pointer to its GIL */
	u16 gil_holder;		/* in a GIL: pointer to the thread state that had it last */
	u16 gil_locked;		/* whether it has it still */
	u16 gil_size;
	u16 reserved[2];
	u64 since_ns;		/* first Python stack */
	u64 told_ns;		/* last RECORD_PYTHON */
};

#define JVM_HEAPS 3

/* Where a HotSpot JVM keeps the code that it makes; key: tgid. Owned by Python. See hotspot.bpf.c. */
struct jvm {
	u64 heap[JVM_HEAPS];	/* of compiled code: where it begins; 0 = there is none */
	u64 heap_size[JVM_HEAPS];
	u64 segments[JVM_HEAPS];	/* the map of its segments, a byte for each */
	u64 interpreter;	/* where that begins, in one of the heaps */
	u64 interpreter_size;
	u16 segment_shift;	/* a segment has 1 << so many bytes */
	u16 frame_words;	/* in a block: how many words a frame of its code has */
	u16 const_method;	/* in a Method: pointer to its ConstMethod */
	u16 bytecodes;		/* in that: the bytecode */
};

#define NOT_THERE 0xffff
#define PYTHON_TAG_FACTOR 0x9e3779b1u

#endif
