# SPDX-License-Identifier: Apache-2.0
"""Where functions begin and end by what unwinders need, in programs however large."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import unwind_elf

from parprof.files.eh_frame_header import extents_around, frame_extents, gaps_around
from parprof.files.elf import ElfFile
from parprof.probes.wait_code import function_starts

CODE, STEP, SIZE = 0x1000_0000, 16, 11
"""Where the functions of these tests begin, how far they are from each other, and how long they are: bytes."""


def without_table(count: int) -> ElfFile:
    """A static program as linkers make them: nothing but ``.eh_frame``, one CIE and so many functions, the last first.

    Its section stands at address 0.
    """
    frames = unwind_elf.cie()
    first = len(frames)
    at = (first + 20 * number for number in range(count))
    frames += b"".join(
        struct.pack("<IIiI", 16, here + 4, CODE + STEP * (count - 1 - number) - here - 8, SIZE).ljust(
            20, b"\0"
        )
        for number, here in enumerate(at)
    )
    data = unwind_elf.elf_bytes(
        b"", code=CODE, code_size=STEP * count, header=b"", sections=((b".eh_frame", 2, frames + bytes(4)),)
    )
    return unwind_elf.open_elf(data)


@pytest.mark.parametrize("count", [1, 140_000, 1_100_000])
def test_no_function_of_a_large_static_program_is_left_out(count: int) -> None:
    """1,100,000 have 22 MB of it, more than is read at once."""
    elf = without_table(count)
    extents = list(frame_extents(elf))
    assert len(extents) == len(frame_extents(elf)) == count
    assert extents[:2] == [(CODE, SIZE), (CODE + STEP, SIZE)][:count]
    last = CODE + STEP * (count - 1)
    assert extents[-1] == (last, SIZE)
    found = extents_around(elf, [CODE, CODE + SIZE, last + SIZE - 1, last + SIZE])
    assert found == {CODE: (CODE, SIZE), last + SIZE - 1: (last, SIZE)}


def test_waits_of_a_large_program_are_not_told_of_half_of_its_functions() -> None:
    """The last function's end is not that of all the code behind the first 65,536."""
    count = 70_000
    starts = function_starts(without_table(count))
    assert len(starts) == count + 1
    assert list(starts[-2:]) == [CODE + STEP * (count - 1), CODE + STEP * count]


class _Sparse:
    """A file that is made as it is read: a search table of ``count`` functions, and of each its FDE."""

    HEADER, TABLE = 0x1000, 0x100C
    FDES = 0x1000_0000
    CODE = 0x4000_0000

    def __init__(self, count: int, rows: int | None = None) -> None:
        """``rows``: that the table has, whatever its count says."""
        self.count, self.rows = count, count if rows is None else rows
        self.bytes_read = 0
        size = self.TABLE + 8 * self.rows - self.HEADER
        segments = [
            (1, 4, self.HEADER, self.HEADER, 0, size, size),
            (1, 4, self.FDES, self.FDES, 0, 16 * count, 16 * count),
            (1, 5, self.CODE, self.CODE, 0, STEP * count, STEP * count),
            (0x6474E550, 4, self.HEADER, self.HEADER, 0, size, size),
        ]
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        self._head = struct.pack(
            "<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0
        ) + b"".join(struct.pack("<IIQQQQQQ", *segment, 8) for segment in segments)

    def elf(self) -> ElfFile:
        return ElfFile(self.read_at, 1 << 40, "sparse")

    def read_at(self, offset: int, size: int) -> bytes:
        if offset < self.HEADER:
            return self._head[offset : offset + size]
        self.bytes_read += size
        if offset == self.HEADER:
            return struct.pack("<BBBBiI", 1, 0x1B, 0x03, 0x3B, 0, self.count)[:size]
        if offset < self.FDES:
            row = (offset - self.TABLE) // 8
            assert not (offset - self.TABLE) % 8
            return b"".join(
                struct.pack(
                    "<ii", self.CODE + STEP * number - self.HEADER, self.FDES + 16 * number - self.HEADER
                )
                for number in range(row, row + size // 8)
            )
        number = (offset - self.FDES) // 16
        here = self.FDES + 16 * number
        return struct.pack("<IIiI", 16, 4, self.CODE + STEP * number - here - 8, SIZE)[:size]


def test_no_function_of_a_large_programs_search_table_is_left_out() -> None:
    """Three million functions: no part of the table is read but where the search leads."""
    count = 3_000_000
    file = _Sparse(count)
    wanted = [file.CODE + STEP * number + 5 for number in (0, 1, count // 2, (1 << 21) + 1, count - 1)]
    found = extents_around(file.elf(), [file.CODE - 1, *wanted, file.CODE + STEP * count])
    assert found == {address: (address - 5, SIZE) for address in wanted}
    assert file.bytes_read < 1 << 20


def test_code_between_functions() -> None:
    """An assembler's, of which nobody says where its functions begin."""
    count = 3_000_000
    for elf, code, functions in ((without_table(9), CODE, 9), (_Sparse(count).elf(), _Sparse.CODE, count)):
        between = [code + STEP * number + SIZE + at for number, at in ((0, 0), (7, 1))]
        last = code + STEP * (functions - 1)
        inside_and_outside = [code - 1, code, code + SIZE - 1, last, last + SIZE]
        found = gaps_around(elf, [*between, *inside_and_outside])
        assert found == {
            between[0]: (code + SIZE, code + STEP),
            between[1]: (code + STEP * 7 + SIZE, code + STEP * 8),
        }
    assert gaps_around(_Sparse(5000, rows=1000).elf(), [_Sparse.CODE + STEP * 999 + SIZE]) == {}


def test_a_search_table_that_ends_before_its_count_has_what_is_there() -> None:
    file = _Sparse(5000, rows=1000)
    inside, beyond = file.CODE + STEP * 999, file.CODE + STEP * 1000
    assert extents_around(file.elf(), [inside, beyond]) == {inside: (inside, SIZE)}


@given(st.binary(max_size=300))
def test_any_bytes_are_no_harm(frames: bytes) -> None:
    data = unwind_elf.elf_bytes(b"", code=0, header=b"", sections=((b".eh_frame", 2, frames),))
    elf = unwind_elf.open_elf(data)
    extents = list(frame_extents(elf))
    assert extents == sorted(set(extents))
    assert all(0 <= begin and begin + size <= unwind_elf.CODE_SIZE for begin, size in extents)


def test_a_real_static_program(tmp_path: Path) -> None:
    program = tmp_path / "a"
    code = "int f(int x) { return x ? f(x / 2) + 1 : 0; } int main(int c, char **v) { return f(c) == 9; }"
    compiler = ["gcc", "-O1", "-fno-inline", "-static", "-x", "c", "-", "-o", program]
    subprocess.run(compiler, input=code, text=True, check=True)
    with ElfFile.open(str(program)) as elf:
        symbols = {name: found[0] for name, found in elf.lookup(["f", "main"]).items()}
        found = extents_around(elf, [symbol.value for symbol in symbols.values()])
    assert found == {symbol.value: (symbol.value, symbol.size) for symbol in symbols.values()}
