/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of libc through which data passes unseen by the compiler's hooks; part of input_tsan.c.
 *
 * What system calls and stdio bring is written by the kernel; what they send is read by the thread. Memory and string
 * functions read and write what they are given; for OpenMP's runtimes, which call them too, they only write: what such
 * a runtime reads of its own is no input of the program's. Not seen: the destinations of scanf, the strings that printf
 * prints, memory that maps a file (its first reads count as any other's).
 */
#include <dirent.h>
#include <stdarg.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The thread if its accesses count: not in its own slow functions. */
static inline struct input_thread *counting_thread(void)
{
    struct input_thread *thread = mine;

    return thread && thread->depth && !thread->is_busy ? thread : 0;
}

static void came(const void *buffer, ssize_t bytes)
{
    if (bytes <= 0 || !is_on || !input.header)
        return;
    input_kernel_write((uint64_t)buffer, bytes);
    __atomic_fetch_add(&input.header->seen_read_bytes, bytes, __ATOMIC_RELAXED);
}

static void went(const void *buffer, ssize_t bytes)
{
    struct input_thread *thread = counting_thread();

    if (bytes <= 0 || !thread || !input.header)
        return;
    input_read(thread, (uint64_t)buffer, bytes);
    __atomic_fetch_add(&input.header->seen_sent_bytes, bytes, __ATOMIC_RELAXED);
}

static void each_piece(const struct iovec *pieces, int n, ssize_t bytes, void (*tell)(const void *, ssize_t))
{
    for (; n > 0 && bytes > 0; n--, pieces++) {
        ssize_t here = (ssize_t)pieces->iov_len < bytes ? (ssize_t)pieces->iov_len : bytes;

        tell(pieces->iov_base, here);
        bytes -= here;
    }
}

/* The code of OpenMP's runtimes. */
static struct {
    uint64_t start, bytes;
} runtimes[2];
static int n_runtimes;

static void keep_runtime(uint64_t start, uint64_t bytes)
{
    INPUT_LOCK();
    if (n_runtimes < (int)(sizeof runtimes / sizeof *runtimes)) {
        runtimes[n_runtimes].start = start;
        runtimes[n_runtimes].bytes = bytes;
        __atomic_store_n(&n_runtimes, n_runtimes + 1, __ATOMIC_RELEASE);
    }
    INPUT_UNLOCK();
}

static int is_runtime_name(const char *path)
{
    static const char *const starts[] = {"libgomp.", "libomp.", "libomp-", "libiomp5."};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t at;

    for (at = 0; at < sizeof starts / sizeof *starts; at++)
        if (!strncmp(name, starts[at], strlen(starts[at])))
            return 1;
    return 0;
}

static int find_runtime(struct dl_phdr_info *file, size_t size, void *unused)
{
    size_t part;

    (void)size, (void)unused;
    for (part = 0; is_runtime_name(file->dlpi_name) && part < file->dlpi_phnum; part++)
        if (file->dlpi_phdr[part].p_type == PT_LOAD && file->dlpi_phdr[part].p_flags & PF_X)
            keep_runtime(file->dlpi_addr + file->dlpi_phdr[part].p_vaddr, file->dlpi_phdr[part].p_memsz);
    return 0;
}

static void find_runtimes(void)
{
    dl_iterate_phdr(find_runtime, 0);
}

static inline int is_runtime(const void *caller)
{
    int at;

    for (at = 0; at < __atomic_load_n(&n_runtimes, __ATOMIC_ACQUIRE); at++)
        if ((uint64_t)caller - runtimes[at].start < runtimes[at].bytes)
            return 1;
    return 0;
}

/* These are part of the function that is wrapped, so that the caller is that function's. */
#define WITHIN static inline __attribute__((always_inline))
#define CALLER __builtin_return_address(0)

/* The thread if what this function reads counts. */
WITHIN struct input_thread *reading_thread(void)
{
    struct input_thread *thread = counting_thread();

    return thread && !is_runtime(CALLER) ? thread : 0;
}

/*
 * libc's code has no hooks that count blocks, and its time is the program's: what it goes through costs a block for
 * each 128 bytes, as under Valgrind its loops of vectors do. Only where blocks are counted at all.
 */
enum { BYTES_PER_BLOCK = 128 };

static inline void costs(size_t bytes)
{
    if (executed_blocks)
        executed_blocks += bytes / BYTES_PER_BLOCK;
}

WITHIN void reads(const void *address, size_t bytes)
{
    struct input_thread *thread = reading_thread();

    if (thread) {
        costs(bytes);
        input_read(thread, (uint64_t)address, bytes);
    }
}

/* A runtime's thread may write what a task is to read before it has run any code of the program's. */
WITHIN void writes(const void *address, size_t bytes)
{
    struct input_thread *thread = mine;

    if (!thread && n_runtimes && is_runtime(CALLER))
        thread = new_thread();
    if (thread && !thread->is_busy)
        input_write(thread, (uint64_t)address, bytes);
}

/* REAL(f) is libc's f; it is looked for once, at the start or at the first call. */
#define REAL(name) ((__typeof__(&name))real(#name, &real_##name))
#define WRAPPED(name) static void *real_##name

static void *real(const char *name, void **place)
{
    void *found = __atomic_load_n(place, __ATOMIC_RELAXED);

    if (INPUT_LIKELY(found != 0))
        return found;
    found = dlsym(RTLD_NEXT, name);
    if (!found) {
        static const char text[] = "parprof: this program's libc lacks a function that it calls\n";

        raw(SYS_WRITE, 2, (long)text, sizeof text - 1, 0);
        abort();
    }
    __atomic_store_n(place, found, __ATOMIC_RELAXED);
    return found;
}

/* strlen that nobody counts. */
static size_t length_of(const char *text)
{
    static size_t (*libc_strlen)(const char *);

    if (!libc_strlen)
        libc_strlen = dlsym(RTLD_NEXT, "strlen");
    return libc_strlen(text);
}

/* ---- system calls ---- */

#define BRINGS(type, name, parameters, arguments, buffer) \
    WRAPPED(name);                                        \
    HOOK type name parameters                             \
    {                                                     \
        type result = REAL(name) arguments;               \
        came(buffer, result);                             \
        return result;                                    \
    }
#define SENDS(type, name, parameters, arguments, buffer) \
    WRAPPED(name);                                       \
    HOOK type name parameters                            \
    {                                                    \
        type result = REAL(name) arguments;              \
        went(buffer, result);                            \
        return result;                                   \
    }

BRINGS(ssize_t, read, (int file, void *to, size_t n), (file, to, n), to)
BRINGS(ssize_t, pread, (int file, void *to, size_t n, off_t at), (file, to, n, at), to)
BRINGS(ssize_t, pread64, (int file, void *to, size_t n, off64_t at), (file, to, n, at), to)
BRINGS(ssize_t, recv, (int file, void *to, size_t n, int flags), (file, to, n, flags), to)
SENDS(ssize_t, write, (int file, const void *from, size_t n), (file, from, n), from)
SENDS(ssize_t, pwrite, (int file, const void *from, size_t n, off_t at), (file, from, n, at), from)
SENDS(ssize_t, pwrite64, (int file, const void *from, size_t n, off64_t at), (file, from, n, at), from)
SENDS(ssize_t, send, (int file, const void *from, size_t n, int flags), (file, from, n, flags), from)

BRINGS(ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags), to)

