"""Which bytes are sampled (bpf/strata.h), built with gcc."""

from __future__ import annotations

import ctypes
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]

SHIM = """
#include "strata.h"
unsigned long long within(struct stratum *s, unsigned long long bytes, unsigned long long size, unsigned long long luck)
{ return points_within(s, bytes, size, luck); }
int one(unsigned count, unsigned shift) { return one_of_each(count, shift); }
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("strata")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-I", str(ROOT / "bpf"),
         "-o", str(folder / "shim.so"), str(folder / "shim.c")],
        check=True,
    )  # fmt: skip
    loaded = ctypes.CDLL(str(folder / "shim.so"))
    loaded.within.argtypes = [ctypes.c_void_p, *[ctypes.c_ulonglong] * 3]
    loaded.within.restype = ctypes.c_ulonglong
    return loaded


class Stream:
    """Bytes that go by."""

    def __init__(self, library: ctypes.CDLL, size: int, seed: int = 0) -> None:
        self._library, self._size, self._random = library, size, random.Random(seed)
        self._state = (ctypes.c_ulonglong * 2)()

    def add(self, count: int) -> int:
        found = self._library.within(
            ctypes.byref(self._state), count, self._size, self._random.getrandbits(32)
        )
        return int(found)


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(1, 5000), amounts=st.lists(st.integers(0, 20_000), max_size=40), seed=st.integers(0, 99)
)
def test_there_is_one_in_each_stretch(library: ctypes.CDLL, size: int, amounts: list[int], seed: int) -> None:
    stream, total, found = Stream(library, size, seed), 0, 0
    for amount in amounts:
        total += amount
        found += stream.add(amount)
        assert total // size <= found <= total // size + 1


def test_each_byte_is_found_where_all_are_wanted(library: ctypes.CDLL) -> None:
    stream = Stream(library, 1)
    assert [stream.add(amount) for amount in (5, 0, 1, 100_000)] == [5, 0, 1, 100_000]


def test_calls_in_step_with_the_distance_are_found_by_their_bytes(library: ctypes.CDLL) -> None:
    """A fixed distance would find the second one, always."""
    stream, found = Stream(library, 512), [0, 0]
    for _ in range(20_000):
        found[0] += stream.add(384)
        found[1] += stream.add(128)
    assert found[0] / sum(found) == pytest.approx(0.75, abs=0.02)  # a binomial's 6 sigma


def test_one_stream_of_many_short_ones_is_fair(library: ctypes.CDLL) -> None:
    """Each thread or CPU has one of its own: what is less than a stretch still counts by its bytes."""
    found = sum(Stream(library, 1000, seed).add(100) for seed in range(20_000))
    assert found == pytest.approx(2000, rel=0.15)


@given(shift=st.integers(0, 6), block=st.integers(0, (1 << 26) - 1))
def test_one_is_taken_of_each_so_many(library: ctypes.CDLL, shift: int, block: int) -> None:
    assert sum(library.one((block << shift) + place, shift) for place in range(1 << shift)) == 1


@pytest.mark.parametrize("in_turn", [2, 3, 4, 8])
@pytest.mark.parametrize("shift", [1, 2, 3, 6])
def test_cpus_whose_clocks_tick_in_turn_are_all_seen(library: ctypes.CDLL, in_turn: int, shift: int) -> None:
    """One in two samples of two threads is not all of the one and none of the other."""
    taken = [0] * in_turn
    for count in range(64_000):
        taken[count % in_turn] += library.one(count, shift)
    each = (64_000 >> shift) / in_turn
    assert all(one == pytest.approx(each, abs=4.5 * each**0.5) for one in taken), taken
