// SPDX-License-Identifier: Apache-2.0
/*
 * windows.h - self-timing for the cost programs. The work is a fixed amount of
 * arithmetic, not of time: whatever slows the program shows in its wall time.
 * The run is cut into equal windows; the best one is nearly free of noise.
 *
 * Output, one JSON object on stdout, all times in ns:
 *	program, unit, units		what was repeated, and how often
 *	work_us, iterations		arithmetic per unit and thread, as asked and
 *					as calibrated; --iterations repeats it exactly
 *	threads, start_ns, total_ns	start_ns is CLOCK_MONOTONIC
 *	cpu_ns, voluntary_switches, involuntary_switches	of the process
 *	event, events_per_second	what a unit has many of, if it was said: tasks, say
 *	process_wall_ns, process_cpu_ns	from before main, warm-up included, to the last unit
 *	run_delay_ns			how long its living threads were ready, without a CPU
 *	units_per_window, best_window_ns, best_ns_per_unit, mean_ns_per_unit
 *	window_ns, window_cpu_ns	each window, in order; CPU time is the process's
 */
#ifndef WINDOWS_H
#define WINDOWS_H

#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

#define MAX_WINDOWS 1000

struct windows {
	const char *program, *unit;
	int threads, count;
	double work_us, seconds;
	const char *event;
	u64 events; /* in each unit */
	u64 iterations, units, per_window;
	bool wait, cold;
	u64 start_ns, ns[MAX_WINDOWS], cpu_ns[MAX_WINDOWS];
};

static u64 process_start_ns, process_start_cpu_ns;

static inline u64 clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}

#ifndef CPU_NS /* what counts as the program's CPU time */
#define CPU_NS() clock_ns(CLOCK_PROCESS_CPUTIME_ID)
#endif

__attribute__((constructor)) static void note_start(void)
{
	process_start_ns = clock_ns(CLOCK_MONOTONIC);
	process_start_cpu_ns = CPU_NS();
}