/* A message has its type before its text. */
WRAPPED(msgrcv);
HOOK ssize_t msgrcv(int queue, void *to, size_t n, long type, int flags)
{
    ssize_t result = REAL(msgrcv)(queue, to, n, type, flags);

    if (result >= 0) {
        came((char *)to + sizeof type, result);
        input_kernel_write((uint64_t)to, is_on ? sizeof type : 0);
    }
    return result;
}

WRAPPED(msgsnd);
HOOK int msgsnd(int queue, const void *from, size_t n, int flags)
{
    int result = REAL(msgsnd)(queue, from, n, flags);

    if (!result) {
        reads(from, sizeof(long));
        went((const char *)from + sizeof(long), n);
    }
    return result;
}

/* Entries come from a buffer of libc's. */
#define READS_DIRECTORY(name, type)                      \
    WRAPPED(name);                                       \
    HOOK struct type *name(DIR *directory)               \
    {                                                    \
        struct type *entry = REAL(name)(directory);      \
        came(entry, entry ? entry->d_reclen : 0);        \
        return entry;                                    \
    }

READS_DIRECTORY(readdir, dirent)
READS_DIRECTORY(readdir64, dirent64)

WRAPPED(recvfrom);
HOOK ssize_t recvfrom(int file, void *restrict to, size_t n, int flags, struct sockaddr *restrict who,
                      socklen_t *restrict size)
{
    ssize_t result = REAL(recvfrom)(file, to, n, flags, who, size);

    came(to, result);
    return result;
}

