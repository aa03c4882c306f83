/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * What is kept of each cell: who wrote it last (a stamp, for all threads), and of each thread when it last accessed
 * the cell and which stamp it saw there. Four bytes each; part of input_algorithm.h.
 *
 * A stamp is a writer and the number of a stretch of its writes. Nobody can tell two writes apart between which nobody
 * else looked, so a writer begins a new stretch only where another thread has read a stamp of the one under way
 * (`is_shown`). So two equal stamps mean that nobody wrote between, as if each write had a number of its own, and 32
 * bits hold 2 G stretches instead of so many writes. Writers get their numbers in blocks; `owners` says whose a block
 * is. After 131,071 blocks they come again, without those in use.
 *
 * What a thread saw is only written where the stamp is another's: a program with one thread never touches that half.
 * Memory is taken by the page where it is touched, and given back where the program gives its own back.
 */
#ifndef PARPROF_INPUT_SHADOW_H
#define PARPROF_INPUT_SHADOW_H

#ifndef INPUT_ADDRESS_BITS
#define INPUT_ADDRESS_BITS 47
#endif

enum {
    INPUT_CELL_SHIFT = 3,
    INPUT_REGION_SHIFT = 24,
    INPUT_REGION_CELLS = 1 << (INPUT_REGION_SHIFT - INPUT_CELL_SHIFT),
    INPUT_REGIONS = 1 << (INPUT_ADDRESS_BITS - INPUT_REGION_SHIFT),
    INPUT_PAGE_BYTES = 4096,
    INPUT_BLOCKS = 1 << 17,
    INPUT_MAX_SLOTS = 1 << 12,
    INPUT_MAX_DEPTH = 1 << 20,
};

#ifndef INPUT_BLOCK_SHIFT
#define INPUT_BLOCK_SHIFT 14 /* stamps in a block; tests have fewer */
#endif
#ifndef INPUT_CLOCK_END
#define INPUT_CLOCK_END 0xfffffff0u /* where a thread's clock is put back; tests do it sooner */
#endif

#define INPUT_MOST_CLEARED (64ull << 20) /* bytes that calloc gives at once, and whose cells are told */
#define INPUT_KERNEL 0x80000000u /* stamps from here on: what system calls brought, each with a number of its own */

#define INPUT_LIKELY(x) __builtin_expect(!!(x), 1)
#define INPUT_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define INPUT_SLOW __attribute__((noinline, cold))
#define INPUT_APART __attribute__((noinline)) /* not in the code of what is called for each access, but often enough */

/* What a thread remembers of the cells of a region. */
struct input_last {
    uint32_t when[INPUT_REGION_CELLS]; /* the thread's clock at its last access; 0: none */
    uint32_t seen[INPUT_REGION_CELLS]; /* the stamp that it last read there, if it was another's */
};

/* A region as a thread comes by it. */
struct input_here {
    uint32_t *stamps;        /* there where `last` is */
    struct input_last *last; /* null: the thread has not touched it */
};

struct input_frame {
    uint64_t routine;
    uint64_t stack; /* address on the stack: lower ones are calls from here */
    uint64_t back;  /* where its return leads to; 0 if the back end has no need of it */
    int64_t rms, beyond, induced, external; /* partial; beyond: trms - rms, so that most first reads change one sum */
    uint64_t blocks, ticks;               /* at its start */
    uint64_t called_blocks, called_ticks; /* of what it called */
    uint32_t started;                     /* the thread's clock */
    uint32_t is_hidden;                   /* not a routine of the program's: no point, no accesses */
    uint64_t context;                     /* of which calls led here; 0 where that is not asked for */
    uint32_t outer;                       /* the frame whose context this one's continues */
};

