/* A program that is one parallel region: nobody can know its body before it begins. Nearly all of the time it is in code
 * that a library has. After a barrier each thread does the same. */
#include <math.h>
#include <stdio.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(void)
{
	double begun = now(), sum = 0;

#pragma omp parallel num_threads(2) reduction(+ : sum)
	{
		double end;

#pragma omp barrier
		end = now() + 1.0;
		while (now() < end)
			for (int i = 0; i < 1000; i++)
				sum += pow(i + sum * 1e-9, 1.0001);
	}
	printf("%.3f %g\n", now() - begun, sum);
	return 0;
}
