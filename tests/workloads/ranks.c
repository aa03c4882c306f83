// SPDX-License-Identifier: Apache-2.0
// Two processes that compute and meet at a barrier, as the ranks of an MPI program: the first has three times as much to do.
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int MPI_Barrier(void *communicator, int ranks);

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void compute(double seconds)
{
	double end = cpu_s() + seconds;

	while (cpu_s() < end)
		for (volatile int i = 0; i < 100000; i++)
			;
}

int main(void)
{
	void *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t other = fork();

	for (int step = 0; step < 20; step++) {
		compute(other ? 0.06 : 0.02);
		MPI_Barrier(shared, 2);
	}
	return other ? waitpid(other, 0, 0) != other : 0;
}
