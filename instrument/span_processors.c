/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many processors there seem to be: programs size their work by it. Who binds threads to those that are not there
 * is told that it was done: they run anywhere.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "span.h"

static int processors(void **real, const char *name)
{
	span_load();
	if (span_threads_asked)
		return (int)span_threads_asked;
	return ((int (*)(void))span_real(real, name))();
}

#define PROCESSORS(name)                                                                                              \
	EXPORT int name(void)                                                                                         \
	{                                                                                                             \
		static void *real;                                                                                    \
                                                                                                                      \
		return processors(&real, #name);                                                                      \
	}
PROCESSORS(omp_get_num_procs)
PROCESSORS(omp_get_num_procs_) /* Fortran's */
PROCESSORS(get_nprocs)
PROCESSORS(get_nprocs_conf)

static void *real_sysconf;

EXPORT long sysconf(int name)
{
	if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF)
		span_load();
	if (span_threads_asked && (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF))
		return (long)span_threads_asked;
	return ((long (*)(int))span_real(&real_sysconf, "sysconf"))(name);
}

/* Returns an error's number. */
static int fill_cpus(size_t size, cpu_set_t *cpus)
{
	if (size * 8 < span_threads_asked)
		return EINVAL;
	memset(cpus, 0, size);
	for (uint32_t cpu = 0; cpu < span_threads_asked; cpu++)
		CPU_SET_S(cpu, size, cpus);
	return 0;
}

EXPORT int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *cpus)
{
	int error;
	long got;

	span_load();
	if (!span_threads_asked) {
		got = syscall(SYS_sched_getaffinity, pid, size, cpus);
		if (got < 0)
			return -1;
		memset((char *)cpus + got, 0, size - (size_t)got);
		return 0;
	}
	error = fill_cpus(size, cpus);
	if (error)
		errno = error;
	return error ? -1 : 0;
}

EXPORT int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *cpus)
{
	REAL(int, pthread_getaffinity_np, (pthread_t, size_t, cpu_set_t *));

	span_load();
	return span_threads_asked ? fill_cpus(size, cpus) : call(thread, size, cpus);
}

/* Whether a set has some of the processors that we have told of, and no others. */
static bool is_of_ours(size_t size, const cpu_set_t *cpus)
{
	uint32_t known = 0;

	for (uint32_t cpu = 0; cpu < span_threads_asked && cpu < size * 8; cpu++)
		known += CPU_ISSET_S(cpu, size, cpus) != 0;
	return known && known == (uint32_t)CPU_COUNT_S(size, cpus);
}

EXPORT int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *cpus)
{
	REAL(int, sched_setaffinity, (pid_t, size_t, const cpu_set_t *));
	int result = call(pid, size, cpus);

	return result && errno == EINVAL && is_of_ours(size, cpus) ? 0 : result;
}

EXPORT int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *cpus)
{
	REAL(int, pthread_setaffinity_np, (pthread_t, size_t, const cpu_set_t *));
	int error = call(thread, size, cpus);

	return error == EINVAL && is_of_ours(size, cpus) ? 0 : error;
}

static bool has_real(size_t size, const cpu_set_t *cpus)
{
	long there = ((long (*)(int))span_real(&real_sysconf, "sysconf"))(_SC_NPROCESSORS_CONF);

	for (uint32_t cpu = 0; cpu < there && cpu < size * 8; cpu++) {
		if (CPU_ISSET_S(cpu, size, cpus))
			return true;
	}
	return false;
}

/* The set is looked at by pthread_create, which would make no thread. */
EXPORT int pthread_attr_setaffinity_np(pthread_attr_t *how, size_t size, const cpu_set_t *cpus)
{
	REAL(int, pthread_attr_setaffinity_np, (pthread_attr_t *, size_t, const cpu_set_t *));

	if (is_of_ours(size, cpus) && !has_real(size, cpus))
		return 0;
	return call(how, size, cpus);
}