WRAPPED(sendto);
HOOK ssize_t sendto(int file, const void *from, size_t n, int flags, const struct sockaddr *who, socklen_t size)
{
    ssize_t result = REAL(sendto)(file, from, n, flags, who, size);

    went(from, result);
    return result;
}

#define BY_PIECES(name, parameters, arguments, tell) \
    WRAPPED(name);                                   \
    HOOK ssize_t name parameters                     \
    {                                                \
        ssize_t result = REAL(name) arguments;       \
        each_piece(pieces, n, result, tell);         \
        return result;                               \
    }

BY_PIECES(readv, (int file, const struct iovec *pieces, int n), (file, pieces, n), came)
BY_PIECES(writev, (int file, const struct iovec *pieces, int n), (file, pieces, n), went)
BY_PIECES(preadv, (int file, const struct iovec *pieces, int n, off_t at), (file, pieces, n, at), came)
BY_PIECES(pwritev, (int file, const struct iovec *pieces, int n, off_t at), (file, pieces, n, at), went)
BY_PIECES(preadv64, (int file, const struct iovec *pieces, int n, off64_t at), (file, pieces, n, at), came)
BY_PIECES(pwritev64, (int file, const struct iovec *pieces, int n, off64_t at), (file, pieces, n, at), went)

WRAPPED(recvmsg);
HOOK ssize_t recvmsg(int file, struct msghdr *message, int flags)
{
    ssize_t result = REAL(recvmsg)(file, message, flags);

    each_piece(message->msg_iov, message->msg_iovlen, result, came);
    return result;
}

WRAPPED(sendmsg);
HOOK ssize_t sendmsg(int file, const struct msghdr *message, int flags)
{
    ssize_t result = REAL(sendmsg)(file, message, flags);

    each_piece(message->msg_iov, message->msg_iovlen, result, went);
    return result;
}

/* ---- stdio ---- */

static void filled(FILE *file)
{
    if (file->_IO_read_end > file->_IO_read_base)
        input_kernel_write((uint64_t)file->_IO_read_base, file->_IO_read_end - file->_IO_read_base);
}

/* One character of a stream's buffer, which the call may have filled. */
#define CHARACTER(name, parameters, arguments, file)                             \
    WRAPPED(name);                                                               \
    HOOK int name parameters                                                     \
    {                                                                            \
        int was_empty = (file)->_IO_read_ptr >= (file)->_IO_read_end, result;    \
        result = REAL(name) arguments;                                           \
        if (!is_on || result == EOF)                                             \
            return result;                                                       \
        if (was_empty)                                                           \
            filled(file);                                                        \
        reads((file)->_IO_read_ptr - 1, 1);                                      \
        __atomic_fetch_add(&input.header->seen_read_bytes, 1, __ATOMIC_RELAXED); \
        return result;                                                           \
    }

#undef getc
#undef getchar
#undef getc_unlocked
#undef fgetc_unlocked
#undef getchar_unlocked
CHARACTER(fgetc, (FILE *file), (file), file)
CHARACTER(getc, (FILE *file), (file), file)
CHARACTER(getchar, (void), (), stdin)
CHARACTER(getc_unlocked, (FILE *file), (file), file)
CHARACTER(fgetc_unlocked, (FILE *file), (file), file)
CHARACTER(getchar_unlocked, (void), (), stdin)
extern int __uflow(FILE *file); /* what the macro getc_unlocked calls where the buffer is empty */
CHARACTER(__uflow, (FILE *file), (file), file)

WRAPPED(fread);
HOOK size_t fread(void *restrict to, size_t size, size_t n, FILE *restrict file)
{
    size_t result = REAL(fread)(to, size, n, file);

    came(to, result * size);
    return result;
}

WRAPPED(fread_unlocked);
HOOK size_t fread_unlocked(void *restrict to, size_t size, size_t n, FILE *restrict file)
{
    size_t result = REAL(fread_unlocked)(to, size, n, file);

    came(to, result * size);
    return result;
}

WRAPPED(fgets);
HOOK char *fgets(char *restrict to, int n, FILE *restrict file)
{
    char *result = REAL(fgets)(to, n, file);

    if (result)
        came(to, length_of(to));
    return result;
}

