/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `parprof input` for programs compiled with -fsanitize=thread: the compiler's hooks, answered by input_algorithm.h.
 *
 * It takes the place of libtsan.so.2. Threads run in parallel; a thread's first hook gives it a slot. Without
 * PARPROF_INPUT_DIR in the environment every hook returns at once. Here are the lives of the process, its threads and
 * its record; input_hooks.h has the hooks. What is not compiled so is not seen, so the functions of libc through which
 * data passes are wrapped (input_libc.h), as are those of OpenMP's runtimes (input_openmp.h).
 */
#define _GNU_SOURCE
#define __NO_INLINE__ 1 /* no bodies in stdio.h: they are here */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "input_record.h"

/* System calls that are made without libc, whose functions are wrapped here. */
enum {
    SYS_READ = 0,
    SYS_WRITE = 1,
    SYS_OPEN = 2,
    SYS_CLOSE = 3,
    SYS_LSEEK = 8,
    SYS_MMAP = 9,
    SYS_MUNMAP = 11,
    SYS_MREMAP = 25,
    SYS_MADVISE = 28,
    SYS_GETCWD = 79,
    SYS_FALLOCATE = 285,
};

struct input_thread;
static pthread_mutex_t input_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *map_memory(uint64_t bytes);
static long raw(long number, long a, long b, long c, long d);
static int grow_file(uint64_t bytes);
static void describe(struct input_thread *thread, uint64_t routine);

#define LOCAL __attribute__((tls_model("initial-exec")))
static __thread uint64_t executed_blocks LOCAL; /* by this thread */

#define INPUT_MAP(bytes) map_memory(bytes)
#define INPUT_UNMAP(memory, bytes) raw(SYS_MUNMAP, (long)(memory), bytes, 0, 0)
#define INPUT_DROP(memory, bytes) raw(SYS_MADVISE, (long)(memory), bytes, MADV_DONTNEED, 0)
#define INPUT_TICKS() __rdtsc()
#define INPUT_GROW(bytes) grow_file(bytes)
#define INPUT_DESCRIBE(thread, routine) describe(thread, routine)
#define INPUT_BLOCKS_OF(thread) executed_blocks
#define INPUT_LOCK() pthread_mutex_lock(&input_mutex)
#define INPUT_UNLOCK() pthread_mutex_unlock(&input_mutex)
#include "input_algorithm.h"

#define HOOK __attribute__((visibility("default"))) /* what programs call */

enum { PATH_BYTES = 512, NO_SLOT = 1, ENDED = 2, MAPPED_BYTES = INPUT_HEADER_BYTES + INPUT_MAX_ROWS * INPUT_ROW_BYTES };

static __thread struct input_thread *mine LOCAL; /* null: none yet, or none to be had */
static __thread int state LOCAL;
static int is_on;
static int has_blocks; /* the program counts them */
static char file_path[PATH_BYTES], program_path[4096];
static pthread_key_t at_thread_end;
static uint64_t ticks_per_second;

