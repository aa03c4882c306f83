"""The unwind table of an ELF file."""

from __future__ import annotations

import gc
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from parprof.files.elf import EM_X86_64, ElfFile
from parprof.unwind.eh_frame import Fde, FrameParser
from parprof.unwind.emit import emit_rows
from parprof.unwind.frames import UnwindError, frame_sections
from parprof.unwind.gaps import fill_gaps
from parprof.unwind.go_frames import go_frames
from parprof.unwind.pages import TableImage, make_image
from parprof.unwind.prologues import add_prologues
from parprof.unwind.returns import AT_ONCE_BYTES, add_returns
from parprof.unwind.rows import ROW_SIZE
from parprof.values import dataclass

UNFOLLOWED = "unfollowed_bytes"
"""A table's note: so much code has no rows that would have some if more time were taken (`parprof.unwind.later`)."""


@dataclass(frozen=True)
class UnwindTable:
    """Rows as `parprof.unwind.rows` describes them, sorted by address, no two at one; maybe none.

    ``build_id`` is empty for files without one. ``notes`` counts, by kind, what could not be used: such code
    has rows of rule 0.
    """

    rows: bytes | memoryview
    build_id: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows) // ROW_SIZE

    @cached_property
    def image(self) -> TableImage:
        """What the kernel searches: see `parprof.unwind.pages`. Without regions where it cannot."""
        return make_image(self.rows)

    @property
    def regions(self) -> int:
        """Of its image; 0: it has none."""
        return self.image.regions

    @property
    def first_region(self) -> int:
        """Of its image."""
        return self.image.first_region

    @property
    def offsets(self) -> array[int]:
        """Of its image."""
        return self.image.offsets

    def blocks(self, first: int, last: int) -> bytes | memoryview:
        """Those of the regions [first, last) of its image, counted from the first."""
        return self.image.blocks[self.offsets[first] : self.offsets[last]]

    @cached_property
    def _numbers(self) -> memoryview:
        return memoryview(self.rows).cast("I")

    def row(self, index: int) -> tuple[int, int]:
        """The row ``(pc, rule)`` at an index.

        Raises:
            IndexError: there is no such row.
        """
        return self._numbers[2 * index], self._numbers[2 * index + 1]

    def rule(self, address: int) -> int:
        """The packed rule at an ELF virtual address, 0 where there is none."""
        at = bisect_right(range(self.count), address, key=lambda index: self._numbers[2 * index]) - 1
        return self._numbers[2 * at + 1] if at >= 0 else 0


def build_table(elf: ElfFile, follow_bytes: int = AT_ONCE_BYTES) -> UnwindTable:
    """The table of a file; without rows if it has no call frame information (use frame pointers then).

    Takes about 1 us and, while it is at work, 100 bytes for each row. ``follow_bytes``: so much code without call frame
    information is followed instruction by instruction, at 0.2 us for each byte.

    Raises:
        UnwindError: it is not for x86-64, its code is beyond 4 GiB, or there is too much of it.
        ElfError: the file cannot be read.
    """
    if elf.machine != EM_X86_64:
        raise UnwindError(f"{elf.label} is not for x86-64 (machine {elf.machine})")
    ranges = _code_ranges(elf)
    notes: Counter[str] = Counter()
    fdes: list[Fde] = []
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of tuples and no cycles
    try:
        sections = frame_sections(elf)
        if not any(section.is_debug for section in sections) and (made := go_frames(elf)) is not None:
            sections.append(made)
        for section in reversed(sections):  # of FDEs that begin together the last one counts
            fdes += FrameParser(section, notes).fdes
        rows = emit_rows(fdes, ranges, notes)
        fill_gaps(rows, elf)
        rows = add_prologues(rows, elf)  # first: where there are symbols it takes a tenth of the time
        rows, unfollowed = add_returns(rows, elf, ranges, (fde[:2] for fde in fdes), follow_bytes)
        if unfollowed:
            notes[UNFOLLOWED] = unfollowed
    finally:
        if collecting:
            gc.enable()
    return UnwindTable(rows.tobytes(), elf.build_id, dict(notes))


def _code_ranges(elf: ElfFile) -> list[tuple[int, int]]:
    """The virtual addresses of executable segments, in order, apart from each other."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(
        (segment.vaddr, segment.vaddr + segment.memory_size) for segment in elf.code if segment.memory_size
    ):
        if high >= 1 << 32:
            raise UnwindError(f"{elf.label} has code at {high:#x}; unwind tables reach up to 4 GiB")
        if out and low <= out[-1][1]:
            out[-1] = out[-1][0], max(high, out[-1][1])
        else:
            out.append((low, high))
    return out
