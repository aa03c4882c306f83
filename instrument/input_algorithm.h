/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * The size of the input of each activation of a routine, and what it cost: coppa-2013, for both back ends.
 *
 * rms (definition 1): cells that an activation, or what it called, accesses for the first time with a read. trms
 * (definition 3): its reads that are first accesses or induced ones, after another thread or the kernel wrote the
 * cell since the activation's thread last accessed it. A cell has 8 bytes.
 *
 * The paper's global counter, which needs renumbering, is not there. A cell's global stamp says who wrote it, and two
 * equal stamps that nobody wrote between. Each thread remembers, by cell, when it last accessed it (a count of its own
 * activations) and the stamp it then read: input_shadow.h. So threads share nothing but the stamps.
 *
 * Sums are partial as in section 4.2: an activation's true value is the sum from its frame to the top one, and on
 * return a frame's partial values are added to its caller's.
 *
 * A back end defines, before it includes this:
 *   INPUT_MAP(bytes)        zeroed memory that is only taken when touched, or a null pointer
 *   INPUT_UNMAP(p, bytes)
 *   INPUT_DROP(p, bytes)    whole pages of INPUT_MAP's that are zeros again and take no memory
 *   INPUT_TICKS()           a clock; 0 if there is none
 *   INPUT_GROW(bytes)       make the record file longer by so much, of zeros; true if that worked
 *   INPUT_DESCRIBE(thread, routine)   write the routine's rows
 *   INPUT_BLOCKS_OF(thread)   basic blocks that the running thread has executed; if not defined, `blocks` of the slot
 *   INPUT_LOCK(), INPUT_UNLOCK()      around what threads share apart from stamps
 */
#ifndef PARPROF_INPUT_ALGORITHM_H
#define PARPROF_INPUT_ALGORITHM_H

#include "input_record.h"
#include "input_shadow.h"

enum {
    INPUT_FIRST_KEYS = 1 << 10,
    INPUT_EXACT_POINTS = 1 << 16, /* of a slot, before sizes are rounded */
    INPUT_ROUNDED_BITS = 7,
};

#ifndef INPUT_BLOCKS_OF
#define INPUT_BLOCKS_OF(thread) ((thread)->blocks)
#endif
#define INPUT_OTHER_STACK (8ull << 20) /* addresses that far apart are on two stacks */
#define INPUT_TEXT_KEY UINT64_MAX      /* "size" of rows that are no points */

/* ---- reads and writes ---- */

static inline void input_count_induced(struct input_thread *thread, struct input_frame *top, uint32_t stamp)
{
    if (stamp >= INPUT_KERNEL) {
        top->external++;
        thread->totals->external++;
    } else {
        top->induced++;
        thread->totals->induced++;
    }
}

/* A first access, by a read. The result is the activation that had accessed the cell before; null if none had. */
static inline struct input_frame *input_count_first(struct input_thread *thread, struct input_last *last, uint64_t at)
{
    uint32_t when = last->when[at];
    struct input_frame *ancestor = when >= thread->born ? input_ancestor(thread, when) : 0;

    last->when[at] = thread->clock;
    thread->frames[thread->depth].rms++;
    if (ancestor)
        ancestor->rms--;
    return ancestor;
}

/* A read of what perhaps another thread wrote, or the kernel. */
static INPUT_APART void input_read_new(struct input_thread *thread, struct input_last *last, uint64_t at,
                                       uint32_t stamp)
{
    struct input_frame *top = &thread->frames[thread->depth], *ancestor;
    int is_induced = stamp && !input_is_own(thread, stamp);

    if (last->seen[at] != stamp)
        last->seen[at] = stamp;
    if (last->when[at] < top->started) {
        ancestor = input_count_first(thread, last, at);
        if (is_induced && ancestor)
            ancestor->beyond++;
        else if (!is_induced && !ancestor)
            thread->totals->first++;
    } else if (is_induced) {
        top->beyond++;
    }
    if (is_induced) {
        input_show(stamp);
        input_count_induced(thread, top, stamp);
    }
}

/* Whether the cell is as the thread wrote or last read it. What it read lies in memory of its own: only if need be. */
static inline int input_is_seen(const struct input_thread *thread, const struct input_last *last, uint64_t at,
                                uint32_t stamp)
{
    return INPUT_LIKELY(stamp >> INPUT_BLOCK_SHIFT == thread->stamp_block) || stamp == last->seen[at];
}

