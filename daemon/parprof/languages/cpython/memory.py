"""Bounded reads of the objects in a process's memory. What is there is the process's business: nothing is believed."""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from contextlib import suppress

from parprof.kernel.stacks import SentCode
from parprof.languages.cpython.layouts import Layout
from parprof.resources import SelfClosing

MAX_TEXT = 4096
"""Characters of a string that are read."""
MAX_TABLE = 1 << 20
"""Bytes of a bytes object that are read; a longer one is not read at all."""
_KINDS = {1: ("latin-1", 1), 2: ("utf-16-le", 2), 4: ("utf-32-le", 4)}
_COMPACT, _ASCII = 1 << 5, 1 << 6
_USER_SPACE = 1 << 47


class Objects(ABC):
    """Python objects by their address."""

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes; empty if not all of them can be read."""

    def begin(self, address: int, size: int) -> bytes:
        """As many of ``size`` bytes as there are."""
        return self.read(address, size)

    def text(self, address: int, layout: Layout) -> str | None:
        """A ``str`` object's text, clipped to MAX_TEXT characters; None if it is none that we can read."""
        raw = self.read(address, max(layout.length + 8, layout.state + 4))
        if not raw:
            return None
        length = struct.unpack_from("<q", raw, layout.length)[0]
        state = struct.unpack_from("<I", raw, layout.state)[0]
        encoding = _KINDS.get(state >> 2 & 7)
        if encoding is None or not state & _COMPACT or not 0 <= length < 1 << 32:
            return None
        if not length:
            return ""
        start = address + (layout.ascii_size if state & _ASCII else layout.wide_size)
        data = self.begin(start, min(length, MAX_TEXT) * encoding[1])
        return data.decode(encoding[0], "replace") if data else None

    def bytes(self, address: int, layout: Layout) -> tuple[bytes, bool] | None:
        """A ``bytes`` object's content, and whether that is all of it; None if it is none, or too long."""
        raw = self.read(address, layout.bytes_text)
        if not raw:
            return None
        size = struct.unpack_from("<q", raw, layout.bytes_size)[0]
        if not 0 <= size <= MAX_TABLE:
            return None
        content = self.begin(address + layout.bytes_text, size) if size else b""
        return content, len(content) == size


class ImageMemory(Objects, SelfClosing):
    """The memory of one process image, also after an exec (then it reads nothing)."""

    def __init__(self, pid: int) -> None:
        """Open it; a process that is gone has no memory."""
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes; empty if not all of them can be read."""
        if self._fd < 0 or not 0 < address < _USER_SPACE or size <= 0:
            return b""
        try:
            raw = os.pread(self._fd, size, address)
        except OSError:
            return b""
        return raw if len(raw) == size else b""

    @property
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
        return self._fd >= 0

    def close(self) -> None:
        """Close it; it then reads nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SentObjects(Objects):
    """What the kernel sent of a function: its code object, and what that points to, cut off where there was no room."""

    def __init__(self, sent: SentCode, layout: Layout) -> None:
        """``sent`` by an interpreter of that layout."""
        self._objects = {sent.address: sent.code}
        for at, raw in ((layout.name, sent.name), (layout.file, sent.file), (layout.lines, sent.lines)):
            if raw:
                self._objects[struct.unpack_from("<Q", sent.code, at)[0]] = raw

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes; empty if not all of them were sent."""
        raw = self.begin(address, size)
        return raw if len(raw) == size else b""

    def begin(self, address: int, size: int) -> bytes:
        """As many of ``size`` bytes as were sent."""
        for start, raw in self._objects.items():
            if 0 <= address - start < len(raw):
                return raw[address - start : address - start + max(size, 0)]
        return b""
