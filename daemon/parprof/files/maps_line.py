"""Lines of ``/proc/PID/maps``. Paths in them are the choice of whoever named the files."""

from __future__ import annotations

import os
from typing import NamedTuple

_DELETED = b" (deleted)"


class MapsLine(NamedTuple):
    """One line of ``/proc/PID/maps``. ``path`` as the kernel prints it: a newline is ``\\012``."""

    start: int
    end: int
    executable: bool
    file_offset: int
    device: int
    inode: int
    path: bytes


def parse_line(line: bytes) -> MapsLine | None:
    r"""One line of ``/proc/PID/maps``; None if it is not understood.

    >>> parse_line(b"1000-3000 r-xp 00002000 fe:01 42    /tmp/a b\n").path
    b'/tmp/a b'
    """
    fields = line.rstrip(b"\n").split(b" ", 5)
    if len(fields) < 5 or len(fields[1]) < 3:
        return None
    try:
        start, end = (int(part, 16) for part in fields[0].split(b"-"))
        major, minor = (int(part, 16) for part in fields[3].split(b":"))
        offset, inode = int(fields[2], 16), int(fields[4])
    except ValueError:
        return None
    if not 0 <= start < end < 1 << 64 or not 0 <= offset < 1 << 64 or inode < 0:
        return None
    if not 0 <= major < 1 << 32 or not 0 <= minor < 1 << 32:
        return None
    path = fields[5].lstrip(b" ") if len(fields) > 5 else b""
    return MapsLine(start, end, fields[1][2:3] == b"x", offset, os.makedev(major, minor), inode, path)


def printed_paths(raw: bytes) -> list[bytes]:
    """The paths that the kernel may have printed as ``raw``, the likeliest first."""
    plain = raw.removesuffix(_DELETED)
    out = [plain.replace(b"\\012", b"\n"), raw, plain, raw.replace(b"\\012", b"\n")]
    return [path for path in dict.fromkeys(out) if path.startswith(b"/")]