/* The xor keeps compilers from folding several steps into one. */
__attribute__((noinline)) static void work(u64 iterations)
{
	u64 x = iterations + 1; /* 0 would stay 0 */

	for (u64 i = 0; i < iterations; i++)
		x = (x ^ x >> 29) * 6364136223846793005u;
	__asm__ volatile("" : "+r"(x));
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

/* How many iterations of work() take @us; the best of several, as noise only adds. */
static u64 calibrate(double us)
{
	const u64 probe = 1000000;
	u64 best_ns = UINT64_MAX;

	if (us <= 0)
		return 0;
	for (int i = 0; i < 20; i++) {
		u64 start_ns = clock_ns(CLOCK_MONOTONIC);

		work(probe);
		start_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
		if (start_ns < best_ns)
			best_ns = start_ns;
	}
	return (u64)(us * 1e3 * (double)probe / (double)best_ns);
}

/* The second number of schedstat, of each thread that lives. */
static u64 run_delay_ns(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	u64 delay_ns, sum_ns = 0;
	char path[300];
	FILE *file;

	while (tasks && (task = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", task->d_name);
		file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (file && fscanf(file, "%*u %" SCNu64, &delay_ns) == 1)
			sum_ns += delay_ns;
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return sum_ns;
}

static void report_numbers(const char *name, const u64 *numbers, int count)
{
	printf(", \"%s\": [", name);
	for (int i = 0; i < count; i++)
		printf("%s%" PRIu64, i ? ", " : "", numbers[i]);
	printf("]");
}

static void report(const struct windows *w, const struct rusage *before)
{
	u64 wall_ns = clock_ns(CLOCK_MONOTONIC) - process_start_ns;
	u64 process_cpu_ns = CPU_NS() - process_start_cpu_ns;
	u64 best_ns = UINT64_MAX, total_ns = 0, cpu_ns = 0;
	struct rusage after;

	getrusage(RUSAGE_SELF, &after);
	for (int i = 0; i < w->count; i++) {
		total_ns += w->ns[i];
		cpu_ns += w->cpu_ns[i];
		if (w->ns[i] < best_ns)
			best_ns = w->ns[i];
	}
	printf("{\"program\": \"%s\", \"unit\": \"%s\", \"units\": %" PRIu64, w->program, w->unit,
	       w->units);
	printf(", \"work_us\": %g, \"iterations\": %" PRIu64 ", \"threads\": %d", w->work_us,
	       w->iterations, w->threads);
	printf(", \"start_ns\": %" PRIu64 ", \"total_ns\": %" PRIu64, w->start_ns, total_ns);
	printf(", \"cpu_ns\": %" PRIu64, cpu_ns);
	printf(", \"voluntary_switches\": %ld", after.ru_nvcsw - before->ru_nvcsw);
	printf(", \"involuntary_switches\": %ld", after.ru_nivcsw - before->ru_nivcsw);
	if (w->event)
		printf(", \"event\": \"%s\", \"events_per_second\": %.0f", w->event,
		       (double)w->events * (double)w->units * 1e9 / (double)total_ns);
	printf(", \"process_wall_ns\": %" PRIu64 ", \"process_cpu_ns\": %" PRIu64, wall_ns, process_cpu_ns);
	printf(", \"run_delay_ns\": %" PRIu64, run_delay_ns());
	printf(", \"units_per_window\": %" PRIu64 ", \"best_window_ns\": %" PRIu64, w->per_window,
	       best_ns);
	printf(", \"best_ns_per_unit\": %.1f", (double)best_ns / (double)w->per_window);
	printf(", \"mean_ns_per_unit\": %.1f", (double)total_ns / (double)w->units);
	report_numbers("window_ns", w->ns, w->count);
	report_numbers("window_cpu_ns", w->cpu_ns, w->count);
	printf("}\n");
}

/*
 * Times w->units units of @run(w, units), or as many as take w->seconds. The
 * first 0.2 s warm up: the runtime makes its threads, the CPU its clock. With
 * --cold and --units there is no warm-up: the windows begin with the first unit.
 */
static void run_windows(struct windows *w, void (*run)(const struct windows *, u64))
{
	u64 start_ns, ns, cpu_ns, before_cpu_ns, done = 0;
	struct rusage before;

	if (!w->iterations)
		w->iterations = calibrate(w->work_us);
	start_ns = clock_ns(CLOCK_MONOTONIC);
	for (ns = 0; ns < 200000000u && !(w->cold && w->units);) {
		run(w, 1 + done);
		done += 1 + done;
		ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
	}
	if (!w->units)
		w->units = (u64)(w->seconds * 1e9 / (double)ns * (double)done) + 1;
	if ((u64)w->count > w->units)
		w->count = (int)w->units;
	w->per_window = w->units / (u64)w->count;
	w->units = w->per_window * (u64)w->count;

	/* stdout is for the JSON */
	fprintf(stderr, "ready %d\n", (int)getpid());
	if (w->wait)
		getchar();
	getrusage(RUSAGE_SELF, &before);
	before_cpu_ns = CPU_NS();
	w->start_ns = start_ns = clock_ns(CLOCK_MONOTONIC);
	for (int i = 0; i < w->count; i++) {
		run(w, w->per_window);
		ns = clock_ns(CLOCK_MONOTONIC);
		cpu_ns = CPU_NS();
		w->ns[i] = ns - start_ns;
		w->cpu_ns[i] = cpu_ns - before_cpu_ns;
		start_ns = ns;
		before_cpu_ns = cpu_ns;
	}
	report(w, &before);
}

#define WINDOWS_USAGE \
	"[--work-us W | --iterations N] [--seconds S | --units N] [--windows N] [--wait] [--cold]"
#define WINDOWS_OPTIONS \
	{ "work-us", required_argument, NULL, 'w' }, { "iterations", required_argument, NULL, 'i' }, \
	{ "seconds", required_argument, NULL, 's' }, { "units", required_argument, NULL, 'u' }, \
	{ "windows", required_argument, NULL, 'n' }, { "wait", no_argument, NULL, 'W' }, \
	{ "cold", no_argument, NULL, 'C' }

/* Takes one of WINDOWS_OPTIONS; false if @opt is not one. */
static bool windows_option(struct windows *w, int opt)
{
	if (opt == 'w')
		w->work_us = number(optarg, 0, 1e6);
	else if (opt == 'i')
		w->iterations = (u64)number(optarg, 1, 1e12);
	else if (opt == 's')
		w->seconds = number(optarg, 0.01, 1e5);
	else if (opt == 'u')
		w->units = (u64)number(optarg, 1, 1e12);
	else if (opt == 'n')
		w->count = (int)number(optarg, 1, MAX_WINDOWS);
	else if (opt == 'W')
		w->wait = true;
	else if (opt == 'C')
		w->cold = true;
	else
		return false;
	return true;
}

#endif /* WINDOWS_H */
