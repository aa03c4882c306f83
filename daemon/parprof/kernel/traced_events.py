"""Uprobes as events of tracefs, for kernels without multi links: one event for all sites of a file that mean the same.

What is dear about a single perf event with a uprobe is its end: a grace period of 0.16 s, one event after the other,
in which the kernel holds a lock; and it takes two descriptors for each site. An event that is defined in tracefs can
have many sites, and any number of perf events can be opened on it, each for one process. They are cheap to open and to
close, as long as they are not the last one: so each definition has one perf event more, its *keeper*, for a process
that never runs the file's code (ourselves). The program hangs on the definition, through the keeper, and runs at the
sites in those processes alone for which there is a perf event.

Definitions are the kernel's, not ours: they stay when a process is killed. They have no breakpoints then, and the next
one that uses this mechanism removes them.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from parprof.kernel import bpf
from parprof.kernel.detacher import detacher
from parprof.patterns import regex
from parprof.values import dataclass

TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
MAX_IDLE = 64
"""Definitions that no process uses and that are kept for the next one."""
_TYPE_TRACEPOINT = 2
_ATTRIBUTES_SIZE = 136
_GROUP = regex(r"parprof_(\d+)_(\d+)")
_LINE = regex(r"[pr]\d*:(parprof_\d+_\d+/\w+) ")

Probe = tuple[int, bool]
"""A cookie, and whether the probe is at the function's return."""
_Key = tuple[tuple[int, ...], int, bool, frozenset[int]]


@dataclass(slots=True)
class _Definition:
    name: str
    """``GROUP/EVENT``."""
    number: int
    """By which perf events are opened."""
    keeper: list[int]
    """Descriptors: the program's link, the perf event."""
    users: int = 0


@contextmanager
def _without_spaces(path: str) -> Iterator[str]:
    """The same file by a name that can stand in a definition."""
    if not any(character.isspace() for character in path):
        yield path
        return
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


class TracedEvents:
    """The definitions of one process; for any thread."""

    def __init__(self, program: int) -> None:
        """``program``: descriptor of what runs at the sites."""
        self._program = program
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._control = -1
        self._group = ""
        self._defined = 0
        self._definitions: dict[_Key, _Definition] = {}
        """Those without users in the order in which they became so."""

    def attach(self, path: str, offsets: Iterable[int], probe: Probe, pid: int, out: list[int]) -> _Key:
        """Add to ``out`` the descriptor of an event of one process (0: of all) at offsets of a file.

        Returns what `release` is to be called with when it has been closed.

        Raises:
            OSError: it cannot be done: EOPNOTSUPP if no event can be defined here at all.
        """
        cookie, is_return = probe
        status = os.stat(path)
        file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        key = file, cookie, is_return, frozenset(offsets)
        with self._lock:
            definition = self._definitions.get(key) or self._define(key, path)
            try:
                out.append(self._open(definition.number, pid))
            finally:
                self._tidy()
            definition.users += 1
        return key

    def release(self, keys: Sequence[_Key]) -> None:
        """What was attached is closed."""
        with self._lock:
            for key in keys:
                definition = self._definitions.get(key)
                if definition is None:
                    continue
                definition.users -= 1
                if not definition.users:
                    self._definitions[key] = self._definitions.pop(key)
            self._tidy()

    @property
    def defined(self) -> int:
        """How many definitions there are."""
        return len(self._definitions)

    def close(self) -> None:
        """Remove all definitions, once the perf events on them are closed. It does not wait."""
        with self._lock:
            self._remove(list(self._definitions))
            if self._control >= 0:
                os.close(self._control)
                self._control = -1

    def _define(self, key: _Key, path: str) -> _Definition:
        _, cookie, is_return, offsets = key
        self._prepare()
        assert self._directory is not None
        name = f"{self._group}/e{self._defined}"
        self._defined += 1
        kind = "r" if is_return else "p"
        try:
            with _without_spaces(path) as plain:
                for offset in sorted(offsets):  # the first one defines it, the others are added
                    os.write(self._control, f"{kind}:{name} {plain}:{offset:#x}\n".encode())
            number = int((self._directory / "events" / name / "id").read_text())
            keeper: list[int] = []
            try:
                keeper.append(self._open(number, os.getpid()))
                keeper.insert(0, bpf.link_perf_event(self._program, keeper[0], cookie))
            except OSError:
                detacher.close(keeper)
                raise
        except (OSError, ValueError) as error:
            with suppress(OSError):
                os.write(self._control, f"-:{name}\n".encode())
            if isinstance(error, ValueError):
                raise OSError(errno.EOPNOTSUPP, "tracefs is not as it should be") from error
            raise
        found = self._definitions[key] = _Definition(name, number, keeper)
        return found

    def _prepare(self) -> None:
        if self._control >= 0:
            return
        for directory in TRACEFS:
            with suppress(OSError):
                self._control = os.open(directory / "uprobe_events", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                self._directory = directory
                break
        else:
            raise OSError(errno.EOPNOTSUPP, "no events can be defined in tracefs")
        self._remove_abandoned()
        # another tracer may have a group of any name
        taken = {int(found[2]) for found in self._groups() if int(found[1]) == os.getpid()}
        self._group = f"parprof_{os.getpid()}_{max(taken, default=-1) + 1}"

    def _groups(self) -> list[re.Match[str]]:
        assert self._directory is not None
        with suppress(OSError):
            names = os.listdir(self._directory / "events")
            return [found for name in names if (found := _GROUP.fullmatch(name))]
        return []

    def _remove_abandoned(self) -> None:
        """Definitions of processes that were killed."""
        assert self._directory is not None
        gone = {found[0] for found in self._groups() if not os.path.exists(f"/proc/{found[1]}")}
        if not gone:
            return
        with suppress(OSError):
            lines = (self._directory / "uprobe_events").read_text().splitlines()
            names = {found[1] for line in lines if (found := _LINE.match(line))}
            for name in names:
                if name.partition("/")[0] in gone:
                    with suppress(OSError):  # its events are not closed yet
                        os.write(self._control, f"-:{name}\n".encode())

    @staticmethod
    def _open(number: int, pid: int) -> int:
        attributes = struct.pack("<IIQ", _TYPE_TRACEPOINT, _ATTRIBUTES_SIZE, number).ljust(
            _ATTRIBUTES_SIZE, b"\0"
        )
        return bpf.perf_event_of_process(attributes, pid)

    def _tidy(self) -> None:
        idle = [key for key, definition in self._definitions.items() if not definition.users]
        self._remove(idle[: max(0, len(idle) - MAX_IDLE)])

    def _remove(self, keys: Sequence[_Key]) -> None:
        removed = [self._definitions.pop(key) for key in keys]
        if removed:
            detacher.close([fd for definition in removed for fd in definition.keeper])
            lines = "".join(f"-:{definition.name}\n" for definition in removed)
            detacher.write_when_closed(self._control, lines)
