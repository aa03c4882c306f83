"""Placing a program on functions of running processes, the cheapest way that the kernel knows.

In order of preference, found by trying: one *session* link (one program sees entry and return, 1.25 us a pair
here), two *multi* links (entry, return; 1.9 us), events of tracefs (*traced*: see `traced_events`), *single*
perf events (slow to detach: 0.15 s each). All know cookies, so that one program serves every site. Multi links
of one process alone are not right on every kernel: see `Prober`. A child process detaches them: see `detacher`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from parprof.errors import KernelUnsupported, ProbeAttachError
from parprof.kernel import bpf, multilinks
from parprof.kernel.cookies import (
    COOKIE_BARRIER,
    COOKIE_DEAR,
    COOKIE_ENTRY,
    COOKIE_LEARN,
    COOKIE_RETURN,
    COOKIE_SESSION,
)
from parprof.kernel.detacher import detacher
from parprof.kernel.objects import LoadedObject
from parprof.kernel.traced_events import Probe, TracedEvents
from parprof.values import dataclass

_FUNCTION_SHIFT, _INSTANCE_SHIFT, _ROOT_SHIFT, _INSIDE_SHIFT, _DELTA_SHIFT = 12, 16, 20, 24, 32
_ENOTSUPP = 524
"""The kernel's own number, of which the C library does not know: an instruction with a `lock` prefix, say."""
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.E2BIG, errno.ENOSYS)


class Probeable(Protocol):
    """A place to probe, as the mechanisms see it."""

    @property
    def path(self) -> str:
        """Of the file."""

    @property
    def offset(self) -> int:
        """In the file."""

    @property
    def returns(self) -> bool:
        """Whether the function's return is to be probed, too."""

    @property
    def moves(self) -> bool:
        """Whether no return probe is to be set there, whatever the mechanism."""

    @property
    def cookie(self) -> int:
        """Of the entry probe: what the program is told."""


@dataclass(frozen=True, slots=True)
class Site:
    """One place to probe: file offset in the file at ``path``, ``enum edge_kind``, and what to do there."""

    path: str
    offset: int
    kind: int
    returns: bool = False
    learn: bool = False
    """The function argument is to be reported when it is new."""
    function_argument: int = 0
    """Argument that names the work which begins or is created here; 0: none, or the probed function."""
    instance_argument: int = 0
    """Argument that tells two pieces of the same work apart; 0: none."""
    root_argument: int = 0
    """Argument that is the runtime's state; 0: none."""
    function_word: int = 0
    """Word of the instance that points to the function; 0: none."""
    delta: int = 0
    """Bytes from the function's start to the probe."""
    dear: bool = False
    """The kernel has to execute the instruction there out of line."""
    moves: bool = False
    """The call may go on in another thread than it began in, which no return probe survives, wanted or not."""
    is_barrier: bool = False
    """It waits for the whole team."""

    @property
    def cookie(self) -> int:
        """Cookie of the entry probe."""
        return (
            self.kind
            | (COOKIE_LEARN if self.learn else 0)
            | (COOKIE_DEAR if self.dear else 0)
            | (COOKIE_BARRIER if self.is_barrier else 0)
            | self.function_argument << _FUNCTION_SHIFT
            | self.instance_argument << _INSTANCE_SHIFT
            | self.root_argument << _ROOT_SHIFT
            | self.function_word << _INSIDE_SHIFT
            | self.delta << _DELTA_SHIFT
        )


class ProbeSet:
    """Attached probes; closing detaches them."""

    def __init__(self, descriptors: list[int], closed: Callable[[], None] | None = None) -> None:
        """``descriptors``: of links and events, dearest first. ``closed`` is called once they are handed on."""
        self._descriptors = descriptors
        self._closed = closed
        self._lock = threading.Lock()

    def close(self) -> None:
        """Detach, in any thread. It never waits: see `detacher`."""
        with self._lock:
            descriptors, self._descriptors = self._descriptors, []
            closed, self._closed = self._closed, None
        detacher.close(descriptors)
        if closed is not None:
            closed()