WRAPPED(getdelim);
HOOK ssize_t getdelim(char **restrict line, size_t *restrict n, int end, FILE *restrict file)
{
    ssize_t result = REAL(getdelim)(line, n, end, file);

    if (result > 0)
        came(*line, result);
    return result;
}

HOOK ssize_t __getdelim(char **restrict line, size_t *restrict n, int end, FILE *restrict file)
{
    return getdelim(line, n, end, file);
}

HOOK ssize_t getline(char **restrict line, size_t *restrict n, FILE *restrict file)
{
    return getdelim(line, n, '\n', file);
}

WRAPPED(fwrite);
HOOK size_t fwrite(const void *restrict from, size_t size, size_t n, FILE *restrict file)
{
    size_t result = REAL(fwrite)(from, size, n, file);

    went(from, result * size);
    return result;
}

WRAPPED(fwrite_unlocked);
HOOK size_t fwrite_unlocked(const void *restrict from, size_t size, size_t n, FILE *restrict file)
{
    size_t result = REAL(fwrite_unlocked)(from, size, n, file);

    went(from, result * size);
    return result;
}

WRAPPED(puts);
HOOK int puts(const char *text)
{
    int result = REAL(puts)(text);

    if (result >= 0)
        went(text, length_of(text));
    return result;
}

WRAPPED(fputs);
HOOK int fputs(const char *restrict text, FILE *restrict file)
{
    int result = REAL(fputs)(text, file);

    if (result >= 0)
        went(text, length_of(text));
    return result;
}

/* What -D_FORTIFY_SOURCE makes of these: with the room that there is. */
#define WITH_ROOM(type, name, parameters, arguments, fits)  \
    HOOK type __##name##_chk parameters                     \
    {                                                       \
        if (!(fits))                                        \
            abort();                                        \
        return name arguments;                              \
    }

WITH_ROOM(ssize_t, read, (int file, void *to, size_t n, size_t room), (file, to, n), n <= room)
WITH_ROOM(ssize_t, pread, (int file, void *to, size_t n, off_t at, size_t room), (file, to, n, at), n <= room)
WITH_ROOM(ssize_t, pread64, (int file, void *to, size_t n, off64_t at, size_t room), (file, to, n, at), n <= room)
WITH_ROOM(ssize_t, recv, (int file, void *to, size_t n, size_t room, int flags), (file, to, n, flags), n <= room)
WITH_ROOM(ssize_t, recvfrom,
          (int file, void *restrict to, size_t n, size_t room, int flags, struct sockaddr *restrict who,
           socklen_t *restrict size),
          (file, to, n, flags, who, size), n <= room)
WITH_ROOM(char *, fgets, (char *restrict to, size_t room, int n, FILE *restrict file), (to, n, file),
          n <= 0 || (size_t)n <= room)
WITH_ROOM(size_t, fread, (void *restrict to, size_t room, size_t size, size_t n, FILE *restrict file),
          (to, size, n, file), !size || n <= room / size)

/* ---- memory and strings ---- */

/* Before libc's own is known: the loader calls these while it relocates. */
static void *copy_bytes(void *to, const void *from, size_t n)
{
    void *start = to;

    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
    return start;
}

static void *(*libc_memcpy)(void *, const void *, size_t), *(*libc_memmove)(void *, const void *, size_t);
static void *(*libc_memset)(void *, int, size_t);

/* The allocator's own, which libc's need not be; until they are known, nothing is freed. */
static void (*next_free)(void *);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static size_t (*next_usable)(void *);

static void find_allocator(void)
{
    static __thread volatile int is_looking LOCAL; /* dlsym is said to call nothing of ours, but frees */

    if (next_free || is_looking)
        return;
    is_looking = 1;
    next_calloc = dlsym(RTLD_NEXT, "calloc");
    next_realloc = dlsym(RTLD_NEXT, "realloc");
    next_usable = dlsym(RTLD_NEXT, "malloc_usable_size");
    next_free = dlsym(RTLD_NEXT, "free");
    is_looking = 0;
}

static void start_libc(void)
{
    find_allocator();
    libc_memcpy = dlsym(RTLD_NEXT, "memcpy");
    libc_memmove = dlsym(RTLD_NEXT, "memmove");
    libc_memset = dlsym(RTLD_NEXT, "memset");
}

WITHIN void *our_memcpy(void *restrict to, const void *restrict from, size_t n)
{
    reads(from, n);
    writes(to, n);
    return libc_memcpy ? libc_memcpy(to, from, n) : copy_bytes(to, from, n);
}

