"""Unwind tables on disk, found again by build id.

A file is a header, a description in JSON, a directory, and the blocks of the table's image as they go to the kernel
(or, where it has none, the rows). The directory has for each block where it ends, then for each a checksum, and the
header one over the description and the directory: a file that is damaged, cut short or from another version of parprof
does not count. Of a large table only those blocks are read that are asked for. Files are read and not mapped: one cut
short under a mapping would kill us.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from weakref import finalize

from parprof.cache import DiskCache
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.pages import HEAD_WORDS, MAX_REGIONS, REGION_SHIFT, WORD, rows_of, rule_in
from parprof.unwind.rows import ROW_SIZE
from parprof.unwind.table import UnwindTable

MAX_BYTES = 1 << 29
"""What all tables on disk may take."""
FORMAT = 14
"""To be raised with each change of the rows, of how they are made, or of the file."""
LARGE_BYTES = 1 << 20
"""A file that is larger is read block by block."""
_MAGIC = b"parprof\0unwind\0\0"
_HEADER = struct.Struct("<16sIIIIII")
"""Magic, format, bytes of the description, number of rows, of regions, the first region, and a checksum of these four
and of what follows in front of the blocks."""
_SIZES = struct.Struct("<IIII")
_MAX_DESCRIPTION = 1 << 16


class TableDamaged(OSError):
    """A block of a table on disk is not what was written there; the file is gone."""


class StoredTable:
    """A table on disk. As `UnwindTable`, but what is read of it may raise `TableDamaged`."""

    def __init__(
        self,
        head: tuple[str, Mapping[str, int], int, int],
        directory: tuple[array[int], array[int]],
        read: Callable[[int, int], bytes | memoryview],
        damaged: Callable[[], None],
    ) -> None:
        """``head``: build id, notes, number of rows, first region. ``directory``: offsets as in an image, of the rows
        alone where it has no regions; checksums. ``read``: so many bytes, from an offset from the first block on."""
        self.build_id, self.notes, self.count, self.first_region = head
        self.offsets, self._checksums = directory
        self._read = read
        self._damaged = damaged

    @property
    def regions(self) -> int:
        """How many the image has; 0: there is no image."""
        return len(self.offsets) - 1 if self.first_region >= 0 else 0

    def blocks(self, first: int, last: int) -> bytes | memoryview:
        """Those of the regions [first, last), counted from the table's first.

        Raises:
            TableDamaged: they cannot be had.
        """
        begin, end = self.offsets[first], self.offsets[last]
        found = self._read(begin, end - begin)
        whole = memoryview(found)
        parts = (whole[low - begin : high - begin] for low, high in pairwise(self.offsets[first : last + 1]))
        if len(found) != end - begin or any(
            zlib.crc32(part) != right for part, right in zip(parts, self._checksums[first:last], strict=True)
        ):
            self._damaged()
            raise TableDamaged(0, "an unwind table on disk is damaged")
        return found

    @property
    def rows(self) -> memoryview:
        """All rows."""
        if self.regions:
            return rows_of(self.offsets, self.blocks(0, self.regions))
        return memoryview(bytes(self.blocks(0, len(self.offsets) - 1)))

    def rule(self, address: int) -> int:
        """The packed rule at an ELF virtual address, 0 where there is none, or none that can be read."""
        region = (address >> REGION_SHIFT) - self.first_region
        with suppress(TableDamaged):
            if not self.regions:
                return UnwindTable(self.rows).rule(address)
            if 0 <= region < self.regions:
                return rule_in(self.blocks(region, region + 1), address)
        return 0


Table = UnwindTable | StoredTable


class TableCache:
    """The tables on disk. What cannot be cached is built again each time: that is not an error."""

    def __init__(self, base: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Use the subdirectory ``unwind`` of ``base``, or of parprof's own cache directory."""
        self.disk = DiskCache("unwind", max_bytes, base)

    def has(self, name: str) -> bool:
        """Whether a table of that name is there; it may turn out to be damaged."""
        fd = self.disk.open(_file_name(name)) if name else None
        if fd is None:
            return False
        os.close(fd)
        return True

    def load(self, name: str, build_id: str) -> StoredTable | None:
        """The table of that name; None if there is none that can be used. The blocks of a large one are not looked at
        yet."""
        file_name = _file_name(name)
        fd = self.disk.open(file_name) if name else None
        if fd is None:
            return None
        table = None
        try:
            with suppress(OSError, ValueError):
                found = _parse(fd, lambda: self.disk.remove(file_name))
                table = found if found.build_id == build_id else None
        finally:
            if table is not None and table.offsets[-1] > LARGE_BYTES:
                finalize(table, os.close, fd)
            else:
                os.close(fd)
        if table is None:
            self.disk.remove(file_name)
        return table

    def store(self, name: str, table: UnwindTable) -> bool:
        """Keep a table under a name; whether that could be done."""
        description = json.dumps({"build_id": table.build_id, "notes": dict(table.notes)}).encode()
        description += b" " * (-(_HEADER.size + len(description)) % WORD)
        if not name or len(description) > _MAX_DESCRIPTION:
            return False
        image = table.image
        blocks = memoryview(image.blocks if image.regions else table.rows)
        ends = image.offsets[1:] if image.regions else array("I", [len(blocks)] if blocks else [])
        checksums = array("I", [zlib.crc32(blocks[low:high]) for low, high in pairwise([0, *ends])])
        behind = description + ends.tobytes() + checksums.tobytes()
        sizes = len(description), table.count, image.regions, image.first_region
        checksum = zlib.crc32(behind, zlib.crc32(_SIZES.pack(*sizes)))
        new = self.disk.new(_file_name(name))
        if new is None:
            return False
        with new:
            try:
                for part in (_HEADER.pack(_MAGIC, FORMAT, *sizes, checksum), behind, blocks):
                    new.write(part)
            except OSError as error:
                self.disk.note(error)
                return False
            return new.commit()


