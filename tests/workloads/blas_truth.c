// SPDX-License-Identifier: Apache-2.0
// Loads libstandin_openblas.so (blas_pool.c) from its own directory and calls it: often() for 0.9 s, seldom() for 0.3 s.
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static void (*dgemm)(double seconds);

NOINLINE static void often(void)
{
	for (int i = 0; i < 90; i++)
		dgemm(0.01);
}

NOINLINE static void seldom(void)
{
	for (int i = 0; i < 30; i++)
		dgemm(0.01);
}

NOINLINE static void *load(void)
{
	char path[4096] = "";

	if (readlink("/proc/self/exe", path, sizeof(path) - 64) < 0)
		return 0;
	dirname(path);
	return dlopen(strcat(path, "/libstandin_openblas.so"), RTLD_NOW);
}

int main(void)
{
	void *library = load();

	if (!library)
		return fprintf(stderr, "%s\n", dlerror()), 1;
	dgemm = (void (*)(double))dlsym(library, "dgemm");
	often();
	seldom();
	return 0;
}
