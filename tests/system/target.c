// SPDX-License-Identifier: Apache-2.0
/* A target that counts forever: what it is asked to run, and proof that it still runs, in one file. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile double sink;

static void work(void)
{
	double sum = 0;

	for (int i = 1; i < 200000; i++)
		sum += 1.0 / i;
	sink = sum;
}

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT, 0666) : -1;
	volatile unsigned long *count;

	if (fd < 0 || ftruncate(fd, sizeof(*count)))
		return 1;
	count = mmap(0, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (count == MAP_FAILED)
		return 1;
	for (;;) {
#pragma omp parallel num_threads(2)
		work();
		++*count;
		usleep(5000);
	}
}
