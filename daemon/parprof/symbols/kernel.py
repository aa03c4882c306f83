"""Names of kernel addresses from ``/proc/kallsyms``.

A pass over that file takes about 0.1 s, so one serves all addresses that are asked for, and none is made for those in
the kernel's own image, once that is kept on disk. The functions that were found are remembered with their extent, so
that further addresses in them need no pass.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from parprof.model import Frame
from parprof.symbols.kallsyms import DIGITS, KALLSYMS, address_of, functions, name_of
from parprof.symbols.kernel_image import KernelImage
from parprof.untrusted import visible

KERNEL = "[kernel]"
UNNAMED = (Frame(KERNEL, module=KERNEL),)
"""An address of which nothing is known, or told."""
_LAST = b"f" * DIGITS
_MAX_FUNCTION = 1 << 20
"""Bytes behind a symbol that still count as its function."""
_MAX_NAME = 512
_MAX_REMEMBERED = 1 << 13
_FRESH_SECONDS = 600.0
"""How long names are trusted: modules and BPF programs come and go."""


class _Function(NamedTuple):
    start: int
    end: int
    name: str
    module: str


class KernelSymbolizer:
    """Resolves kernel addresses. Where the kernel hides them (kptr_restrict) all are ``[kernel]``."""

    def __init__(
        self, path: Path = KALLSYMS, pass_seconds: float = 0.0, image: KernelImage | None = None
    ) -> None:
        """Read ``path``, which is in the format of ``/proc/kallsyms``, at most every ``pass_seconds``.

        Until then new addresses are ``[kernel]``, but for those in ``image``.
        """
        self._image = image
        self.pass_seconds = pass_seconds
        self._last_pass = -math.inf
        self._path = path
        self._functions: list[_Function] = []
        self._since = 0.0
        self.problem = ""
        """Why names are missing; empty if they are not."""

    def frames(self, address: int, is_return_address: bool) -> tuple[Frame, ...]:
        """The one frame at an address. Ask for many with `resolve` first, which takes a single pass."""
        request = (address, is_return_address)
        return self.resolve([request])[request]

    def resolve(self, requests: Iterable[tuple[int, bool]]) -> dict[tuple[int, bool], tuple[Frame, ...]]:
        """The frames of many (address, is a return address), by name alone: addresses tell where the kernel is."""
        wanted = {request: request[0] - request[1] for request in requests}
        now = time.monotonic()
        if now - self._since > _FRESH_SECONDS or len(self._functions) > _MAX_REMEMBERED:
            self._functions = []
            self._since = now
            self.problem = ""
        missing = self._missing(wanted.values())
        if missing and self._image is not None:
            self._remember(_in_image(*function) for function in self._image.find(missing))
            missing = self._missing(missing)
        if missing and not self.problem and now >= self._last_pass + self.pass_seconds:
            self._last_pass = now
            self._remember(self._scan(missing))
            if self._image is not None and not self.problem:
                self._image.keep()
        out: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        for request, address in wanted.items():
            found = self._find(address)
            out[request] = (Frame(found.name, module=found.module),) if found else UNNAMED
        return out

    def _missing(self, addresses: Iterable[int]) -> list[int]:
        return sorted({address for address in addresses if self._find(address) is None})

    def _remember(self, found: Iterable[_Function]) -> None:
        for function in set(found):
            insort(self._functions, function)

    def _find(self, address: int) -> _Function | None:
        index = bisect_right(self._functions, address, key=lambda function: function.start) - 1
        if index >= 0 and address < self._functions[index].end:
            return self._functions[index]
        return None

    def _scan(self, addresses: list[int]) -> set[_Function]:
        """The functions around these sorted addresses; an address in none is one of its own."""
        around = _Around(addresses)
        try:
            for lines in functions(self._path):
                around.look_at(lines)
        except OSError as error:
            self.problem = f"no kernel names: {self._path}: {error.strerror}"
            return set()
        if around.are_hidden:
            self.problem = "no kernel names: run as root, or lower the sysctl kernel.kptr_restrict"
            return set()
        return set(around.functions())


def _in_image(start: int, end: int, name: bytes) -> _Function:
    return _Function(start, end, visible(name, _MAX_NAME), KERNEL)


class _Around:
    """The symbols next to some addresses, below or at them and above them, in lines of ``/proc/kallsyms``.

    Lines are compared as they are, which takes half the time of reading each number; most of what is left is the
    kernel's.
    """

    def __init__(self, addresses: list[int]) -> None:
        """``addresses`` are sorted."""
        self._addresses = addresses
        self._wanted = [b"%016x" % address for address in addresses]
        self._below = [b""] * len(addresses)
        """The last symbol at or below each, as its line; of several there the first in the file."""
        self._above = [_LAST] * len(addresses)
        """Where the first symbol above each is."""
        self.are_hidden = True

    def look_at(self, lines: list[bytes]) -> None:
        """Take in some of the lines, which are in any order."""
        lines = sorted(lines, key=address_of)
        starts = [address_of(line) for line in lines]
        if not starts:
            return
        self.are_hidden = self.are_hidden and starts[-1].strip(b"0") == b""
        for index, wanted in enumerate(self._wanted):
            behind = bisect_right(starts, wanted)
            if behind < len(starts):
                self._above[index] = min(self._above[index], starts[behind])
            if behind and starts[behind - 1] > address_of(self._below[index]):
                self._below[index] = lines[bisect_left(starts, starts[behind - 1])]

    def functions(self) -> Iterator[_Function]:
        """What was found, one for each address."""
        for address, below, above in zip(self._addresses, self._below, self._above, strict=True):
            start = int(address_of(below) or b"0", 16)
            if start and address - start < _MAX_FUNCTION:
                name, module = name_of(below)
                end = min(int(above, 16), start + _MAX_FUNCTION)
                yield _Function(start, end, visible(name, _MAX_NAME), visible(module, 64) or KERNEL)
            else:
                yield _Function(address, address + 1, KERNEL, KERNEL)
