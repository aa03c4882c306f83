/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gcc and clang put calls of into programs with -fsanitize=thread: the begin and the end of each function, each
 * access to memory, atomics; and each basic block, with -fsanitize-coverage=trace-pc. A part of input_tsan.c.
 */

/* Each module calls it, gcc's programs before libc has its environment: `start` is the constructor's alone. */
HOOK void __tsan_init(void) {}

HOOK void __tsan_func_entry(void *caller)
{
    struct input_thread *thread = this_thread();
    uint64_t stack = (uint64_t)__builtin_frame_address(0);
    uint32_t depth;

    if (INPUT_UNLIKELY(!thread))
        return;
    if (INPUT_UNLIKELY(thread->is_busy)) {
        thread->skipped++;
        return;
    }
    thread->is_busy = 1;
    input_unwind(thread, stack + 1); /* a frame at the very same address was left without its exit */
    depth = thread->depth;
    input_push(thread, (uint64_t)__builtin_return_address(0), stack, 0);
    if (INPUT_LIKELY(thread->depth != depth))
        thread->frames[thread->depth].back = (uint64_t)caller;
    thread->is_busy = 0;
}

/*
 * A function that returns nothing may end with a jump to the exit's hook (gcc's -O2), which then has that function's
 * return address and stands where the function began, above its frame. The call has returned to an address of its own
 * in all other cases. What lies below was left by longjmp or an exception.
 */
static inline void leave_function(struct input_thread *thread, uint64_t stack, uint64_t back)
{
    int is_left = 0;

    while (thread->depth && thread->frames[thread->depth].stack < stack &&
           input_is_same_stack(thread->frames[thread->depth].stack, stack)) {
        is_left = thread->frames[thread->depth].back == back;
        input_pop(thread, 0);
    }
    if (thread->depth && !is_left)
        input_pop(thread, 0);
}

HOOK void __tsan_func_exit(void)
{
    struct input_thread *thread = mine;
    uint64_t stack = (uint64_t)__builtin_frame_address(0);

    if (INPUT_UNLIKELY(!thread))
        return;
    if (INPUT_UNLIKELY(thread->is_busy || (thread->skipped && thread->depth + 1 >= INPUT_MAX_DEPTH))) {
        thread->skipped -= thread->skipped > 0;
        return;
    }
    thread->is_busy = 1;
    leave_function(thread, stack, (uint64_t)__builtin_return_address(0));
    thread->is_busy = 0;
}

static inline void on_read(const volatile void *address, uint64_t bytes)
{
    struct input_thread *thread = this_thread();

    if (INPUT_LIKELY(thread != 0))
        input_read(thread, (uint64_t)address, bytes);
}

static inline void on_write(volatile void *address, uint64_t bytes)
{
    struct input_thread *thread = this_thread();

    if (INPUT_LIKELY(thread != 0))
        input_write(thread, (uint64_t)address, bytes);
}

/* The first access of a thread, and those of threads that have no slot. */
static INPUT_SLOW void first_access(void *address, int is_write)
{
    struct input_thread *thread = new_thread();

    if (thread && is_write)
        input_write_cell(thread, (uint64_t)address >> INPUT_CELL_SHIFT);
    else if (thread)
        input_read_cell(thread, (uint64_t)address >> INPUT_CELL_SHIFT);
}

/* Aligned accesses of up to eight bytes are in one cell. */
#define ACCESSES_IN_A_CELL(bytes)                                                 \
    HOOK void __tsan_read##bytes(void *address)                                   \
    {                                                                             \
        if (INPUT_LIKELY(mine != 0))                                              \
            input_read_cell(mine, (uint64_t)address >> INPUT_CELL_SHIFT);         \
        else                                                                      \
            first_access(address, 0);                                             \
    }                                                                             \
    HOOK void __tsan_write##bytes(void *address)                                  \
    {                                                                             \
        if (INPUT_LIKELY(mine != 0))                                              \
            input_write_cell(mine, (uint64_t)address >> INPUT_CELL_SHIFT);        \
        else                                                                      \
            first_access(address, 1);                                             \
    }
/* Of sixteen bytes, with vectors: aligned to eight of them are in two cells, also where the compiler does not know. */
#define ACCESSES_IN_A_PAIR(infix)                                                    \
    HOOK void __tsan_##infix##read16(void *address)                                  \
    {                                                                                \
        if (INPUT_LIKELY(mine != 0 && !((uint64_t)address & 7)))                      \
            input_read_pair(mine, (uint64_t)address >> INPUT_CELL_SHIFT);            \
        else                                                                         \
            on_read(address, 16);                                                    \
    }                                                                                \
    HOOK void __tsan_##infix##write16(void *address)                                 \
    {                                                                                \
        if (INPUT_LIKELY(mine != 0 && !((uint64_t)address & 7)))                      \
            input_write_pair(mine, (uint64_t)address >> INPUT_CELL_SHIFT);           \
        else                                                                         \
            on_write(address, 16);                                                   \
    }
#define ACCESSES(infix, bytes)                                                                   \
    HOOK void __tsan_##infix##read##bytes(void *address) { on_read(address, bytes); }            \
    HOOK void __tsan_##infix##write##bytes(void *address) { on_write(address, bytes); }
#define COMPOUND(infix, bytes)                           \
    HOOK void __tsan_##infix##read_write##bytes(void *address) \
    {                                                    \
        on_read(address, bytes);                         \
        on_write(address, bytes);                        \
    }
