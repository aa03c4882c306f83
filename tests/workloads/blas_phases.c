// SPDX-License-Identifier: Apache-2.0
// Short serial phases between short calls of libstandin_openblas.so (blas_pool.c), whose thread spins in between: usage:
// STANDIN_SPIN=67108864 blas_phases. 5, 20 and 80 ms of serial code at a time, for 1 s each, with calls of 5 ms between them.
// Logs each piece of serial code (truth.h).
#include "phases.h"

void dgemm(double seconds);

TRUTH_WORK(serial_5)
TRUTH_WORK(serial_20)
TRUTH_WORK(serial_80)

TRUTH_NOINLINE static void phases_of_5(void)
{
	for (int i = 0; i < 200; i++) {
		serial_5(5000000);
		dgemm(0.005);
	}
}

TRUTH_NOINLINE static void phases_of_20(void)
{
	for (int i = 0; i < 50; i++) {
		serial_20(20000000);
		dgemm(0.005);
	}
}

TRUTH_NOINLINE static void phases_of_80(void)
{
	for (int i = 0; i < 13; i++) {
		serial_80(80000000);
		dgemm(0.005);
	}
}

int main(int argc, char **argv)
{
	static const struct phase phases[] = {
		{ "5", phases_of_5 },
		{ "20", phases_of_20 },
		{ "80", phases_of_80 },
		{ NULL, NULL },
	};

	return phases_main(argc, argv, phases);
}