/* A read that counts: procedure read of the paper's figure 11. */
static inline void input_read_counts(struct input_thread *thread, struct input_last *last, uint64_t at, uint32_t stamp)
{
    uint32_t when = last->when[at];

    if (INPUT_UNLIKELY(when >= thread->top_started || !input_is_seen(thread, last, at, stamp) || when < thread->born))
        input_read_new(thread, last, at, stamp);
    else
        input_count_first(thread, last, at);
}

static INPUT_APART void input_read_counts_one(struct input_thread *thread, struct input_last *last, uint64_t at,
                                              uint32_t stamp)
{
    input_read_counts(thread, last, at, stamp);
}

static INPUT_APART void input_write_there(struct input_thread *thread, uint32_t *place, struct input_last *last,
                                          uint64_t at)
{
    if (INPUT_UNLIKELY(__atomic_load_n(&thread->is_shown, __ATOMIC_RELAXED)))
        input_next_stamp(thread);
    __atomic_store_n(place, thread->stamp, __ATOMIC_RELAXED);
    if (last->when[at] < thread->top_started)
        last->when[at] = thread->clock;
}

/* The first access to memory of a region, or the first write after another thread looked. */
static INPUT_APART void input_touch(struct input_thread *thread, uint64_t cell, int is_write)
{
    uint32_t *place = input_stamp_of(cell);
    struct input_last *last = place ? input_last_of(thread, cell) : 0;

    if (!last)
        return;
    if (is_write)
        input_write_there(thread, place, last, input_in_region(cell));
    else
        input_read_counts_one(thread, last, input_in_region(cell), __atomic_load_n(place, __ATOMIC_RELAXED));
}

/* Accesses to two cells, at the end of a region or the first to one. */
static INPUT_APART void input_touch_pair(struct input_thread *thread, uint64_t cell, int is_write)
{
    input_touch(thread, cell, is_write);
    input_touch(thread, cell + 1, is_write);
}

/*
 * These are called for each access. All that is seldom needed is called last of all and apart, so that the usual way
 * through needs no stack.
 */
static inline void input_read_cell(struct input_thread *thread, uint64_t cell)
{
    uint64_t at = input_in_region(cell), region = input_region(cell);
    struct input_last *last;
    uint32_t stamp;

    if (INPUT_UNLIKELY(region >= INPUT_REGIONS))
        return;
    last = thread->here[region].last;
    if (INPUT_UNLIKELY(!last)) {
        input_touch(thread, cell, 0);
        return;
    }
    stamp = __atomic_load_n(&thread->here[region].stamps[at], __ATOMIC_RELAXED);
    if (INPUT_LIKELY(last->when[at] >= thread->top_started && input_is_seen(thread, last, at, stamp)))
        return;
    input_read_counts_one(thread, last, at, stamp);
}

static inline void input_write_cell(struct input_thread *thread, uint64_t cell)
{
    uint64_t at = input_in_region(cell), region = input_region(cell);
    struct input_last *last;

    if (INPUT_UNLIKELY(region >= INPUT_REGIONS))
        return;
    last = thread->here[region].last;
    if (INPUT_UNLIKELY(!last || __atomic_load_n(&thread->is_shown, __ATOMIC_RELAXED))) {
        input_touch(thread, cell, 1);
        return;
    }
    __atomic_store_n(&thread->here[region].stamps[at], thread->stamp, __ATOMIC_RELAXED);
    if (last->when[at] < thread->top_started)
        last->when[at] = thread->clock;
}

static INPUT_APART void input_read_counts_pair(struct input_thread *thread, struct input_last *last, uint64_t at,
                                               const uint32_t *stamps)
{
    for (uint64_t end = at + 2; at < end; at++) {
        uint32_t stamp = __atomic_load_n(&stamps[at], __ATOMIC_RELAXED);

        if (!(last->when[at] >= thread->top_started && input_is_seen(thread, last, at, stamp)))
            input_read_counts(thread, last, at, stamp);
    }
}

