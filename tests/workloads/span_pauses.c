/* The same work in pieces and at once, by turns: what is measured between the pieces must not be in them, nor take of
 * them. Arguments: "regions" or "calls", rounds, pieces a round, steps of a piece. */
#include <stdlib.h>
#include <string.h>

static volatile double sink;

static __attribute__((noinline)) void work(long steps)
{
	double x = sink;

	for (long i = 0; i < steps; i++)
		x = x * 0.999 + 1;
	sink = x;
}

static void in_regions(long pieces, long steps)
{
	for (long i = 0; i < pieces; i++) {
#pragma omp parallel
		work(steps); /* piece */
		work(steps); /* serial piece */
	}
#pragma omp parallel
	work(pieces * steps); /* whole */
}

static void in_calls(long pieces, long steps)
{
	for (long i = 0; i < pieces; i++)
		work(steps); /* piece of calls */
	work(pieces * steps); /* whole of calls */
}

int main(int count, char **arguments)
{
	if (count != 5)
		return 2;
	for (long round = 0; round < atol(arguments[2]); round++) {
		if (!strcmp(arguments[1], "regions"))
			in_regions(atol(arguments[3]), atol(arguments[4]));
		else
			in_calls(atol(arguments[3]), atol(arguments[4]));
	}
	return 0;
}
