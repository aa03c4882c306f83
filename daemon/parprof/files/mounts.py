"""Which files can be touched without fear that they never answer: by the table of mounts, not by asking them.

``/proc/PID/mountinfo`` is made by the kernel alone. A network file system whose server is gone and a FUSE file
system whose process is stuck keep everybody who asks for a file waiting, beyond any signal.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from parprof.patterns import regex

_MAX_MOUNTS, _MAX_BYTES = 1 << 14, 1 << 22
_MAX_TABLES = 256
_MAX_PLACES = 8
_FRESH_SECONDS = 1.0
_IN_MEMORY = frozenset((b"tmpfs", b"ramfs", b"rootfs", b"devtmpfs", b"hugetlbfs"))
_ON_DEVICES = frozenset((b"btrfs", b"bcachefs", b"zfs", b"overlay"))
"""Without a block device of their own as their device number. Overlays are, nearly always, over local ones."""
_ESCAPE = regex(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of ``mountinfo``."""

    device: int
    root: bytes
    """The directory of the file system that shows at ``point``."""
    point: bytes
    kind: bytes

    @property
    def is_local(self) -> bool:
        """Whether it needs neither a network nor another process to answer."""
        if self.kind == b"fuseblk":
            return False
        return os.major(self.device) != 0 or self.kind in _IN_MEMORY or self.kind in _ON_DEVICES


def parse_mount(line: bytes) -> Mount | None:
    r"""One line of ``mountinfo``; None if it is not understood.

    >>> parse_mount(b"36 35 98:0 /a /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw").point
    b'/mnt 2'
    """
    fields = line.split()
    try:
        major, minor = (int(part) for part in fields[2].split(b":"))
        kind = fields[fields.index(b"-", 6) + 1]
        root, point = (
            _ESCAPE.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), text) for text in fields[3:5]
        )
        return Mount(os.makedev(major, minor), root, point, kind)
    except (ValueError, IndexError, OverflowError):
        return None


class Mounts:
    """What a process has mounted, as of one moment. Never changes."""

    def __init__(self, mounts: list[Mount]) -> None:
        """In the order of ``mountinfo``: where several are mounted at one place, the last one shows."""
        self._local: dict[int, bool] = {}
        self._points: dict[bytes, bool] = {}
        self._mounts = mounts
        for mount in mounts:
            self._local[mount.device] = mount.is_local and self._local.get(mount.device, True)
            self._points[mount.point.rstrip(b"/")] = mount.is_local

    @classmethod
    def read(cls, pid: int | str) -> Mounts:
        """Those of a process; none if it is gone."""
        with suppress(OSError), open(f"/proc/{pid}/mountinfo", "rb") as file:
            return _as_told(file.read(_MAX_BYTES))
        return cls([])

    def is_local_device(self, device: int) -> bool | None:
        """Whether the files of a device answer; None if it is not mounted here."""
        return self._local.get(device)

    def paths(self, device: int, inside: bytes) -> list[bytes]:
        """Where a file shows, maybe, of which the place in its file system is known; a few places at most."""
        found = (
            mount.point.rstrip(b"/") + inside.removeprefix(mount.root.rstrip(b"/"))
            for mount in self._mounts
            if mount.device == device and inside.startswith(mount.root.rstrip(b"/") + b"/")
        )
        return list(dict.fromkeys(islice(found, _MAX_PLACES)))

    def is_local_path(self, path: bytes) -> bool | None:
        """Whether all mounts on the way to an absolute path without links answer; None if the root's is unknown.

        The root of a process that called ``chroot`` is no mount.
        """
        if not all(self._points.get(part, True) for part in _parts(path)):
            return False
        return self._points.get(b"")


@lru_cache(maxsize=4)
def _as_told(text: bytes) -> Mounts:
    """Of a whole ``mountinfo``: nearly all processes of a machine have the same, and each is asked for its own."""
    lines = islice(
        text.split(b"\n")[:-1], _MAX_MOUNTS
    )  # each ends with one: what is behind the last was cut off
    return Mounts([mount for line in lines if (mount := parse_mount(line))])


def _parts(path: bytes) -> list[bytes]:
    out = []
    while path.startswith(b"/"):
        out.append(path)
        path = path[: path.rfind(b"/")]
    return out


class MountTables:
    """The mounts of processes, read again when they are older than a second."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._known: OrderedDict[int | str, tuple[float, Mounts]] = OrderedDict()

    def of(self, pid: int | str) -> Mounts:
        """Those of a process, or of our own (``"self"``)."""
        now = time.monotonic()
        known = self._known.get(pid)
        if known is not None and now - known[0] < _FRESH_SECONDS:
            return known[1]
        found = Mounts.read(pid)
        self._known[pid] = now, found
        self._known.move_to_end(pid)
        while len(self._known) > _MAX_TABLES:
            self._known.popitem(last=False)
        return found
