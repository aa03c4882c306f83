// SPDX-License-Identifier: Apache-2.0
/*
 * calls_throw - a function is called 1,999 times and throws at every second call; the caught ones are counted. A probe at
 * its return would end the program at the first: the unwinder cannot get past what such a probe leaves on the stack.
 * With a number of microseconds it waits for the end of its input first, and sleeps for that long between two calls.
 */
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <unistd.h>

namespace thrower {

struct Thrower {
	long sum = 0;

	__attribute__((noinline)) void risky(int i)
	{
		sum += i;
		if (i % 2)
			throw std::runtime_error("as planned");
	}
};

} // namespace thrower

int main(int count, char **arguments)
{
	thrower::Thrower it;
	int caught = 0, pause_us = count > 1 ? std::atoi(arguments[1]) : 0;

	while (pause_us && std::getchar() != EOF)
		;
	for (int i = 0; i < 2000 - 1; i++) {
		if (pause_us)
			usleep(pause_us);
		try {
			it.risky(i);
		} catch (const std::runtime_error &) {
			caught++;
		}
	}
	std::printf("caught %d\n", caught);
	return caught == 999 ? 0 : 1;
}
