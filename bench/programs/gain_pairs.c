/* Programs with a known loss, and the same with it mended: `gain_pairs CASE lost|mended`. All work is counted, so both do
 * the same, but for `removed`. One multiplication waits for the one before, so that two threads of one core hardly
 * hinder each other. */
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define ITEMS 48
#define UNIT 4000000L	/* some 10 ms */

static volatile double sink;
static double results[4 * ITEMS];

static NOINLINE double burn(long units)
{
	double x = 1.0;

	for (long i = 0; i < units * UNIT / 4; i++)
		x = x * 1.0000001 + 1e-9;
	__asm__ volatile("" ::: "memory");	/* else one call would do for several */
	return x;
}

/* On all cores, in every program. */
static NOINLINE void compute(long units)
{
#pragma omp parallel for schedule(dynamic)
	for (int i = 0; i < ITEMS; i++)
		results[i] += burn(units);
}

static NOINLINE void prepare(int first, int last)
{
	for (int i = first; i < last; i++)
		results[i] += burn(4);
}

static NOINLINE void prepare_on_all(int first, int last)
{
#pragma omp parallel for schedule(dynamic)
	for (int i = first; i < last; i++)
		results[i] += burn(4);
}

static void serial(int mended)
{
	(mended ? prepare_on_all : prepare)(0, ITEMS);
	compute(8);
}

static void removed(int mended)
{
	if (!mended)
		prepare(0, ITEMS);
	compute(8);
}

/* Only half of it can be made parallel: the bound is not reached. */
static void half(int mended)
{
	prepare(0, ITEMS / 2);
	(mended ? prepare_on_all : prepare)(ITEMS / 2, ITEMS);
	compute(8);
}

static NOINLINE void sum_in_turn(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < ITEMS; i++) {
		results[i] = burn(2);
#pragma omp critical
		results[ITEMS] += burn(6);
	}
}

static NOINLINE void sum_by_reduction(void)
{
	double sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
	for (int i = 0; i < ITEMS; i++) {
		results[i] = burn(2);
		sum += burn(6);
	}
	results[ITEMS] = sum;
}

static void critical(int mended)
{
	(mended ? sum_by_reduction : sum_in_turn)();
}

static NOINLINE void triangle(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < 2 * ITEMS; i++)
		results[i] = burn(i / 8);
}

static NOINLINE void triangle_as_free(void)
{
#pragma omp parallel for schedule(dynamic)
	for (int i = 2 * ITEMS - 1; i >= 0; i--)	/* the largest first: no giant is left for the end */
		results[i] = burn(i / 8);
}

static void imbalance(int mended)
{
	(mended ? triangle_as_free : triangle)();
}

static NOINLINE void settle(void)
{
	struct timespec half_a_second = { 0, 500000000 };

	nanosleep(&half_a_second, 0);
	sink++;
}

static void sleeping(int mended)
{
	if (!mended)
		settle();
	compute(8);
}

/* A child that has a block some time after it is asked for one. It falls asleep last, so what nobody works is here. */
static NOINLINE int feeder(int *asked)
{
	struct timespec pause = { 0, 20000000 };
	int answers[2], questions[2];
	char c;

	if (pipe(answers) || pipe(questions))
		abort();
	if (!fork()) {
		close(questions[1]);
		while (read(questions[0], &c, 1) == 1) {
			nanosleep(&pause, 0);
			if (write(answers[1], &c, 1) != 1)
				_exit(1);
		}
		_exit(0);
	}
	close(answers[1]);
	close(questions[0]);
	*asked = questions[1];
	return answers[0];
}

static NOINLINE void read_block(int fd)
{
	char c;

	if (read(fd, &c, 1) != 1)
		abort();
	sink++;
}

static NOINLINE void ask_for_block(int fd, int asked)
{
	if (write(asked, "x", 1) != 1)
		abort();
	read_block(fd);
	sink++;
}

static int blocks[2];

static void *reads_ahead(void *both)
{
	int *fds = both;

	for (int i = 0; i < ITEMS; i++) {
		ask_for_block(fds[0], fds[1]);
		if (write(blocks[1], "x", 1) != 1)
			abort();
	}
	return 0;
}

/* Blocks come 20 ms after they are asked for: by whoever needs one, or ahead by a thread. */
static void reading(int mended)
{
	pthread_t reader;
	int asked, fd = feeder(&asked), own[2] = { fd, asked };

	if (pipe(blocks) || (mended && pthread_create(&reader, 0, reads_ahead, own)))
		abort();
	for (int i = 0; i < ITEMS; i++) {
		if (mended)
			read_block(blocks[0]);
		else
			ask_for_block(fd, asked);
		compute(1);
	}
	if (mended)
		pthread_join(reader, 0);
	close(asked);
	while (wait(0) > 0)
		;
}

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static NOINLINE void update_locked(double *total)
{
	pthread_mutex_lock(&guard);
	*total += burn(6);
	pthread_mutex_unlock(&guard);
}

static NOINLINE void update_own(double *own)
{
	*own += burn(6);
}

static void *takes_turns(void *total)
{
	for (int i = 0; i < ITEMS / 2; i++) {
		sink += burn(2);
		update_locked(total);
	}
	return 0;
}

static void *has_its_own(void *total)
{
	double own = 0;

	for (int i = 0; i < ITEMS / 2; i++) {
		sink += burn(2);
		update_own(&own);
	}
	pthread_mutex_lock(&guard);
	*(double *)total += own;
	pthread_mutex_unlock(&guard);
	return 0;
}

static void lock(int mended)
{
	pthread_t other;
	double total = 0;
	void *(*run)(void *) = mended ? has_its_own : takes_turns;

	if (pthread_create(&other, 0, run, &total))
		abort();
	run(&total);
	pthread_join(other, 0);
	sink = total;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(int mended);
	} cases[] = { { "serial", serial }, { "removed", removed }, { "half", half }, { "critical", critical },
		      { "imbalance", imbalance }, { "sleep", sleeping }, { "read", reading }, { "lock", lock } };

	omp_set_num_threads(2);
	for (size_t i = 0; argc == 3 && i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run(!strcmp(argv[2], "mended"));
			return 0;
		}
	fprintf(stderr, "usage: gain_pairs serial|removed|half|critical|imbalance|sleep|read|lock lost|mended\n");
	return 2;
}
