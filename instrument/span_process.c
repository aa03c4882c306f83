/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library in its process: the record file, the real functions, and forks.
 *
 * PARPROF_SPAN_DIR is where record files go; PARPROF_SPAN_THREADS how many cores the program shall believe in, and
 * PARPROF_SPAN_SERIAL that its one thread stands for any number.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "span.h"

struct span_record *span_record;
struct frame span_root;
bool span_is_serial;
const char *span_alone = &(const char){0};
uint32_t span_threads_asked, span_thread_limit = UINT32_MAX;

static char directory[256];
static uint64_t start_cpu_ns, start_ns;

/* the real functions */

struct library_query {
	const char *name;
	void *found;
};

static int visit_library(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct library_query *query = argument;
	const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
	void *library;

	(void)size;
	if (!base || (strncmp(base, "/libgomp", 8) && strncmp(base, "/libomp", 7) && strncmp(base, "/libiomp5", 9)))
		return 0;
	library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
	if (library)
		query->found = dlsym(library, query->name);
	return query->found != NULL;
}

/* A runtime that came with a plug-in (RTLD_LOCAL) is not among the libraries after ours: it is looked for by name. Null:
 * there is none. */
void *span_look_up(void **where, const char *name)
{
	struct library_query query = {name, NULL};
	void *found = NULL;

	if (!strncmp(name, "pthread_cond_", 13)) /* there are older ones, for other structures */
		found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
	if (!found)
		found = dlsym(RTLD_NEXT, name);
	if (!found) {
		dl_iterate_phdr(visit_library, &query);
		found = query.found;
	}
	__atomic_store_n(where, found, __ATOMIC_RELAXED);
	return found;
}

void *span_find_real(void **where, const char *name)
{
	void *found = span_look_up(where, name);

	if (!found) {
		fprintf(stderr, "parprof: the program calls %s, which no library has\n", name);
		_exit(127);
	}
	return found;
}

/* Which of two runtimes in a process has a function, its name does not say. */
void *span_find_beside(void **where, void *function, const char *name)
{
	void *library, *found;
	Dl_info info;

	if (!dladdr(function, &info) || !info.dli_fname)
		return NULL;
	library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		return NULL;
	found = dlsym(library, name);
	dlclose(library);
	__atomic_store_n(where, found, __ATOMIC_RELAXED);
	return found;
}

/* the record */

static void read_command(struct span_record *record)
{
	int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = file >= 0 ? read(file, record->command, sizeof(record->command) - 1) : 0;

	for (ssize_t i = 0; i + 1 < length; i++) {
		if (!record->command[i])
			record->command[i] = ' ';
	}
	if (file >= 0)
		close(file);
}

static struct span_record *make_record(void)
{
	char path[sizeof(directory) + 64];
	struct span_record *record;
	int file;