/* Two cells, one after the other: what code with vectors reads. */
static inline void input_read_pair(struct input_thread *thread, uint64_t cell)
{
    uint64_t at = input_in_region(cell), region = input_region(cell);
    const uint32_t *stamps;
    struct input_last *last;

    if (INPUT_UNLIKELY(region >= INPUT_REGIONS))
        return;
    last = thread->here[region].last;
    if (INPUT_UNLIKELY(!last || at == INPUT_REGION_CELLS - 1)) {
        input_touch_pair(thread, cell, 0);
        return;
    }
    stamps = thread->here[region].stamps;
    if (INPUT_LIKELY(last->when[at] >= thread->top_started && last->when[at + 1] >= thread->top_started &&
                     input_is_seen(thread, last, at, __atomic_load_n(&stamps[at], __ATOMIC_RELAXED)) &&
                     input_is_seen(thread, last, at + 1, __atomic_load_n(&stamps[at + 1], __ATOMIC_RELAXED))))
        return;
    input_read_counts_pair(thread, last, at, stamps);
}

static inline void input_write_pair(struct input_thread *thread, uint64_t cell)
{
    uint64_t at = input_in_region(cell), region = input_region(cell);
    uint32_t *stamps, stamp;
    struct input_last *last;

    if (INPUT_UNLIKELY(region >= INPUT_REGIONS))
        return;
    last = thread->here[region].last;
    if (INPUT_UNLIKELY(!last || at == INPUT_REGION_CELLS - 1 || __atomic_load_n(&thread->is_shown, __ATOMIC_RELAXED))) {
        input_touch_pair(thread, cell, 1);
        return;
    }
    stamps = thread->here[region].stamps;
    stamp = thread->stamp;
    __atomic_store_n(&stamps[at], stamp, __ATOMIC_RELAXED);
    __atomic_store_n(&stamps[at + 1], stamp, __ATOMIC_RELAXED);
    if (last->when[at] < thread->top_started)
        last->when[at] = thread->clock;
    if (last->when[at + 1] < thread->top_started)
        last->when[at + 1] = thread->clock;
}

static inline void input_read(struct input_thread *thread, uint64_t address, uint64_t bytes)
{
    uint64_t cell = address >> INPUT_CELL_SHIFT, end = (address + bytes - 1) >> INPUT_CELL_SHIFT;

    if (bytes)
        for (; cell <= end; cell++)
            input_read_cell(thread, cell);
}

static inline void input_write(struct input_thread *thread, uint64_t address, uint64_t bytes)
{
    uint64_t cell = address >> INPUT_CELL_SHIFT, end = (address + bytes - 1) >> INPUT_CELL_SHIFT;

    if (bytes)
        for (; cell <= end; cell++)
            input_write_cell(thread, cell);
}

/* What calloc gives has been cleared, which is a write. Blocks that are larger than most tables are seldom used as a whole,
 * and are taken for new memory: to write down all of their cells would take as much memory again. */
static void input_clear(struct input_thread *thread, uint64_t address, uint64_t bytes)
{
    if (bytes <= INPUT_MOST_CLEARED)
        input_write(thread, address, bytes);
    else
        input_forget(address, bytes);
}

/* The kernel wrote memory: whoever reads it next reads external input (the paper's figure 12). */
static void input_kernel_write(uint64_t address, uint64_t bytes)
{
    uint32_t stamp = INPUT_KERNEL | __atomic_add_fetch(&input.kernel_writes, 1, __ATOMIC_RELAXED);
    uint64_t cell = address >> INPUT_CELL_SHIFT, end = (address + bytes - 1) >> INPUT_CELL_SHIFT;

    if (!bytes)
        return;
    for (; cell <= end; cell++) {
        uint32_t *place = input_stamp_of(cell);

        if (place)
            __atomic_store_n(place, stamp, __ATOMIC_RELAXED);
    }
}

/* ---- rows ---- */

static INPUT_SLOW int input_make_room(uint64_t number)
{
    int is_there;

    INPUT_LOCK();
    while (input.ready <= number && input.ready < INPUT_MAX_ROWS && INPUT_GROW(INPUT_GROWTH_ROWS * INPUT_ROW_BYTES))
        __atomic_store_n(&input.ready, input.ready + INPUT_GROWTH_ROWS, __ATOMIC_RELEASE);
    is_there = input.ready > number;
    INPUT_UNLOCK();
    return is_there;
}

