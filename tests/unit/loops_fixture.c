// SPDX-License-Identifier: Apache-2.0
/* Functions with known loops for test_loop_scopes.py: each loop's first line has NAME{, its last one }NAME. */
#include <stdlib.h>
int work(int);
int more(int);
__attribute__((noinline)) int simple(int n)
{
	int s = 0;

	for (int i = 0; i < n; i++) // simple.a{
		s += work(i); // }simple.a
	return s;
}

__attribute__((noinline)) int nested(int n)
{
	int s = 0;

	for (int i = 0; i < n; i++) { // nested.a{
		s += work(i);
		for (int j = 0; j < i; j++) { // nested.b{
			if (j & 1)
				s += work(j);
			s ^= more(j); // }nested.b
		}
		s -= more(s); // }nested.a
	}
	return s;
}

__attribute__((noinline)) int while_loop(int n)
{
	int s = n;

	while (work(s) > 0) { // while_loop.a{
		s += more(s);
		s -= work(s); // }while_loop.a
	}
	return s;
}

__attribute__((noinline)) int do_loop(int n)
{
	int s = n;

	do { // do_loop.a{
		s += more(s);
		s -= more(s + 1);
	} while (work(s) > 0); // }do_loop.a
	return s;
}

__attribute__((noinline)) int breaks(int n)
{
	int s = n;

	for (int i = 0; i < n; i++) { // breaks.a{
		int w = work(i);
		if (w < 0)
			break;
		if (w & 1)
			continue;
		s += more(i); // }breaks.a
	}
	return s + work(s);
}

__attribute__((noinline)) double vector(const double *restrict x, double *restrict y, int n)
{
	for (int i = 0; i < n; i++) // vector.a{
		y[i] = x[i] * 2.0 + y[i]; // }vector.a
	return y[0];
}

__attribute__((noinline)) int sequence(int n)
{
	int s = 0;

	for (int i = 0; i < n; i++) // sequence.a{
		s += work(i); // }sequence.a
	for (int i = 0; i < s; i++) // sequence.b{
		s -= more(i); // }sequence.b
	return s;
}

static inline __attribute__((always_inline)) int helper(int n)
{
	int s = 0;

	for (int i = 0; i < n; i++) // inlined.b{
		s += work(i); // }inlined.b
	return s;
}

static inline __attribute__((always_inline)) int leaf(int n)
{
	return work(n) + 3 * more(n);
}

__attribute__((noinline)) int inlined(int n)
{
	int s = 0;

	for (int i = 0; i < n; i++) // inlined.a{
		s += helper(i); // }inlined.a
	for (int i = 0; i < n; i++) // inlined.c{
		s += leaf(i); // }inlined.c
	return s;
}

__attribute__((noinline)) int forever(int n)
{
	for (;;) { // forever.a{
		n += work(n);
		if (n < 0)
			return n;
		n -= more(n); // }forever.a
	}
}

__attribute__((noinline)) int switched(const unsigned char *p, int n)
{
	int s = 0;

	for (int i = 0; i < n; i++) { // switched.a{
		switch (p[i]) {
		case 0: s += work(s); break;
		case 1: s -= more(s); break;
		case 2: s += work(s + 2); break;
		case 3: s ^= more(s); break;
		case 4: s |= work(s + 1); break;
		case 5: return s;
		default: s--;
		}
	} // }switched.a
	return s;
}

__attribute__((noinline)) int straight(int n)
{
	if (n < 0)
		return work(n);
	if (n == 7)
		abort();
	return n > 3 ? more(n) : work(n + 1);
}

__attribute__((noinline)) int recursive(int n)
{
	return n < 2 ? work(n) : recursive(n - 1) + recursive(n - 2) + more(n);
}
