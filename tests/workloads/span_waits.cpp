// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that wait by the kernel's futex, whose work and span are known, for `parprof scale`: span_waits FORM N
 * THREADS. What C++20's library has, and what Rust's does, in C++. In forms up to `locked` the clock is the test's, as
 * in span_threads.c, and threads that are to wait have time to fall asleep; in the others N are microseconds of work,
 * and nothing is done to make them wait.
 */
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <future>
#include <latch>
#include <linux/futex.h>
#include <memory>
#include <semaphore>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" void parprof_span_work(unsigned long units);

static long n, threads;

static void work(long units)
{
	parprof_span_work((unsigned long)units);
}

/* The others have time to fall asleep, or to be there before. */
static void pause_ms(long ms)
{
	usleep((useconds_t)ms * 1000);
}

/* A lock as Rust's, and many others: 0 is free, 1 taken, 2 taken and waited for. */
struct Lock {
	std::atomic<uint32_t> word{0};

	void lock()
	{
		uint32_t free = 0;

		if (word.compare_exchange_strong(free, 1))
			return;
		while (word.exchange(2))
			syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 2, nullptr, nullptr, ~0u);
	}
	void unlock()
	{
		if (word.exchange(0) == 2)
			syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1);
	}
};

/* std::thread::park of Rust: -1 is parked, 1 notified. It spins before it sleeps, as Rust's channels do. */
struct Parker {
	std::atomic<uint32_t> word{0};

	void park()
	{
		for (int step = 0; step < 10 && word != 1; step++) {
			for (int i = 0; step <= 6 && i < step * step; i++)
				__builtin_ia32_pause();
			if (step > 6)
				sched_yield();
		}
		if (--word == 0)
			return;
		for (;;) {
			uint32_t notified = 1;

			syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, -1, nullptr, nullptr, ~0u);
			if (word.compare_exchange_strong(notified, 0))
				return;
		}
	}
	void unpark()
	{
		if (word.exchange(1) == UINT32_MAX)
			syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1);
	}
};

template <typename Body> static void beside(Body body)
{
	std::vector<std::thread> all;

	for (long i = 0; i < threads; i++)
		all.emplace_back(body, i);
	for (auto &one : all)
		one.join();
}

/* Thread i works (i + 1) n after the first thread's n; that goes on when they are through, with n. They end later. */
static void latch()
{
	std::latch begin(1), done(threads), end(1);
	std::vector<std::thread> all;

	for (long i = 0; i < threads; i++)
		all.emplace_back([&, i] {
			begin.wait();
			work((i + 1) * n);
			pause_ms(100 + 20 * i);
			done.count_down();
			end.wait();
		});
	pause_ms(100);
	work(n);
	begin.count_down();
	done.wait();
	work(n);
	end.count_down();
	for (auto &one : all)
		one.join();
}

/* One after the other, n each. */
static void turns()
{
	std::atomic<int> turn{-1};

	beside([&](long i) {
		if (!i) {
			pause_ms(200);
			turn = 0;
		}
		for (int now = turn; now != i; now = turn)
			turn.wait(now);
		work(n);
		pause_ms(20);
		turn++;
		turn.notify_all();
	});
}

static void semaphores()
{
	std::vector<std::unique_ptr<std::counting_semaphore<1>>> all;

	for (long i = 0; i < threads; i++)
		all.push_back(std::make_unique<std::counting_semaphore<1>>(0));
	beside([&](long i) {
		if (i)
			all[i]->acquire();
		else
			pause_ms(200);
		work(n);
		if (i + 1 < threads)
			all[i + 1]->release();
	});
}

/* In round r thread r works 10 n, and is the last; the others n. */
static void rounds()
{
	std::barrier<> all(threads);

	beside([&](long i) {
		for (long round = 0; round < threads; round++) {
			work(round == i ? 10 * n : n);
			pause_ms(round == i ? 100 : 1);
			all.arrive_and_wait();
		}
	});
}

