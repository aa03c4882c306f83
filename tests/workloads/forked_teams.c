/* Children that are forked and run parallel regions: `forked_teams brief` has three that live for 0.2 s each, and
 * `forked_teams sites` one that creates its work from twenty places, for 1.2 s. `forked_teams single` has one that runs none,
 * for 0.5 s of CPU time, however busy the machine is. */
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static double seconds_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static NOINLINE void spin(double seconds)
{
	double end = seconds_of(CLOCK_MONOTONIC) + seconds;

	while (seconds_of(CLOCK_MONOTONIC) < end)
		__asm__ volatile("");
}

static NOINLINE void filter(int depth)
{
	if (depth) {
		filter(depth - 1);
	} else {
#pragma omp parallel num_threads(2)
		{
			spin(0.01);
			__asm__ volatile("");
		}
	}
	__asm__ volatile("");
}

static void in_a_child(int regions, int depths)
{
	if (!fork()) {
		for (int i = 0; i < regions; i++)
			filter(i % depths);
		_exit(0);
	}
	wait(0);
}

static void in_single_child(double seconds)
{
	if (!fork()) {
		while (seconds_of(CLOCK_PROCESS_CPUTIME_ID) < seconds)
			spin(0.01);
		_exit(0);
	}
	wait(0);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "sites")) {
		in_a_child(120, 20);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "single")) {
		filter(0);
		in_single_child(0.5);
		return 0;
	}
	for (int i = 0; i < 3; i++)
		in_a_child(20, 1);
	return 0;
}