/* The number of a new row + 1; 0 if there is no place for it. */
static uint32_t input_new_row(uint32_t thread)
{
    uint64_t number;

    if (!input.header || __atomic_load_n(&input.header->rows, __ATOMIC_RELAXED) >= INPUT_MAX_ROWS)
        return 0;
    number = __atomic_fetch_add(&input.header->rows, 1, __ATOMIC_RELAXED);
    if (number >= INPUT_MAX_ROWS)
        return 0;
    if (number >= __atomic_load_n(&input.ready, __ATOMIC_ACQUIRE) && !input_make_room(number))
        return 0;
    input.rows[number].thread = thread;
    return (uint32_t)number + 1;
}

static inline void input_finish_row(struct input_row *row, uint32_t kind)
{
    __atomic_store_n(&row->kind, kind, __ATOMIC_RELEASE);
}

static inline uint64_t input_hash(uint64_t routine, uint64_t trms, uint64_t rms)
{
    uint64_t hash = (routine ^ trms * 0x9e3779b97f4a7c15ull ^ rms * 0xc2b2ae3d27d4eb4full) * 0xff51afd7ed558ccdull;

    return hash ^ hash >> 32;
}

static inline int input_has_key(const struct input_row *row, uint64_t routine, uint64_t trms, uint64_t rms)
{
    if (row->kind != INPUT_ROW_POINT)
        return trms == INPUT_TEXT_KEY && rms == row->kind && row->words[0] == routine;
    return row->point.routine == routine && row->point.trms == trms && row->point.rms == rms;
}

static int input_more_keys(struct input_thread *thread)
{
    uint32_t room = thread->room_keys ? 2 * thread->room_keys : INPUT_FIRST_KEYS, at;
    uint32_t *keys = INPUT_MAP(room * sizeof *keys);

    if (!keys)
        return 0;
    for (at = 0; at < thread->room_keys; at++) {
        uint32_t number = thread->keys[at];
        const struct input_row *row = &input.rows[number - 1];
        uint64_t hash;

        if (!number)
            continue;
        hash = row->kind == INPUT_ROW_POINT ? input_hash(row->point.routine, row->point.trms, row->point.rms)
                                            : input_hash(row->words[0], INPUT_TEXT_KEY, row->kind);
        while (keys[hash & (room - 1)])
            hash++;
        keys[hash & (room - 1)] = number;
    }
    if (thread->keys)
        INPUT_UNMAP(thread->keys, thread->room_keys * sizeof *keys);
    thread->keys = keys;
    thread->room_keys = room;
    return 1;
}

/* The place in the thread's table where this key is, or would be. */
static inline uint32_t *input_key(struct input_thread *thread, uint64_t routine, uint64_t trms, uint64_t rms)
{
    uint64_t hash = input_hash(routine, trms, rms);

    for (;; hash++) {
        uint32_t *place = &thread->keys[hash & (thread->room_keys - 1)];

        if (!*place || input_has_key(&input.rows[*place - 1], routine, trms, rms))
            return place;
    }
}

static int input_has_space(struct input_thread *thread)
{
    return 4 * thread->n_keys < 3 * thread->room_keys || input_more_keys(thread);
}

/* Whether the thread has written this row of a routine or module; if not, it has now. */
static struct input_row *input_text_row(struct input_thread *thread, uint64_t identity, uint32_t kind)
{
    uint32_t *place, number;

    if (!input_has_space(thread))
        return 0;
    place = input_key(thread, identity, INPUT_TEXT_KEY, kind);
    if (*place || !(number = input_new_row(thread->slot)))
        return 0;
    *place = number;
    thread->n_keys++;
    input.rows[number - 1].words[0] = identity;
    return &input.rows[number - 1];
}

static inline void input_copy(char *to, const char *from, uint64_t bytes)
{
    while (bytes--)
        *to++ = *from++;
}

/* What identifies a module, from its path; its rows are written if the thread has not done so. */
static uint64_t input_module_row(struct input_thread *thread, const char *path)
{
    uint64_t module = 0xcbf29ce484222325ull, length = 0, at;
    struct input_row *row;

    for (; path[length] && length < 4095; length++)
        module = (module ^ (unsigned char)path[length]) * 0x100000001b3ull;
    module |= 1;
    row = input_text_row(thread, module, INPUT_ROW_MODULE);
    for (at = 0; row && (at < length || !at); at += INPUT_TEXT_BYTES) {
        uint64_t rest = length - at;

        row->module.module = module;
        row->module.piece = at / INPUT_TEXT_BYTES;
        input_copy(row->module.text, path + at, rest < INPUT_TEXT_BYTES ? rest : INPUT_TEXT_BYTES);
        input_finish_row(row, INPUT_ROW_MODULE);
        if (rest > INPUT_TEXT_BYTES) {
            uint32_t number = input_new_row(thread->slot);

            row = number ? &input.rows[number - 1] : 0;
        }
    }
    return module;
}

