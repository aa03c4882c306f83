/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the contract with Python (see wire.h) that goes through the ring buffers: stacks as they were walked,
 * events that Python must react to, traces.
 */
#ifndef PARPROF_WIRE_RECORDS_H
#define PARPROF_WIRE_RECORDS_H

#include "wire.h"

enum record_type {
	RECORD_STACK = 1,
	RECORD_EXEC = 2,
	RECORD_FORK = 3,
	RECORD_EXIT = 4,	/* of the thread group leader */
	RECORD_LEARNED = 5,	/* address: an outlined function that no probe watches yet */
	RECORD_LOAD_MAP = 6,
	RECORD_SAMPLE = 7,	/* only with settings.trace */
	RECORD_STALE_MAP = 9,	/* address: executed, but in no mapping that we were told of */
	RECORD_ABSENT_ROWS = 19,	/* address: executed, but the rows of its file's table are not in the store */
	RECORD_PYTHON = 10,	/* new Python stacks of a young process: resolve them before it frees them or ends */
	RECORD_CUT = 13,	/* address: enum cost_kind that was cut off; in a ring of its own */
	RECORD_SEEN = 12,	/* a sample hit a process that nobody decided upon yet */
	RECORD_CONTEXT = 11,	/* a struct context_record */
	RECORD_MAPPED = 14,	/* a struct mapping_record */
	RECORD_REPLACED = 8,	/* the PID was reused while its old entry was still there */
	RECORD_THREAD = 15,	/* a struct thread_record */
	RECORD_PATH = 16,	/* a struct path_record */
	RECORD_CODE = 17,	/* a struct code_record */
	RECORD_GLIMPSE = 18,	/* switches are not followed, and the process can pay for a glimpse of them */
};

/* Why the walk of a user stack ended. */
enum stack_end {
	END_COMPLETE = 0,	/* at an outermost frame */
	END_NO_MAPPING = 1,	/* an address in no known mapping, and no frame pointer to go by */
	END_NO_TABLE = 2,	/* a file without unwind table, and no frame pointer to go by */
	END_BAD_ROW = 3,	/* code that its table says nothing about, or a frame that does not lie above its callee's */
	END_UNREADABLE = 4,	/* the stack memory could not be read */
	END_TOO_DEEP = 5,	/* MAX_FRAMES */
	END_ZERO = 6,		/* a return address of 0 */
	END_FRAME_POINTERS = 7,	/* the process's load map is not known yet: the kernel walked frame pointers */
	END_KERNEL = 8,		/* a kernel stack */
	STACK_ENDS = 9,
};

/* Set in a frame that is not a return address, other than the leaf: a signal interrupted it. */
#define FRAME_INTERRUPTED (1ULL << 63)

/* A frame of HotSpot's interpreter: the address of a Method, and above that how many bytes of its bytecode are before the
 * instruction, MAX_BYTECODES if that is not known. Behind the leaf it has FRAME_INTERRUPTED, too. */
#define FRAME_METHOD (1ULL << 62)
#define METHOD_BITS 47
#define MAX_BYTECODES 0x7fffULL

/* Why the walk of a thread's Python frames ended. */
enum python_end {
	PYTHON_COMPLETE = 0,
	PYTHON_UNREADABLE = 1,
	PYTHON_TOO_DEEP = 2,	/* MAX_PYTHON_FRAMES, or the kernel's limit on tail calls */
	PYTHON_NO_STATE = 3,	/* the thread has no Python thread state: no frames */
	PYTHON_ENDS = 4,
};

/* Set in a Python frame's first word: the frame is the outermost one that its C activation of the interpreter
 * loop runs. A frame without code is nothing but that mark. */
#define PYTHON_ENTRY (1ULL << 63)

/* A user or kernel stack, sent once for each hash (again when the kernel forgot that it sent it). */
struct stack_record {
	u32 type;
	u16 depth;
	u16 end;		/* enum stack_end */
	u64 hash;
	u32 image;		/* with Python or Java frames, whose addresses mean something in one process only */
	u16 python_depth;
	u16 python_end;		/* enum python_end */
	u16 cut;		/* so many innermost frames belong to the work that was created in another context; 0 = all */
	u16 reserved[3];
	/* `depth` frames, leaf first; behind them `python_depth` pairs, innermost first:
	 * address of the code object | PYTHON_ENTRY, and index of the instruction | what tells it from others there << 32 */
	u64 pc[STACK_WORDS];
};

