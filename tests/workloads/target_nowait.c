/* What is to be offloaded, without a device: its tasks run on the host, by whoever of the team is free. */
#include <math.h>
#include <stdio.h>

static double results[32];

static double burn(long n, int seed)
{
	double sum = 0;

	for (long i = 0; i < n; i++)
		sum += sqrt((double)i + seed);
	return sum;
}

__attribute__((noinline)) static void on_the_host(int round)
{
	results[20] += burn(4000000, round);
}

__attribute__((noinline)) static void offload(void)
{
	for (int k = 0; k < 4; k++) {
#pragma omp target nowait map(tofrom : results[k:1])
		results[k] += burn(10000000, k);
	}
}

int main(void)
{
	for (int round = 0; round < 16; round++) {
#pragma omp parallel num_threads(2)
#pragma omp single
		{
			offload();
			on_the_host(round);
#pragma omp taskwait
		}
	}
	/* outside of any team it runs at once */
#pragma omp target map(tofrom : results[5:1])
	results[5] += burn(10000000, 5);
	printf("%g\n", results[1] + results[5] + results[20]);
	return 0;
}
