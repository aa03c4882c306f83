"""Placing the edge program on functions of running processes, the cheapest way that the kernel knows.

In order of preference, found by trying: one *session* link (one program sees entry and return, 1.25 us a
pair here), two *multi* links (entry, return; 1.9 us), single perf events (slow to detach: 0.15 s each, done
in the background). All know cookies, so that one program serves every site.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parprof.errors import ProbeAttachError
from parprof.kernel import bpf
from parprof.kernel.objects import LoadedObject

COOKIE_RETURN, COOKIE_SESSION, COOKIE_LEARN, COOKIE_LEARN_SIXTH = 1 << 8, 1 << 9, 1 << 10, 1 << 11
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.E2BIG, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Site:
    """One place to probe: file offset in the file at ``path``, ``enum edge_kind``, and what to do there."""

    path: str
    offset: int
    kind: int
    returns: bool = False
    learn_argument: int = 0
    """1 or 6: that argument is an outlined function to report when it is new; 0: none."""

    @property
    def cookie(self) -> int:
        """Cookie of the entry probe."""
        return self.kind | {0: 0, 1: COOKIE_LEARN, 6: COOKIE_LEARN_SIXTH}[self.learn_argument]


class ProbeSet:
    """Attached probes; closing detaches them."""

    def __init__(self, descriptors: list[int], slow: bool) -> None:
        self._descriptors = descriptors
        self._slow = slow

    def close(self, wait: bool = False) -> None:
        """Detach. Where that takes long it happens in the background, unless ``wait``."""
        descriptors, self._descriptors = self._descriptors, []

        def close_all() -> None:
            for fd in descriptors:
                with suppress(OSError):
                    os.close(fd)

        if self._slow and not wait and descriptors:
            threading.Thread(target=close_all, name="detach", daemon=True).start()
        else:
            close_all()


class Prober:
    """Attaches sites with the best mechanism that works; remembers which one does."""

    def __init__(self, loaded: LoadedObject) -> None:
        self._object = loaded
        self._mechanisms = ["session", "multi", "single"]

    @property
    def mechanism(self) -> str:
        """The mechanism in use: session, multi or single."""
        return self._mechanisms[0]

    def attach(self, sites: list[Site], pid: int) -> ProbeSet:
        """Attach all sites for process ``pid`` alone.

        Raises:
            ProbeAttachError: the kernel refused; the text says which file and why.
        """
        while True:
            descriptors: list[int] = []
            try:
                getattr(self, f"_attach_{self.mechanism}")(sites, pid, descriptors)
                return ProbeSet(descriptors, slow=self.mechanism == "single")
            except OSError as error:
                ProbeSet(descriptors, slow=False).close()
                if error.errno in _UNSUPPORTED and len(self._mechanisms) > 1:
                    self._mechanisms.pop(0)
                    continue
                files = ", ".join(sorted({site.path for site in sites}))
                raise ProbeAttachError(f"uprobes on {files}: {error.strerror}") from error

    def _multi(self, sites: list[Site], pid: int, attach_type: int, extra: int, returns: bool) -> list[int]:
        program = self._object.program("on_edge", attach_type)
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
            ProbeSet(out, slow=False).close()
            raise
        return out

    def _attach_session(self, sites: list[Site], pid: int, out: list[int]) -> None:
        paired = [site for site in sites if site.returns]
        single = [site for site in sites if not site.returns]
        # Never the return alone: an entry that is missed would leave the thread in its old state for long.
        out += self._multi(paired, pid, bpf.ATTACH_UPROBE_SESSION, COOKIE_SESSION, False)
        out += self._multi(single, pid, bpf.ATTACH_UPROBE_MULTI, 0, False)

    def _attach_multi(self, sites: list[Site], pid: int, out: list[int]) -> None:
        paired = [site for site in sites if site.returns]
        out += self._multi(paired, pid, bpf.ATTACH_UPROBE_MULTI, COOKIE_RETURN, True)
        out += self._multi(sites, pid, bpf.ATTACH_UPROBE_MULTI, 0, False)

    def _attach_single(self, sites: list[Site], pid: int, out: list[int]) -> None:
        kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
        program = self._object.program("on_edge", 0)
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
                event = bpf.perf_event_open(attributes, pid, -1)
                out.append(event)
                out.append(bpf.link_perf_event(program, event, cookie))