static void promises()
{
	std::vector<std::promise<int>> all(threads);

	beside([&](long i) {
		if (i)
			all[i - 1].get_future().wait();
		else
			pause_ms(200);
		work(n);
		all[i].set_value(0);
	});
}

static void parks()
{
	std::vector<Parker> all(threads);

	beside([&](long i) {
		if (i)
			all[i].park();
		else
			pause_ms(200);
		work(n);
		if (i + 1 < threads)
			all[i + 1].unpark();
	});
}

/* A lock as Rust's for readers and writers, who takes it writes: the state, and beside it what writers wait at. */
struct WriterLock {
	static constexpr uint32_t TAKEN = 0x3fffffff, READERS_WAIT = 0x40000000, WRITERS_WAIT = 0x80000000;
	std::atomic<uint32_t> state{0}, notice{0};

	void lock()
	{
		uint32_t now = state, others = 0;

		for (;;) {
			if (!(now & TAKEN)) {
				if (state.compare_exchange_weak(now, now | TAKEN | others))
					return;
				continue;
			}
			if (!(now & WRITERS_WAIT) && !state.compare_exchange_strong(now, now | WRITERS_WAIT))
				continue;
			others = WRITERS_WAIT;
			uint32_t seen = notice;
			now = state;
			if (!(now & TAKEN) || !(now & WRITERS_WAIT))
				continue;
			syscall(SYS_futex, &notice, FUTEX_WAIT_BITSET_PRIVATE, seen, nullptr, nullptr, ~0u);
			now = state;
		}
	}
	void unlock()
	{
		if (state.fetch_sub(TAKEN) - TAKEN == WRITERS_WAIT && state.exchange(0) == WRITERS_WAIT) {
			notice++;
			syscall(SYS_futex, &notice, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
		}
	}
};

/* Each works n, and 2 n with the lock; all but the first sleep for it, and who had it is no order. */
template <typename Kind> static void lock_in_turn()
{
	Kind lock;

	beside([&](long) {
		work(n);
		lock.lock();
		work(2 * n);
		pause_ms(100);
		lock.unlock();
	});
}

static void written()
{
	lock_in_turn<WriterLock>();
}

static void locked()
{
	lock_in_turn<Lock>();
}

/* by the clock */

static void work_us(long us)
{
	timespec now;
	long until;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	for (until = now.tv_sec * 1000000000 + now.tv_nsec + us * 1000;
	     now.tv_sec * 1000000000 + now.tv_nsec < until;)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
}

static const long ROUNDS = 2000;

/* A message to the next thread and so on: one works at a time. */
static void ring()
{
	std::vector<Parker> all(threads);

	beside([&](long i) {
		for (long round = 0; round < ROUNDS / threads; round++) {
			if (i || round)
				all[i].park();
			work_us(n);
			if (i + 1 < threads || round + 1 < ROUNDS / threads)
				all[(i + 1) % threads].unpark();
		}
	});
}

static void semaphore_ring()
{
	std::vector<std::unique_ptr<std::counting_semaphore<1>>> all;

	for (long i = 0; i < threads; i++)
		all.push_back(std::make_unique<std::counting_semaphore<1>>(!i));
	beside([&](long i) {
		for (long round = 0; round < ROUNDS / threads; round++) {
			all[i]->acquire();
			work_us(n);
			all[(i + 1) % threads]->release();
		}
	});
}

/* In each round one thread works 10 n, the others n. */
static void uneven_rounds()
{
	std::barrier<> all(threads);

	beside([&](long i) {
		for (long round = 0; round < ROUNDS / threads; round++) {
			work_us(round % threads == i ? 10 * n : n);
			all.arrive_and_wait();
		}
	});
}

template <typename Kind> static void lock_for_half()
{
	Kind lock;

	beside([&](long) {
		for (long round = 0; round < ROUNDS / threads; round++) {
			work_us(n);
			lock.lock();
			work_us(n);
			lock.unlock();
		}
	});
}

static void half_locked()
{
	lock_for_half<Lock>();
}

static void half_written()
{
	lock_for_half<WriterLock>();
}

/* A thread has a semaphore as oneTBB's threads have: a lock's word, that who waits does not give back. */
struct Bell {
	std::atomic<uint32_t> word{1};

