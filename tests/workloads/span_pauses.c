/* The same work in pieces and at once, by turns: what is measured between the pieces must not be in them, nor take of
 * them. Arguments: "regions", "thread" (regions in a second one), "calls" or "tasks"; rounds; pieces a round; steps of a
 * piece. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static volatile double sink;

static __attribute__((noinline)) void work(long steps)
{
	double x = sink;

	for (long i = 0; i < steps; i++)
		x = x * 0.999 + 1;
	sink = x;
#ifdef __x86_64__
	__builtin_ia32_lfence(); /* a reading of the TSC does not wait for what is still being computed */
#endif
}

static int is_irregular;

static long serial_steps(long piece, long steps)
{
	return !is_irregular ? steps : piece % 25 ? 0 : 20 * steps;
}

static void in_regions(long pieces, long steps)
{
	for (long i = 0; i < pieces; i++) {
#pragma omp parallel
		work(steps); /* piece */
		work(serial_steps(i, steps)); /* serial piece */
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

struct block {
	char of[4096];
};

/* By turns of two sites, for which the runtime does not do the same: of one it copies a page for each task. */
static void in_tasks(long pieces, long steps)
{
	struct block block;

	memset(&block, 1, sizeof(block));
#pragma omp parallel
#pragma omp single
	for (long i = 0; i < pieces; i++) {
#pragma omp task
		work(steps); /* plain piece */
#pragma omp task firstprivate(block)
		work(steps * block.of[i % (long)sizeof(block)]); /* piece with a page */
		if (i % 25 == 24) {
#pragma omp taskwait
		}
	}
#pragma omp parallel
	work(pieces * steps); /* whole of tasks */
}

static char **words;

static void run(void)
{
	for (long round = 0; round < atol(words[2]); round++) {
		if (!strcmp(words[1], "calls"))
			in_calls(atol(words[3]), atol(words[4]));
		else if (!strcmp(words[1], "tasks"))
			in_tasks(atol(words[3]), atol(words[4]));
		else
			in_regions(atol(words[3]), atol(words[4]));
	}
}

static void *run_in_thread(void *unused)
{
	run();
	return unused;
}

int main(int count, char **arguments)
{
	pthread_t thread;

	if (count != 5)
		return 2;
	words = arguments;
	if (strcmp(words[1], "thread")) {
		run();
		return 0;
	}
	is_irregular = 1;
#pragma omp parallel
	work(1);
	if (pthread_create(&thread, NULL, run_in_thread, NULL))
		return 1;
	pthread_join(thread, NULL);
	return 0;
}