struct input_thread {
    uint32_t top_started; /* of the top frame */
    uint32_t clock;       /* counts the thread's activations */
    uint32_t born;        /* the clock when this thread took the slot */
    uint32_t depth; /* frames[depth] is the top one; frames[0] stands for all that no known routine calls */
    uint32_t stamp_block; /* of the stamps of its writes */
    uint64_t blocks;
    uint32_t skipped; /* calls that have no frame */
    uint32_t is_hidden;
    uint32_t is_busy; /* in one of our own slow functions: a signal handler must not come in too */
    uint32_t slot;
    uint32_t is_used;
    uint32_t first_block; /* of this thread's stamps; others of its slot are of threads that ended */
    uint32_t *keys; /* numbers of rows + 1, by hash */
    uint32_t n_keys, room_keys, n_points;
    struct input_totals *totals;
    /* what other threads look at lies apart from what changes all the time */
    uint32_t stamp __attribute__((aligned(64))); /* of its writes */
    uint32_t is_shown; /* others have read the stamp */
    /* within it, so that no access has to look where they are */
    struct input_frame frames[INPUT_MAX_DEPTH] __attribute__((aligned(64)));
    struct input_here here[INPUT_REGIONS]; /* by region */
} __attribute__((aligned(64)));

static struct {
    struct input_header *header;
    struct input_row *rows;
    uint64_t ready; /* rows that the file has room for */
    uint32_t kernel_writes;
    uint32_t blocks_taken;
    uint16_t *owners;  /* slot + 1, by block of stamps */
    uint32_t **stamps; /* by region */
    struct input_thread *slots[INPUT_MAX_SLOTS];
    uint32_t n_slots;
    int has_contexts; /* activations are told apart by who called them */
} input;

static void input_flag(uint32_t flag)
{
    if (input.header)
        __atomic_fetch_or(&input.header->flags, flag, __ATOMIC_RELAXED);
}

/* ---- two-level tables, a leaf for each 16 MB that were touched ---- */

