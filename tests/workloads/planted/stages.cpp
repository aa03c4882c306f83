// SPDX-License-Identifier: Apache-2.0
// stages.cpp - threads of which each has something else to do, or that have long pieces by turns, or locks of their own
// making; and processes that share a lock. Built with -g. The first argument says which one.
#include "burn.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

volatile unsigned long sink;

template <class Item> class Channel {
public:
	void put(Item item)
	{
		std::unique_lock<std::mutex> hold(guard_);
		room_.wait(hold, [&] { return items_.size() < 8; });
		items_.push_back(item);
		some_.notify_one();
	}

	Item take()
	{
		std::unique_lock<std::mutex> hold(guard_);
		some_.wait(hold, [&] { return !items_.empty(); });
		Item item = items_.front();
		items_.pop_front();
		room_.notify_one();
		return item;
	}

private:
	std::mutex guard_;
	std::condition_variable room_, some_;
	std::deque<Item> items_;
};

[[gnu::noinline]] unsigned long parse(unsigned long x) { return burn(x, 600 * US) | 1; }
[[gnu::noinline]] unsigned long enrich(unsigned long x) { return burn(x, 3000 * US) | 1; }
[[gnu::noinline]] unsigned long render(unsigned long x) { return burn(x, 800 * US) | 1; }

// three stages, a lambda each: the second one is what the others wait for
void pipeline()
{
	Channel<unsigned long> parsed, enriched;
	std::thread first([&] {
		for (int i = 0; i < 150; i++)
			parsed.put(parse(i));
		parsed.put(0);
	});
	std::thread second([&] {
		while (unsigned long x = parsed.take())
			enriched.put(enrich(x));
		enriched.put(0);
	});
	std::thread third([&] {
		while (unsigned long x = enriched.take())
			sink = render(x);
	});
	first.join();
	second.join();
	third.join();
}

[[gnu::noinline]] unsigned long advance_block(unsigned long x, bool is_long)
{
	return burn(x, (is_long ? 6000 : 1500) * US);
}

template <class Function> void in_threads(int count, Function run)
{
	std::vector<std::thread> threads;
	for (int i = 0; i < count; i++)
		threads.emplace_back([=] { run(i); });
	for (auto &thread : threads)
		thread.join();
}

// all have the same to do in the end, but now one has the long piece of a step, now the other
void rotating()
{
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, nullptr, 2);
	in_threads(2, [&](int mine) {
		for (int step = 0; step < 80; step++) {
			sink = advance_block(step, step % 2 == mine);
			pthread_barrier_wait(&barrier);
		}
	});
}

class Log {
public:
	[[gnu::noinline]] void write(const char *who, unsigned long value)
	{
		std::lock_guard<std::mutex> hold(guard_);
		line_.clear();
		for (int i = 0; i < 60; i++)
			line_ += std::string(who) + ":" + std::to_string(value + i) + " ";
		sink = line_.size();
	}

private:
	std::mutex guard_;
	std::string line_;
};

Log log_of_all;

[[gnu::noinline]] void check_in(int i) { log_of_all.write("in", burn(i, 4 * US)); }
[[gnu::noinline]] void check_out(int i) { log_of_all.write("out", burn(i, 5 * US)); }
[[gnu::noinline]] void audit(int i) { log_of_all.write("audit", burn(i, 3 * US)); }

// one lock in a function that is called from all over
void logging()
{
	in_threads(3, [](int) {
		for (int i = 0; i < 12000; i++) {
			check_in(i);
			check_out(i);
			audit(i);
		}
	});
}

std::atomic<unsigned> next_ticket, serving;

[[gnu::noinline]] void enter()
{
	unsigned mine = next_ticket++;

	while (serving.load() != mine)
		__builtin_ia32_pause();
}

[[gnu::noinline]] void bump_totals(unsigned long x)
{
	enter();
	sink = burn(x, 600 * US);
	serving++;
}

// a lock of its own making, for which threads spin
void tickets()
{
	in_threads(2, [](int) {
		for (int i = 0; i < 2000; i++)
			bump_totals(burn(i, 100 * US));
	});
}

[[gnu::noinline]] void round_trip()
{
	usleep(2000);
	sink++;
}

[[gnu::noinline]] void update_account(pthread_mutex_t *row, int i)
{
	pthread_mutex_lock(row);
	sink = burn(i, 300 * US);
	round_trip();
	pthread_mutex_unlock(row);
}

// three processes, and a lock in memory of all of them that is held while its holder sleeps
void sessions()
{
	void *shared = mmap(nullptr, sizeof(pthread_mutex_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	auto *row = static_cast<pthread_mutex_t *>(shared);
	pthread_mutexattr_t of_all;

	pthread_mutexattr_init(&of_all);
	pthread_mutexattr_setpshared(&of_all, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(row, &of_all);
	for (int session = 0; session < 3; session++)
		if (!fork()) {
			for (int i = 0; i < 100; i++) {
				sink = burn(i, 700 * US);
				update_account(row, i);
			}
			_exit(0);
		}
	while (wait(nullptr) > 0)
		;
}

const struct {
	const char *name;
	void (*run)();
} problems[] = {
	{"pipeline", pipeline}, {"rotating", rotating}, {"logging", logging}, {"tickets", tickets}, {"sessions", sessions},
};

} // namespace

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		for (const auto &problem : problems)
			if (!std::strcmp(problem.name, argv[i]))
				problem.run();
	return 0;
}