#define ALL_SIZES(one, infix) one(infix, 1) one(infix, 2) one(infix, 4) one(infix, 8) one(infix, 16)

ACCESSES_IN_A_CELL(1)
ACCESSES_IN_A_CELL(2)
ACCESSES_IN_A_CELL(4)
ACCESSES_IN_A_CELL(8)
ACCESSES_IN_A_PAIR()
ACCESSES_IN_A_PAIR(unaligned_)
ACCESSES(unaligned_, 1)
ACCESSES(unaligned_, 2)
ACCESSES(unaligned_, 4)
ACCESSES(unaligned_, 8)
ALL_SIZES(ACCESSES, volatile_)
ALL_SIZES(ACCESSES, unaligned_volatile_)
ALL_SIZES(COMPOUND, )
ALL_SIZES(COMPOUND, unaligned_)

HOOK void __tsan_read_range(void *address, unsigned long bytes) { on_read(address, bytes); }
HOOK void __tsan_write_range(void *address, unsigned long bytes) { on_write(address, bytes); }
HOOK void __tsan_vptr_read(void **address) { on_read(address, 8); }
HOOK void __tsan_vptr_update(void **address, void *value)
{
    (void)value;
    on_write(address, 8);
}
HOOK void __tsan_ignore_thread_begin(void) {}
HOOK void __tsan_ignore_thread_end(void) {}
HOOK void __tsan_acquire(void *address) { (void)address; }
HOOK void __tsan_release(void *address) { (void)address; }

/* Atomics: the stamp before the store, or a reader could miss it; all of them in the strongest order. */
#define LOAD(at) __atomic_load_n(at, __ATOMIC_SEQ_CST)
#define STORE(at, value) __atomic_store_n(at, value, __ATOMIC_SEQ_CST)
#define LOAD_128(at) __sync_val_compare_and_swap((unsigned __int128 *)(at), 0, 0)
#define STORE_128(at, value)                                                           \
    do                                                                                 \
        old = LOAD_128(at);                                                            \
    while (!__sync_bool_compare_and_swap(at, old, value))

#define ATOMIC(type, bits, load, store)                                                                           \
    HOOK type __tsan_atomic##bits##_load(const volatile type *at, int order)                                      \
    {                                                                                                             \
        (void)order;                                                                                              \
        on_read(at, bits / 8);                                                                                    \
        return load(at);                                                                                          \
    }                                                                                                             \
    HOOK void __tsan_atomic##bits##_store(volatile type *at, type value, int order)                               \
    {                                                                                                             \
        type old = 0;                                                                                             \
        (void)order, (void)old;                                                                                   \
        on_write(at, bits / 8);                                                                                   \
        store(at, value);                                                                                         \
    }                                                                                                             \
    CHANGE(type, bits, exchange, value)                                                                           \
    CHANGE(type, bits, fetch_add, old + value)                                                                    \
    CHANGE(type, bits, fetch_sub, old - value)                                                                    \
    CHANGE(type, bits, fetch_and, old &value)                                                                     \
    CHANGE(type, bits, fetch_or, old | value)                                                                     \
    CHANGE(type, bits, fetch_xor, old ^ value)                                                                    \
    CHANGE(type, bits, fetch_nand, ~(old & value))                                                                \
    HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile type *at, type *expected, type value, int a,  \
                                                           int b)                                                 \
    {                                                                                                             \
        type wanted = *expected, old;                                                                             \
        (void)a, (void)b;                                                                                         \
        on_read(at, bits / 8);                                                                                    \
        on_write(at, bits / 8);                                                                                   \
        old = __sync_val_compare_and_swap(at, wanted, value);                                                     \
        if (old != wanted)                                                                                        \
            *expected = old;                                                                                      \
        return old == wanted;                                                                                     \
    }                                                                                                             \
    HOOK int __tsan_atomic##bits##_compare_exchange_weak(volatile type *at, type *expected, type value, int a,    \
                                                         int b)                                                   \
    {                                                                                                             \
        return __tsan_atomic##bits##_compare_exchange_strong(at, expected, value, a, b);                          \
    }                                                                                                             \
    HOOK type __tsan_atomic##bits##_compare_exchange_val(volatile type *at, type expected, type value, int a,     \
                                                         int b)                                                   \
    {                                                                                                             \
        __tsan_atomic##bits##_compare_exchange_strong(at, &expected, value, a, b);                                \
        return expected;                                                                                          \
    }
#define CHANGE(type, bits, name, result)                                             \
    HOOK type __tsan_atomic##bits##_##name(volatile type *at, type value, int order) \
    {                                                                                \
        type old;                                                                    \
        (void)order;                                                                 \
        on_read(at, bits / 8);                                                       \
        on_write(at, bits / 8);                                                      \
        do                                                                           \
            old = *at;                                                               \
        while (!__sync_bool_compare_and_swap(at, old, (type)(result)));              \
        return old;                                                                  \
    }

ATOMIC(uint8_t, 8, LOAD, STORE)
ATOMIC(uint16_t, 16, LOAD, STORE)
ATOMIC(uint32_t, 32, LOAD, STORE)
ATOMIC(uint64_t, 64, LOAD, STORE)
ATOMIC(unsigned __int128, 128, LOAD_128, STORE_128)

HOOK void __tsan_atomic_thread_fence(int order)
{
    (void)order;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
HOOK void __tsan_atomic_signal_fence(int order)
{
    (void)order;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* -fsanitize-coverage=trace-pc: at each basic block. */
HOOK void __sanitizer_cov_trace_pc(void)
{
    executed_blocks++;
}
