"""`parprof input` on routines whose input is known to the cell, in all builds: copies, and what libc reads itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from input_programs import BUILDS, build, measure, points, sizes

__all__ = ["build"]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")

COPIES = """
#include <string.h>
struct nine { long of[9]; };
static volatile long seed __attribute__((aligned(64)));
static struct nine from __attribute__((aligned(64))), other __attribute__((aligned(64)));
static char text[16] __attribute__((aligned(64)));
#define ROUTINE __attribute__((noinline)) void
ROUTINE use(const void *p) { seed = ((const long *)p)[1]; }
ROUTINE set(void) { long to[5]; memset(to, seed & 1, 40); use(to); }
ROUTINE copied(void) { long to[9]; memcpy(to, &from, sizeof to); use(to); }
ROUTINE moved(void) { long to[9]; memmove(to, &from, sizeof to); use(to); }
ROUTINE small(void) { long to[2]; memcpy(to, text, 16); use(to); }
ROUTINE assigned(void) { struct nine to = from; use(&to); }
ROUTINE passed_on(void) { *(volatile struct nine *)&other = from; use(&other); }
ROUTINE initial(void) { long to[9] = {0}; use(to); }
ROUTINE constant(void) { char to[40] = "hello"; use(to); }
ROUTINE equal(void) { seed = memcmp(text, &from, 8) == 0; }
ROUTINE part(void) { int value; memcpy(&value, text, 4); seed = value; }
int main(void)
{
    from.of[seed & 7] = seed;
    for (int at = 0; at < 7; at++) {
        text[at] = seed;
        set(); copied(); moved(); small(); assigned(); passed_on(); initial(); constant(); equal(); part();
    }
    return 0;
}
"""
CELLS = {"set": 1, "copied": 9, "moved": 9, "small": 2, "assigned": 9, "passed_on": 9, "initial": 0, "constant": 0,
         "equal": 2, "part": 1}  # fmt: skip


@pytest.mark.parametrize("optimized", ["-O1", "-O2"])
@pytest.mark.parametrize("how", BUILDS)
def test_copies_are_read_and_written(build: Any, how: str, optimized: str, tmp_path: Path) -> None:
    """However the compiler copies: by a call, by a few instructions, or not at all."""
    source = tmp_path / f"copies{optimized}.c"
    source.write_text(COPIES)
    found = measure(build(source, how, optimized))
    expected = {name: cells for name, cells in CELLS.items() if name != "equal" or optimized == "-O2"}
    assert {name: sizes(found, name)[:2] for name in expected} == {
        name: (n, n) for name, n in expected.items()
    }


CALLS_LIBC = """
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static char buffer[64] __attribute__((aligned(64)));
static long number __attribute__((aligned(64)));
#define ROUTINE __attribute__((noinline)) void
ROUTINE t_read(int file) { read(file, buffer, 8); }
ROUTINE t_write(int file) { write(file, buffer, 64); }
ROUTINE t_open(void) { close(open("/dev/null", 0)); }
ROUTINE t_malloc(void) { void *volatile p = malloc(100); free((void *)p); }
ROUTINE t_time(void) { number = time(0); }
ROUTINE t_printf(void) { printf("%d %s\\n", 12, "text"); }
ROUTINE t_canary(int file) { char to[40]; read(file, to, 40); }
static void *all(void *unused)
{
    int file = open("/dev/zero", O_RDWR);
    for (int at = 0; at < 5; at++) {
        t_read(file); t_write(file); t_open(); t_malloc(); t_time(); t_printf(); t_canary(file);
    }
    return unused;
}
int main(void)
{
    pthread_t thread;
    all(0);
    pthread_create(&thread, 0, all, 0);
    pthread_join(thread, 0);
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_what_libc_reads_of_its_own_is_no_input(build: Any, how: str, tmp_path: Path) -> None:
    """With one thread and with two. Left are cells that libc reaches through pointers: docs/input.md has how many."""
    source = tmp_path / "calls_libc.c"
    source.write_text(CALLS_LIBC)
    found = measure(build(source, how, "-lpthread", "-fstack-protector-all", "-w"))
    exact = ("t_read", "t_open", "t_malloc", "t_time", "t_canary")
    assert {name: points(found, name)[0]["trms"] for name in exact} == dict.fromkeys(exact, 0)
    assert {point["trms"] for name in exact for point in points(found, name)} == {0}
    assert [(one["trms"], one["calls"]) for one in points(found, "t_write")] == [(8, 10)]  # what was sent
    own = [one["trms"] for one in points(found, "t_printf") if one["calls"] > 1]
    assert all(12 <= cells <= 40 if how == "valgrind" else cells <= 2 for cells in own)


GIVES_BACK = """
#include <stdlib.h>
static void *volatile nodes[64] __attribute__((aligned(64)));
#define ROUTINE __attribute__((noinline)) void
ROUTINE give_back(void *node) { free(node); }
ROUTINE uses(int count)
{
    for (int at = 0; at < count; at++) {
        volatile long *node = malloc(40);
        for (int cell = 0; cell < 5; cell++) node[cell] = cell;
        nodes[at] = (void *)node;
    }
    for (int at = 0; at < count; at++) give_back(nodes[at]);
}
int main(void)
{
    for (int count = 10; count < 60; count += 10) uses(count);
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_the_allocator_is_no_input_where_a_jump_leads_to_it(build: Any, how: str, tmp_path: Path) -> None:
    """As in C++, whose operator delete ends with a jump to free."""
    source = tmp_path / "gives_back.c"
    source.write_text(GIVES_BACK)
    found = measure(build(source, how, "-O2", "-fno-builtin"))
    assert {name: {one["trms"] for one in points(found, name)} for name in ("uses", "give_back")} == {
        "uses": {0},
        "give_back": {0},
    }
    assert sum(one["calls"] for one in points(found, "give_back")) == 150


ZEROED = """
#include <stdlib.h>
#include <string.h>
static volatile long sink __attribute__((aligned(64)));
static void *volatile last __attribute__((aligned(64)));
#define ROUTINE __attribute__((noinline)) void
ROUTINE sum(const long *of, int count)
{
    long found = 0;
    for (int at = 0; at < count; at++) found += of[at];
    sink = found;
}
ROUTINE zeroed(int count) { long *of = calloc(count, 8); last = of; sum(of, count); free(of); }
ROUTINE filled(int count)
{
    long *of = calloc(count, 8);
    last = of;
    for (int at = 0; at < count; at++) of[at] = at;
    sum(of, count);
    free(of);
}
ROUTINE again(int count)
{
    long *of = malloc(count * 8l);
    last = of;
    for (int at = 0; at < count; at++) of[at] = at;
    free(of);
    zeroed(count);
}
ROUTINE sparse(void) { long *of = calloc(12500000, 8); last = of; sum(of, 1000); free(of); }
int main(void)
{
    /* from a list, from the heap, from the kernel; again and again, since the first ones come from fresh memory */
    static const int counts[] = {10, 300, 9000, 70000};
    for (int turn = 0; turn < 3; turn++)
        for (int at = 0; at < 4; at++) {
            zeroed(counts[at]);
            filled(counts[at]);
            again(counts[at]);
        }
    sparse();
    sparse();
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_zeros_of_calloc_are_written_wherever_the_memory_came_from(
    build: Any, how: str, tmp_path: Path
) -> None:
    """Else input would grow by steps: small blocks the allocator clears, large ones come clear from the kernel.

    Of the largest ones, which are seldom used as a whole, the cells that are read are input.
    """
    source = tmp_path / "zeroed.c"
    source.write_text(ZEROED)
    found = measure(build(source, how, "-fno-builtin"))
    for name, calls in (("zeroed", 24), ("again", 12), ("filled", 12)):
        assert [(one["trms"], one["calls"]) for one in points(found, name)] == [(0, calls)], name
    assert [(one["trms"], one["calls"]) for one in points(found, "sparse")] == [(1000, 2)]


LOCAL = """
#include <fcntl.h>
#include <unistd.h>
static volatile long sink __attribute__((aligned(64)));
#define ROUTINE __attribute__((noinline)) void
ROUTINE by_system(int file)
{
    long buffer[64], sum = 0;
    if (read(file, buffer, sizeof buffer) == sizeof buffer)
        for (int at = 0; at < 64; at += 2) sum += buffer[at];
    sink = sum;
}
int main(void)
{
    int file = open("/dev/zero", O_RDONLY);
    for (int at = 0; at < 5; at++) by_system(file);
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_a_local_buffer_that_a_system_call_fills_is_read(build: Any, how: str, tmp_path: Path) -> None:
    """Only the call is given the buffer's own address: compilers take elements that nobody is given for private."""
    source = tmp_path / "local.c"
    source.write_text(LOCAL)
    found = measure(build(source, how))
    assert sizes(found, "by_system") == (32, 32, 0, 32)


VECTORS = """
#include <stdlib.h>
#define ROUTINE __attribute__((noinline))
ROUTINE double sum(const double *values, long n)
{
    double sum = 0;
    for (long at = 0; at < n; at++) sum += values[at];
    return sum;
}
ROUTINE void fill(int *values, long n)
{
    for (long at = 0; at < n; at++) values[at] = n;
}
ROUTINE long filled(int *values, long n)
{
    long sum = 0;
    fill(values, n);
    for (long at = 0; at < n; at++) sum += values[at];
    return sum;
}
int main(void)
{
    static double doubles[1000];
    static int integers[1000];
    volatile double kept = 0;
    for (long at = 0; at < 1000; at++) doubles[at] = at;
    for (long n = 100; n <= 1000; n += 100) kept = sum(doubles, n) + filled(integers, n);
    return kept < 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_wide_vectors_are_read_and_written(build: Any, how: str, tmp_path: Path) -> None:
    """clang has no hooks for accesses of more than 16 bytes, and makes such of loops where the processor has them."""
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("for a processor with AVX2")
    source = tmp_path / "vectors.c"
    source.write_text(VECTORS)
    found = measure(build(source, how, "-O3", "-mavx2", "-ffast-math"))
    assert sorted(one["trms"] for one in points(found, "sum")) == list(range(100, 1001, 100))
    assert [one["trms"] for one in points(found, "filled")] == [0]


ELEMENTS = """
#include <stdio.h>
#define ROUTINE __attribute__((noinline))
struct point { double x, y, z; };
struct complex { double re, im; };
struct color { unsigned char r, g, b; };
static double cells[8][4096] __attribute__((aligned(64))), out[4096] __attribute__((aligned(64)));
ROUTINE long sum_16(const long *v) { long s = 0; for (int i = 0; i < 16; i++) s += v[i]; return s; }
ROUTINE int sum_8_ints(const int *v) { int s = 0; for (int i = 0; i < 8; i++) s += v[i]; return s; }
ROUTINE int sum_64_bytes(const unsigned char *v) { int s = 0; for (int i = 0; i < 64; i++) s += v[i]; return s; }
ROUTINE double points(const struct point *p, long n)
{
    double s = 0;
    for (long i = 0; i < n; i++) s += p[i].x + p[i].y + p[i].z;
    return s;
}
ROUTINE void scaled(struct point *to, const struct point *p, long n)
{
    for (long i = 0; i < n; i++) { to[i].x = p[i].x * 2; to[i].y = p[i].y * 3; to[i].z = p[i].z * 4; }
}
ROUTINE void products(struct complex *to, const struct complex *a, const struct complex *b, long n)
{
    for (long i = 0; i < n; i++) {
        to[i].re = a[i].re * b[i].re - a[i].im * b[i].im;
        to[i].im = a[i].re * b[i].im + a[i].im * b[i].re;
    }
}
ROUTINE void gray(unsigned char *to, const struct color *c, long n)
{
    for (long i = 0; i < n; i++) to[i] = (c[i].r + c[i].g + c[i].b) / 3;
}
ROUTINE long every_second(const long *v, long n) { long s = 0; for (long i = 0; i < n; i += 2) s += v[i]; return s; }
ROUTINE long every_fourth(const int *v, long n) { long s = 0; for (long i = 0; i < n; i += 4) s += v[i]; return s; }
ROUTINE long where(const int *is, const int *v, long n)
{
    long s = 0;
    for (long i = 0; i < n; i++) if (is[i]) s += v[i];
    return s;
}
ROUTINE void put(const int *is, const double *v, long n)
{
    for (long i = 0; i < n; i++) if (is[i] > 0) out[i] = v[i];
}
ROUTINE double written(const int *is, const double *v, long n)
{
    double s = 0;
    put(is, v, n);
    for (long i = 0; i < n; i++) s += out[i];
    return s;
}
int main(void)
{
    int *ones = (int *)cells[5];
    for (int i = 0; i < 4096; i++) ones[i] = 1;
    long s = sum_16((long *)cells[0]) + sum_8_ints((int *)cells[0]) + sum_64_bytes((unsigned char *)cells[0]);
    s += points((struct point *)cells[0], 100) + every_second((long *)cells[0], 256) + every_fourth(ones, 256);
    scaled((struct point *)cells[1], (struct point *)cells[0], 100);
    products((struct complex *)cells[2], (struct complex *)cells[0], (struct complex *)cells[1], 64);
    gray((unsigned char *)cells[3], (struct color *)cells[0], 256);
    s += where(ones, (int *)cells[6], 400) + written(ones, cells[7], 200);
    printf("%ld\\n", s);
    return 0;
}
"""
ELEMENTS_READ = {
    "sum_16": 16, "sum_8_ints": 4, "sum_64_bytes": 8, "points": 300, "scaled": 300, "products": 256, "gray": 96,
    "every_second": 128, "every_fourth": 64, "where": 400, "put": 300, "written": 300,
}  # fmt: skip


@pytest.mark.parametrize("flags", [("-O2",), ("-Ofast", "-march=native")])
@pytest.mark.parametrize("how", ["gcc", "clang"])
def test_of_elements_beside_each_other_each_is_read(
    build: Any, how: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """clang makes wide or masked accesses of them, which have no hooks: it saw 0 cells of 16, and half of products."""
    source = tmp_path / "elements.c"
    source.write_text(ELEMENTS)
    found = measure(build(source, how, *flags))
    assert {name: points(found, name)[0]["trms"] for name in ELEMENTS_READ} == ELEMENTS_READ


NUMBERS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define ROUTINE __attribute__((noinline)) long
static char text[64000];
ROUTINE by_strtol(int n) { char *at = text; long sum = 0; while (n--) sum += strtol(at, &at, 10); return sum; }
ROUTINE by_strtod(int n) { char *at = text; long sum = 0; while (n--) sum += strtod(at, &at); return sum; }
ROUTINE by_atoi(int n) { char *at = text; long sum = 0; while (n--) { sum += atoi(at); at += 8; } return sum; }
ROUTINE by_strstr(int n) { char *at = text; while (n--) at = strstr(at, " ") + 1; return at - text; }
int main(void)
{
    for (int i = 0; i < 7900; i++) memcpy(text + 8 * i, "1234567 ", 8);
    long sum = 0;
    for (int n = 100; n <= 800; n += 100) sum += by_strtol(n) + by_strtod(n) + by_atoi(n) + by_strstr(n);
    printf("%ld\\n", sum);
    return 0;
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_of_a_text_is_read_what_is_looked_at(build: Any, how: str, tmp_path: Path) -> None:
    """Numbers of eight bytes, one after the other, in front of a text of 64,000."""
    source = tmp_path / "numbers.c"
    source.write_text(NUMBERS)
    found = measure(build(source, how, "-O2", "-w"))
    for name in ("by_strtol", "by_strtod", "by_atoi", "by_strstr"):
        worst = max(points(found, name), key=lambda point: point["trms"])
        assert 799 <= worst["trms"] <= 830, name  # libc reads tables of its own, which Valgrind sees
        assert worst["cost_max"] < 100_000, name  # the whole text at each call were 400,000


APPENDS = """
#include <string.h>
#define ROUTINE __attribute__((noinline)) void
static char to[64000], pages[64000];
static char line[] = "a line of some sixty-four letters, which is added at the end ...";
ROUTINE append_all(int n) { to[0] = 0; while (n--) strcat(to, line); }
ROUTINE clear(int n) { memset(to, 1, n); }
ROUTINE copy(int n) { memcpy(to, pages, n); }
ROUTINE small(int n) { memcpy(to, pages, n); }
int main(void)
{
    for (int at = 1; at <= 8; at++) { append_all(100 * at); clear(8000 * at); copy(8000 * at); small(at); }
    return to[5];
}
"""


@pytest.mark.parametrize("how", BUILDS)
def test_what_libc_goes_through_has_its_cost(build: Any, how: str, tmp_path: Path) -> None:
    """A text put together line by line is gone through each time: within strcat, where there are no hooks."""
    source = tmp_path / "appends.c"
    source.write_text(APPENDS)
    found = measure(build(source, how, "-O2", "-w"))

    def worst(name: str) -> int:
        return max(point["cost_max"] for point in points(found, name))

    assert 155_000 < worst("append_all") < 200_000  # 64 * 800**2 / 2 / 128 are 160,000
    assert 490 < worst("clear") < 550  # 64,000 / 128 are 500
    assert 490 < worst("copy") < 550
    assert worst("small") < 20
