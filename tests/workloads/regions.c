// SPDX-License-Identifier: Apache-2.0
/*
 * regions - parallel regions of settable length, at up to 100,000 a second and more, whose true idleness it knows.
 *
 *	regions [--work-us W] [--share S] [--threads T] [--cores N] [--seconds S | --regions N] [--gap-us G] [--delay-us D]
 *
 * Each thread does W microseconds of arithmetic in region_work(), thread 1 does S times as much; G microseconds
 * of arithmetic of the main thread, in gap_work(), lie between two regions. Every stay in region_work() is timed
 * (CLOCK_MONOTONIC), and at the end the program prints one JSON object:
 *	regions, regions_per_s, total_s		of its own run
 *	region_us				mean time in which any thread was in region_work()
 *	work_s, idle_s, ratio			of region_work(): thread time, and the idleness that goes with it on
 *						N cores (tallent-2009 sec. 2): with w threads inside, (N - w) / w
 *	gap_s					in gap_work(), whose ratio is N - 1
 *	alone_us				mean time per region in which only one thread was inside
 *	ratio_delayed				what a sampler would find that learns who is at libgomp's barrier only
 *						--delay-us after the instant of its sample
 * "ready PID" goes to standard error. A preempted thread counts as inside.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

#define MAX_THREADS 16
#define MAX_REGIONS (1u << 21)

struct stay {
	u64 enter_ns, exit_ns;
};

static int threads = 2, cores = 2;

static u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}

static inline void arithmetic(u64 steps)
{
	u64 x = steps;

	for (u64 i = 0; i < steps; i++) {
		x = (x ^ x >> 29) * 6364136223846793005u;
		__asm__ volatile("" : "+r"(x));
	}
}

__attribute__((noinline, noipa)) static void region_work(u64 steps)
{
	arithmetic(steps);
}

__attribute__((noinline, noipa)) static void gap_work(u64 steps)
{
	arithmetic(steps);
}

/* the best of 20, for a preempted one takes longer */
static double steps_per_us(void)
{
	const u64 steps = 200000;
	double best = 0;

	for (int i = 0; i < 20; i++) {
		u64 start = now_ns();

		arithmetic(steps);
		double speed = steps * 1e3 / (double)(now_ns() - start);
		best = speed > best ? speed : best;
	}
	return best;
}

struct sums {
	double inside, work, idle, alone, delayed;
};

/* What a sampler makes of thread time from @from to @to, if it sees n_w only at @at. */
static double idleness_seen(const struct stay *stays, u64 from, u64 to, u64 at, int inside)
{
	int left = 0;

	for (int t = 0; t < threads; t++)
		left += stays[t].exit_ns > at; /* libgomp takes those for working that have not begun, too */
	left = left < 1 ? 1 : left < cores ? left : cores;
	return (double)(to - from) * inside * (cores - left) / left;
}

static void account(const struct stay *stays, u64 delay_ns, struct sums *sums)
{
	u64 edges[3 * MAX_THREADS] = { 0 };
	int count = 0;

	for (int t = 0; t < threads; t++) {
		u64 at[] = { stays[t].enter_ns, stays[t].exit_ns, stays[t].exit_ns - delay_ns };

		for (int side = 0; side < 3; side++) {
			int i = count++;

			for (; i && edges[i - 1] > at[side]; i--)
				edges[i] = edges[i - 1];
			edges[i] = at[side];
		}
	}
	for (int i = 1; i < count; i++) {
		double span = (double)(edges[i] - edges[i - 1]);
		int inside = 0, w;

		for (int t = 0; t < threads; t++)
			inside += stays[t].enter_ns <= edges[i - 1] && edges[i - 1] < stays[t].exit_ns;
		if (!inside)
			continue;
		w = inside < cores ? inside : cores;
		sums->inside += span;
		sums->work += span * inside;
		sums->idle += span * inside * (cores - w) / w;
		sums->alone += inside == 1 ? span : 0;
		sums->delayed += idleness_seen(stays, edges[i - 1], edges[i], edges[i - 1] + delay_ns, inside);
	}
}

static double number(const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max)) {
		fprintf(stderr, "%s: not a number from %g to %g\n", text, min, max);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "work-us", required_argument, NULL, 'w' }, { "share", required_argument, NULL, 's' },
		{ "threads", required_argument, NULL, 't' }, { "cores", required_argument, NULL, 'c' },
		{ "seconds", required_argument, NULL, 'd' }, { "regions", required_argument, NULL, 'n' },
		{ "gap-us", required_argument, NULL, 'g' },  { "delay-us", required_argument, NULL, 'l' },
		{ NULL, 0, NULL, 0 },
	};
	double work_us = 10, share = 1, gap_us = 0, seconds = 2, delay_us = 0;
	struct sums sums = { 0 };
	u64 limit = MAX_REGIONS, done = 0, gap_ns = 0;
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'w')
			work_us = number(optarg, 0, 1e6);
		else if (opt == 's')
			share = number(optarg, 0, 1000);
		else if (opt == 't')
			threads = (int)number(optarg, 1, MAX_THREADS);
		else if (opt == 'c')
			cores = (int)number(optarg, 1, 4096);
		else if (opt == 'd')
			seconds = number(optarg, 0, 1e4);
		else if (opt == 'n')
			limit = (u64)number(optarg, 1, MAX_REGIONS);
		else if (opt == 'g')
			gap_us = number(optarg, 0, 1e6);
		else if (opt == 'l')
			delay_us = number(optarg, 0, 1e6);
		else
			return 2;
	}

	double speed = steps_per_us();
	u64 full = (u64)(work_us * speed), part = (u64)(work_us * share * speed), gap = (u64)(gap_us * speed);
	struct stay *stays = calloc((size_t)limit * (size_t)threads, sizeof(*stays));

	if (!stays) {
		perror("regions");
		return 1;
	}
	omp_set_dynamic(0);
	fprintf(stderr, "ready %d\n", (int)getpid());
	u64 start = now_ns(), end = start + (u64)(seconds * 1e9), stop = start;

	for (; done < limit && stop < end; done++) {
		struct stay *here = stays + done * (u64)threads;

#pragma omp parallel num_threads(threads)
		{
			int me = omp_get_thread_num();

			here[me].enter_ns = now_ns();
			region_work(me == 1 ? part : full);
			here[me].exit_ns = now_ns();
		}
		stop = now_ns();
		if (gap) {
			gap_work(gap);
			gap_ns += now_ns() - stop;
		}
	}
	for (u64 i = 0; i < done; i++)
		account(stays + i * (u64)threads, (u64)(delay_us * 1e3), &sums);
	printf("{\"regions\": %llu, \"regions_per_s\": %.0f, \"total_s\": %.3f, \"region_us\": %.3f, "
	       "\"work_s\": %.4f, \"idle_s\": %.4f, \"ratio\": %.4f, \"ratio_delayed\": %.4f, "
	       "\"gap_s\": %.4f, \"alone_us\": %.3f}\n",
	       (unsigned long long)done, (double)done * 1e9 / (double)(stop - start),
	       (double)(stop - start) / 1e9, sums.inside / (double)done / 1e3, sums.work / 1e9, sums.idle / 1e9,
	       sums.idle / (sums.work > 0 ? sums.work : 1), sums.delayed / (sums.work > 0 ? sums.work : 1),
	       (double)gap_ns / 1e9, sums.alone / (double)done / 1e3);
	return 0;
}