def _file_name(name: str) -> str:
    """With the format: two versions of parprof on one machine would remove each other's tables."""
    return f"{name}-{FORMAT}"


def _parse(fd: int, damaged: Callable[[], None]) -> StoredTable:
    """The table in a file.

    Raises:
        ValueError: it is not one of this version, or not as it was written; OSError.
    """
    magic, version, described, count, regions, first_region, checksum = _HEADER.unpack(
        _read(fd, _HEADER.size, 0)
    )
    parts = regions or (count > 0)
    right = (magic, version) == (_MAGIC, FORMAT) and described <= _MAX_DESCRIPTION and count <= MAX_ROWS
    if not right or regions > MAX_REGIONS:
        raise ValueError("not of this format")
    behind = _read(fd, described + 8 * parts, _HEADER.size)
    start = _HEADER.size + len(behind)
    if zlib.crc32(behind, zlib.crc32(_SIZES.pack(described, count, regions, first_region))) != checksum:
        raise ValueError("damaged")
    numbers = array("I", behind[described:])
    offsets = array("I", [0]) + numbers[:parts]
    size = count * ROW_SIZE + regions * HEAD_WORDS * WORD
    if offsets[-1] != size or os.fstat(fd).st_size != start + size:
        raise ValueError("cut short")
    description = json.loads(behind[:described])
    try:
        notes = {str(kind): int(number) for kind, number in description["notes"].items()}
        build_id = str(description["build_id"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not of this format") from error
    whole = memoryview(_read(fd, size, start)) if size <= LARGE_BYTES else None

    def read(offset: int, size: int) -> bytes | memoryview:
        return os.pread(fd, size, start + offset) if whole is None else whole[offset : offset + size]

    head = build_id, notes, count, first_region if regions else -1
    table = StoredTable(head, (offsets, numbers[parts:]), read, damaged)
    if whole is not None:
        table.blocks(0, parts)
    return table


def _read(fd: int, size: int, offset: int) -> bytes:
    found = os.pread(fd, size, offset)
    if len(found) != size:
        raise ValueError("cut short")
    return found
