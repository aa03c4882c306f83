/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What OpenMP's runtimes, GNU libgomp and LLVM libomp (libiomp5), write for the program to read: a task's arguments,
 * bounds of a loop's chunks, the numbers of a thread. A part of input_tsan.c. It is written by the thread that makes
 * the task, or that asks for the chunk; the copies that runtimes make by memcpy, input_libc.h sees.
 *
 * Not here is what the program itself writes before it calls: arguments that libomp hands to a region (gcc's are in a
 * structure of the program's), variables of a task of clang's, bounds of a loop of clang's.
 */

struct runtime_query {
    const char *name;
    void *found;
};

static int find_in_runtime(struct dl_phdr_info *file, size_t size, void *to)
{
    struct runtime_query *query = to;
    void *library = is_runtime_name(file->dlpi_name) ? dlopen(file->dlpi_name, RTLD_LAZY | RTLD_NOLOAD) : 0;

    if (!library)
        return 0;
    query->found = dlsym(library, query->name);
    dlclose(library);
    if (query->found && !is_runtime(query->found))
        find_runtime(file, size, 0);
    return query->found != 0;
}

/* A runtime that came with a plugin is not where the program itself looks. */
static inline void *real_of_runtime(const char *name, void **place)
{
    struct runtime_query query = {name, __atomic_load_n(place, __ATOMIC_RELAXED)};

    if (INPUT_LIKELY(query.found != 0))
        return query.found;
    if (!dlsym(RTLD_NEXT, name))
        dl_iterate_phdr(find_in_runtime, &query);
    if (!query.found)
        return real(name, place);
    __atomic_store_n(place, query.found, __ATOMIC_RELAXED);
    return query.found;
}

#define RUNTIME(name) ((__typeof__(&name))real_of_runtime(#name, &real_##name))

/* ---- libgomp: it copies a task's arguments, in the thread that makes the task ---- */

static __thread void (*copy_arguments)(void *, void *) LOCAL;
static __thread long argument_bytes LOCAL;

static void copy_seen(void *to, void *from)
{
    writes(to, argument_bytes);
    if (copy_arguments)
        copy_arguments(to, from);
    else
        copy_bytes(to, from, argument_bytes);
}

typedef void (*task_body)(void *);
typedef void (*task_copy)(void *, void *);

extern void GOMP_task(task_body body, void *data, task_copy copy, long bytes, long alignment, _Bool now, unsigned flags,
                      void **depend, int priority, void *detach);
WRAPPED(GOMP_task);
HOOK void GOMP_task(task_body body, void *data, task_copy copy, long bytes, long alignment, _Bool now, unsigned flags,
                    void **depend, int priority, void *detach)
{
    copy_arguments = copy;
    argument_bytes = bytes;
    RUNTIME(GOMP_task)(body, data, mine && bytes > 0 ? copy_seen : copy, bytes, alignment, now, flags, depend,
                       priority, detach);
}

typedef unsigned long long ull;
#define TASKLOOP(name, type)                                                                                           \
    extern void name(task_body body, void *data, task_copy copy, long bytes, long alignment, unsigned flags,           \
                     unsigned long tasks, int priority, type start, type end, type step);                              \
    WRAPPED(name);                                                                                                     \
    HOOK void name(task_body body, void *data, task_copy copy, long bytes, long alignment, unsigned flags,             \
                   unsigned long tasks, int priority, type start, type end, type step)                                 \
    {                                                                                                                  \
        copy_arguments = copy;                                                                                         \
        argument_bytes = bytes;                                                                                        \
        RUNTIME(name)(body, data, mine && bytes > 0 ? copy_seen : copy, bytes, alignment, flags, tasks, priority,      \
                      start, end, step);                                                                               \
    }
TASKLOOP(GOMP_taskloop, long)
TASKLOOP(GOMP_taskloop_ull, ull)

/* ---- libgomp: bounds of the next chunk of a loop ---- */

#define CHUNK(name, type, parameters, ...)               \
    extern _Bool name parameters;                        \
    WRAPPED(name);                                       \
    HOOK _Bool name parameters                           \
    {                                                    \
        _Bool is_there = RUNTIME(name)(__VA_ARGS__);     \
                                                         \
        if (is_there && from) {                          \
            writes(from, sizeof(type));                  \
            writes(to, sizeof(type));                    \
        }                                                \
        return is_there;                                 \
    }
#define NEXT(kind)                                                            \
    CHUNK(GOMP_loop_##kind##_next, long, (long *from, long *to), from, to)    \
    CHUNK(GOMP_loop_ull_##kind##_next, ull, (ull *from, ull *to), from, to)
/* With a size of the chunks, and without: that is told at run time. */
#define SIZED(kind)                                                                                                    \
    CHUNK(GOMP_loop_##kind##_start, long, (long start, long end, long step, long chunk, long *from, long *to), start,  \
          end, step, chunk, from, to)                                                                                  \
    CHUNK(GOMP_loop_ull_##kind##_start, ull,                                                                           \
          (_Bool up, ull start, ull end, ull step, ull chunk, ull *from, ull *to), up, start, end, step, chunk, from,  \
          to)                                                                                                          \
    NEXT(kind)
#define UNSIZED(kind)                                                                                                  \
    CHUNK(GOMP_loop_##kind##_start, long, (long start, long end, long step, long *from, long *to), start, end, step,   \
          from, to)                                                                                                    \
    CHUNK(GOMP_loop_ull_##kind##_start, ull, (_Bool up, ull start, ull end, ull step, ull *from, ull *to), up, start,  \
          end, step, from, to)                                                                                         \
    NEXT(kind)
#define DOACROSS(kind)                                                                                                 \
    CHUNK(GOMP_loop_doacross_##kind##_start, long, (unsigned n, long *counts, long chunk, long *from, long *to), n,    \
          counts, chunk, from, to)                                                                                     \
    CHUNK(GOMP_loop_ull_doacross_##kind##_start, ull, (unsigned n, ull *counts, ull chunk, ull *from, ull *to), n,     \
          counts, chunk, from, to)

SIZED(static)
SIZED(dynamic)
SIZED(guided)
SIZED(nonmonotonic_dynamic)
SIZED(nonmonotonic_guided)
SIZED(ordered_static)
SIZED(ordered_dynamic)
SIZED(ordered_guided)
UNSIZED(runtime)
UNSIZED(nonmonotonic_runtime)
UNSIZED(maybe_nonmonotonic_runtime)
UNSIZED(ordered_runtime)
DOACROSS(static)
DOACROSS(dynamic)
DOACROSS(guided)

/* With reductions of tasks, or memory that the loop keeps. Without bounds, a static loop asks for none. */
#define KEEPS long *reductions, void **memory
CHUNK(GOMP_loop_start, long,
      (long start, long end, long step, long kind, long chunk, long *from, long *to, KEEPS), start, end, step, kind,
      chunk, from, to, reductions, memory)
CHUNK(GOMP_loop_ordered_start, long,
      (long start, long end, long step, long kind, long chunk, long *from, long *to, KEEPS), start, end, step, kind,
      chunk, from, to, reductions, memory)
CHUNK(GOMP_loop_ull_start, ull,
      (_Bool up, ull start, ull end, ull step, long kind, ull chunk, ull *from, ull *to, KEEPS), up, start, end, step,
      kind, chunk, from, to, reductions, memory)
CHUNK(GOMP_loop_ull_ordered_start, ull,
      (_Bool up, ull start, ull end, ull step, long kind, ull chunk, ull *from, ull *to, KEEPS), up, start, end, step,
      kind, chunk, from, to, reductions, memory)

/* ---- libomp: a task's head, which the program then fills in ---- */

/* kmp.h: where its shared variables are, its entry, its part, and two words for destructors and the priority. */
struct kmp_task {
    void *shareds, *entry;
    int part;
    void *words[2];
};
typedef int (*kmp_entry)(int thread, struct kmp_task *task);

#define PLACE void *place, int thread

static struct kmp_task *with_head(struct kmp_task *task, size_t bytes)
{
    struct input_thread *thread = counting_thread();

    if (task && thread)
        input_write(thread, (uint64_t)task, bytes < sizeof *task ? bytes : sizeof *task);
    return task;
}

extern struct kmp_task *__kmpc_omp_task_alloc(PLACE, int flags, size_t bytes, size_t shared_bytes, kmp_entry entry);
WRAPPED(__kmpc_omp_task_alloc);
HOOK struct kmp_task *__kmpc_omp_task_alloc(PLACE, int flags, size_t bytes, size_t shared_bytes, kmp_entry entry)
{
    return with_head(RUNTIME(__kmpc_omp_task_alloc)(place, thread, flags, bytes, shared_bytes, entry), bytes);
}

extern struct kmp_task *__kmpc_omp_target_task_alloc(PLACE, int flags, size_t bytes, size_t shared_bytes,
                                                     kmp_entry entry, int64_t device);
WRAPPED(__kmpc_omp_target_task_alloc);
HOOK struct kmp_task *__kmpc_omp_target_task_alloc(PLACE, int flags, size_t bytes, size_t shared_bytes,
                                                   kmp_entry entry, int64_t device)
{
    return with_head(RUNTIME(__kmpc_omp_target_task_alloc)(place, thread, flags, bytes, shared_bytes, entry, device),
                     bytes);
}

/* ---- libomp: the numbers of a region's thread, which lie on the runtime's stack ---- */

typedef void outlined();

struct kmp_region {
    outlined *body;
    int count;
    void **arguments;
};

enum { FEW = 4, MANY = 32 };

#define A(n) a[n]
#define A4(n) A(n), A(n + 1), A(n + 2), A(n + 3)
#define A16(n) A4(n), A4(n + 4), A4(n + 8), A4(n + 12)

extern int __kmp_invoke_microtask(outlined *body, int thread, int member, int count, void **arguments, void **frame);
WRAPPED(__kmp_invoke_microtask);

/* What the runtime calls in place of the body that the compiler outlined; that may be given more than it takes. */
static void enter_region(int *thread, int *member, const struct kmp_region *region)
{
    void **a = region->arguments, *frame;

    if (region->count <= MANY && this_thread()) {
        writes(thread, sizeof *thread);
        writes(member, sizeof *member);
    }
    if (region->count <= FEW)
        region->body(thread, member, A4(0));
    else if (region->count <= MANY)
        region->body(thread, member, A16(0), A16(16));
    else
        RUNTIME(__kmp_invoke_microtask)(region->body, *thread, *member, region->count, a, &frame);
}

static int room_of(int count)
{
    return count <= FEW ? FEW : count <= MANY ? MANY : count;
}

/* All arguments are pointers, or as large. */
#define FORK(name)                                                                  \
    extern void name(void *place, int count, outlined *body, ...);                  \
    WRAPPED(name);                                                                  \
    HOOK void name(void *place, int count, outlined *body, ...)                     \
    {                                                                               \
        void *arguments[room_of(count)];                                            \
        struct kmp_region region = {body, count, arguments};                        \
        va_list list;                                                               \
        int at;                                                                     \
                                                                                    \
        va_start(list, body);                                                       \
        for (at = 0; at < room_of(count); at++)                                     \
            arguments[at] = at < count ? va_arg(list, void *) : 0;                  \
        va_end(list);                                                               \
        RUNTIME(name)(place, 1, (outlined *)enter_region, &region);                 \
    }
FORK(__kmpc_fork_call)
FORK(__kmpc_fork_teams)

/* LLVM 16: one argument for all, and a condition. */
extern void __kmpc_fork_call_if(void *place, int count, outlined *body, int condition, void *argument);
WRAPPED(__kmpc_fork_call_if);
HOOK void __kmpc_fork_call_if(void *place, int count, outlined *body, int condition, void *argument)
{
    void *arguments[FEW] = {argument};
    struct kmp_region region = {body, count < FEW ? count : FEW, arguments};

    RUNTIME(__kmpc_fork_call_if)(place, 1, (outlined *)enter_region, condition, &region);
}