HOOK void *memcpy(void *restrict to, const void *restrict from, size_t n) { return our_memcpy(to, from, n); }

WITHIN void *our_memmove(void *to, const void *from, size_t n)
{
    reads(from, n);
    writes(to, n);
    if (libc_memmove)
        return libc_memmove(to, from, n);
    if (to <= from)
        return copy_bytes(to, from, n);
    while (n--)
        ((volatile char *)to)[n] = ((const volatile char *)from)[n];
    return to;
}

HOOK void *memmove(void *to, const void *from, size_t n) { return our_memmove(to, from, n); }

WITHIN void *our_memset(void *to, int value, size_t n)
{
    size_t at;

    writes(to, n);
    if (counting_thread())
        costs(n);
    if (libc_memset)
        return libc_memset(to, value, n);
    for (at = 0; at < n; at++)
        ((volatile char *)to)[at] = value;
    return to;
}

HOOK void *memset(void *to, int value, size_t n) { return our_memset(to, value, n); }

HOOK void *__tsan_memcpy(void *to, const void *from, size_t n) { return our_memcpy(to, from, n); }
HOOK void *__tsan_memmove(void *to, const void *from, size_t n) { return our_memmove(to, from, n); }
HOOK void *__tsan_memset(void *to, int value, size_t n) { return our_memset(to, value, n); }
HOOK void *__memcpy_chk(void *to, const void *from, size_t n, size_t room)
{
    if (n > room)
        abort();
    return our_memcpy(to, from, n);
}
HOOK void *__memmove_chk(void *to, const void *from, size_t n, size_t room)
{
    if (n > room)
        abort();
    return our_memmove(to, from, n);
}
HOOK void *__memset_chk(void *to, int value, size_t n, size_t room)
{
    if (n > room)
        abort();
    return our_memset(to, value, n);
}

static size_t same_bytes(const unsigned char *one, const unsigned char *other, size_t n, int is_text)
{
    size_t at = 0;

    while (at < n && one[at] == other[at] && (!is_text || one[at]))
        at++;
    return at < n ? at + 1 : n;
}

WRAPPED(memcmp);
HOOK int memcmp(const void *one, const void *other, size_t n)
{
    if (reading_thread()) {
        size_t seen = same_bytes(one, other, n, 0);

        reads(one, seen);
        reads(other, seen);
    }
    return REAL(memcmp)(one, other, n);
}

WRAPPED(strcmp);
HOOK int strcmp(const char *one, const char *other)
{
    if (reading_thread()) {
        size_t seen = same_bytes((const void *)one, (const void *)other, (size_t)-1, 1);

        reads(one, seen);
        reads(other, seen);
    }
    return REAL(strcmp)(one, other);
}

WRAPPED(strncmp);
HOOK int strncmp(const char *one, const char *other, size_t n)
{
    if (reading_thread()) {
        size_t seen = same_bytes((const void *)one, (const void *)other, n, 1);

        reads(one, seen);
        reads(other, seen);
    }
    return REAL(strncmp)(one, other, n);
}

WRAPPED(strlen);
HOOK size_t strlen(const char *text)
{
    size_t n = REAL(strlen)(text);

    reads(text, n + 1);
    return n;
}

WRAPPED(memchr);
HOOK void *memchr(const void *from, int byte, size_t n)
{
    char *found = REAL(memchr)(from, byte, n);

    reads(from, found ? (size_t)(found - (const char *)from) + 1 : n);
    return found;
}

WRAPPED(strchr);
HOOK char *strchr(const char *text, int byte)
{
    char *found = REAL(strchr)(text, byte);

    if (reading_thread())
        reads(text, (found ? (size_t)(found - text) : length_of(text)) + 1);
    return found;
}

#define READS_ALL(type, name, parameters, arguments) \
    WRAPPED(name);                                   \
    HOOK type name parameters                        \
    {                                                \
        if (reading_thread())                        \
            reads(text, length_of(text) + 1); \
        return REAL(name) arguments;                 \
    }

READS_ALL(char *, strrchr, (const char *text, int byte), (text, byte))

WRAPPED(strstr);
HOOK char *strstr(const char *text, const char *wanted)
{
    char *found = REAL(strstr)(text, wanted);

    if (reading_thread()) {
        size_t length = length_of(wanted);

        reads(wanted, length + 1);
        reads(text, found ? (size_t)(found - text) + length : length_of(text) + 1);
    }
    return found;
}

