// SPDX-License-Identifier: Apache-2.0
/*
 * calls_throw - a function is called 1,999 times and throws at every second call; the caught ones are counted. A probe at
 * its return would end the program at the first: the unwinder cannot get past what such a probe leaves on the stack.
 */
#include <cstdio>
#include <stdexcept>

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

int main()
{
	thrower::Thrower it;
	int caught = 0;

	for (int i = 0; i < 2000 - 1; i++) {
		try {
			it.risky(i);
		} catch (const std::runtime_error &) {
			caught++;
		}
	}
	std::printf("caught %d\n", caught);
	return caught == 999 ? 0 : 1;
}
