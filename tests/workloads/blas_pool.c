// SPDX-License-Identifier: Apache-2.0
// A library with a pool of threads like OpenBLAS's, in its functions' names and in how it works: a thread is started while
// the library is loaded, waits in a condition, and does a part of each call; the caller does another part and then spins.
// Not OpenBLAS itself. Built as libstandin_openblas.so.
#include <pthread.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))
#define KEEP __asm__ volatile("" ::: "memory")	/* what comes before is no tail call */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static double queued_s;
static volatile int pending;

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
		;
}

NOINLINE void dgemm(double seconds)
{
	exec_blas(seconds);
	KEEP;
}

__attribute__((constructor)) NOINLINE static void blas_thread_init(void)
{
	static pthread_t thread;

	pthread_create(&thread, 0, blas_thread_server, 0);
	KEEP;
}