/* By system calls of our own: the wrappers in this library count what goes through those of libc. */
static long raw_of_six(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long raw(long number, long a, long b, long c, long d)
{
    return raw_of_six(number, a, b, c, d, 0, 0);
}

static void *map_memory(uint64_t bytes)
{
    long memory = raw_of_six(SYS_MMAP, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0);

    return memory < 0 && memory > -4096 ? 0 : (void *)memory;
}

/* Makes a file longer by zeros. Written only where there is no other way: the program's own writes are counted. */
static int add_zeros(long file, uint64_t bytes)
{
    static const char zeros[4096];
    long end = raw(SYS_LSEEK, file, 0, SEEK_END, 0), done = 0;

    if (end >= 0 && !raw(SYS_FALLOCATE, file, 0, end, bytes))
        return 1;
    for (; bytes && done >= 0; bytes -= done > 0 ? done : 0)
        done = raw(SYS_WRITE, file, (long)zeros, bytes < sizeof zeros ? bytes : sizeof zeros, 0);
    return !bytes;
}

/* Opened anew each time: programs close descriptors that they do not know. */
static int grow_file(uint64_t bytes)
{
    long file = raw(SYS_OPEN, (long)file_path, O_WRONLY | O_APPEND | O_CLOEXEC, 0, 0);
    int is_done;

    if (file < 0)
        return 0;
    is_done = add_zeros(file, bytes);
    raw(SYS_CLOSE, file, 0, 0, 0);
    return is_done;
}

/* ---- which routine an address is in ---- */

/* The path of a file that the loader has by this name: of a plugin it may begin at the working directory. */
static const char *whole_path(const char *name, char *room, uint64_t bytes)
{
    long length = name[0] == '/' ? 0 : raw(SYS_GETCWD, (long)room, bytes, 0, 0);
    uint64_t size = 0;

    while (name[size])
        size++;
    if (length <= 0 || room[0] != '/' || length + size + 1 > bytes)
        return name;
    room[length - 1] = '/';
    input_copy(room + length, name, size + 1);
    return room;
}

static void describe(struct input_thread *thread, uint64_t routine)
{
    struct dl_find_object found;
    char room[2 * PATH_BYTES];

    if (executed_blocks)
        has_blocks = 1;
    if (_dl_find_object((void *)routine, &found) || !found.dlfo_link_map) {
        input_routine_row(thread, routine, 0, routine, 1);
        return;
    }
    input_routine_row(thread, routine,
                      found.dlfo_link_map->l_name[0] ? whole_path(found.dlfo_link_map->l_name, room, sizeof room)
                                                     : program_path,
                      routine - found.dlfo_link_map->l_addr, 1);
}

/* ---- start, fork and end ---- */

/* What /proc/self/io says that system calls brought this process, and took from it. */
struct moved {
    uint64_t read, sent;
};

static struct moved at_first;

static struct moved bytes_moved(void)
{
    char text[64];
    long file = raw(SYS_OPEN, (long)"/proc/self/io", O_RDONLY | O_CLOEXEC, 0, 0), size, at;
    struct moved unknown = {INPUT_UNKNOWN, INPUT_UNKNOWN}, found = {0, 0};
    uint64_t *number = &found.read;

    if (file < 0)
        return unknown;
    size = raw(SYS_READ, file, (long)text, sizeof text, 0);
    raw(SYS_CLOSE, file, 0, 0, 0);
    if (size < 8 || memcmp(text, "rchar: ", 7)) /* then "wchar: " in the next line */
        return unknown;
    for (at = 7; at < size; at++)
        if (text[at] >= '0' && text[at] <= '9')
            *number = 10 * *number + (text[at] - '0');
        else if (text[at] == '\n' && number == &found.read)
            number = &found.sent;
        else if (text[at] == '\n')
            return found;
    return unknown;
}

static uint64_t measure_ticks(void)
{
    struct timespec begin, now;
    uint64_t first = __rdtsc();
    int64_t elapsed_ns;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
        elapsed_ns = (now.tv_sec - begin.tv_sec) * 1000000000ll + now.tv_nsec - begin.tv_nsec;
    } while (elapsed_ns < 2000000);
    return (uint64_t)((double)(__rdtsc() - first) * 1e9 / (double)elapsed_ns);
}

