/* Runs a trace of calls, returns, reads and writes through instrument/input_algorithm.h, for test_input_algorithm.py. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int grow(void)
{
    return 1;
}

static void *map(size_t bytes)
{
    void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? 0 : memory;
}

#define INPUT_BLOCK_SHIFT 1 /* so few that threads need new ones, and that clocks are put back */
#define INPUT_CLOCK_END 170
#define INPUT_ADDRESS_BITS 30
#define INPUT_MAP(bytes) map(bytes)
#define INPUT_DROP(memory, bytes) memset(memory, 0, bytes)
#define INPUT_UNMAP(memory, bytes) munmap(memory, bytes)
#define INPUT_TICKS() 0
#define INPUT_GROW(bytes) grow()
#define INPUT_DESCRIBE(thread, routine) input_routine_row(thread, routine, "/a/program", routine, 0)
#define INPUT_LOCK() ((void)0)
#define INPUT_UNLOCK() ((void)0)
#include "input_algorithm.h"

enum { ENTER, LEAVE, READ, WRITE, KERNEL_WRITE, EXIT, FORGET, THREADS = 8, CELLS = 1 << 12 };

struct event {
    uint32_t kind, thread;
    uint64_t what; /* a routine, or a cell */
};

static struct input_thread *threads[THREADS];
static void *file;

static void begin(void)
{
    if (!file) {
        file = calloc(1, INPUT_HEADER_BYTES + (uint64_t)INPUT_MAX_ROWS * INPUT_ROW_BYTES);
        input_begin(file, INPUT_TSAN, 1, 1, 0);
    }
}

/* Every thread ends and every cell is as if never touched. */
static void forget(void)
{
    uint32_t at;

    for (at = 0; at < THREADS; at++)
        if (threads[at]) {
            input_leave_slot(threads[at], 1);
            threads[at] = 0;
        }
    input_forget(0, CELLS << INPUT_CELL_SHIFT);
    memset(input.rows, 0, input.header->rows * sizeof *input.rows);
    input.header->rows = input.header->flags = 0;
    input_after_fork(0);
}

void run(const struct event *events, uint64_t n)
{
    begin();
    forget();
    for (; n--; events++) {
        struct input_thread *thread = threads[events->thread];

        if (!thread)
            thread = threads[events->thread] = input_take_slot();
        switch (events->kind) {
        case ENTER:
            thread->blocks += 3;
            input_push(thread, events->what, 1000000 - 16 * thread->depth, 0);
            break;
        case LEAVE:
            thread->blocks += 2;
            if (thread->depth)
                input_pop(thread, 0);
            break;
        case READ:
            thread->blocks++;
            input_read(thread, events->what << INPUT_CELL_SHIFT, 8);
            break;
        case WRITE:
            input_write(thread, events->what << INPUT_CELL_SHIFT, 8);
            break;
        case KERNEL_WRITE:
            input_kernel_write(events->what << INPUT_CELL_SHIFT, 8);
            break;
        case FORGET:
            input_forget(events->what << INPUT_CELL_SHIFT, 8);
            break;
        case EXIT:
            input_leave_slot(thread, 0);
            threads[events->thread] = 0;
        }
    }
    for (n = 0; n < THREADS; n++)
        if (threads[n]) {
            input_leave_slot(threads[n], 1);
            threads[n] = 0;
        }
}

/* Moves `n` cells. */
void move(uint64_t from, uint64_t to, uint64_t n)
{
    input_move(from << INPUT_CELL_SHIFT, to << INPUT_CELL_SHIFT, n << INPUT_CELL_SHIFT);
}

const void *rows(uint64_t *n)
{
    *n = input.header->rows;
    return input.rows;
}