static void input_routine_row(struct input_thread *thread, uint64_t routine, const char *path, uint64_t address,
                              int is_return_address)
{
    struct input_row *row = input_text_row(thread, routine, INPUT_ROW_ROUTINE);

    if (!row)
        return;
    row->routine.address = address;
    row->routine.is_return_address = is_return_address;
    row->routine.module = 0;
    input_finish_row(row, INPUT_ROW_ROUTINE);
    if (path && path[0])
        row->routine.module = input_module_row(thread, path);
}

/* Rows for a frame's routine and, where contexts are asked for, for the calls that led to it. */
static void input_describe_frame(struct input_thread *thread, const struct input_frame *frame)
{
    for (; frame != thread->frames; frame = &thread->frames[frame->outer]) {
        struct input_row *row;

        if (frame->is_hidden)
            continue;
        INPUT_DESCRIBE(thread, frame->routine);
        if (!input.has_contexts || !(row = input_text_row(thread, frame->context, INPUT_ROW_CONTEXT)))
            return;
        row->context.caller = thread->frames[frame->outer].context;
        row->context.routine = frame->routine;
        input_finish_row(row, INPUT_ROW_CONTEXT);
    }
}

static inline uint64_t input_rounded(uint64_t size)
{
    int bits = size ? 64 - __builtin_clzll(size) : 0;

    return bits > INPUT_ROUNDED_BITS ? size >> (bits - INPUT_ROUNDED_BITS) << (bits - INPUT_ROUNDED_BITS) : size;
}

/* What points of a frame are told apart by. */
static inline uint64_t input_identity(const struct input_frame *frame)
{
    return INPUT_UNLIKELY(input.has_contexts) ? frame->context : frame->routine;
}

static INPUT_SLOW struct input_point *input_new_point(struct input_thread *thread, const struct input_frame *frame,
                                                      uint64_t trms, uint64_t rms)
{
    uint64_t routine = input_identity(frame);
    uint32_t *place, number;
    struct input_row *row;

    input_describe_frame(thread, frame);
    if (thread->n_points >= INPUT_EXACT_POINTS) {
        input_flag(INPUT_ROUNDED);
        trms = input_rounded(trms);
        rms = input_rounded(rms);
    }
    if (!input_has_space(thread))
        return 0;
    place = input_key(thread, routine, trms, rms);
    if (*place)
        return &input.rows[*place - 1].point;
    number = input_new_row(thread->slot);
    if (!number)
        return 0;
    row = &input.rows[number - 1];
    row->point.routine = routine;
    row->point.trms = trms;
    row->point.rms = rms;
    input_finish_row(row, INPUT_ROW_POINT);
    *place = number;
    thread->n_keys++;
    thread->n_points++;
    return &row->point;
}

static inline struct input_point *input_point_of(struct input_thread *thread, const struct input_frame *frame,
                                                 uint64_t trms, uint64_t rms)
{
    uint32_t *place = input_key(thread, input_identity(frame), trms, rms);

    return *place ? &input.rows[*place - 1].point : input_new_point(thread, frame, trms, rms);
}

/* Whether the routine is among its next callers; recursion through more others than these is not seen. */
static inline int input_is_inner(const struct input_thread *thread, const struct input_frame *frame)
{
    uint64_t routine = frame->routine;
    uint32_t back;

    if (INPUT_LIKELY(thread->depth > 4))
        return (frame[-1].routine == routine) | (frame[-2].routine == routine) | (frame[-3].routine == routine) |
               (frame[-4].routine == routine);
    for (back = 1; back < thread->depth; back++)
        if (frame[-(int)back].routine == routine)
            return 1;
    return 0;
}

