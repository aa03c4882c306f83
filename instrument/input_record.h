/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * The record file of `parprof input`: what both back ends write and daemon/parprof/input/records.py reads.
 *
 * One file for each process, mapped shared from its start, so that a process killed half-way leaves what it had. A
 * header, then rows of one size that are only ever added. A row belongs to one thread slot, which alone changes it.
 */
#ifndef PARPROF_INPUT_RECORD_H
#define PARPROF_INPUT_RECORD_H

#ifndef INPUT_NO_STDINT
#include <stddef.h>
#include <stdint.h>
#endif

enum {
    INPUT_VERSION = 3,
    INPUT_HEADER_BYTES = 4096,
    INPUT_ROW_BYTES = 144,
    INPUT_ROW_WORDS = 17,
    INPUT_MAX_ROWS = 1 << 21,
    INPUT_GROWTH_ROWS = 1 << 13,
    INPUT_TEXT_BYTES = 8 * (INPUT_ROW_WORDS - 2),
    INPUT_COMMAND_BYTES = 256,
};

enum input_back_end { INPUT_TSAN = 1, INPUT_VALGRIND = 2 };
enum input_state { INPUT_OPEN = 0, INPUT_CLOSED = 1 };
enum input_flags {
    INPUT_ROUNDED = 1,       /* so many sizes that further ones were put together, within 1 % */
    INPUT_OUT_OF_MEMORY = 2, /* no memory for the shadow: accesses were not counted */
    INPUT_TOO_DEEP = 4,      /* calls beyond the deepest that are told apart */
    INPUT_NO_BLOCKS = 8,     /* built without -fsanitize-coverage=trace-pc: blocks were not counted */
    INPUT_NO_TIME = 16,      /* the back end's own time would be all that one sees */
    INPUT_CONTEXTS = 32,     /* the routine of a point is a context: that routine, called from where its row says */
};

#define INPUT_MAGIC "ppinput\n"
#define INPUT_UNKNOWN UINT64_MAX

struct input_header {
    char magic[8];
    uint32_t version;
    uint32_t back_end;
    uint32_t state;
    uint32_t flags;
    uint32_t pid;
    uint32_t cell_bytes;
    uint64_t rows;            /* handed out; some of the last may be beyond the file's end */
    uint64_t rows_lost;       /* activations that found no row */
    uint64_t seen_read_bytes; /* that system calls and stdio brought, and the instrument saw */
    uint64_t seen_sent_bytes; /* that they took */
    uint64_t all_read_bytes;  /* that the kernel says it brought; INPUT_UNKNOWN where it was not asked */
    uint64_t all_sent_bytes;
    uint64_t ticks_per_second;
    char command[INPUT_COMMAND_BYTES];
};

enum input_row_kind {
    INPUT_ROW_NONE = 0, /* handed out, not written yet */
    INPUT_ROW_POINT = 1,
    INPUT_ROW_ROUTINE = 2,
    INPUT_ROW_MODULE = 3,
    INPUT_ROW_THREAD = 4,
    INPUT_ROW_CONTEXT = 5,
};

/* Activations of one routine by one thread slot that had one size of input. */
struct input_point {
    uint64_t routine;
    uint64_t trms;
    uint64_t rms;
    uint64_t calls;
    uint64_t trms_sum; /* exact where trms is rounded */
    uint64_t rms_sum;
    uint64_t induced_sum;
    uint64_t external_sum;
    uint64_t blocks_sum; /* inclusive: with all that was called */
    uint64_t blocks_max;
    uint64_t ticks_sum;
    uint64_t ticks_max;
    uint64_t self_blocks; /* without what was called */
    uint64_t self_ticks;
    uint64_t unfinished; /* of the calls: that the end of the process cut short */
    uint64_t inner_blocks; /* of blocks_sum: of calls within others of the same routine */
    uint64_t inner_ticks;
};

struct input_routine {
    uint64_t routine;
    uint64_t module; /* 0: in no file */
    uint64_t address; /* ELF virtual address in the module */
    uint64_t is_return_address;
};

/* A routine and the calls that led to it; of calls that lead back to it, the first. */
struct input_context {
    uint64_t context;
    uint64_t caller; /* context; 0: none that is known */
    uint64_t routine;
};

/* A module's path, a piece in each row. */
struct input_module {
    uint64_t module;
    uint64_t piece;
    char text[INPUT_TEXT_BYTES];
};

/* What a thread slot read in all, each read counted once. */
struct input_totals {
    uint64_t first;
    uint64_t induced;
    uint64_t external;
    uint64_t threads; /* that had this slot, one after the other */
};

struct input_row {
    uint32_t kind;
    uint32_t thread;
    union {
        struct input_point point;
        struct input_routine routine;
        struct input_module module;
        struct input_context context;
        struct input_totals totals;
        uint64_t words[INPUT_ROW_WORDS];
    };
};

_Static_assert(sizeof(struct input_row) == INPUT_ROW_BYTES, "rows have one size");
_Static_assert(sizeof(struct input_header) <= INPUT_HEADER_BYTES, "the header has its place");

#endif
