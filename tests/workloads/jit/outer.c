/* SPDX-License-Identifier: Apache-2.0
 *
 * Code as a JIT compiler makes it, with call frame information, without frame pointers: rbp is a register as any other.
 */
typedef long (*inner)(long);

long made_outer(inner inner, long turns)
{
	long sum = 0;

	for (long i = 0; i < turns; i++) {
		__asm__ volatile("xor %%ebp, %%ebp" : : : "rbp");
		sum += inner(i);
	}
	return sum;
}