class Prober:
    """Attaches sites with the best mechanism that works; remembers which one does.

    Where there are no session links, a multi link of one process may serve its main thread alone: that is found by
    trying (`multilinks`), and such a kernel gets perf events for a single process. Multi links for all processes have
    no such filter.
    """

    def __init__(self, loaded: LoadedObject, program: str = "on_edge") -> None:
        """``program``: the one that is to run at the probes, where no other one is given."""
        self._object = loaded
        self._program = program
        self._mechanisms = ["session", "multi", "traced", "single"]
        self._traced: dict[str, TracedEvents] = {}
        self._multi_is_right: bool | None = None
        self._sessions_there: bool | None = None
        detacher.start()  # early: its start takes longer than closing does

    def prepare(self, wanted: Callable[[], bool]) -> None:
        """Load what the first probes will need, in a thread of its own: the verifier takes its time.

        ``wanted``: whether there will be any; asked in that thread.
        """
        threading.Thread(target=self._prepare, args=(wanted,), name="parprof-probes", daemon=True).start()

    def _prepare(self, wanted: Callable[[], bool]) -> None:
        if not wanted():
            return
        kind = bpf.ATTACH_UPROBE_SESSION if self._has_sessions() else bpf.ATTACH_UPROBE_MULTI
        with suppress(OSError, KernelUnsupported):  # whoever attaches finds out, and has other mechanisms
            self._object.program(self._program, kind)

    @property
    def mechanism(self) -> str:
        """The mechanism in use for single processes: session, multi, traced or single."""
        return self._choices(one_process=True)[0]

    def _choices(self, one_process: bool) -> list[str]:
        """The mechanisms that may work, best first."""
        if one_process and self._mechanisms[0] == "multi" and len(self._mechanisms) > 1:
            if self._multi_is_right is None:
                self._multi_is_right = multilinks.serve_all_threads()
            return self._mechanisms if self._multi_is_right else self._mechanisms[1:]
        return self._mechanisms

    def attach(self, sites: Sequence[Probeable], pid: int, program: str = "") -> ProbeSet:
        """Attach all sites for process ``pid`` alone; 0: for all processes. ``program``: another one than all others'.

        Raises:
            ProbeAttachError: the kernel refused; the text says which file and why.
        """
        program = program or self._program
        while True:
            choices = self._choices(pid != 0)
            descriptors: list[int] = []
            try:
                closed = getattr(self, f"_attach_{choices[0]}")(program, sites, pid, descriptors)
                return ProbeSet(descriptors, closed)
            except OSError as error:
                ProbeSet(descriptors).close()
                if error.errno in _UNSUPPORTED and len(choices) > 1:
                    self._mechanisms.remove(choices[0])
                    continue
                files = ", ".join(sorted({site.path for site in sites}))
                is_of_place = error.errno == _ENOTSUPP
                why = "the kernel refuses a probe on such an instruction" if is_of_place else error.strerror
                refused = ProbeAttachError(f"uprobes on {files}: {why}")
                refused.is_of_place = is_of_place
                raise refused from error

    def attach_return(self, site: Probeable, pid: int) -> ProbeSet:
        """Attach to the return of one function alone, to learn what that costs.

        Raises:
            OSError: this kernel has no such links.
        """
        return ProbeSet(self._multi(self._program, [site], pid, bpf.ATTACH_UPROBE_MULTI, COOKIE_RETURN, True))

    def _multi(
        self,
        name: str,
        sites: Sequence[Probeable],
        pid: int,
        attach_type: int,
        extra: int,
        returns: bool,
    ) -> list[int]:
        if not sites:
            return []
        program = self._object.program(name, attach_type)
        out: list[int] = []
        try:
            for path in dict.fromkeys(site.path for site in sites):
                here = [site for site in sites if site.path == path]
                offsets, cookies = [s.offset for s in here], [s.cookie | extra for s in here]
                out.append(
                    bpf.link_uprobe_multi(
                        program, path, offsets, cookies, attach_type=attach_type, returns=returns, pid=pid
                    )
                )
        except OSError:
            ProbeSet(out).close()
            raise
        return out

    def _attach_session(self, name: str, sites: Sequence[Probeable], pid: int, out: list[int]) -> None:
        paired = [site for site in sites if site.returns]
        entries = [site for site in sites if not site.returns and not site.moves]
        moving = [site for site in sites if site.moves]
        if not self._has_sessions():  # before the programs are loaded, which takes long
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        # Never the return alone: an entry that is missed would leave the thread in its old state for long.
        out += self._multi(name, paired, pid, bpf.ATTACH_UPROBE_SESSION, COOKIE_SESSION, False)
        # Entries by session links, too: the programs are loaded once for each kind of link, which takes long. But a
        # forked child that inherits the trap gets a return probe, as our program is not run in it.
        out += self._multi(
            name, entries, pid, bpf.ATTACH_UPROBE_SESSION, COOKIE_SESSION | COOKIE_ENTRY, False
        )
        out += self._multi(name, moving, pid, bpf.ATTACH_UPROBE_MULTI, 0, False)

    def _has_sessions(self) -> bool:
        if self._sessions_there is None:
            self._sessions_there = multilinks.have_sessions()
        return self._sessions_there

    def _attach_multi(self, name: str, sites: Sequence[Probeable], pid: int, out: list[int]) -> None:
        paired = [site for site in sites if site.returns]
        out += self._multi(name, paired, pid, bpf.ATTACH_UPROBE_MULTI, COOKIE_RETURN, True)
        out += self._multi(name, sites, pid, bpf.ATTACH_UPROBE_MULTI, 0, False)

    def _attach_traced(
        self, name: str, sites: Sequence[Probeable], pid: int, out: list[int]
    ) -> Callable[[], None]:
        if name not in self._traced:
            self._traced[name] = TracedEvents(self._object.program(name, 0))
        traced = self._traced[name]
        returns = [
            (site.path, (site.cookie | COOKIE_RETURN, True), site.offset) for site in sites if site.returns
        ]
        entries = [(site.path, (site.cookie, False), site.offset) for site in sites]
        together: dict[tuple[str, Probe], list[int]] = {}
        for path, probe, offset in returns + entries:
            together.setdefault((path, probe), []).append(offset)
        keys = []
        try:
            for (path, probe), offsets in together.items():
                keys.append(traced.attach(path, offsets, probe, pid, out))
        except OSError:
            traced.release(keys)
            raise
        return lambda: traced.release(keys)

    def close(self) -> None:
        """No more probes are placed; those that there are go. It does not wait."""
        for traced in self._traced.values():
            traced.close()

    def _attach_single(self, name: str, sites: Sequence[Probeable], pid: int, out: list[int]) -> None:
        kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
        program = self._object.program(name, 0)
        for site in sites:
            for cookie, is_return in ((site.cookie | COOKIE_RETURN, 1), (site.cookie, 0)):
                if is_return and not site.returns:
                    continue
                raw_path = bytearray(os.fsencode(site.path) + b"\0")
                buffer = (ctypes.c_char * len(raw_path)).from_buffer(raw_path)
                attributes = struct.pack(
                    "<IIQQQQQIIQQ",
                    kind,
                    136,
                    is_return,
                    1,
                    0,
                    0,
                    0,
                    0,
                    0,
                    ctypes.addressof(buffer),
                    site.offset,
                ).ljust(136, b"\0")
                event = bpf.perf_event_of_process(attributes, pid)
                out.append(event)
                out.append(bpf.link_perf_event(program, event, cookie))
