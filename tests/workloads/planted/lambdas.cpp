// SPDX-License-Identifier: Apache-2.0
// lambdas.cpp - problems of C++ programs; built without -g. The first argument says which one.
#include "burn.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

volatile unsigned long sink;
std::mutex guard;

template <class Function> void in_threads(Function run)
{
	std::vector<std::thread> threads;
	for (int i = 0; i < 2; i++)
		threads.emplace_back([=] { run(i); });
	for (auto &thread : threads)
		thread.join();
}

[[gnu::noinline]] void share(int i) { sink = burn(i, 200000 * US); }

struct Merger {
	std::vector<unsigned> keys;

	[[gnu::noinline]] void serial_merge()
	{
		for (int round = 0; round < 40; round++) {
			for (auto &key : keys)
				key = unsigned(burn(key + round, 20) >> 32);
			std::sort(keys.begin(), keys.end(), [](unsigned a, unsigned b) { return a % 1000 < b % 1000; });
		}
		sink = keys.front();
	}
};

struct Account {
	unsigned long total = 0;

	[[gnu::noinline]] void deposit(unsigned long amount)
	{
		std::lock_guard<std::mutex> hold(guard);
		total += burn(amount, 2500 * US);
	}
};

[[gnu::noinline]] void uneven_part(int i) { sink = burn(i, (i ? 70000 : 350000) * US); }

} // namespace

static void run(const char *problem)
{
	in_threads(share);
	if (!std::strcmp(problem, "serial")) {
		Merger merger{std::vector<unsigned>(60000)};
		merger.serial_merge();
	} else if (!std::strcmp(problem, "mutex")) {
		Account account;
		in_threads([&](int) {
			for (int i = 0; i < 80; i++)
				account.deposit(i);
		});
		sink = account.total;
	} else if (!std::strcmp(problem, "imbalance")) {
		in_threads([](int i) { uneven_part(i); });
	}
	in_threads(share);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		run(argv[i]);
	return 0;
}
