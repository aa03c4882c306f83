// SPDX-License-Identifier: Apache-2.0
/*
 * odd_runtime - a shared library that is not what its name, or a name in it, says: to be preloaded into a program that uses
 * no OpenMP. Compiled by tests/kernel/test_odd_runtimes.py, under names such as libgomp.so.1.
 *
 *   (nothing)  no function of any runtime
 *   -DDATA     libgomp's functions are variables
 *   -DLIES     libgomp's functions are said to be where no code is: in a variable, beyond the file, at no address at all
 */
#ifdef DATA
int GOMP_parallel = 1, GOMP_barrier = 2, GOMP_task = 3, omp_get_num_threads = 4;
#endif

long odd_words[64] = { 1 };

#ifdef LIES
#define SAYS(name, where) \
	__asm__(".globl " #name "\n.type " #name ", @function\n.set " #name ", " where "\n.size " #name ", 64\n")
SAYS(GOMP_parallel, "odd_words");
SAYS(GOMP_barrier, "odd_words + 64");
SAYS(GOMP_task, "0x7fff00000000");
SAYS(GOMP_taskwait, "odd_words + 0x10000000");
SAYS(omp_get_num_threads, "16");
#endif

long odd_function(void)
{
	return odd_words[0];
}