/* As far as the number goes, and the byte that ends it: there may be a whole file behind it. */
#define READS_NUMBER(type, name, parameters, given, arguments) \
    WRAPPED(name);                                             \
    WITHIN type our_##name parameters                          \
    {                                                          \
        char *stop = (char *)text;                             \
        type number = REAL(name) arguments;                    \
                                                               \
        reads(text, (size_t)(stop - text) + 1);                \
        if (end)                                               \
            *end = stop;                                       \
        return number;                                         \
    }                                                          \
                                                               \
    HOOK type name parameters { return our_##name given; }

#define READS_INTEGER(type, name)                                                                               \
    READS_NUMBER(type, name, (const char *restrict text, char **restrict end, int base), (text, end, base),     \
                 (text, &stop, base))
#define READS_REAL(type, name) \
    READS_NUMBER(type, name, (const char *restrict text, char **restrict end), (text, end), (text, &stop))

READS_INTEGER(long, strtol)
READS_INTEGER(unsigned long, strtoul)
READS_INTEGER(long long, strtoll)
READS_INTEGER(unsigned long long, strtoull)
READS_REAL(double, strtod)
READS_REAL(float, strtof)

HOOK int atoi(const char *text) { return (int)our_strtol(text, NULL, 10); }
HOOK long atol(const char *text) { return our_strtol(text, NULL, 10); }
HOOK double atof(const char *text) { return our_strtod(text, NULL); }

WRAPPED(strcpy);
WITHIN char *our_strcpy(char *restrict to, const char *restrict from)
{
    if (mine) {
        size_t n = length_of(from) + 1;

        reads(from, n);
        writes(to, n);
    }
    return REAL(strcpy)(to, from);
}

HOOK char *strcpy(char *restrict to, const char *restrict from) { return our_strcpy(to, from); }

WRAPPED(strncpy);
WITHIN char *our_strncpy(char *restrict to, const char *restrict from, size_t n)
{
    if (mine) {
        size_t length = 0;

        while (length < n && from[length])
            length++;
        reads(from, length < n ? length + 1 : n);
        writes(to, n);
    }
    return REAL(strncpy)(to, from, n);
}

HOOK char *strncpy(char *restrict to, const char *restrict from, size_t n) { return our_strncpy(to, from, n); }

HOOK char *__strcpy_chk(char *restrict to, const char *restrict from, size_t room)
{
    if (length_of(from) >= room)
        abort();
    return our_strcpy(to, from);
}

HOOK char *__strncpy_chk(char *restrict to, const char *restrict from, size_t n, size_t room)
{
    if (n > room)
        abort();
    return our_strncpy(to, from, n);
}

/* What is there already is read, to find its end. */
WITHIN char *append(char *restrict to, const char *restrict from, size_t length, int is_whole)
{
    size_t end = length_of(to);

    reads(to, end + 1);
    if (is_whole)
        reads(from + length, 1); /* its end */
    our_memcpy(to + end, from, length);
    writes(to + end + length, 1);
    to[end + length] = 0;
    return to;
}

static size_t length_within(const char *text, size_t n)
{
    size_t length = 0;

    while (length < n && text[length])
        length++;
    return length;
}

HOOK char *strcat(char *restrict to, const char *restrict from) { return append(to, from, length_of(from), 1); }

HOOK char *strncat(char *restrict to, const char *restrict from, size_t n)
{
    size_t length = length_within(from, n);

    return append(to, from, length, length < n);
}

HOOK char *__strcat_chk(char *restrict to, const char *restrict from, size_t room)
{
    if (length_of(to) + length_of(from) >= room)
        abort();
    return append(to, from, length_of(from), 1);
}

HOOK char *__strncat_chk(char *restrict to, const char *restrict from, size_t n, size_t room)
{
    size_t length = length_within(from, n);

    if (length_of(to) + length >= room)
        abort();
    return append(to, from, length, length < n);
}

HOOK char *stpcpy(char *restrict to, const char *restrict from)
{
    size_t n = length_of(from);

    our_memcpy(to, from, n + 1);
    return to + n;
}

HOOK char *__stpcpy_chk(char *restrict to, const char *restrict from, size_t room)
{
    size_t n = length_of(from);

    if (n >= room)
        abort();
    our_memcpy(to, from, n + 1);
    return to + n;
}

WRAPPED(strdup);
HOOK char *strdup(const char *text)
{
    char *copy = REAL(strdup)(text);

    if (copy && mine) {
        size_t n = length_of(text) + 1;

        reads(text, n);
        writes(copy, n);
    }
    return copy;
}

/* What a runtime's comparison calls is called by libc. */
WRAPPED(qsort);
HOOK void qsort(void *base, size_t n, size_t size, int (*compare)(const void *, const void *))
{
    struct input_thread *hidden = is_runtime(CALLER) ? counting_thread() : 0;

    reads(base, n * size);
    if (hidden)
        hidden->is_busy = 1;
    REAL(qsort)(base, n, size, compare);
    if (hidden)
        hidden->is_busy = 0;
    writes(base, n * size);
}

/* ---- memory that is given back, moved or put where other memory was ---- */

enum { LARGE_BYTES = 1 << 17 }; /* what allocators may give back to the system when it is freed */

/* By system calls of our own: allocators call these before libc's can be looked for. */
static long as_libc(long result)
{
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

HOOK void *mmap(void *wish, size_t n, int protection, int flags, int file, off_t at)
{
    long result = as_libc(raw_of_six(SYS_MMAP, (long)wish, n, protection, flags, file, at));

    if (is_on && result != -1)
        input_forget(result, n);
    return (void *)result;
}

HOOK void *mmap64(void *wish, size_t n, int protection, int flags, int file, off64_t at)
{
    return mmap(wish, n, protection, flags, file, at);
}

HOOK int munmap(void *memory, size_t n)
{
    if (is_on && !((long)memory & (INPUT_PAGE_BYTES - 1)))
        input_forget((uint64_t)memory, n); /* before another thread can have it */
    return (int)as_libc(raw(SYS_MUNMAP, (long)memory, n, 0, 0));
}

HOOK int madvise(void *memory, size_t n, int advice)
{
    long result = as_libc(raw(SYS_MADVISE, (long)memory, n, advice, 0));

    if (is_on && !result && (advice == MADV_DONTNEED || advice == MADV_REMOVE))
        input_forget((uint64_t)memory, n);
    return (int)result;
}

HOOK void *mremap(void *memory, size_t n, size_t wanted, int flags, ...)
{
    va_list more;
    void *wish;
    long result;

    va_start(more, flags);
    wish = va_arg(more, void *);
    va_end(more);
    result = as_libc(raw_of_six(SYS_MREMAP, (long)memory, n, wanted, flags, (long)wish, 0));
    if (is_on && result != -1 && (void *)result != memory)
        input_move((uint64_t)memory, result, n < wanted ? n : wanted);
    if (is_on && result != -1 && wanted < n)
        input_forget((uint64_t)memory + wanted, n - wanted);
    return (void *)result;
}

HOOK void free(void *memory)
{
    find_allocator();
    if (is_on && memory && next_usable) {
        size_t n = next_usable(memory);

        if (n >= LARGE_BYTES)
            input_forget((uint64_t)memory, n);
    }
    if (next_free)
        next_free(memory);
}

void *__libc_calloc(size_t, size_t) __attribute__((weak));

HOOK void *calloc(size_t n, size_t size)
{
    struct input_thread *thread;
    void *result;

    find_allocator();
    if (next_calloc)
        result = next_calloc(n, size);
    else
        result = __libc_calloc ? __libc_calloc(n, size) : 0; /* dlsym may call it */
    if (result && (thread = counting_thread()))
        input_clear(thread, (uint64_t)result, n * size);
    return result;
}

HOOK void *realloc(void *memory, size_t n)
{
    size_t had = 0;
    void *result;

    find_allocator();
    if (!next_realloc)
        return 0;
    if (is_on && memory && next_usable)
        had = next_usable(memory);
    result = next_realloc(memory, n);
    if (!result || !had || result == memory)
        return result;
    if (had >= LARGE_BYTES)
        input_move((uint64_t)memory, (uint64_t)result, had < n ? had : n);
    else
        writes(result, had < n ? had : n);
    return result;
}

/* ---- ends without destructors ---- */

WRAPPED(_exit);
HOOK __attribute__((noreturn)) void _exit(int code)
{
    end_process();
    REAL(_exit)(code);
    __builtin_unreachable();
}

WRAPPED(_Exit);
HOOK __attribute__((noreturn)) void _Exit(int code)
{
    end_process();
    REAL(_Exit)(code);
    __builtin_unreachable();
}
