/* Waits of known length: what `waits MODE` did, and for how long, it prints as `name seconds` lines. A thread that was
 * ready to run, but had no core, did not wait meanwhile. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* For how long this thread was ready to run and had no core so far. */
static double without_core(void)
{
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	unsigned long long delayed;

	if (!file || fscanf(file, "%*u %llu", &delayed) != 1)
		abort();
	fclose(file);
	return delayed * 1e-9;
}

/* Differences of it are what this thread waited, or had a core. */
static double with_core(void)
{
	return now() - without_core();
}

static void told(const char *name, double seconds)
{
	printf("%s %.6f\n", name, seconds);
	fflush(stdout);
}

static volatile unsigned long sink;

static NOINLINE void compute(double seconds)
{
	double end = now() + seconds;

	while (now() < end)
		for (int i = 0; i < 20000; i++)
			sink += i;
}

static NOINLINE void sleeps_here(double seconds)
{
	struct timespec t = { (time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9) };

	nanosleep(&t, 0);
	sink++;
}

static NOINLINE void short_waits_here(double seconds)
{
	sleeps_here(seconds);
	sink++;
}

static NOINLINE void long_wait_here(double seconds)
{
	sleeps_here(seconds);
	sink += 2;	/* else the compiler makes one function of both */
}

/* Something that a process outside of the job feeds. */
static NOINLINE void reads_here(int fd)
{
	char c;

	if (read(fd, &c, 1) != 1)
		abort();
	sink++;
}

static NOINLINE void polls_here(double seconds)
{
	int fds[2];
	struct pollfd one;

	if (pipe(fds))
		abort();
	one.fd = fds[0];
	one.events = POLLIN;
	poll(&one, 1, (int)(seconds * 1000));
	sink++;
}

static NOINLINE void stops_here(void)
{
	raise(SIGSTOP);
	sink++;
}

static void *computes(void *seconds)
{
	compute(*(double *)seconds);
	return 0;
}

/* Serial waits, then parallel work: nobody works while it sleeps and reads. */
static void stall(void)
{
	double begun, half = 0.5;
	pthread_t thread;

	begun = with_core();
	sleeps_here(0.6);
	told("sleeps_here", with_core() - begun);
	begun = with_core();
	reads_here(0);
	told("reads_here", with_core() - begun);
	begun = now();
	pthread_create(&thread, 0, computes, &half);
	compute(half);
	pthread_join(thread, 0);
	told("compute", now() - begun);
}

/* Two processes that each keep a core busy, and a parent that waits for them. */
static void tree(void)
{
	double begun = now();

	for (int i = 0; i < 2; i++)
		if (!fork()) {
			compute(0.8);
			_exit(0);
		}
	while (wait(0) > 0)
		;
	told("compute", now() - begun);
}

/* One long wait among thousands of short ones, from call paths of the same depth. */
static void rare(void)
{
	double begun, shorts = 0.0;

	for (int i = 0; i < 4000; i++) {
		if (i == 3000) {
			begun = with_core();
			long_wait_here(0.5);
			told("long_wait_here", with_core() - begun);
		} else {
			begun = now();
			short_waits_here(0.00002);
			shorts += now() - begun;
		}
	}
	printf("short_waits_here %.6f\n", shorts);
	printf("cpu %.6f\n", (double)clock() / CLOCKS_PER_SEC);
}

static void requests(void)
{
	double begun = with_core();

	polls_here(0.5);
	told("polls_here", with_core() - begun);
	compute(0.2);
}

/* For how long it ran or waited for a CPU, since it was forked: all of its time but that in which it was held up. */
static void tell_awake(void)
{
	long long cpu_ns, waited_ns;
	FILE *file = fopen("/proc/self/schedstat", "r");

	if (!file || fscanf(file, "%lld %lld", &cpu_ns, &waited_ns) != 2)
		abort();
	fclose(file);
	printf("awake %.6f\n", (cpu_ns + waited_ns) * 1e-9);
}

/* Whoever runs it lets it go on. */
static void stopped(void)
{
	double begun = now();

	printf("pid %d\n", getpid());
	fflush(stdout);
	stops_here();
	told("stops_here", now() - begun);
	begun = now();
	compute(0.6);
	told("compute", now() - begun);
	tell_awake();
}

static int never[2];
static double blocked_since;

/* What comes of a thread that nobody wakes. */
static NOINLINE void blocks_here(void)
{
	char c;

	blocked_since = now();
	if (read(never[0], &c, 1) == 1)
		abort();
	sink++;
}

