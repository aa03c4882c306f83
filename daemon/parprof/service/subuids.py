"""Which user has the ids that user namespaces are mapped to: with 65,536 of them one user would be as many clients."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Hashable, Iterator
from pathlib import Path

SUBUIDS, PASSWD = Path("/etc/subuid"), Path("/etc/passwd")
_MAX_BYTES = 1 << 20
_Version = tuple[int, int, int]
_Range = tuple[int, int, Hashable]
"""First id, the one after the last, and the user."""


class Subuids:
    """Reads ``/etc/subuid`` again when it has changed. Names are looked up in ``/etc/passwd``: no server is asked."""

    def __init__(self, subuids: Path = SUBUIDS, passwd: Path = PASSWD, every_s: float = 1.0) -> None:
        """``every_s``: look for changes so often; servers ask many times for each connection."""
        self._subuids, self._passwd, self._every_s = subuids, passwd, every_s
        self._looked_s = -math.inf
        self._version: _Version | None = None
        self._ranges: list[_Range] = []

    def user(self, uid: int) -> Hashable:
        """The user that an id belongs to: its number, or its name where only that is known; else the id itself."""
        self._read_again()
        index = bisect_right(self._ranges, uid, key=lambda one: one[0]) - 1
        if index >= 0 and uid < self._ranges[index][1]:
            return self._ranges[index][2]
        return uid

    def _read_again(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < self._every_s:
            return
        self._looked_s = now_s
        try:
            status = self._subuids.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if version == self._version:
                return
            self._version = version
            self._ranges = sorted(self._parse(_text(self._subuids)), key=lambda one: one[0])
        except OSError:
            self._version, self._ranges = None, []

    def _parse(self, text: str) -> Iterator[_Range]:
        """The ranges; lines that are none are left out."""
        uids = {}
        for line in _text(self._passwd).splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2].isdecimal():
                uids[fields[0]] = int(fields[2])
        for line in text.splitlines():
            name, _, numbers = line.partition(":")
            first, _, count = numbers.partition(":")
            if name and first.isdecimal() and count.isdecimal():
                user = int(name) if name.isdecimal() else uids.get(name, name)
                yield int(first), int(first) + int(count), user


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")


_known = Subuids()


def user_of(uid: int) -> Hashable:
    """The user that this machine's id belongs to: see `Subuids.user`."""
    return _known.user(uid)
