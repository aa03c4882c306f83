// SPDX-License-Identifier: Apache-2.0
// A pool of two threads whose callers only wait, with the names that rayon's functions have in a program of Rust, and their
// order on the stack; not rayon itself. Usage: waited_pool. By turns, short_caller() has each thread run short_part() for
// 400 ms of CPU time, and long_caller() long_part() for twice that, twice; both burn in the same function. The threads
// are started by the first call, and another thread waits all the time for something else.
#include <pthread.h>
#include <time.h>

#define KEEP __asm__ volatile("" ::: "memory")	/* what comes before is no tail call */
#define NOINLINE __attribute__((noinline, noclone))
#define REGISTRY "_ZN10rayon_core8registry"
#define HASH "17h0123456789abcdefE"

#define THREADS 2
#define ROUNDS 2

typedef void (*body)(void);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER, never = PTHREAD_COND_INITIALIZER;
static body job;
static int jobs, left, is_started;

void *thread_builder_run(void *nothing) __asm__(REGISTRY "13ThreadBuilder3run" HASH);
void wait_until_cold(void) __asm__(REGISTRY "12WorkerThread15wait_until_cold" HASH);
void execute(body run) __asm__(
	"_ZN83_$LT$rayon_core..job..StackJob$LT$L$C$F$C$R$GT$$u20$as$u20$rayon_core..job..Job$GT$7execute" HASH);
void in_worker_cold(body run) __asm__(REGISTRY "8Registry14in_worker_cold" HASH);
void wait_and_reset(void) __asm__("_ZN10rayon_core5latch9LockLatch14wait_and_reset" HASH);

NOINLINE static void burn(double seconds)
{
	struct timespec t;
	double end;
	volatile double x = 1;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	end = t.tv_sec + 1e-9 * t.tv_nsec + seconds;
	do {
		for (int i = 0; i < 10000; i++)
			x = x * 1.0000001;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	} while (t.tv_sec + 1e-9 * t.tv_nsec < end);
}

NOINLINE static void short_part(void)
{
	burn(0.4);
	KEEP;
}

NOINLINE static void long_part(void)
{
	burn(0.8);
	KEEP;
}

NOINLINE void execute(body run)
{
	run();
	pthread_mutex_lock(&mutex);
	if (!--left)
		pthread_cond_signal(&done);
	pthread_mutex_unlock(&mutex);
}

NOINLINE void wait_until_cold(void)
{
	for (;;) {
		body run;

		pthread_mutex_lock(&mutex);
		while (!jobs)
			pthread_cond_wait(&given, &mutex);
		jobs--;
		run = job;
		pthread_mutex_unlock(&mutex);
		execute(run);
	}
}

NOINLINE void *thread_builder_run(void *nothing)
{
	wait_until_cold();
	KEEP;
	return nothing;
}

NOINLINE void wait_and_reset(void)
{
	while (left)
		pthread_cond_wait(&done, &mutex);
	KEEP;
}

NOINLINE void in_worker_cold(body run)
{
	pthread_t thread;

	for (int i = 0; !is_started && i < THREADS; i++)
		pthread_create(&thread, 0, thread_builder_run, 0);
	is_started = 1;
	pthread_mutex_lock(&mutex);
	job = run;
	jobs = left = THREADS;
	pthread_cond_broadcast(&given);
	wait_and_reset();
	pthread_mutex_unlock(&mutex);
}

NOINLINE static void short_caller(void)
{
	in_worker_cold(short_part);
	KEEP;
}

NOINLINE static void long_caller(void)
{
	in_worker_cold(long_part);
	KEEP;
}

NOINLINE static void *bystander(void *nothing)
{
	static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&own);
	for (;;)
		pthread_cond_wait(&never, &own);
	return nothing;
}

int main(void)
{
	pthread_t other;

	pthread_create(&other, 0, bystander, 0);
	for (int i = 0; i < ROUNDS; i++) {
		short_caller();
		long_caller();
	}
	return 0;
}
