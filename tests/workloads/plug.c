/* SPDX-License-Identifier: Apache-2.0
 *
 * A library for mappings.c, of which there are many: it calls back, so that its frame is in the middle of a stack, and
 * turns for some time. Without frame pointers, and without relocations, so that it runs wherever it is mapped.
 */
#include <stdint.h>
#include <x86intrin.h>

__attribute__((noinline)) uint64_t plug_spin(uint64_t cycles)
{
	volatile uint64_t room[24];	/* a frame that only the table knows */
	uint64_t end = __rdtsc() + cycles;

	room[0] = 0;
	while (__rdtsc() < end)
		room[0]++;
	return room[0];
}

__attribute__((visibility("default"))) uint64_t plug_run(uint64_t cycles, uint64_t (*back)(uint64_t))
{
	volatile uint64_t room[9];

	room[0] = plug_spin(cycles / 2);
	room[1] = back ? back(cycles / 2) : plug_spin(cycles / 2);
	return room[0] + room[1];
}