static void *blocks(void *unused)
{
	blocks_here();
	return unused;
}

static void block_another(void)
{
	pthread_t thread;

	if (pipe(never) || pthread_create(&thread, 0, blocks, 0))
		abort();
	compute(0.5);
	told("blocks_here", now() - blocked_since);
}

/* The process ends while a thread of it sleeps. */
static void dies(void)
{
	block_another();
}

/* The same, only that another program begins. */
static void execs(void)
{
	block_another();
	execl("/proc/self/exe", "waits", "requests", (char *)0);
	abort();
}

static void *sleeps(void *seconds)
{
	double begun = with_core();

	sleeps_here(*(double *)seconds);
	told("sleeps_here", with_core() - begun);
	return 0;
}

/* A child is made while another thread sleeps, which the child does not have. */
static void forks(void)
{
	double seconds = 0.6;
	pthread_t thread;

	pthread_create(&thread, 0, sleeps, &seconds);
	compute(0.2);
	if (!fork()) {
		compute(0.3);
		_exit(0);
	}
	while (wait(0) > 0)
		;
	pthread_join(thread, 0);
}

/* Whoever runs it holds it up with a debugger's means. */
static void debugged(void)
{
	double begun = now();

	printf("pid %d\n", getpid());
	fflush(stdout);
	compute(1.2);
	told("compute", now() - begun);
	tell_awake();
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t all;
static sem_t posted;
static int has_come;

static NOINLINE void waits_for_mutex(void)
{
	pthread_mutex_lock(&held);
	pthread_mutex_unlock(&held);
}

static NOINLINE void waits_for_rwlock(void)
{
	pthread_rwlock_rdlock(&written);
	pthread_rwlock_unlock(&written);
}

static NOINLINE void waits_for_condition(void)
{
	pthread_mutex_lock(&guard);
	while (!has_come)
		pthread_cond_wait(&came, &guard);
	pthread_mutex_unlock(&guard);
}

static NOINLINE void waits_for_semaphore(void)
{
	sem_wait(&posted);
	sink++;
}

static NOINLINE void waits_at_barrier(void)
{
	pthread_barrier_wait(&all);
	sink += 2;
}

static NOINLINE void waits_for_thread(void)
{
	pthread_t thread;
	double seconds = 0.5;

	pthread_create(&thread, 0, computes, &seconds);
	pthread_join(thread, 0);
	sink += 3;
}

static const struct way {
	const char *name;
	void (*wait)(void);
} ways[] = { { "waits_for_mutex", waits_for_mutex }, { "waits_for_rwlock", waits_for_rwlock },
	     { "waits_for_condition", waits_for_condition }, { "waits_for_semaphore", waits_for_semaphore },
	     { "waits_at_barrier", waits_at_barrier }, { "waits_for_thread", waits_for_thread } };

static void *waits_in(void *way)
{
	const struct way *one = way;
	double begun = with_core();

	one->wait();
	told(one->name, with_core() - begun);
	return 0;
}

/* For threads, in each way that there is, while one works. */
static void kinds(void)
{
	size_t count = sizeof(ways) / sizeof(*ways);
	pthread_t threads[sizeof(ways) / sizeof(*ways)];

	pthread_barrier_init(&all, 0, 2);
	sem_init(&posted, 0, 0);
	pthread_mutex_lock(&held);
	pthread_rwlock_wrlock(&written);
	for (size_t i = 0; i < count; i++)
		pthread_create(&threads[i], 0, waits_in, (void *)&ways[i]);
	compute(0.6);
	pthread_mutex_unlock(&held);
	pthread_rwlock_unlock(&written);
	pthread_mutex_lock(&guard);
	has_come = 1;
	pthread_cond_signal(&came);
	pthread_mutex_unlock(&guard);
	sem_post(&posted);
	pthread_barrier_wait(&all);
	for (size_t i = 0; i < count; i++)
		pthread_join(threads[i], 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} modes[] = { { "stall", stall }, { "tree", tree }, { "rare", rare }, { "requests", requests }, { "stopped", stopped },
		    { "dies", dies }, { "execs", execs }, { "forks", forks }, { "debugged", debugged }, { "kinds", kinds } };

	for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(argv[1], modes[i].name)) {
			modes[i].run();
			return 0;
		}
	fprintf(stderr, "usage: %s stall|tree|rare|requests|stopped|dies|execs|forks|debugged|kinds\n", argv[0]);
	return 2;
}