/* A creation of work: travels through the ring of the stacks, behind its stack. */
struct context_record {
	u32 type;
	u32 image;
	u64 id;
	u64 user_hash;		/* the creator's stack */
	u64 parent;		/* the context of the creator's own work; as in struct sample_key */
};

/* Executable memory that a walk came upon before Python told of it: travels through the ring of the stacks, before them. */
struct mapping_record {
	u32 type;
	u32 image;
	u64 start;
	u64 end;
	u64 offset;		/* in the file */
	u64 inode;		/* 0 = there is no file */
	u32 device;		/* as the kernel numbers it: major << 20 | minor */
	u32 epoch;		/* of the load map, as in struct sample_key */
};

#define CODE_BYTES 160		/* of a code object, which hold all that is read of it */
#define CODE_NAME_BYTES 256
#define CODE_FILE_BYTES 384
#define CODE_LINES_BYTES 4096
#define PYTHON_ASCII 64		/* in the state of a str object */

/* A Python function as it was when a stack had it first: the bytes of its code object, and of what that points to,
 * each with its own head, cut off where there is no more room. Travels through the ring of the stacks, before them. */
struct code_record {
	u32 type;
	u32 image;
	u64 address;
	u16 name_size;		/* 0 = it could not be read */
	u16 file_size;
	u16 lines_size;
	u16 reserved;
	u8 code[CODE_BYTES];
	u8 name[CODE_NAME_BYTES];	/* a str object */
	u8 file[CODE_FILE_BYTES];	/* the same */
	u8 lines[CODE_LINES_BYTES];	/* a bytes object, of which only `lines_size` bytes are sent */
};

#define PATH_PARTS 16
#define PATH_NAME_BYTES 64

/* The same of a file, with its place in its file system: its name, its directory's, and so on. Behind the root's, which is
 * "/", that is repeated. A name of PATH_NAME_BYTES - 1 bytes may be cut off. */
struct mapped_file_record {
	struct mapping_record mapping;
	char path[PATH_PARTS][PATH_NAME_BYTES];
};

/* A rare event that Python must react to. */
struct control_record {
	u32 type;
	u32 tgid;
	u32 tid;
	u32 image;
	u32 parent_tgid;	/* RECORD_FORK */
	u32 stopped;		/* 1: the process was sent SIGSTOP and waits for us */
	u64 address;		/* RECORD_LEARNED, RECORD_STALE_MAP, RECORD_ABSENT_ROWS; RECORD_LOAD_MAP: the epoch that begins; RECORD_EXEC: the
				 * executable, see program_of */
	u64 time_ns;
	char comm[COMM_LENGTH];
};

/* One sample, for tests and self-checks. */
struct trace_record {
	u32 type;
	u32 tid;
	u64 time_ns;
	u64 ip;
	u32 image;
	u16 n_working;
	u8 state;
	u8 unsure;
};

#define DOES_WORK 1		/* it counts in n_working */
#define DOES_RUN 2		/* it has a CPU */
#define DOES_QUEUE 4		/* it waits for one */
#define DOES_NOTHING 8		/* it has ended */
#define DOES_KNOWN 128		/* of what was told; without it nothing was */

/* What a thread does from a time on: see trace.bpf.c. */
struct thread_record {
	u32 type;
	u32 tid;
	u64 time_ns;
	u64 function;		/* with an edge: the code that begins; 0 = something ends */
	u32 image;
	u32 waker;		/* at a wake-up: the thread that ran there then, perhaps of another process or interrupted; else 0 */
	u8 does;		/* DOES_* */
	u8 edge;		/* enum edge_kind of the probe that was hit; 0 = none was */
	u8 depth;		/* frames of work and wait that live, behind that */
	u8 reserved;
	u32 also_reserved;
};

/* A sample, or a wait that is over: where it was. */
struct path_record {
	u32 type;
	u32 reserved;
	u64 time_ns;
	u64 since_ns;		/* of a wait: when it began; 0 = it is a sample */
	struct sample_key key;
};

#endif
