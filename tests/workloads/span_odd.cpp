// SPDX-License-Identifier: Apache-2.0
/*
 * What programs do that a profiler in them must bear, for `parprof scale`: span_odd FORM N. Work is only said to the
 * library, whose clock is the test's; tests/unit/test_scale_odd.py has the formulas. Each form ends with 1 if the
 * program did not compute what it must.
 */
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <omp.h>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

extern "C" void parprof_span_work(unsigned long units);

namespace {

void work(long units)
{
	parprof_span_work(static_cast<unsigned long>(units));
}

[[gnu::noinline]] void fails(long n, int depth)
{
	work(n);
	if (!depth)
		throw std::runtime_error("as it must");
	fails(n, depth - 1);
	work(n); // never
}

/* Each of 20 tasks throws through four frames, and catches it; so does the thread that makes them, once. */
bool throws(long n)
{
	int caught = 0;

#pragma omp parallel
#pragma omp single
	{
		for (int i = 0; i < 20; i++) {
#pragma omp task shared(caught)
			{
				try {
					fails(n, 3);
				} catch (const std::runtime_error &) {
#pragma omp atomic
					caught++;
				}
				work(n);
			}
		}
		try {
			fails(n, 3);
		} catch (const std::runtime_error &) {
#pragma omp atomic
			caught++;
		}
#pragma omp taskwait
		work(n);
	}
	return caught == 21;
}

long counter = 7;
#pragma omp threadprivate(counter)

/* Variables of threads keep their values from region to region. */
bool keeps(long n)
{
	long sum = 0;

	omp_set_dynamic(0);
	for (int i = 0; i < 3; i++) {
#pragma omp parallel copyin(counter) if (i == 0)
		work(n);
	}
#pragma omp parallel
	counter = 100 + omp_get_thread_num();
#pragma omp parallel reduction(+ : sum)
	{
		work(n);
		sum += counter == 100 + omp_get_thread_num();
	}
	return sum == omp_get_max_threads();
}

/* More threads than the program may have, and teams in teams beyond the limit. */
bool limited(long n)
{
	omp_set_max_active_levels(1);
#pragma omp parallel num_threads(1000)
	{
#pragma omp parallel num_threads(1000)
		{
			work(n);
#pragma omp barrier
			work(n);
		}
	}
	return true;
}

/* A child that begins regions before its parent does. */
bool forks(long n)
{
	pid_t child;
	int status = 1;

	work(n);
	child = fork();
#pragma omp parallel
	work(child ? n : 2 * n);
	if (!child)
		exit(0);
	waitpid(child, &status, 0);
	return status == 0;
}

/* It goes on as another program, or would if there were one. */
bool becomes(long n, const char *other)
{
#pragma omp parallel
	work(n);
	work(2 * n);
	execlp(other, other, static_cast<char *>(nullptr));
#pragma omp parallel
	work(n);
	return true;
}

bool replaced(long n)
{
	becomes(n, "true");
	return false;
}

bool stays(long n)
{
	return becomes(n, "/nonexistent");
}

[[gnu::noinline, noreturn]] void leaps(jmp_buf &place, long n, int depth)
{
	work(n);
	if (!depth)
		longjmp(place, 1);
	leaps(place, n, depth - 1);
}

/* Out of four functions, within a region, a critical section and tasks. */
[[gnu::noinline]] void leap(long n)
{
	jmp_buf place;

	if (!setjmp(place))
		leaps(place, n, 3);
	work(n);
}

bool jumps(long n)
{
#pragma omp parallel
	leap(n);
#pragma omp parallel
#pragma omp critical
	leap(n);
#pragma omp parallel
#pragma omp single
	for (int i = 0; i < 20; i++) {
#pragma omp task
		leap(n);
	}
	return true;
}

/* Tasks of a region, of a loop, of sections and of a group add up to a sum, which the runtime makes. */
bool reduces(long n)
{
	long sum = 0;

#pragma omp parallel reduction(task, + : sum)
#pragma omp single
	for (int i = 0; i < 20; i++) {
#pragma omp task in_reduction(+ : sum)
		{
			work(n);
			sum += i;
		}
	}
#pragma omp parallel
	{
#pragma omp for reduction(task, + : sum) schedule(dynamic, 1)
		for (int i = 0; i < 8; i++) {
#pragma omp task in_reduction(+ : sum)
			{
				work(n);
				sum += i;
			}
		}
#pragma omp sections reduction(task, + : sum)
		{
#pragma omp section
			{
#pragma omp task in_reduction(+ : sum)
				sum += 1000;
			}
#pragma omp section
			sum += 1000;
		}
#pragma omp single
#pragma omp taskgroup task_reduction(+ : sum)
		for (int i = 0; i < 8; i++) {
#pragma omp task in_reduction(+ : sum)
			{
				work(n);
				sum += 100;
			}
		}
	}
	return sum == 190 + 28 + 2000 + 800;
}

} // namespace

int main(int count, char **arguments)
{
	const struct {
		const char *name;
		bool (*run)(long);
	} forms[] = {{"throws", throws}, {"keeps", keeps}, {"limited", limited}, {"forks", forks},
		     {"replaced", replaced}, {"stays", stays}, {"jumps", jumps}, {"reduces", reduces}};

	for (const auto &form : forms) {
		if (count == 3 && !strcmp(arguments[1], form.name))
			return form.run(atol(arguments[2])) ? 0 : 1;
	}
	return 2;
}
