// SPDX-License-Identifier: Apache-2.0
// A program with 400,000 functions that are never called (the Makefile has them), each with a description of its stack.
// usage: many_functions name NAME
//
// It takes that name, and works in burns() for ever.
#include <sys/prctl.h>

static volatile unsigned long sink;

__attribute__((noinline)) void burns(void)
{
	for (unsigned long i = 0; i < 300000; i++)
		sink += i;
}

int main(int argc, char **argv)
{
	if (argc > 2)
		prctl(PR_SET_NAME, argv[2]);
	for (;;)
		burns();
}
