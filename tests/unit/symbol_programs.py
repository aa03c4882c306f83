# SPDX-License-Identifier: Apache-2.0
"""A program whose symbols are known, and files as a load map has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.maps_line import MapsLine

SOURCE = """
#include <algorithm>
#include <cstdio>
#include <vector>
namespace ns {
static inline int inner(int x) { return x * x + 3; }
inline int middle(int x) { int r = 0; for (int i = 0; i < x; i++) r += inner(i) ^ r; return r; }
struct S { int v; S(int x); int operator()(int) const; };
__attribute__((noinline)) S::S(int x) : v(middle(x)) {}
__attribute__((noinline)) int S::operator()(int y) const { return middle(y) + v; }
template <class T> __attribute__((noinline)) double best(std::vector<T> &v)
{
    std::sort(v.begin(), v.end());
    return v[0];
}
}
extern "C" __attribute__((noinline)) int spill(int x) { if (x > 1000) throw x; return x + 1; }
int main(int c, char **v) {
    std::vector<double> q;
    for (int i = 0; i < c * 100; i++) q.push_back(i * 7 % 13);
    double r = 0;
#pragma omp parallel for reduction(+ : r)
    for (int i = 0; i < 1000; i++) r += i * 0.5 / (i + c);
    ns::S s(c);
    printf("%f %d %f %d\\n", r, s(3), ns::best(q), spill(c));
}
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def compile_program(path: Path, *options: str) -> Path:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    path.with_suffix(".cpp").write_text(SOURCE)
    subprocess.run(
        ["g++", "-g", "-O2", "-fopenmp", *options, path.with_suffix(".cpp"), "-o", path], check=True
    )
    return path


def open_dso(cache: DsoCache, path: Path | str) -> Dso:
    status = os.stat(path)
    line = MapsLine(0x1000, 0x2000, True, 0, status.st_dev, status.st_ino, os.fsencode(path))
    return cache.get(os.getpid(), line)


def address_of(dso: Dso, name: str) -> int:
    assert dso.elf is not None
    return dso.elf.lookup([name])[name][0].value


def need_symbolic() -> None:
    pytest.importorskip("symbolic", reason="the package symbolic is not installed")
