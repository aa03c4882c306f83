// SPDX-License-Identifier: Apache-2.0
// A library with a pool of threads like OpenBLAS's, in its functions' names and in how it works: a thread is started while
// the library is loaded, waits in a condition, and does a part of each call; the caller does another part and then spins.
// With STANDIN_SPIN in the environment, the thread looks for work for so many ticks of the processor's clock, giving up
// its CPU at each turn, before it waits in the condition, and the caller waits likewise; as OpenBLAS does, for 1 << 26. Not OpenBLAS itself. Built as libstandin_openblas.so.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")	/* what comes before is no tail call */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static double queued_s;
static volatile int pending;
static unsigned long long spin_ticks;

NOINLINE static void gemm_kernel(double seconds)
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

NOINLINE static void inner_thread(double seconds)
{
	gemm_kernel(seconds);
	KEEP;
}

NOINLINE static void exec_threads(double seconds)
{
	inner_thread(seconds);
	KEEP;
}

NOINLINE static void *blas_thread_server(void *nothing)
{
	for (;;) {
		for (unsigned long long start = __builtin_ia32_rdtsc(); spin_ticks && !pending;) {
			sched_yield();
			if (__builtin_ia32_rdtsc() - start > spin_ticks)
				break;
		}
		pthread_mutex_lock(&mutex);
		while (!pending)
			pthread_cond_wait(&given, &mutex);
		pthread_mutex_unlock(&mutex);
		exec_threads(queued_s);
		pending = 0;
	}
	return nothing;
}

NOINLINE void exec_blas(double seconds)
{
	pthread_mutex_lock(&mutex);
	queued_s = seconds;
	pending = 1;
	pthread_cond_signal(&given);
	pthread_mutex_unlock(&mutex);
	inner_thread(seconds);
	while (pending)
		if (spin_ticks)
			sched_yield();
}

NOINLINE void dgemm(double seconds)
{
	exec_blas(seconds);
	KEEP;
}

__attribute__((constructor)) NOINLINE static void blas_thread_init(void)
{
	static pthread_t thread;
	const char *ticks = getenv("STANDIN_SPIN");

	spin_ticks = ticks ? strtoull(ticks, 0, 10) : 0;
	pthread_create(&thread, 0, blas_thread_server, 0);
	KEEP;
}
