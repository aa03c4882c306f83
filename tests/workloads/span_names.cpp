// SPDX-License-Identifier: Apache-2.0
/*
 * What a program writes of C++'s library, whose functions make the calls that `parprof scale` sees: span_names. The
 * clock is the test's, as in span_tree.c. The marks are for the test.
 */
#include <mutex>
#include <thread>
#include <vector>

extern "C" void parprof_span_work(unsigned long units);

static std::mutex mutex;

static void count()
{
	parprof_span_work(100);
	std::lock_guard<std::mutex> lock(mutex); // the lock
	parprof_span_work(1000);
}

static void begin(std::vector<std::thread> &threads)
{
	threads.emplace_back(count); // the threads
}

int main()
{
	std::vector<std::thread> threads;

	parprof_span_work(1000);
	for (int i = 0; i < 4; i++)
		begin(threads);
	parprof_span_work(10);
	for (auto &thread : threads)
		thread.join(); // the end
	parprof_span_work(1000);
	return 0;
}
