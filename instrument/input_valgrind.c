/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * `parprof input` for unmodified programs: a Valgrind tool. It is a program of its own, built where it is first used,
 * against the headers and libraries of the valgrind package: Valgrind's interface to tools changes by version.
 *
 * What counts as input: reads by the program and its libraries, and what system calls take from memory and bring to
 * it. Left out are
 *   - loads that give the address of the next instruction: of return, of a call through a pointer, of the PLT;
 *   - loads by libc's code from its own variables: at constant addresses, or relative to the thread pointer; and by any
 *     code from the thread's control block (at the thread pointer or above: the canary of the stack protector);
 *   - reads by code of ld.so, libgomp and libomp, by the allocator, and by functions of libc that synchronise, start
 *     or end threads and programs, and by whatever of libc these call: they are hidden. Their writes count, so that
 *     what they prepare (a task's arguments) is not taken for something nobody wrote. All that calloc gives is written
 *     by it: some of it the kernel has cleared.
 * A routine begins where a call leads to, and ends when the stack is above its return address again.
 */
#include <stddef.h>
#include <stdint.h>

#include "pub_tool_basics.h"
#include "pub_tool_vki.h"
#include "pub_tool_xarray.h"
#include "pub_tool_aspacemgr.h"
#include "pub_tool_clientstate.h"
#include "pub_tool_debuginfo.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcfile.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_machine.h"
#include "pub_tool_options.h"
#include "pub_tool_threadstate.h"
#include "pub_tool_tooliface.h"
#include "libvex.h"
#include "libvex_guest_amd64.h"
#include "libvex_ir.h"

/* In libcoregrind, but in no header. */
extern SysRes VG_(am_mmap_anon_float_valgrind)(SizeT bytes);
extern SysRes VG_(am_shared_mmap_file_float_valgrind)(SizeT bytes, UInt protection, Int file, Off64T offset);
extern SysRes VG_(am_munmap_valgrind)(Addr start, SizeT bytes);

struct input_thread;
static void *map_memory(uint64_t bytes);
static void give_back(uint64_t memory, uint64_t bytes);
static int grow_file(uint64_t bytes);
static void describe(struct input_thread *thread, uint64_t routine);

#define INPUT_NO_STDINT
#define INPUT_MAP(bytes) map_memory(bytes)
#define INPUT_UNMAP(memory, bytes) (void)VG_(am_munmap_valgrind)((Addr)(memory), bytes)
#define INPUT_DROP(memory, bytes) give_back((uint64_t)(memory), bytes)
#define INPUT_TICKS() 0
#define INPUT_GROW(bytes) grow_file(bytes)
#define INPUT_DESCRIBE(thread, routine) describe(thread, routine)
#define INPUT_LOCK() ((void)0)
#define INPUT_UNLOCK() ((void)0)
#include "input_algorithm.h"
#include "input_valgrind_owners.h"

enum { PATH_BYTES = 512, THREADS = 1 << 14 };
enum { MAPPED_BYTES = INPUT_HEADER_BYTES + INPUT_MAX_ROWS * INPUT_ROW_BYTES };

static struct input_thread *by_tid[THREADS];
static struct input_thread *current; /* that of the thread that runs */
static ULong blocks;                 /* its count, while it runs */
static Bool has_signal[THREADS];     /* a handler is what it goes on with */
static UWord bytes_to_clear[THREADS]; /* that calloc was asked for */
static HChar file_path[PATH_BYTES];

static void *map_memory(uint64_t bytes)
{
    SysRes result = VG_(am_mmap_anon_float_valgrind)(bytes);

    return sr_isError(result) ? NULL : (void *)sr_Res(result);
}

static void give_back(uint64_t memory, uint64_t bytes)
{
    long result, advice = 4; /* madvise, MADV_DONTNEED: Valgrind has no name for it */

    __asm__ volatile("syscall" : "=a"(result) : "a"(28l), "D"(memory), "S"(bytes), "d"(advice) : "rcx", "r11", "memory");
}

static int grow_file(uint64_t bytes)
{
    static const HChar zeros[4096];
    Int file = VG_(fd_open)(file_path, VKI_O_WRONLY | VKI_O_APPEND, 0), done = 0;

    if (file < 0)
        return 0;
    for (; bytes && done >= 0; bytes -= done > 0 ? done : 0)
        done = VG_(write)(file, zeros, bytes < sizeof zeros ? bytes : sizeof zeros);
    VG_(close)(file);
    return !bytes;
}

static void describe(struct input_thread *thread, uint64_t routine)
{
    DebugInfo *file = VG_(find_DebugInfo)(VG_(current_DiEpoch)(), routine);

    if (file)
        input_routine_row(thread, routine, VG_(DebugInfo_get_filename)(file),
                          routine - VG_(DebugInfo_get_text_bias)(file), 0);
    else
        input_routine_row(thread, routine, NULL, routine, 0);
}

/* ---- what the code of programs calls ---- */

static VG_REGPARM(1) void on_load(Addr address)
{
    if (!current->is_hidden)
        input_read_cell(current, address >> INPUT_CELL_SHIFT);
}

static VG_REGPARM(2) void on_short_load(Addr address, UWord bytes)
{
    uint64_t cell = address >> INPUT_CELL_SHIFT;

    if (current->is_hidden)
        return;
    input_read_cell(current, cell);
    if (INPUT_UNLIKELY((address & 7) + bytes > 8))
        input_read_cell(current, cell + 1);
}

static VG_REGPARM(2) void on_wide_load(Addr address, UWord bytes)
{
    if (!current->is_hidden)
        input_read(current, address, bytes);
}

static VG_REGPARM(1) void on_store(Addr address)
{
    input_write_cell(current, address >> INPUT_CELL_SHIFT);
}

static VG_REGPARM(2) void on_short_store(Addr address, UWord bytes)
{
    uint64_t cell = address >> INPUT_CELL_SHIFT;

    input_write_cell(current, cell);
    if (INPUT_UNLIKELY((address & 7) + bytes > 8))
        input_write_cell(current, cell + 1);
}

static VG_REGPARM(2) void on_wide_store(Addr address, UWord bytes)
{
    input_write(current, address, bytes);
}

#define REGISTER(name) register_of(offsetof(VexGuestAMD64State, guest_##name))

static UWord register_of(PtrdiffT offset)
{
    UWord value;

    VG_(get_shadow_regs_area)(VG_(get_running_tid)(), (UChar *)&value, 0, offset, sizeof value);
    return value;
}

/* ANYBODY: it is not. What is called in order to clear memory clears it. */
static enum kind hidden_from(enum kind kind, const struct input_frame *caller)
{
    if (kind == ANYBODY || (kind == LIBC && !caller->is_hidden))
        return ANYBODY;
    if (kind == CLEARING && caller->is_hidden != CLEARING)
        bytes_to_clear[VG_(get_running_tid)()] = REGISTER(RDI) * REGISTER(RSI);
    return kind == LIBC || (kind == HIDDEN && caller->is_hidden) ? (enum kind)caller->is_hidden : kind;
}

static void enter(struct input_thread *thread, Addr routine, Addr stack)
{
    input_push(thread, routine, stack, hidden_from(known_kind(routine), &thread->frames[thread->depth]));
}

static VG_REGPARM(2) void on_call(Addr target, Addr stack)
{
    struct input_thread *thread = current;

    thread->blocks = blocks;
    input_unwind(thread, stack + 1);
    enter(thread, target, stack);
}

/* A routine ends with a jump to another, which then has its return address. What is hidden is so however it is reached:
 * operator delete leads to free() like that. */
static void hide_rest(struct input_thread *thread, Addr target)
{
    const struct input_frame *top = &thread->frames[thread->depth];
    enum kind hidden = top->is_hidden ? ANYBODY : hidden_from(known_kind(target), top);

    if (hidden) {
        thread->blocks = blocks;
        input_push(thread, target, top->stack, hidden);
    }
}

/* The PLT's jump: what was called is what it leads to. */
static VG_REGPARM(2) void on_jump_through(Addr stub, Addr target)
{
    struct input_thread *thread = current;
    struct input_frame *top = &thread->frames[thread->depth];

    if (!thread->depth)
        return;
    if (top->routine != stub) {
        hide_rest(thread, target);
        return;
    }
    top->routine = target;
    top->is_hidden = thread->is_hidden = hidden_from(known_kind(target), top - 1);
    if (input.has_contexts)
        input_enter_context(thread);
}

static VG_REGPARM(1) void on_return(Addr stack)
{
    struct input_thread *thread = current;
    UInt at = thread->depth;
    Bool was_clearing = thread->is_hidden == CLEARING;

    thread->blocks = blocks;
    /* frames of a stack that was left by longjmp lie above */
    while (at && !input_is_same_stack(thread->frames[at].stack, stack))
        at--;
    if (at && at < thread->depth && thread->frames[at].stack < stack)
        while (thread->depth > at)
            input_pop(thread, 0);
    input_unwind(thread, stack);
    if (INPUT_UNLIKELY(was_clearing && thread->is_hidden != CLEARING) && REGISTER(RAX))
        input_clear(thread, REGISTER(RAX), bytes_to_clear[VG_(get_running_tid)()]);
}

#include "input_valgrind_code.h"

/* ---- system calls ---- */

static struct input_thread *thread_of(ThreadId tid)
{
    return tid < THREADS ? by_tid[tid] : NULL;
}

static void on_kernel_read(CorePart part, ThreadId tid, const HChar *what, Addr address, SizeT bytes)
{
    struct input_thread *thread = thread_of(tid);

    (void)what;
    if (part == Vg_CoreSysCall && thread && !thread->is_hidden && bytes < 1ull << 32)
        input_read(thread, address, bytes);
}

static void on_kernel_write(CorePart part, ThreadId tid, Addr address, SizeT bytes)
{
    (void)tid;
    if (part == Vg_CoreSysCall && bytes < 1ull << 32)
        input_kernel_write(address, bytes);
}

static void on_unmap(Addr address, SizeT bytes)
{
    input_forget(address, bytes);
}

static void on_map(Addr address, SizeT bytes, Bool r, Bool w, Bool x, ULong handle)
{
    (void)r, (void)w, (void)x, (void)handle;
    input_forget(address, bytes);
}

static void on_move(Addr from, Addr to, SizeT bytes)
{
    input_move(from, to, bytes);
}

static void before_system_call(ThreadId tid, UInt number, UWord *arguments, UInt n)
{
    (void)tid, (void)number, (void)arguments, (void)n;
}

static void after_system_call(ThreadId tid, UInt number, UWord *arguments, UInt n, SysRes result)
{
    (void)tid, (void)n;
    if (sr_isError(result) || !input.header)
        return;
    switch (number) { /* by number: these are fixed for good on this architecture; bpf/bytes.bpf.c has the same */
    case 28: /* madvise: DONTNEED, REMOVE */
        if (arguments[2] == 4 || arguments[2] == 9)
            input_forget(arguments[0], arguments[1]);
        break;
    case 0: case 17: case 19: case 45: case 47: case 295: case 327: /* read, pread64, readv, recvfrom, recvmsg, preadv */
    case 70: case 217: case 318: /* msgrcv, getdents64, getrandom */
        input.header->seen_read_bytes += sr_Res(result);
        input.header->all_read_bytes = input.header->seen_read_bytes;
        break;
    case 1: case 18: case 20: case 44: case 46: case 296: case 328: /* those of the first line, outwards */
        input.header->seen_sent_bytes += sr_Res(result);
        input.header->all_sent_bytes = input.header->seen_sent_bytes;
        break;
    case 69: /* msgsnd */
        input.header->seen_sent_bytes += arguments[2];
        input.header->all_sent_bytes = input.header->seen_sent_bytes;
        break;
    default:
        break;
    }
}

/* ---- threads, signals, and the process's life ---- */

static void start_thread(ThreadId tid)
{
    struct input_thread *thread;

    if (tid >= THREADS)
        VG_(tool_panic)("more threads than parprof input can tell apart");
    thread = input_take_slot();
    if (!thread) {
        VG_(umsg)("parprof: no memory for what a thread reads: the program needs more than there is (`ulimit -v`)\n");
        VG_(exit)(1);
    }
    thread->frames[0].is_hidden = thread->is_hidden = HIDDEN; /* it begins in ld.so or libc */
    by_tid[tid] = thread;
}

static void on_switch(ThreadId tid, ULong done)
{
    (void)done;
    if (!by_tid[tid])
        start_thread(tid);
    current = by_tid[tid];
    blocks = current->blocks;
    if (INPUT_UNLIKELY(has_signal[tid])) {
        has_signal[tid] = False; /* the kernel has called its handler; no instruction of the program's did */
        enter(current, VG_(get_IP)(tid), VG_(get_SP)(tid));
    }
}

/* Its frame is made after this, so that it is entered where the thread goes on. */
static void before_signal(ThreadId tid, Int number, Bool is_on_other_stack)
{
    (void)number, (void)is_on_other_stack;
    if (tid < THREADS)
        has_signal[tid] = True;
}

static void on_stop(ThreadId tid, ULong done)
{
    (void)tid, (void)done;
    current->blocks = blocks;
}

static void on_thread_end(ThreadId tid)
{
    struct input_thread *thread = thread_of(tid);

    if (!thread)
        return;
    if (thread == current)
        thread->blocks = blocks;
    input_leave_slot(thread, 0);
    by_tid[tid] = NULL;
}

static void keep_command(HChar *to)
{
    UInt left = INPUT_COMMAND_BYTES - 1, at;
    const HChar *program = VG_(args_the_exename);

    for (; program && *program && left; left--)
        *to++ = *program++;
    for (at = 0; at < VG_(sizeXA)(VG_(args_for_client)); at++) {
        const HChar *word = *(HChar **)VG_(indexXA)(VG_(args_for_client), at);

        if (left) {
            *to++ = ' ';
            left--;
        }
        for (; *word && left; left--)
            *to++ = *word++;
    }
}

static Bool open_record(void)
{
    const HChar *directory = VG_(getenv)("PARPROF_INPUT_DIR");
    static const HChar zeros[INPUT_HEADER_BYTES];
    SysRes memory;
    Int turn, file = -1;

    if (!directory || VG_(strlen)(directory) > PATH_BYTES - 64)
        return False;
    for (turn = 0; turn < 1000 && file < 0; turn++) {
        VG_(sprintf)(file_path, "%s/%d.%d.input", directory, VG_(getpid)(), turn);
        file = VG_(fd_open)(file_path, VKI_O_RDWR | VKI_O_CREAT | VKI_O_EXCL, 0600);
    }
    if (file < 0)
        return False;
    if (VG_(write)(file, zeros, sizeof zeros) != sizeof zeros)
        return False;
    memory = VG_(am_shared_mmap_file_float_valgrind)(MAPPED_BYTES, VKI_PROT_READ | VKI_PROT_WRITE, file, 0);
    VG_(close)(file);
    if (sr_isError(memory))
        return False;
    keep_command(((struct input_header *)sr_Res(memory))->command);
    if (!input_begin((void *)sr_Res(memory), INPUT_VALGRIND, VG_(getpid)(), 0,
                     VG_(getenv)("PARPROF_INPUT_CONTEXTS") != NULL))
        return False;
    input_flag(INPUT_NO_TIME);
    input.header->all_read_bytes = input.header->all_sent_bytes = 0;
    return True;
}

static void in_forked_child(ThreadId tid)
{
    UInt at;

    (void)VG_(am_munmap_valgrind)((Addr)input.header, MAPPED_BYTES);
    input.header = NULL;
    for (at = 0; at < THREADS; at++)
        if (at != tid)
            by_tid[at] = NULL;
    if (!open_record())
        VG_(umsg)("parprof: no record of process %d\n", VG_(getpid)());
    input_after_fork(thread_of(tid));
}

static void start(void)
{
    VG_(clo_vex_control).guest_chase = False; /* a call must end its superblock */
    if (!open_record()) {
        if (file_path[0])
            VG_(umsg)("parprof: no memory or no space for the record %s (`ulimit -v`, a full disk)\n", file_path);
        else
            VG_(umsg)("parprof: PARPROF_INPUT_DIR names no directory to write to: start this by `parprof input`\n");
        VG_(exit)(1);
    }
}

static void finish(Int code)
{
    UInt at;

    (void)code;
    if (current)
        current->blocks = blocks;
    for (at = 0; at < THREADS; at++)
        if (by_tid[at])
            input_leave_slot(by_tid[at], 1);
    if (input.header)
        input.header->state = INPUT_CLOSED;
}

static void declare(void)
{
    VG_(details_name)("parprof");
    VG_(details_version)(NULL);
    VG_(details_description)("how each routine's cost grows with its input");
    VG_(details_copyright_author)("GNU GPL v2 or later.");
    VG_(details_bug_reports_to)("parprofd's authors");
    VG_(basic_tool_funcs)(start, instrument, finish);
    VG_(needs_syscall_wrapper)(before_system_call, after_system_call);
    VG_(track_start_client_code)(on_switch);
    VG_(track_stop_client_code)(on_stop);
    VG_(track_pre_thread_ll_exit)(on_thread_end);
    VG_(track_pre_deliver_signal)(before_signal);
    VG_(track_pre_mem_read)(on_kernel_read);
    VG_(track_post_mem_write)(on_kernel_write);
    VG_(track_new_mem_mmap)(on_map);
    VG_(track_die_mem_munmap)(on_unmap);
    VG_(track_die_mem_brk)(on_unmap);
    VG_(track_copy_mem_remap)(on_move);
    VG_(atfork)(NULL, NULL, in_forked_child);
}

VG_DETERMINE_INTERFACE_VERSION(declare)
