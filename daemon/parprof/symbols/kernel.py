"""Names of kernel addresses from ``/proc/kallsyms``: one pass for all, and only those wanted are kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from parprof.model import Frame
from parprof.untrusted import visible

KERNEL = "[kernel]"
KALLSYMS = Path("/proc/kallsyms")
_FUNCTION_TYPES = frozenset(b"tTwW")
_MAX_FUNCTION = 1 << 20
"""Bytes behind a symbol that still count as its function."""
_MAX_REMEMBERED = 1 << 14


class KernelSymbolizer:
    """Resolves kernel addresses. Where the kernel hides them (kptr_restrict) all are ``[kernel]``."""

    def __init__(self, path: Path = KALLSYMS) -> None:
        """Read ``path``, which is in the format of ``/proc/kallsyms``."""
        self._path = path
        self._remembered: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        self.problem = ""
        """Why names are missing; empty if they are not."""

    def frames(self, address: int, is_return_address: bool) -> tuple[Frame, ...]:
        """The one frame at an address. Ask for many with `resolve` first: each pass takes about 0.1 s."""
        known = self._remembered.get((address, is_return_address))
        if known is not None:
            return known
        return self.resolve([(address, is_return_address)])[address, is_return_address]

    def resolve(self, requests: Iterable[tuple[int, bool]]) -> dict[tuple[int, bool], tuple[Frame, ...]]:
        """The frames of many (address, is a return address)."""
        wanted = set(requests)
        missing = [request for request in wanted if request not in self._remembered]
        found = self._scan(sorted({address - is_return for address, is_return in missing})) if missing else {}
        new = {}
        for address, is_return in missing:
            name, module = found.get(address - is_return, (KERNEL, KERNEL))
            new[address, is_return] = (Frame(name, module=module, address=address),)
        out = {request: new.get(request) or self._remembered[request] for request in wanted}
        self._remembered.update(new)
        while len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return out

    def _scan(self, addresses: list[int]) -> dict[int, tuple[str, str]]:
        """(name, module) of the function below each of the sorted addresses."""
        below: list[tuple[int, bytes]] = [(0, b"")] * len(addresses)
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
        except OSError as error:
            self.problem = f"no kernel names: {self._path}: {error.strerror}"
            return {}
        if hidden:
            self.problem = "no kernel names: run as root, or lower the sysctl kernel.kptr_restrict"
            return {}
        out = {}
        last = (0, b"")
        for address, here in zip(addresses, below, strict=True):
            last = max(last, here, key=lambda item: item[0])
            if last[0] and address - last[0] < _MAX_FUNCTION:
                name, _, module = last[1].rstrip(b"\n").partition(b"\t")
                out[address] = (visible(name, 512), visible(module, 64) or KERNEL)
        return out
