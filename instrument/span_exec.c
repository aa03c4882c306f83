/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that goes on as another program: its record ends there, and that one has its own. What the C library's
 * functions of this kind call of each other cannot be put in front of, so each has its wrapper.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

#include "span.h"

#define EXEC(name, parameters, ...)                                                                                   \
	EXPORT int name parameters                                                                                    \
	{                                                                                                             \
		REAL(int, name, parameters);                                                                          \
		struct frame *frame = span_leave_process();                                                           \
		int failure = call(__VA_ARGS__), error = errno; /* else it does not return */                         \
                                                                                                                      \
		span_stay_in_process(frame);                                                                          \
		errno = error;                                                                                        \
		return failure;                                                                                       \
	}
EXEC(execve, (const char *path, char *const *words, char *const *variables), path, words, variables)
EXEC(execvpe, (const char *name, char *const *words, char *const *variables), name, words, variables)
EXEC(fexecve, (int file, char *const *words, char *const *variables), file, words, variables)
EXEC(execveat, (int folder, const char *path, char *const *words, char *const *variables, int flags), folder, path, words,
     variables, flags)

EXPORT int execv(const char *path, char *const *words)
{
	return execve(path, words, environ);
}

EXPORT int execvp(const char *name, char *const *words)
{
	return execvpe(name, words, environ);
}

/* Functions that have each word as an argument, with a null after the last. */

static size_t count_words(va_list list)
{
	size_t count = 1;

	while (va_arg(list, char *))
		count++;
	return count;
}

#define TAKE_WORDS(words, first, list)                                                                                \
	do {                                                                                                          \
		(words)[0] = (char *)(first);                                                                         \
		for (size_t at = 0; (words)[at]; at++)                                                                \
			(words)[at + 1] = va_arg(list, char *);                                                       \
	} while (0)

#define EXEC_WORDS(name, call_of, ...)                                                                                \
	EXPORT int name(const char *path, const char *first, ...)                                                     \
	{                                                                                                             \
		va_list list;                                                                                         \
		size_t count = 1;                                                                                     \
                                                                                                                      \
		va_start(list, first);                                                                                \
		count += first ? count_words(list) : 0;                                                               \
		va_end(list);                                                                                         \
		char *words[count];                                                                                   \
                                                                                                                      \
		va_start(list, first);                                                                                \
		TAKE_WORDS(words, first, list);                                                                       \
		__VA_ARGS__;                                                                                          \
		va_end(list);                                                                                         \
		return call_of;                                                                                       \
	}
EXEC_WORDS(execl, execv(path, words), )
EXEC_WORDS(execlp, execvp(path, words), )
EXEC_WORDS(execle, execve(path, words, variables), char *const *variables = va_arg(list, char *const *))
