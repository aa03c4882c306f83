// SPDX-License-Identifier: Apache-2.0
// stacks_cpp - C++ with the standard library, virtual calls and exceptions; built without frame pointers.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static double seconds = 1;
static const auto start = std::chrono::steady_clock::now();

static bool over()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds;
}

struct Shape {
	virtual ~Shape() = default;
	virtual double area(int depth) const = 0;
};

struct Nested : Shape {
	std::unique_ptr<Shape> inner;
	double area(int depth) const override
	{
		if (depth > 30)
			throw std::runtime_error("deep");
		return inner ? inner->area(depth + 1) + 1.0 : 1.0;
	}
};

static double shapes(int levels)
{
	auto outer = std::make_unique<Nested>();
	Nested *last = outer.get();
	for (int i = 0; i < levels; i++) {
		auto inner = std::make_unique<Nested>();
		Nested *next = inner.get();
		last->inner = std::move(inner);
		last = next;
	}
	try {
		return outer->area(0);
	} catch (const std::exception &) {
		return -1;
	}
}

static void work(unsigned seed)
{
	std::map<std::string, double> table;
	while (!over()) {
		std::vector<unsigned> values(2000);
		for (auto &value : values)
			value = seed = seed * 1664525u + 1013904223u;
		std::sort(values.begin(), values.end(), std::greater<unsigned>());
		for (unsigned i = 0; i < 50; i++)
			table[std::to_string(values[i] % 997)] += shapes(static_cast<int>(values[i] % 40));
	}
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seconds = std::stod(argv[1]);
	std::printf("ready %d\n", static_cast<int>(getpid()));
	std::fflush(stdout);
	std::thread other(work, 1u);
	work(2u);
	other.join();
}
