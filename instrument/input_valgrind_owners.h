/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whose code an address is in: that of the program and its libraries counts, that of ld.so, of the parallel runtimes, of
 * the allocator and of functions of libc that synchronise does not. A part of input_valgrind.c.
 */
#ifndef PARPROF_INPUT_VALGRIND_OWNERS_H
#define PARPROF_INPUT_VALGRIND_OWNERS_H

enum { KNOWN = 1 << 16 };

/* What is not the program's is hidden, and clears memory, as calloc does, or has other duties. */
enum kind { ANYBODY, LIBC, HIDDEN, CLEARING };

static Bool begins_with(const HChar *text, const HChar *start)
{
    return VG_(strncmp)(text, start, VG_(strlen)(start)) == 0;
}

static Bool is_one_of(const HChar *name, const HChar *const *starts)
{
    for (; *starts; starts++)
        if (begins_with(name, *starts))
            return True;
    return False;
}

static enum kind kind_of_file(const HChar *path)
{
    static const HChar *const hidden[] = {"ld-linux", "ld-2", "ld.so", "libgomp.", "libomp.", "libomp-",
                                         "libiomp5.", "vgpreload", 0};
    static const HChar *const libc[] = {"libc.so", "libc-2", "libpthread", 0};
    const HChar *name = VG_(strrchr)(path, '/') ? VG_(strrchr)(path, '/') + 1 : path;

    return is_one_of(name, hidden) ? HIDDEN : is_one_of(name, libc) ? LIBC : ANYBODY;
}

static enum kind kind_of_routine(Addr address)
{
    static const HChar *const hidden[] = {
        "pthread_", "_pthread", "__pthread_", "___pthread", "sem_", "__sem_", "__new_sem", "__old_sem", "mtx_", "cnd_",
        "thrd_", "call_once", "lll_", "__lll", "futex", "__futex", "malloc", "free", "cfree", "realloc",
        "memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc", "_int_", "__libc_malloc", "__libc_free",
        "__libc_realloc", "__libc_memalign", "__libc_start", "start_thread", "clone", "__clone", "_dl",
        "__dl", "dl", "exit", "_exit", "__cxa_", "__run_exit", "__tls", "fork", "__libc_fork", "_Fork", "sigaction", 0};
    static const HChar *const clearing[] = {"calloc", "__libc_calloc", 0};
    DiEpoch now = VG_(current_DiEpoch)();
    DebugInfo *file = VG_(find_DebugInfo)(now, address);
    const HChar *name;
    enum kind kind;

    if (!file)
        return ANYBODY;
    kind = kind_of_file(VG_(DebugInfo_get_filename)(file));
    if (kind != LIBC || !VG_(get_fnname)(now, address, &name))
        return kind;
    if (begins_with(name, "__GI_"))
        name += 5;
    return is_one_of(name, hidden) ? HIDDEN : is_one_of(name, clearing) ? CLEARING : LIBC;
}

/* The same, remembered; a place that two addresses share is worked out again. */
static inline enum kind known_kind(Addr address)
{
    static struct {
        Addr address;
        enum kind kind;
    } known[KNOWN];
    UInt at = (address ^ address >> 16) & (KNOWN - 1);

    if (INPUT_UNLIKELY(known[at].address != address)) {
        known[at].kind = kind_of_routine(address);
        known[at].address = address;
    }
    return known[at].kind;
}

#endif
