"""Record files are written by targets: whatever is in them, the reader counts or refuses it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.errors import ProfileFormatError
from parprof.input import records
from parprof.input.naming import make_profile
from parprof.input.records import Lacking, decode

HEADER = struct.Struct("<8s6I7Q256s")
ROW = struct.Struct("<II17Q")
UNKNOWN = (1 << 64) - 1


def header(
    rows: int, *, version: int = 3, back_end: int = 1, state: int = 1, flags: int = 0, seen: int = 0
) -> bytes:
    data = HEADER.pack(
        b"ppinput\n",
        version,
        back_end,
        state,
        flags,
        77,
        8,
        rows,
        2,
        seen,
        0,
        UNKNOWN,
        77,
        10**9,
        b"./a b\x1b",
    )
    return data.ljust(records.HEADER_BYTES, b"\0")


def point(routine: int, trms: int, calls: int = 1, cost: int = 10, thread: int = 0) -> bytes:
    words = (
        routine,
        trms,
        trms,
        calls,
        trms * calls,
        trms * calls,
        0,
        0,
        cost * calls,
        cost,
        0,
        0,
        cost * calls,
        *[0] * 4,
    )
    return ROW.pack(1, thread, *words)


def routine(number: int, module: int, address: int) -> bytes:
    return ROW.pack(2, 0, number, module, address, 1, *[0] * 13)


def module(number: int, piece: int, text: bytes) -> bytes:
    return struct.pack("<II2Q120s", 3, 0, number, piece, text)


def test_it_reads_what_is_there() -> None:
    path = b"/" + b"d" * 150 + b"/program"
    rows = [
        module(9, 1, path[120:]),
        module(9, 0, path[:120]),
        routine(5, 9, 0x1234),
        point(5, 3),
        point(5, 4, 2),
    ]
    rows.append(ROW.pack(4, 3, 10, 20, 30, 2, *[0] * 13))
    record = decode(header(len(rows) + 5, flags=1) + b"".join(rows))
    assert record.is_closed and record.flags == Lacking.ROUNDED and record.rows_lost == 2
    assert record.command == "./a b\\x1b" and record.all_read_bytes is None and record.all_sent_bytes == 77
    assert record.places[5] == (path, 0x1234, True)
    assert [(row.trms, row.calls) for row in record.points] == [(3, 1), (4, 2)]
    assert record.threads[3] == (10, 20, 30, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ppinput\n",
        b"\0" * 4096,
        header(0, version=1),
        header(0, back_end=3),
    ],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ProfileFormatError):
        decode(data)


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileFormatError, match="cannot read the record no"):
        records.read(tmp_path / "no")
    with pytest.raises(ProfileFormatError):
        records.read(tmp_path)


ROWS = st.lists(
    st.one_of(
        st.binary(min_size=ROW.size, max_size=ROW.size),
        st.builds(point, st.integers(0, 3), st.integers(0, 1 << 40), st.integers(0, 1 << 20), st.integers(0, 1 << 40)),
        st.builds(routine, st.integers(0, 3), st.integers(0, 2), st.integers(0, UNKNOWN)),
        st.builds(module, st.integers(0, 2), st.integers(0, 70), st.binary(max_size=120)),
        st.builds(lambda kind, words: ROW.pack(kind, 0, *words), st.integers(0, 5),
                  st.lists(st.integers(0, UNKNOWN), min_size=17, max_size=17)),
    ),
    max_size=30,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    rows=ROWS, claimed=st.integers(0, UNKNOWN), cut=st.integers(0, 200), flags=st.integers(0, (1 << 32) - 1)
)
def test_hostile_records_are_only_counted(rows: list[bytes], claimed: int, cut: int, flags: int) -> None:
    data = header(claimed, flags=flags) + b"".join(rows)
    record = decode(data[: max(len(data) - cut, records.HEADER_BYTES)])
    assert len(record.points) <= len(rows)
    assert all(row.calls for row in record.points)
    assert all(len(place.path) <= 64 * 120 for place in record.places.values())


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=9000), keep=st.integers(0, 400))
def test_any_bytes_are_a_record_or_refused(data: bytes, keep: int) -> None:
    try:
        decode(header(7)[:keep] + data)
    except ProfileFormatError:
        pass


def test_a_profile_is_made_of_it_and_says_what_is_missing() -> None:
    rows = [
        routine(5, 9, 0x1234),
        module(9, 0, b"/no/such/file"),
        *(point(5, n, cost=n * n) for n in range(1, 30)),
    ]
    rows += [point(6, 3, calls=4, thread=1)]
    profile = make_profile([decode(header(len(rows), flags=8 | 4) + b"".join(rows))], "a")
    assert profile.cost_unit == "ns"
    notes = " ".join(profile.notes)
    assert "2 activations found no room" in notes and "deeper than a million" in notes and "trace-pc" in notes
    names = sorted(identity.name for identity in profile.routines)
    assert names == ["0x5", "0x6"]
    assert sum(one.total().calls for one in profile.routines.values()) == 33
