# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile ELF files: only typed errors, in bounded time."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.fuzz_elf import NAMES, check, seeds, short

TOLERANT = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NUMBERS = st.integers(0, (1 << 64) - 1) | st.sampled_from(
    (0, 1, 24, 1 << 16, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)
)


@pytest.fixture(scope="module", autouse=True)
def need_seeds() -> None:
    if not seeds():
        pytest.skip("no gcc to make seeds with")


def test_the_seeds_are_read_in_full() -> None:
    for data in seeds():
        elf = check(data)
        assert elf is not None and elf.build_id and elf.soname == "lib"
        assert {"visible", "versioned"} <= elf.lookup(NAMES).keys() and "missing" in elf.undefined()
    assert any("hidden" in elf.lookup(NAMES) for data in seeds() if (elf := check(data)))


@TOLERANT
@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    check(data)
    check(b"\x7fELF\x02\x01" + data)


@TOLERANT
@given(st.data(), NUMBERS)
def test_any_number_in_any_header(draw: st.DataObject, number: int) -> None:
    raw = bytearray(draw.draw(st.sampled_from(seeds())))
    tables = [0, *struct.unpack_from("<QQ", raw, 0x20)]
    at = draw.draw(st.sampled_from(tables)) + 2 * draw.draw(st.integers(0, 200))
    size = draw.draw(st.sampled_from((2, 4, 8)))
    raw[at : at + size] = number.to_bytes(8, "little")[:size]
    check(bytes(raw))


@TOLERANT
@given(st.data())
def test_any_end(draw: st.DataObject) -> None:
    data = draw.draw(st.sampled_from(seeds()))
    check(data[: draw.draw(st.integers(0, len(data)))])


def test_mutated_files() -> None:
    assert short(4.0) > 100
