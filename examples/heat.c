// SPDX-License-Identifier: Apache-2.0
/*
 * heat - heat flow through a plate, solved by Jacobi iteration with OpenMP.
 *
 *	gcc -O2 -g -fopenmp heat.c -o heat && ./heat [SCALE]
 *
 * A program that does not scale, and whose CPU profile does not say why. Two
 * things are wrong with it:
 *   - checksum_serial() runs on one core while the others wait;
 *   - relax_row() costs more inside the hot zone, which a static schedule
 *     gives to few threads.
 * Let parprof find them.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keeps the names in a profile, whether or not the profiler knows inlined code. */
#define NOINLINE __attribute__((noinline))

enum {
	N = 1024,	   /* the plate is N x N cells, its border is fixed */
	HOT_ROWS = N / 8,  /* rows whose conductivity depends on temperature */
	SWEEPS_PER_STEP = 4,
	STEPS = 2400,
};

struct plate {
	double t[N][N];
};

static void fill_plate(struct plate *p)
{
	for (int row = 0; row < N; row++)
		for (int i = 0; i < N; i++)
			p->t[row][i] = 20.0;
	for (int i = 0; i < N; i++) {
		p->t[0][i] = 100.0;
		p->t[i][0] = 100.0 * (N - 1 - i) / (N - 1);
		p->t[i][N - 1] = p->t[i][0];
	}
}

/* Share of the neighbours' mean that a cell takes on; less when it is hot. */
static inline double conductivity(double t)
{
	return 1.0 / (1.0 + 0.001 * t);
}

NOINLINE static void relax_row(struct plate *to, const struct plate *from, int row)
{
	const double *up = from->t[row - 1], *here = from->t[row], *down = from->t[row + 1];

	for (int i = 1; i < N - 1; i++) {
		double mean = 0.25 * (up[i] + down[i] + here[i - 1] + here[i + 1]);

		if (row < HOT_ROWS)
			mean = here[i] + conductivity(here[i]) * (mean - here[i]);
		to->t[row][i] = mean;
	}
}

NOINLINE static void relax_plate(struct plate *to, const struct plate *from)
{
#pragma omp parallel for schedule(static)
	for (int row = 1; row < N - 1; row++)
		relax_row(to, from, row);
}

/* FNV-1a over every cell: each step needs the one before it, so one core does it. */
NOINLINE static uint64_t checksum_serial(const struct plate *p)
{
	uint64_t hash = 14695981039346656037u;

	for (int row = 0; row < N; row++) {
		for (int i = 0; i < N; i++) {
			uint64_t bits;

			memcpy(&bits, &p->t[row][i], sizeof(bits));
			hash = (hash ^ bits) * 1099511628211u;
		}
	}
	return hash;
}

NOINLINE static double mean_temperature(const struct plate *p)
{
	double sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
	for (int row = 0; row < N; row++)
		for (int i = 0; i < N; i++)
			sum += p->t[row][i];
	return sum / ((double)N * N);
}

int main(int argc, char **argv)
{
	double scale = argc > 1 ? atof(argv[1]) : 1.0;
	int steps = (int)(STEPS * scale);
	struct plate *now = aligned_alloc(64, sizeof(*now));
	struct plate *next = aligned_alloc(64, sizeof(*next));
	uint64_t checksum = 0;

	if (!now || !next || steps < 1) {
		fprintf(stderr, "usage: %s [SCALE], by default 1.0\n", argv[0]);
		return 2;
	}
	fill_plate(now);
	fill_plate(next);
	for (int step = 0; step < steps; step++) {
		for (int sweep = 0; sweep < SWEEPS_PER_STEP; sweep++) {
			struct plate *done = next;

			relax_plate(next, now);
			next = now;
			now = done;
		}
		checksum ^= checksum_serial(now);
	}
	printf("%d steps, mean temperature %.6f, checksum %016llx\n", steps, mean_temperature(now),
	       (unsigned long long)checksum);
	free(now);
	free(next);
	return 0;
}
