"""Where threads sleep that did so before we came, and have not woken up: nothing happens there that could tell it, so
``/proc`` is asked at the end of a measurement, when it keeps nobody from work.

A program that hangs, on a lock or a pipe, consists of nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from parprof.attribution.waiting import KIND_AWAITED, WaitKind, wait_kind
from parprof.kernel.scopes import wait_key
from parprof.kernel.stacks import STACK_ENDS, RawStack, StackTable
from parprof.model import AWAITS_UNKNOWN, Count, Facts, SampleKey, ThreadState
from parprof.process.loadmap import LoadMap
from parprof.process.polled import awaited
from parprof.session.target import Target
from parprof.symbols.kernel import addresses_of
from parprof.unwind.builder import TableBuilder
from parprof.unwind.walking import walk
from parprof.values import dataclass

_MOST = 64
"""Threads that are looked at: each takes some 0.1 ms."""
_KERNEL_FRAME = re.compile(r"\[<[0-9a-f]*>\] ([\w.]+)\+(0x[0-9a-f]+)/")
_KERNEL_END = len(STACK_ENDS)


@dataclass(frozen=True, slots=True)
class Asleep:
    """A thread, and where it sleeps."""

    target: Target
    tid: int
    user: RawStack
    kernel: tuple[tuple[str, int], ...]
    """Functions of the kernel and offsets in them, the innermost first."""
    awaits: int = AWAITS_UNKNOWN
    """What it waits for, where more is known than these tell: as in `parprof.model.SampleKey`."""

    @property
    def kind(self) -> WaitKind:
        """What it waits for, as far as the kernel knows."""
        return KIND_AWAITED.get(self.awaits) or wait_kind(name for name, _ in self.kernel)


class Sleepers:
    """The threads that sleep, and of which nobody saw where they went to sleep."""

    def __init__(self, targets: Mapping[int, Target], builder: TableBuilder) -> None:
        """``targets``: those that live, by image."""
        self._targets = targets
        self._builder = builder
        self._found: dict[SampleKey, Asleep] = {}
        self._begins: dict[str, int] = {}
        """Where functions of the kernel are that they sleep in."""

    def look(self, unended: Facts) -> None:
        """Find out where those sleep of whose waits no place is known, the longest first."""
        placeless = [
            (count.total, key)
            for key, count in unended.items()
            if key.state is ThreadState.BLOCKED and not key.user and key.image in self._targets
        ]
        for _, key in sorted(placeless, reverse=True)[:_MOST]:
            found = _look_at(self._targets[key.image], key.tid, self._builder)
            if found is not None:
                self._found[key] = found
        if self._found:
            names = {name for one in self._found.values() for name, _ in one.kernel}
            self._begins = addresses_of(names)

    def placed(self, unended: Facts, stacks: StackTable) -> Facts:
        """The same facts with these places. The stacks go to the others."""
        out = {key: count for key, count in unended.items() if key not in self._found}
        for key, one in self._found.items():
            out[self._placed(key, one, stacks)] = unended[key]
        return out

    def stall(self, scope: int, took_ns: int, stacks: StackTable) -> Facts:
        """All of that time nobody worked in a scope: it is who keeps the others asleep that has it."""
        those = {key: one for key, one in self._found.items() if one.target.scope.number == scope}
        if not those:
            return {}
        key, one = min(those.items(), key=lambda pair: _rank(pair[1]))
        return {self._placed(key._replace(state=ThreadState.STALLED), one, stacks): Count(1, took_ns)}

    def _placed(self, key: SampleKey, one: Asleep, stacks: StackTable) -> SampleKey:
        begins = self._begins
        kernel = [begins[name] + offset for name, offset in one.kernel if name in begins]
        packed = struct.pack(f"<{len(kernel)}Q", *kernel)
        below = _put(RawStack(packed, _KERNEL_END, b"", 0, 0), stacks) if kernel else 0
        epoch = one.target.mapped.maps.epoch
        user = _put(one.user, stacks)
        return wait_key(key.state, key.image, key.tid, user, below, 0, epoch, awaits=one.awaits)


def _rank(one: Asleep) -> tuple[bool, bool, bool]:
    """The lowest is who is waited for: not who waits for a thread itself, nor for something to do."""
    kind = one.kind
    return kind.is_for_threads, kind.is_outside, one.tid != one.target.process.pid


def _put(stack: RawStack, stacks: StackTable) -> int:
    hashed = hashlib.blake2b(bytes([stack.end]) + stack.native, digest_size=8).digest()
    digest = int.from_bytes(hashed, "little") or 1
    if digest not in stacks:
        stacks.put(digest, stack)
    return digest


def _look_at(target: Target, tid: int, builder: TableBuilder) -> Asleep | None:
    """``None``: it runs, or may not be looked at."""
    load_map = target.mapped.newest
    folder = f"/proc/{target.process.pid}/task/{tid}"
    with suppress(OSError, ValueError):
        before = Path(folder, "syscall").read_text()
        words = before.split()
        if load_map is None or len(words) < 3:
            return None  # "running"
        kernel = tuple(_kernel_frames(Path(folder, "stack").read_text().splitlines()))
        fd = os.open(f"/proc/{load_map.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            user = _walked(load_map, builder, int(words[-1], 16), int(words[-2], 16), fd)
            awaits = awaited(target.process.pid, words, lambda address, size: os.pread(fd, size, address))
        finally:
            os.close(fd)
        if Path(folder, "syscall").read_text() == before:
            return Asleep(target, tid, user, kernel, awaits)
    return None


def _kernel_frames(lines: Iterable[str]) -> Iterable[tuple[str, int]]:
    for line in lines:
        if match := _KERNEL_FRAME.match(line):
            yield match[1], int(match[2], 16)


def _walked(load_map: LoadMap, builder: TableBuilder, pc: int, sp: int, memory: int) -> RawStack:
    """``memory``: the file with its process's."""

    def rule_at(address: int) -> int | None:
        found = load_map.find(address)
        if found is None or found[0].elf is None:
            return None
        table = builder.table(found[0])
        return table.rule(found[1]) if table is not None and table.count else None

    def read_word(address: int) -> int:
        data = os.pread(memory, 8, address) if 0 <= address < 1 << 63 else b""
        if len(data) < 8:
            raise OSError(14, f"{address:#x} is not mapped")
        return int.from_bytes(data, "little")

    walked = walk(pc, sp, rule_at, read_word)
    native = struct.pack(f"<{len(walked.addresses)}Q", *walked.addresses)
    return RawStack(native, STACK_ENDS.index(walked.end), b"", 0, 0)
