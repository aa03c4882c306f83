// SPDX-License-Identifier: Apache-2.0
/*
 * calls_replaced - a library that is unloaded, and loaded again with other contents.
 *
 *   calls_replaced PATH    for each line with a number on standard input: loads PATH, says so, waits for a line, calls
 *                          `plugged` that often, unloads PATH, says what was returned each time
 *
 * Built with -DPLUGIN=1 or -DPLUGIN=2 it is the library. Where the function begins in the first, the second has the
 * middle of an instruction: a breakpoint left there would change what it returns.
 */
#ifdef PLUGIN
#if PLUGIN == 1
__asm__(".text\n.p2align 8\n.skip 4, 0x90\n.globl plugged\n.type plugged, @function\n"
	"plugged: push %rbp\nmov $7, %eax\npop %rbp\nret\n.size plugged, . - plugged\n");
#else
__asm__(".text\n.p2align 8\n.globl plugged\n.type plugged, @function\n"
	"plugged: movabs $0x1122334455667788, %rax\nret\n.size plugged, . - plugged\n");
#endif
#else
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static long number(void)
{
	char line[32];

	return fgets(line, sizeof(line), stdin) ? atol(line) : -1;
}

int main(int count, char **arguments)
{
	long calls;

	while (count == 2 && (calls = number()) >= 0) {
		void *library = dlopen(arguments[1], RTLD_NOW);
		long (*plugged)(long), first;

		if (!library)
			return 3;
		plugged = (long (*)(long))dlsym(library, "plugged");
		puts("loaded");
		fflush(stdout);
		number();
		first = plugged(0);
		for (long i = 1; i < calls; i++)
			if (plugged(i) != first)
				return 4;
		dlclose(library);
		printf("%lx\n", (unsigned long)first);
		fflush(stdout);
	}
	return 0;
}
#endif