	void wait()
	{
		uint32_t free = 0;

		if (word.compare_exchange_strong(free, 1))
			return;
		while (word.exchange(2))
			syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
	}
	void ring()
	{
		if (word.exchange(0) == 2)
			syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
	}
};

/* Whenever its bell rings, a thread works. A ring beside another that nobody has heard would be lost. */
static void bells()
{
	std::vector<Bell> all(threads);
	std::vector<std::atomic<long>> heard(threads);
	std::vector<std::thread> called;

	for (long i = 0; i < threads; i++)
		called.emplace_back([&, i] {
			for (long round = 0; round < 10; round++) {
				all[i].wait();
				heard[i]++;
				work_us(n);
			}
		});
	for (long round = 0; round < 10; round++) {
		pause_ms(20);
		for (long i = 0; i < threads; i++) {
			while (heard[i] < round)
				pause_ms(1);
			all[i].ring();
		}
	}
	for (auto &one : called)
		one.join();
}

/* The same with a semaphore. */
static void half_in_semaphore()
{
	std::counting_semaphore<8> one(1);

	beside([&](long) {
		for (long round = 0; round < ROUNDS / threads; round++) {
			work_us(n);
			one.acquire();
			work_us(n);
			one.release();
		}
	});
}

/* As a pool of Rust's with one channel for all: who waits for a task has the lock, and the others wait for that. */
struct Channel {
	Lock lock;
	Parker empty;
	std::atomic<long> tasks{0};
	std::atomic<bool> is_awaited{false};

	void send()
	{
		tasks++;
		if (is_awaited.exchange(false))
			empty.unpark();
	}
	void receive()
	{
		lock.lock();
		while (!tasks) {
			is_awaited = true;
			if (tasks && is_awaited.exchange(false))
				break;
			empty.park();
		}
		tasks--;
		lock.unlock();
	}
};

/* Twenty tasks for each thread: who takes how many is chance. At the end there is an empty one for each. */
static void pool()
{
	std::atomic<long> left{20 * threads};
	std::vector<std::thread> all;
	Channel channel;

	for (long i = 0; i < threads; i++)
		all.emplace_back([&] {
			for (;;) {
				channel.receive();
				if (left-- <= 0)
					return;
				work_us(n);
			}
		});
	pause_ms(50);
	for (long task = 0; task < 21 * threads; task++)
		channel.send();
	for (auto &one : all)
		one.join();
}

/* The same threads, each with a channel of its own: thread i has tasks of (i + 1) n. */
static void assigned()
{
	std::vector<Channel> channels(threads);
	std::vector<std::thread> all;

	for (long i = 0; i < threads; i++)
		all.emplace_back([&, i] {
			for (long task = 0; task < 10; task++) {
				channels[i].receive();
				work_us((i + 1) * n);
			}
			channels[i].receive();
		});
	for (long task = 0; task < 10; task++)
		for (auto &one : channels)
			one.send();
	pause_ms(50);
	for (auto &one : channels)
		one.send();
	for (auto &one : all)
		one.join();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*body)();
	} forms[] = {
		{"latch", latch},
		{"turns", turns},
		{"semaphores", semaphores},
		{"rounds", rounds},
		{"promises", promises},
		{"parks", parks},
		{"written", written},
		{"locked", locked},
		{"ring", ring},
		{"semaphore_ring", semaphore_ring},
		{"uneven_rounds", uneven_rounds},
		{"half_locked", half_locked},
		{"half_written", half_written},
		{"bells", bells},
		{"half_in_semaphore", half_in_semaphore},
		{"pool", pool},
		{"assigned", assigned},
	};

	if (count != 4)
		return 2;
	n = atol(arguments[2]);
	threads = atol(arguments[3]);
	for (const auto &form : forms)
		if (!strcmp(arguments[1], form.name)) {
			form.body();
			return 0;
		}
	return 2;
}
