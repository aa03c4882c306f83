/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of many bytes are sampled: one of each `size` that go by, drawn anew each time. A fixed distance would always hit
 * the same call of a program that makes its calls in turn, two of half that size, say; this hits each in proportion to its
 * bytes, and the number of samples is that of the bytes by `size`, give or take one. And which of many samples are taken,
 * where they are thinned out, likewise. Pure functions, unit-tested with gcc; for the programs in the kernel, and for what
 * is preloaded into a target.
 */
#ifndef PARPROF_STRATA_H
#define PARPROF_STRATA_H

struct stratum {
	unsigned long long position;	/* bytes of it that have gone by; below the size */
	unsigned long long point;	/* which of them is sampled, from 1 on: beyond the size, none; 0 = that is not drawn yet */
};

/* How many of the next bytes are sampled. `luck`: a random number. */
static inline __attribute__((always_inline)) unsigned long long points_within(struct stratum *s, unsigned long long bytes,
									      unsigned long long size,
									      unsigned long long luck)
{
	unsigned long long before = s->position, after = before + bytes, point = s->point, found;

	if (!point)
		point = s->point = luck % size + 1;
	found = before < point && point <= after;
	if (after >= size) {	/* all of those between have one each */
		found += after / size - 1;
		after %= size;
		point = s->point = (luck >> 7) % size + 1;
		found += point <= after;
	}
	s->position = after;
	return found;
}

/* Whether of things that come one by one, `count` of them before this, it is this one that is sampled: one of each 2^shift,
 * at a place of its own in each. The clocks of two CPUs tick in turn: a fixed place would be always that of the same one. */
static inline __attribute__((always_inline)) int one_of_each(unsigned int count, unsigned int shift)
{
	unsigned int place = (count >> shift) + 1;

	place = (place ^ place >> 16) * 0x7feb352dU;
	place = (place ^ place >> 15) * 0x846ca68bU;
	place ^= place >> 16;
	return !((count ^ place) & ((1U << shift) - 1));
}

#endif
