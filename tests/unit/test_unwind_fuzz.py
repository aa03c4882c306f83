# SPDX-License-Identifier: Apache-2.0
"""Unwind tables of damaged and hostile files: only typed errors, in bounded time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fuzz.fuzz_eh_frame import KINDS, check, short
from parprof.files.elf import ElfError, ElfFile
from parprof.unwind import eh_frame as records
from parprof.unwind import emit, frames
from parprof.unwind.frames import UnwindError
from parprof.unwind.table import build_table
from unwind_elf import CODE, cie, eh_frame, elf_bytes, fde, open_elf, record

PIECES = [bytes.fromhex(text) for text in """
    41 44 40 7f 0280 030001 0400000100 0e10 0e08 0e8001 0e0c 0c0708 0c0610 0c0a00 0d06 0d07 8602 8303 9001 c6 c3 0a 0b
    00 2e10 050602 0606 0710 0706 0806 090603 1006027600 1006027670 0f03767806 0f03777806 0f0b770880003f1a3b2a332422
    0f0b770880003f1a392a332422 1106 02 12077e 137e 140601 15067f 1606010f 2f067e 1d0100000000000000 01 3f 86 0f 80
""".split()]  # fmt: skip
PROGRAMS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=24).map(b"".join)
TOLERANT = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@TOLERANT
@given(PROGRAMS, PROGRAMS)
@example(b"\x0a" * 70 + b"\x0b" * 70, b"")
def test_any_instructions(first: bytes, second: bytes) -> None:
    head = cie(b"\x0c\x07\x08\x90\x01" + second)
    check(bytes((KINDS.index("program"),)) + first)
    check(
        bytes((KINDS.index("eh_frame"),)) + eh_frame((CODE, 0x80, first), (CODE + 0x90, 8, second), head=head)
    )


@TOLERANT
@given(st.sampled_from(range(len(KINDS))), st.binary(max_size=300))
def test_any_bytes(kind: int, data: bytes) -> None:
    check(bytes((kind,)) + data)


def test_mutated_files() -> None:
    assert short(4.0) > 100


@pytest.mark.parametrize("step", [1, 7])
def test_truncated_files(step: int) -> None:
    whole = elf_bytes(eh_frame(*((CODE + 0x40 * n, 0x40, PIECES[n]) for n in range(len(PIECES)))))
    for size in range(len(whole) - 1, len(whole) - 600, -step):
        try:
            build_table(open_elf(whole[:size]))
        except (ElfError, UnwindError):
            pass


def seconds_for(data: bytes) -> float:
    begin = time.process_time()
    try:
        build_table(open_elf(data))
    except (ElfError, UnwindError):
        pass
    return time.process_time() - begin


BIG = 1 << 20
ROWS = b"\x41\x0e\x10\x41\x0e\x08" * (BIG // 6)
HOSTILE: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: bytes(BIG),
    "remember": lambda: eh_frame((CODE, 1, b"\x0a" * BIG)),
    "rows": lambda: eh_frame((CODE, 1 << 30, ROWS)),
    "numbers": lambda: eh_frame((CODE, 1 << 30, b"\x0e" + b"\x80" * BIG)),
    "skipped numbers": lambda: eh_frame((CODE, 9, b"\x83" + b"\x80" * BIG)),
    "empty records": lambda: b"\x01\0\0\0\0" * (BIG // 5),
    "many CIEs": lambda: cie() * (BIG // 24),
    "one CIE": lambda: cie(b"\x0c\x07\x08\x90\x01" + ROWS),
    "long block": lambda: eh_frame((CODE, 9, b"\x0f\xff\xff\x3f" + bytes(BIG))),
    "signal": lambda: eh_frame((CODE, 9, b"\x41" * BIG), head=cie(augmentation=b"zRS")),
    "overlaps": lambda: cie() + b"".join(fde(24 * n, CODE + n % 7, 1 << 20) for n in range(1, BIG // 24)),
    "no CIE": lambda: struct.pack("<III", 20, 99, 0).ljust(24, b"\0") * (BIG // 24),
}
"""Each is made where it is tested, and not in each process that imports this: that takes a second."""


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_with_size_only(name: str) -> None:
    hostile = HOSTILE[name]()
    for sections in ((), ((b".eh_frame", 0, hostile),)):
        data = elf_bytes(b"" if sections else hostile, header=b"" if sections else None, sections=sections)
        assert seconds_for(data) < 8  # alone on a machine: under 2


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    several = eh_frame(*((CODE + 0x40 * n, 0x20, b"\x41\x0e\x10") for n in range(40)))
    monkeypatch.setattr(emit, "MAX_ROWS", 50)
    monkeypatch.setattr(emit, "_FLUSH", 1)
    with pytest.raises(UnwindError, match="50 rows"):
        build_table(open_elf(elf_bytes(several)))
    monkeypatch.undo()
    monkeypatch.setattr(records, "MAX_FDES", 30)
    with pytest.raises(UnwindError, match="too much"):
        build_table(open_elf(elf_bytes(several)))
    monkeypatch.undo()
    monkeypatch.setattr(records, "MAX_REFUSED", 9)
    with pytest.raises(UnwindError, match="damaged"):
        build_table(open_elf(elf_bytes(record(b"\x07") * 20)))
    monkeypatch.undo()
    monkeypatch.setattr(records, "MAX_CIES", 1)
    notes = build_table(open_elf(elf_bytes(cie() * 3 + bytes(4)))).notes
    assert notes == {"CIE refused": 2}
    monkeypatch.undo()
    monkeypatch.setattr(records, "MAX_PROGRAM", 8)
    monkeypatch.setattr(emit, "MAX_PROGRAM", 8)
    assert build_table(open_elf(elf_bytes(eh_frame((CODE, 9, b"\x41" * 20))))).notes == {"too long": 1}
    assert build_table(open_elf(elf_bytes(cie(bytes(30)) + bytes(4)))).notes == {"CIE contents": 1}
    monkeypatch.undo()
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    sections = ((b".eh_frame", 0, several),)
    with pytest.raises(UnwindError, match="call frame information"):
        build_table(open_elf(elf_bytes(b"", header=b"", sections=sections)))


def test_a_compression_bomb_is_bounded(tmp_path: Path) -> None:
    packed = zlib.compress(bytes(1 << 28), 9)
    contents = struct.pack("<IIQQ", 1, 0, 1 << 20, 8) + packed
    path = tmp_path / "bomb"
    path.write_bytes(elf_bytes(b"", header=b"", sections=((b".debug_frame", 0x800, contents),)))
    tracemalloc.start()
    try:
        with ElfFile.open(str(path)) as elf:
            assert build_table(elf).count == 0
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
