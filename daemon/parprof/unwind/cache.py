"""Unwind tables on disk, found again by build id.

A file is a header, a description in JSON, and the table's image as it goes to the kernel, which ends with the rows
(or, where it has none, the rows alone). The header has a checksum over all that follows: a file that is damaged, cut
short or from another version of parprof does not count. Files are read and not mapped, although their format allows
it: one cut short under a mapping would kill us.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

from parprof.cache import DiskCache
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.pages import MAX_PAGES, WORD
from parprof.unwind.rows import ROW_SIZE
from parprof.unwind.table import UnwindTable

MAX_BYTES = 1 << 29
"""What all tables on disk may take."""
FORMAT = 12
"""To be raised with each change of the rows, of how they are made, or of the file."""
_MAGIC = b"parprof\0unwind\0\0"
_HEADER = struct.Struct("<16sIIII")
"""Magic, format, bytes of the description, number of rows, and a checksum of all that follows."""
_IN_FRONT = struct.Struct("<Q")
"""Follows the header: words of the image in front of the rows."""
_MAX_DESCRIPTION = 1 << 16
_BOTH = _HEADER.size + _IN_FRONT.size
_MAX_FILE = _BOTH + _MAX_DESCRIPTION + (MAX_PAGES + 1) * WORD + MAX_ROWS * ROW_SIZE


class TableCache:
    """The tables on disk. What cannot be cached is built again each time: that is not an error."""

    def __init__(self, base: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Use the subdirectory ``unwind`` of ``base``, or of parprof's own cache directory."""
        self.disk = DiskCache("unwind", max_bytes, base)

    def has(self, name: str) -> bool:
        """Whether a table of that name is there; it may turn out to be damaged."""
        fd = self.disk.open(name) if name else None
        if fd is None:
            return False
        os.close(fd)
        return True

    def load(self, name: str, build_id: str) -> UnwindTable | None:
        """The table of that name; None if there is none that can be used."""
        fd = self.disk.open(name) if name else None
        if fd is None:
            return None
        try:
            with suppress(OSError, ValueError):
                table = _parse(os.pread(fd, _MAX_FILE, 0))
                if table.build_id == build_id:
                    return table
        finally:
            os.close(fd)
        self.disk.remove(name)
        return None

    def store(self, name: str, table: UnwindTable) -> bool:
        """Keep a table under a name; whether that could be done."""
        description = json.dumps({"build_id": table.build_id, "notes": dict(table.notes)}).encode()
        description += b" " * (-(_BOTH + len(description)) % ROW_SIZE)
        if not name or len(description) > _MAX_DESCRIPTION:
            return False
        image = table.image or table.rows
        in_front = (len(image) - len(table.rows)) // WORD
        checksum = zlib.crc32(image, zlib.crc32(_IN_FRONT.pack(in_front) + description))
        header = _HEADER.pack(_MAGIC, FORMAT, len(description), table.count, checksum) + _IN_FRONT.pack(
            in_front
        )
        new = self.disk.new(name)
        if new is None:
            return False
        with new:
            try:
                for part in (header, description, image):
                    new.write(part)
            except OSError as error:
                self.disk.note(error)
                return False
            return new.commit()


def _parse(raw: bytes) -> UnwindTable:
    """The table in a file.

    Raises:
        ValueError: it is damaged.
    """
    if len(raw) < _BOTH:
        raise ValueError("too short")
    magic, version, described, count, checksum = _HEADER.unpack_from(raw)
    (in_front,) = _IN_FRONT.unpack_from(raw, _HEADER.size)
    start = _BOTH + described
    rows = start + in_front * WORD
    right = magic == _MAGIC and version == FORMAT and described <= _MAX_DESCRIPTION
    if not right or start % ROW_SIZE or len(raw) != rows + count * ROW_SIZE:
        raise ValueError("not of this format")
    whole = memoryview(raw)
    if zlib.crc32(whole[_HEADER.size :]) != checksum:
        raise ValueError("damaged")
    description = json.loads(raw[_BOTH:start])
    try:
        notes = {str(kind): int(number) for kind, number in description["notes"].items()}
        table = UnwindTable(
            whole[rows:], str(description["build_id"]), notes, whole[start:] if in_front else b""
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not of this format") from error
    if in_front and (not count or in_front != table.pages + 1):
        raise ValueError("not of this format")
    return table