static INPUT_SLOW void *input_leaf(void **place, uint64_t bytes)
{
    void *none = 0, *leaf = INPUT_MAP(bytes);

    if (!leaf) {
        input_flag(INPUT_OUT_OF_MEMORY);
        return 0;
    }
    if (__atomic_compare_exchange_n(place, &none, leaf, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return leaf;
    INPUT_UNMAP(leaf, bytes);
    return none;
}

static inline uint64_t input_region(uint64_t cell)
{
    return cell >> (INPUT_REGION_SHIFT - INPUT_CELL_SHIFT);
}

static inline uint64_t input_in_region(uint64_t cell)
{
    return cell & (INPUT_REGION_CELLS - 1);
}

static inline uint32_t *input_stamp_of(uint64_t cell)
{
    uint64_t region = input_region(cell);
    uint32_t **place, *leaf;

    if (INPUT_UNLIKELY(region >= INPUT_REGIONS))
        return 0;
    place = &input.stamps[region];
    leaf = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (INPUT_UNLIKELY(!leaf)) {
        leaf = input_leaf((void **)place, INPUT_REGION_CELLS * sizeof *leaf);
        if (!leaf)
            return 0;
    }
    return leaf + input_in_region(cell);
}

/* The region's. Only for cells whose `input_stamp_of` is there. */
static inline struct input_last *input_last_of(struct input_thread *thread, uint64_t cell)
{
    struct input_here *here = &thread->here[input_region(cell)];

    if (INPUT_LIKELY(here->last != 0))
        return here->last;
    here->stamps = input.stamps[input_region(cell)];
    return input_leaf((void **)&here->last, sizeof *here->last);
}

/* ---- stamps ---- */

static int input_is_in_use(uint32_t block)
{
    uint32_t at, n = __atomic_load_n(&input.n_slots, __ATOMIC_ACQUIRE);

    for (at = 0; at < n; at++)
        if (input.slots[at]->is_used && input.slots[at]->stamp_block == block)
            return 1;
    return 0;
}

/* Block 0 is nobody's: stamp 0 is that of cells that were never written. */
static void input_take_block(struct input_thread *thread)
{
    uint32_t number, block;

    do {
        number = __atomic_fetch_add(&input.blocks_taken, 1, __ATOMIC_RELAXED);
        block = 1 + number % (INPUT_BLOCKS - 1);
    } while (number >= INPUT_BLOCKS - 1 && input_is_in_use(block));
    __atomic_store_n(&input.owners[block], (uint16_t)(thread->slot + 1), __ATOMIC_RELEASE);
    __atomic_store_n(&thread->stamp, block << INPUT_BLOCK_SHIFT, __ATOMIC_RELEASE);
    thread->stamp_block = block;
}

/* Another thread has read the stamp: further writes get another. */
static INPUT_SLOW void input_next_stamp(struct input_thread *thread)
{
    __atomic_store_n(&thread->is_shown, 0, __ATOMIC_SEQ_CST); /* first: whoever sees the new stamp sets it again */
    if ((thread->stamp + 1) >> INPUT_BLOCK_SHIFT == thread->stamp_block)
        __atomic_store_n(&thread->stamp, thread->stamp + 1, __ATOMIC_RELEASE);
    else
        input_take_block(thread);
}

static inline uint32_t input_blocks_between(uint32_t first, uint32_t last)
{
    return last >= first ? last - first : last + (INPUT_BLOCKS - 1) - first;
}

/* Whether the thread itself wrote it, in this block of stamps or in an earlier one. */
static inline int input_is_own(const struct input_thread *thread, uint32_t stamp)
{
    uint32_t block = stamp >> INPUT_BLOCK_SHIFT;

    if (block == thread->stamp_block)
        return 1;
    if (stamp >= INPUT_KERNEL || input.owners[block] != thread->slot + 1)
        return 0;
    return input_blocks_between(thread->first_block, block) <=
           input_blocks_between(thread->first_block, thread->stamp_block);
}

/* A thread reads another's stamp: the writer is told. */
static inline void input_show(uint32_t stamp)
{
    uint32_t owner = stamp < INPUT_KERNEL ? input.owners[stamp >> INPUT_BLOCK_SHIFT] : 0;
    struct input_thread *writer = owner ? input.slots[owner - 1] : 0;

    if (writer && __atomic_load_n(&writer->stamp, __ATOMIC_ACQUIRE) == stamp &&
        !__atomic_load_n(&writer->is_shown, __ATOMIC_RELAXED))
        __atomic_store_n(&writer->is_shown, 1, __ATOMIC_RELEASE);
}

/* ---- the clock of a thread ---- */

/*
 * The latest pending activation below the top one that started no later than `when`, where frames[0] did. It is looked
 * for from the top in steps that double, and between the last two of them in halves: mostly it is one of the nearest.
 */
static inline struct input_frame *input_ancestor(struct input_thread *thread, uint32_t when)
{
    struct input_frame *frames = thread->frames;
    uint32_t high = thread->depth, low = high, step;

    for (step = 1; low; step *= 2) {
        low = step < high ? high - step : 0;
        if (frames[low].started <= when)
            break;
        high = low;
    }
    while (high > low + 1) {
        uint32_t middle = (low + high) / 2;

        if (frames[middle].started <= when)
            low = middle;
        else
            high = middle;
    }
    return &frames[low];
}

/*
 * The clock is put back. Times are only compared with the starts of pending activations, so each becomes that of the
 * latest one that it is not before: nothing that is counted changes.
 */
static INPUT_SLOW void input_put_clock_back(struct input_thread *thread)
{
    uint64_t region, at;
    uint32_t depth;

    for (region = 0; region < INPUT_REGIONS; region++) {
        struct input_last *leaf = thread->here[region].last;

        for (at = 0; leaf && at < INPUT_REGION_CELLS; at++)
            if (leaf->when[at] >= thread->top_started)
                leaf->when[at] = thread->depth + 1;
            else if (leaf->when[at] >= thread->frames[0].started)
                leaf->when[at] = (uint32_t)(input_ancestor(thread, leaf->when[at]) - thread->frames) + 1;
            else
                leaf->when[at] = 0;
    }
    for (depth = 0; depth <= thread->depth; depth++)
        thread->frames[depth].started = depth + 1;
    thread->born = 1;
    thread->top_started = thread->clock = thread->depth + 1;
}

/* ---- memory that the program gives back, or moves ---- */

static void input_zero(uint32_t *cells, uint64_t n)
{
    uint32_t *end = cells + n;
    uint64_t mask = INPUT_PAGE_BYTES - 1;
    uint32_t *first = (uint32_t *)(((uint64_t)cells + mask) & ~mask), *last = (uint32_t *)((uint64_t)end & ~mask);

    if (first < last)
        INPUT_DROP(first, (uint64_t)last - (uint64_t)first);
    else
        first = last = end;
    for (; cells < first; cells++)
        if (*cells)
            *cells = 0;
    for (cells = last; cells < end; cells++)
        if (*cells)
            *cells = 0;
}

/* The memory is gone: what will be there is new, and nobody has written or read it. */
static INPUT_SLOW void input_forget(uint64_t address, uint64_t bytes)
{
    uint64_t cell = (address + 7) >> INPUT_CELL_SHIFT, end = (address + bytes) >> INPUT_CELL_SHIFT, n;
    uint32_t at, n_slots = __atomic_load_n(&input.n_slots, __ATOMIC_ACQUIRE);

    for (; cell < end && input_region(cell) < INPUT_REGIONS; cell += n) {
        uint64_t region = input_region(cell), in_region = input_in_region(cell);
        uint32_t *stamps = __atomic_load_n(&input.stamps[region], __ATOMIC_ACQUIRE);

        n = INPUT_REGION_CELLS - in_region < end - cell ? INPUT_REGION_CELLS - in_region : end - cell;
        if (!stamps)
            continue;
        input_zero(stamps + in_region, n);
        for (at = 0; at < n_slots; at++) {
            struct input_last *leaf = input.slots[at]->here[region].last;

            if (leaf) {
                input_zero(leaf->when + in_region, n);
                input_zero(leaf->seen + in_region, n);
            }
        }
    }
}

static void input_move_cell(struct input_thread *thread, uint64_t from, uint64_t to)
{
    struct input_last *source = thread->here[input_region(from)].last, *target;
    uint64_t at = input_in_region(from), there = input_in_region(to);

    if (!source || !(source->when[at] | source->seen[at]) || !(target = input_last_of(thread, to)))
        return;
    target->when[there] = source->when[at];
    if (source->seen[at])
        target->seen[there] = source->seen[at];
}

/* The memory has another address from now on. */
static INPUT_SLOW void input_move(uint64_t from, uint64_t to, uint64_t bytes)
{
    uint64_t cell = from >> INPUT_CELL_SHIFT, end = (from + bytes) >> INPUT_CELL_SHIFT, there = to >> INPUT_CELL_SHIFT;
    uint32_t at, n_slots = __atomic_load_n(&input.n_slots, __ATOMIC_ACQUIRE);

    input_forget(to, bytes);
    for (; cell < end && input_region(cell) < INPUT_REGIONS; cell++, there++) {
        uint32_t *stamps = __atomic_load_n(&input.stamps[input_region(cell)], __ATOMIC_ACQUIRE), *place;

        if (!stamps) {
            uint64_t rest = INPUT_REGION_CELLS - 1 - input_in_region(cell);

            cell += rest;
            there += rest;
            continue;
        }
        if (!(place = input_stamp_of(there)))
            return;
        if (stamps[input_in_region(cell)])
            *place = stamps[input_in_region(cell)];
        for (at = 0; at < n_slots; at++)
            input_move_cell(input.slots[at], cell, there);
    }
    input_forget(from, bytes);
}

#endif
