"""Names of kernel addresses from ``/proc/kallsyms``.

A pass over that file takes about 0.1 s, so one serves all addresses that are asked for. The functions that
were found are remembered with their extent, so that further addresses in them need no pass. Nothing else is
kept.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from parprof.model import Frame
from parprof.untrusted import visible

KERNEL = "[kernel]"
UNNAMED = (Frame(KERNEL, module=KERNEL),)
"""An address of which nothing is known, or told."""
KALLSYMS = Path("/proc/kallsyms")
_FUNCTION_TYPES = frozenset(b"tTwW")
_MAX_FUNCTION = 1 << 20
"""Bytes behind a symbol that still count as its function."""
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

    def __init__(self, path: Path = KALLSYMS, pass_seconds: float = 0.0) -> None:
        """Read ``path``, which is in the format of ``/proc/kallsyms``, at most every ``pass_seconds``.

        Until then new addresses are ``[kernel]``.
        """
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
        missing = sorted({address for address in wanted.values() if self._find(address) is None})
        if missing and not self.problem and now >= self._last_pass + self.pass_seconds:
            self._last_pass = now
            for function in self._scan(missing):
                insort(self._functions, function)
        out: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        for request, address in wanted.items():
            found = self._find(address)
            out[request] = (Frame(found.name, module=found.module),) if found else UNNAMED
        return out

    def _find(self, address: int) -> _Function | None:
        index = bisect_right(self._functions, address, key=lambda function: function.start) - 1
        if index >= 0 and address < self._functions[index].end:
            return self._functions[index]
        return None

    def _scan(self, addresses: list[int]) -> set[_Function]:
        """The functions around these sorted addresses; an address in none is one of its own."""
        below: list[tuple[int, bytes]] = [(0, b"")] * len(addresses)
        above = [1 << 64] * len(addresses)
        hidden = True
        try:
            with open(self._path, "rb") as file:
                for line in file:
                    start, _, rest = line.partition(b" ")
                    if not rest or rest[0] not in _FUNCTION_TYPES:
                        continue
                    try:
                        value = int(start, 16)
                    except ValueError:
                        continue
                    hidden = hidden and value == 0
                    index = bisect_left(addresses, value)
                    if index < len(addresses) and value > below[index][0]:
                        below[index] = (value, rest[2:])
                    if index and value < above[index - 1] and value != addresses[index - 1]:
                        above[index - 1] = value
        except OSError as error:
            self.problem = f"no kernel names: {self._path}: {error.strerror}"
            return set()
        if hidden:
            self.problem = "no kernel names: run as root, or lower the sysctl kernel.kptr_restrict"
            return set()
        for index in range(len(addresses) - 2, -1, -1):
            above[index] = min(above[index], above[index + 1])
        return set(_functions(addresses, below, above))


def addresses_of(names: Collection[str], path: Path = KALLSYMS) -> dict[str, int]:
    """Where functions of the kernel begin, the first of each name; those that are hidden or unknown are left out."""
    wanted = {name.encode() for name in names}
    out: dict[str, int] = {}
    with suppress(OSError), open(path, "rb") as file:
        for line in file:
            start, _, rest = line.partition(b" ")
            name = rest[2:].split(None, 1)[0] if len(rest) > 2 else b""
            if name in wanted and rest[0] in _FUNCTION_TYPES and (address := int(start, 16)):
                out.setdefault(name.decode(), address)
    return out


def _functions(addresses: list[int], below: list[tuple[int, bytes]], above: list[int]) -> Iterable[_Function]:
    last = (0, b"")
    for address, here, end in zip(addresses, below, above, strict=True):
        last = max(last, here, key=lambda item: item[0])
        if last[0] and address - last[0] < _MAX_FUNCTION:
            name, _, module = last[1].rstrip(b"\n").partition(b"\t")
            extent = min(end, last[0] + _MAX_FUNCTION)
            yield _Function(last[0], extent, visible(name, 512), visible(module, 64) or KERNEL)
        else:
            yield _Function(address, address + 1, KERNEL, KERNEL)