static inline void input_add_activation(struct input_thread *thread, const struct input_frame *frame, uint64_t blocks,
                                        uint64_t ticks, int is_unfinished)
{
    int64_t both = frame->rms + frame->beyond;
    uint64_t rms = frame->rms > 0 ? frame->rms : 0, trms = both > 0 ? both : 0;
    struct input_point *point = input_point_of(thread, frame, trms, rms);

    if (INPUT_UNLIKELY(!point)) {
        if (input.header)
            __atomic_fetch_add(&input.header->rows_lost, 1, __ATOMIC_RELAXED);
        return;
    }
    point->calls++;
    point->trms_sum += trms;
    point->rms_sum += rms;
    point->induced_sum += frame->induced;
    point->external_sum += frame->external;
    point->blocks_sum += blocks;
    point->self_blocks += blocks - frame->called_blocks;
    if (blocks > point->blocks_max)
        point->blocks_max = blocks;
    point->ticks_sum += ticks;
    point->self_ticks += ticks > frame->called_ticks ? ticks - frame->called_ticks : 0;
    if (ticks > point->ticks_max)
        point->ticks_max = ticks;
    point->unfinished += is_unfinished;
    if (input_is_inner(thread, frame)) {
        point->inner_blocks += blocks;
        point->inner_ticks += ticks;
    }
}

/* ---- calls and returns ---- */

/*
 * The context of the top frame, from its caller's. A routine that is called again within its own context is in that
 * context, so recursion does not make ever new ones. Hidden frames are not in it.
 */
static INPUT_SLOW void input_enter_context(struct input_thread *thread)
{
    struct input_frame *frames = thread->frames, *top = &frames[thread->depth];
    uint32_t at;

    top->outer = thread->depth - 1;
    top->context = frames[top->outer].context;
    if (top->is_hidden)
        return;
    for (at = top->outer; at; at = frames[at].outer)
        if (!frames[at].is_hidden && frames[at].routine == top->routine) {
            top->context = frames[at].context;
            top->outer = frames[at].outer;
            return;
        }
    top->context = (top->context ^ top->routine) * 0x9e3779b97f4a7c15ull;
    top->context = (top->context ^ top->context >> 29) * 0xbf58476d1ce4e5b9ull | 1;
}

static inline void input_push(struct input_thread *thread, uint64_t routine, uint64_t stack, int is_hidden)
{
    struct input_frame *frame;

    if (INPUT_UNLIKELY(thread->depth + 1 >= INPUT_MAX_DEPTH)) {
        thread->skipped++;
        input_flag(INPUT_TOO_DEEP);
        return;
    }
    if (INPUT_UNLIKELY(thread->clock >= INPUT_CLOCK_END))
        input_put_clock_back(thread);
    frame = &thread->frames[++thread->depth];
    frame->routine = routine;
    frame->started = thread->top_started = ++thread->clock;
    frame->stack = stack;
    frame->rms = frame->beyond = frame->induced = frame->external = 0;
    frame->blocks = INPUT_BLOCKS_OF(thread);
    frame->called_blocks = frame->called_ticks = 0;
    frame->is_hidden = thread->is_hidden = is_hidden;
    if (INPUT_UNLIKELY(input.has_contexts))
        input_enter_context(thread);
    frame->ticks = INPUT_TICKS();
}

static inline void input_pop(struct input_thread *thread, int is_unfinished)
{
    struct input_frame *frame = &thread->frames[thread->depth], *caller = frame - 1;
    uint64_t blocks = INPUT_BLOCKS_OF(thread) - frame->blocks, ticks = INPUT_TICKS() - frame->ticks;

    if (!frame->is_hidden)
        input_add_activation(thread, frame, blocks, ticks, is_unfinished);
    caller->rms += frame->rms;
    caller->beyond += frame->beyond;
    caller->induced += frame->induced;
    caller->external += frame->external;
    caller->called_blocks += frame->is_hidden ? frame->called_blocks : blocks;
    caller->called_ticks += frame->is_hidden ? frame->called_ticks : ticks;
    thread->depth--;
    thread->top_started = caller->started;
    thread->is_hidden = caller->is_hidden;
}

static inline int input_is_same_stack(uint64_t one, uint64_t other)
{
    return one - other + INPUT_OTHER_STACK < 2 * INPUT_OTHER_STACK;
}

/* Frames whose stack lies below `stack` are gone, however they were left: by longjmp, exceptions, tail calls. */
static inline void input_unwind(struct input_thread *thread, uint64_t stack)
{
    while (thread->depth && thread->frames[thread->depth].stack < stack &&
           input_is_same_stack(thread->frames[thread->depth].stack, stack))
        input_pop(thread, 0);
}