static void keep_command(struct input_header *header)
{
    long file = raw(SYS_OPEN, (long)"/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0, 0), size, at;

    if (file < 0)
        return;
    size = raw(SYS_READ, file, (long)header->command, INPUT_COMMAND_BYTES - 1, 0);
    raw(SYS_CLOSE, file, 0, 0, 0);
    for (at = 0; at + 1 < size; at++)
        if (!header->command[at])
            header->command[at] = ' ';
}

static int open_record(void)
{
    const char *directory = getenv("PARPROF_INPUT_DIR");
    int turn, file = -1;
    void *memory;

    if (!directory || !directory[0])
        return 0;
    for (turn = 0; turn < 1000 && file < 0; turn++) {
        int length = snprintf(file_path, sizeof file_path, "%s/%d.%d.input", directory, getpid(), turn);

        if (length >= (int)sizeof file_path)
            return 0;
        file = open(file_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST)
            return 0;
    }
    if (file < 0)
        return 0;
    memory = MAP_FAILED;
    if (add_zeros(file, INPUT_HEADER_BYTES))
        memory = mmap(0, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return 0;
    keep_command(memory);
    return input_begin(memory, INPUT_TSAN, getpid(), ticks_per_second, getenv("PARPROF_INPUT_CONTEXTS") != 0);
}

static void close_record(void)
{
    struct input_header *header = input.header;
    struct moved now = bytes_moved();

    if (!header)
        return;
    if (now.read != INPUT_UNKNOWN && at_first.read != INPUT_UNKNOWN) {
        header->all_read_bytes = now.read - at_first.read;
        header->all_sent_bytes = now.sent - at_first.sent;
    }
    if (!has_blocks)
        input_flag(INPUT_NO_BLOCKS);
    __atomic_store_n(&header->state, INPUT_CLOSED, __ATOMIC_RELEASE);
}

static void end_thread(void *slot)
{
    struct input_thread *thread = slot;

    if (!thread || thread != mine)
        return;
    state = ENDED;
    mine = 0;
    input_leave_slot(thread, 0);
}

static void end_process(void)
{
    struct input_thread *thread = mine;

    if (!is_on || !input.header || input.header->pid != (uint32_t)getpid()) /* a vforked child's end is not ours */
        return;
    if (thread) {
        mine = 0;
        state = ENDED;
        input_leave_slot(thread, 1);
    }
    close_record();
}

static void in_forked_child(void)
{
    struct input_thread *thread = mine;

    if (!is_on)
        return;
    if (thread)
        thread->is_busy = 1; /* what is called here is no program's */
    pthread_mutex_init(&input_mutex, 0);
    munmap(input.header, MAPPED_BYTES);
    input.header = 0;
    at_first = bytes_moved();
    if (!open_record()) {
        is_on = 0;
        mine = 0;
        state = NO_SLOT;
        return;
    }
    input_after_fork(thread);
    if (thread)
        thread->is_busy = 0;
}

static void start_libc(void);
static void find_runtimes(void);

__attribute__((constructor(101))) static void start(void)
{
    long length;

    start_libc();
    if (!getenv("PARPROF_INPUT_DIR"))
        return;
    find_runtimes();
    length = readlink("/proc/self/exe", program_path, sizeof program_path - 1);
    program_path[length > 0 ? length : 0] = 0;
    ticks_per_second = measure_ticks();
    at_first = bytes_moved();
    if (!open_record() || pthread_key_create(&at_thread_end, end_thread))
        return;
    pthread_atfork(0, 0, in_forked_child);
    at_quick_exit(end_process); /* first registered, so after the program's */
    __atomic_store_n(&is_on, 1, __ATOMIC_RELEASE);
}

__attribute__((destructor(101))) static void stop(void)
{
    end_process();
    is_on = 0;
}

/* Threads begin here at their first hook. */
static INPUT_SLOW struct input_thread *new_thread(void)
{
    struct input_thread *thread;

    if (!is_on || state)
        return 0;
    state = NO_SLOT; /* against signal handlers that come now */
    thread = input_take_slot();
    if (!thread)
        return 0;
    mine = thread;
    state = 0;
    pthread_setspecific(at_thread_end, thread);
    return thread;
}

static inline struct input_thread *this_thread(void)
{
    struct input_thread *thread = mine;

    return INPUT_LIKELY(thread != 0) ? thread : new_thread();
}

#include "input_hooks.h"
#include "input_libc.h"
#include "input_openmp.h"