	snprintf(path, sizeof(path), "%s/%d-%llu.span", directory, (int)getpid(),
		 (unsigned long long)clock_ns(CLOCK_MONOTONIC));
	file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (file < 0)
		return NULL;
	if (ftruncate(file, sizeof(*record))) {
		close(file);
		return NULL;
	}
	record = mmap(NULL, sizeof(*record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (record == MAP_FAILED)
		return NULL;
	record->version = SPAN_VERSION;
	record->bytes = sizeof(*record);
	record->pid = (uint32_t)getpid();
	record->threads = span_threads_asked;
	read_command(record);
	return record;
}

static void begin_process(uint32_t flags, uint64_t frequency)
{
	struct thread *self = &span_self;
	struct span_record *record = make_record();

	if (!record) {
		span_record = NULL;
		self->frame = self->implicit = NULL;
		self->is_open = false;
		return;
	}
	record->flags = flags;
	record->cycles_per_second = frequency;
	start_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	start_ns = clock_ns(CLOCK_MONOTONIC);
	span_reset_sites(record);
	span_record = record;
	span_calls_reset(record);
	record->magic = SPAN_MAGIC;
	span_root.is_root = true;
	span_root.site = SITE_PENDING;
	self->frame = self->implicit = &span_root;
	self->held_count = 0;
	self->clock.base_tsc = 0;
	self->is_open = false;
	span_begin_strand(self);
}

static void after_fork(void)
{
	if (!span_record)
		return;
	uint32_t flags = (span_record->flags & (SPAN_NO_RSEQ | SPAN_FAKE_CLOCK)) | SPAN_FORKED;
	uint64_t frequency = span_record->cycles_per_second;

	munmap(span_record, sizeof(*span_record));
	span_forget_threads();
	begin_process(flags, frequency);
}

static bool is_loaded;

/* Once. Libraries that the program is linked with are told that they are loaded before we are: one that asks for the
 * number of processors then, or makes threads, is the first to call. */
void span_load(void)
{
	const char *where = getenv("PARPROF_SPAN_DIR"), *threads = getenv("PARPROF_SPAN_THREADS");
	const char *limit = getenv("OMP_THREAD_LIMIT");
	enum span_clock kind;
	uint64_t frequency;

	if (is_loaded)
		return;
	is_loaded = true;
	if (!where || strlen(where) >= sizeof(directory))
		return;
	strcpy(directory, where);
	if (&__libc_single_threaded)
		span_alone = &__libc_single_threaded;
	span_prepare_waits();
	span_is_serial = getenv("PARPROF_SPAN_SERIAL") != NULL;
	span_threads_asked = threads ? (uint32_t)atoi(threads) : 0;
	span_thread_limit = limit && atoi(limit) > 0 ? (uint32_t)atoi(limit) : UINT32_MAX;
	frequency = clock_choose(&kind);
	begin_process(kind == CLOCK_BY_TEST ? SPAN_FAKE_CLOCK : kind == CLOCK_BY_SYSCALL ? SPAN_NO_RSEQ : 0, frequency);
	pthread_atfork(NULL, NULL, after_fork);
}

__attribute__((constructor(101))) static void load(void)
{
	span_load();
}

__attribute__((destructor(101))) static void unload(void)
{
	struct thread *self = &span_self;

	if (!span_record || span_record->pid != (uint32_t)getpid())
		return;
	span_end_strand(self);
	span_end_threads(self);
	span_calls_end(self);
	if (self->frame == &span_root)
		span_end_serial(0);
	else
		span_record->flags |= SPAN_INSIDE;
	span_record->switches += self->clock.switches;
	span_record->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start_cpu_ns;
	span_record->elapsed_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
	self->frame = NULL;
	__atomic_or_fetch(&span_record->flags, SPAN_CLOSED, __ATOMIC_RELEASE);
}

/* The process is about to become another program: for this one that is an exit. A child of vfork shares our memory: its
 * process id tells it apart. Returns where the thread is, should there be no such program; null where it cannot go on:
 * what threads and call sites have done is told once. */
struct frame *span_leave_process(void)
{
	struct frame *frame = span_self.frame;
	bool is_over = span_has_threads() || span_has_calls;

	if (!span_record || span_record->pid != (uint32_t)getpid() || !frame)
		return NULL;
	span_record->flags |= SPAN_REPLACED;
	unload();
	return is_over ? NULL : frame;
}

/* There is none: the process goes on as it was. */
void span_stay_in_process(struct frame *frame)
{
	if (!frame)
		return;
	span_self.frame = frame;
	__atomic_and_fetch(&span_record->flags, ~(uint32_t)(SPAN_CLOSED | SPAN_INSIDE | SPAN_REPLACED), __ATOMIC_RELEASE);
	span_begin_strand(&span_self);
}

/* An end without destructors. */
EXPORT void _exit(int code)
{
	unload();
	for (;;)
		syscall(SYS_exit_group, code);
}

EXPORT void _Exit(int code)
{
	_exit(code);
}