/* ---- threads ---- */

static void input_start_slot(struct input_thread *thread)
{
    thread->depth = thread->skipped = thread->is_hidden = thread->is_busy = 0;
    if (thread->clock >= INPUT_CLOCK_END) {
        thread->frames[0].started = UINT32_MAX; /* all that was accessed was before */
        input_put_clock_back(thread);
    }
    thread->born = thread->top_started = ++thread->clock;
    thread->frames[0] = (struct input_frame){.started = thread->clock, .stack = UINT64_MAX / 2};
    thread->is_shown = 0;
    input_take_block(thread);
    thread->first_block = thread->stamp_block;
    if (thread->totals)
        thread->totals->threads++;
}

static struct input_totals *input_new_totals(struct input_thread *thread)
{
    static struct input_totals nowhere;
    uint32_t number = input_new_row(thread->slot);

    if (!number)
        return &nowhere;
    input_finish_row(&input.rows[number - 1], INPUT_ROW_THREAD);
    return &input.rows[number - 1].totals;
}

/* A slot for a thread that begins: one that a thread left, or a new one. Null: no more, or no memory. */
static INPUT_SLOW struct input_thread *input_take_slot(void)
{
    struct input_thread *thread = 0;
    uint32_t at;

    INPUT_LOCK();
    for (at = 0; at < input.n_slots && !thread; at++)
        if (!input.slots[at]->is_used)
            thread = input.slots[at];
    if (!thread && input.n_slots < INPUT_MAX_SLOTS && (thread = INPUT_MAP(sizeof *thread))) {
        if (input_more_keys(thread)) {
            thread->slot = input.n_slots;
            input.slots[input.n_slots] = thread;
            __atomic_store_n(&input.n_slots, input.n_slots + 1, __ATOMIC_RELEASE);
        } else {
            thread = 0;
        }
    }
    if (thread)
        thread->is_used = 1;
    INPUT_UNLOCK();
    if (!thread) {
        input_flag(INPUT_OUT_OF_MEMORY);
        return 0;
    }
    if (!thread->totals)
        thread->totals = input_new_totals(thread);
    input_start_slot(thread);
    return thread;
}

/* The thread ends, or its process: what is pending has had its input. */
static void input_leave_slot(struct input_thread *thread, int is_unfinished)
{
    while (thread->depth)
        input_pop(thread, is_unfinished);
    __atomic_store_n(&thread->is_used, 0, __ATOMIC_RELEASE);
}

/* In a forked child, which has a file of its own: nothing of what the parent wrote is there. `survivor` may be null. */
static void input_after_fork(struct input_thread *survivor)
{
    uint32_t at, key;

    for (at = 0; at < input.n_slots; at++) {
        struct input_thread *thread = input.slots[at];

        for (key = 0; key < thread->room_keys; key++)
            thread->keys[key] = 0;
        thread->n_keys = thread->n_points = 0;
        thread->totals = 0;
        if (thread != survivor)
            thread->is_used = 0;
    }
    if (survivor) {
        survivor->totals = input_new_totals(survivor);
        survivor->totals->threads = 1;
    }
}

/* The shadow and the header, of a file that is mapped already. */
static int input_begin(void *file, uint32_t back_end, uint32_t pid, uint64_t ticks_per_second, int has_contexts)
{
    struct input_header *header = file;

    if (!input.stamps)
        input.stamps = INPUT_MAP(INPUT_REGIONS * sizeof *input.stamps);
    if (!input.owners)
        input.owners = INPUT_MAP(INPUT_BLOCKS * sizeof *input.owners);
    if (!input.stamps || !input.owners)
        return 0;
    header->version = INPUT_VERSION;
    header->back_end = back_end;
    header->pid = pid;
    header->cell_bytes = 1 << INPUT_CELL_SHIFT;
    header->all_read_bytes = header->all_sent_bytes = INPUT_UNKNOWN;
    header->ticks_per_second = ticks_per_second;
    input.rows = (struct input_row *)((char *)file + INPUT_HEADER_BYTES);
    input.ready = 0;
    input.has_contexts = has_contexts;
    header->flags = has_contexts ? INPUT_CONTEXTS : 0;
    input_copy(header->magic, INPUT_MAGIC, sizeof header->magic);
    __atomic_store_n(&input.header, header, __ATOMIC_RELEASE);
    return 1;
}

#endif
