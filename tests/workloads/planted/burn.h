// SPDX-License-Identifier: Apache-2.0
/* burn.h - work that takes CPU time in proportion to its argument, and touches no memory. */
#ifndef BURN_H
#define BURN_H

#define US 500L /* rounds of about a microsecond */

static inline __attribute__((always_inline)) unsigned long burn(unsigned long x, long rounds)
{
	for (long i = 0; i < rounds; i++)
		x = x * 6364136223846793005UL + 1442695040888963407UL;
	return x;
}

#endif
