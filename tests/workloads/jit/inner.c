/* SPDX-License-Identifier: Apache-2.0
 *
 * The same without call frame information: LLVM makes none for functions that nothing is thrown through.
 */
long made_inner(long start)
{
	volatile long kept[4] = { start, 1, 2, 3 };

	for (long i = 0; i < 100000; i++) {
		__asm__ volatile("xor %%ebp, %%ebp" : : : "rbp");
		kept[i & 3] += i;
	}
	return kept[0];
}
