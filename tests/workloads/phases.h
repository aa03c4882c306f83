// SPDX-License-Identifier: Apache-2.0
/*
 * phases.h - options and main loop of the truth programs: runs the phases that
 * the command line names, once, --repeat times, or until SIGTERM or SIGINT.
 * A signal takes effect when the present phase is over, so the log is whole.
 */
#ifndef PHASES_H
#define PHASES_H

#include "truth.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#define MAX_THREADS 256
#define MAX_PHASES 64

struct phase {
	const char *name;
	void (*run)(void);
};

static u64 unit_ns = 10000000; /* CPU time that one unit of work takes */
static int threads = 2;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void phases_usage(const char *program, const struct phase *phases)
{
	fprintf(stderr,
		"usage: %s [PHASE[,PHASE...]] [--repeat N | --forever] [--unit-ms M]\n"
		"       [--threads T] [--wait]\n"
		"phases: all",
		program);
	for (; phases->name; phases++)
		fprintf(stderr, ", %s", phases->name);
	fprintf(stderr, "\n");
	exit(2);
}

static double phases_number(const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max)) {
		fprintf(stderr, "%s: not a number from %g to %g\n", text, min, max);
		exit(2);
	}
	return value;
}

static const struct phase *phases_find(const struct phase *phases, const char *name)
{
	while (phases->name && strcmp(phases->name, name))
		phases++;
	return phases->name ? phases : NULL;
}

/* @phases ends with an entry without a name. Returns the exit code of main. */
static int phases_main(int argc, char **argv, const struct phase *phases)
{
	static const struct option options[] = {
		{ "repeat", required_argument, NULL, 'r' },
		{ "forever", no_argument, NULL, 'f' },
		{ "unit-ms", required_argument, NULL, 'u' },
		{ "threads", required_argument, NULL, 't' },
		{ "wait", no_argument, NULL, 'w' },
		{ NULL, 0, NULL, 0 },
	};
	const struct sigaction action = { .sa_handler = stop };
	const struct phase *chosen[MAX_PHASES];
	bool forever = false, wait = false;
	long repeat = 1;
	int opt, count = 0;
	char *names;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 'r')
			repeat = (long)phases_number(optarg, 1, 1e9);
		else if (opt == 'f')
			forever = true;
		else if (opt == 'u')
			unit_ns = (u64)(phases_number(optarg, 0.01, 1e5) * 1e6);
		else if (opt == 't')
			threads = (int)phases_number(optarg, 1, MAX_THREADS / 2);
		else if (opt == 'w')
			wait = true;
		else
			phases_usage(argv[0], phases);
	}
	if (argc - optind > 1)
		phases_usage(argv[0], phases);
	/* a copy, for strtok would change the command line that ps shows */
	names = strdup(optind < argc ? argv[optind] : "all");
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
		bool all = !strcmp(name, "all");
		const struct phase *p = all ? phases : phases_find(phases, name);

		if (!p)
			phases_usage(argv[0], phases);
		do {
			if (count == MAX_PHASES)
				phases_usage(argv[0], phases);
			chosen[count++] = p++;
		} while (all && p->name);
	}
	free(names);

	truth_init();
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	if (wait)
		getchar();
	/* only now: while it waits, a signal may kill it */
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	while (!stopped && (forever || repeat-- > 0))
		for (int i = 0; i < count && !stopped; i++)
			chosen[i]->run();
	return 0;
}

#endif /* PHASES_H */
