"""Names of code that a JIT compiler made, from the map file that it writes: ``/tmp/perf-PID.map``.

Such code lies in anonymous memory: its place in the load map is the `Dso` labelled ``[anon]`` and the address
itself. A line of the file is ``START SIZE NAME``, both numbers hexadecimal; where functions overlap the later
line counts, because compilers reuse memory.

The file is the target's to write: it is read only if it is a regular one that belongs to the target's user or
to root and is no symbolic link, with limits of bytes and seconds, and no more of it is kept than the names
that were asked for.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from parprof.files.mounts import Mounts
from parprof.files.proc_status import number_inside
from parprof.patterns import regex
from parprof.resources import SelfClosing
from parprof.untrusted import visible

MAX_BYTES = 256 << 20
_MAX_NAME = 1024
_MAX_LINE = 1 << 16
_CHUNK = 1 << 20
_MAX_ABSENT = 1 << 16
_STEPS = 1 << 16
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LINE = regex(rb"(?:0[xX])?([0-9a-fA-F]{1,16})[ \t]+(?:0[xX])?([0-9a-fA-F]{1,16})[ \t]+(\S.*)")


class PerfMap(SelfClosing):
    """The map file of one process. Make it while the process lives; it serves names also after its end.

    It holds a descriptor of the process's root directory: inside of a container the file is there, under the
    process id that the process itself knows.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Note where the file would be; it need not exist yet. Nothing is raised: see ``problem``."""
        self.problem = ""
        """Why there are no names, although there is a file; empty otherwise."""
        self._root = -1
        self._name = ""
        self._may_hang = False
        self._read: tuple[int, int, int] | None = None
        """The version of the file that was read last."""
        self._absent: set[int] = set()
        """Addresses that it does not have."""
        self._uids = {0}
        try:
            status = (proc / str(pid) / "status").read_text(errors="replace")
            self._root = os.open(proc / str(pid) / "root", _DIRECTORY)
        except OSError:
            return  # it has ended, or we may not
        uids = re.search(r"^Uid:((?:\s+\d+)+)$", status, re.MULTILINE)
        self._uids.update(int(uid) for uid in (uids[1].split()[:2] if uids else ()))
        self._name = f"perf-{number_inside(status) or pid}.map"
        self._may_hang = Mounts.read(pid).is_local_path(f"/tmp/{self._name}".encode()) is False

    def names(self, addresses: Iterable[int], seconds: float = 5.0) -> dict[int, str]:
        """The function at each address; those in none are left out. Takes at most about ``seconds``.

        The file is not read again for what was not in it before, unless it has changed.
        """
        wanted = sorted(set(addresses))
        if not wanted or self._root < 0:
            return {}
        if self._may_hang:
            self.problem = f"{self._name} is not used: it would be on a file system that may never answer"
            return {}
        version = self._version()
        if version != self._read:
            self._absent.clear()
        self._read = version
        wanted = [address for address in wanted if address not in self._absent]
        found = self._names(wanted, seconds) if wanted else {}
        if len(self._absent) > _MAX_ABSENT:
            self._absent.clear()
        self._absent.update(address for address in wanted if address not in found)
        return found

    def _version(self) -> tuple[int, int, int] | None:
        """What changes when the file does; None if there is none."""
        try:
            status = os.stat(f"tmp/{self._name}", dir_fd=self._root, follow_symlinks=False)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _names(self, wanted: list[int], seconds: float) -> dict[int, str]:
        reader = _Reader(os.dup(self._root), self._name, self._uids, wanted, time.monotonic() + seconds)
        thread = threading.Thread(target=reader.run, daemon=True)  # a file system may hang
        thread.start()
        thread.join(seconds)
        self.problem = reader.problem
        if thread.is_alive():
            self.problem = f"{self._name} takes longer than {seconds:g} s to read"
        return {
            address: visible(name, _MAX_NAME)
            for address, name in zip(wanted, reader.found, strict=True)
            if name
        }

    def close(self) -> None:
        """Close the descriptor; there are no names any more."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


ABSENT = PerfMap(0, Path("/nowhere"))
"""That of a process which has none, or of which it is not known yet."""


class _Reader:
    """One pass over the file, in a thread that may be left behind."""

    def __init__(self, root: int, name: str, uids: set[int], wanted: list[int], deadline: float) -> None:
        self._root = root
        self._name = name
        self._uids = uids
        self._wanted = wanted
        self._deadline = deadline
        self.found: list[bytes] = [b""] * len(wanted)
        self.problem = ""

    def run(self) -> None:
        try:
            fd = self._open()
        except OSError:
            return  # most processes have none
        finally:
            os.close(self._root)
        if fd is not None:
            with suppress(OSError), open(fd, "rb", buffering=0) as file:
                self._read(file)

    def _open(self) -> int | None:
        """The file, opened without following a link anywhere: its owner would choose where it leads."""
        directory = os.open("tmp", _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._root)
        try:
            handle = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                self.problem = f"{self._name} is not used: it is no regular file"
            elif status.st_uid not in self._uids:
                self.problem = f"{self._name} is not used: it belongs to another user"
            else:
                return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(handle)
        return None

    def _read(self, file: BinaryIO) -> None:
        rest = b""
        size = 0
        while size < MAX_BYTES:
            chunk = file.read(min(_CHUNK, MAX_BYTES - size))
            size += len(chunk)
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()  # may not be complete
            self._take(lines)
            if not chunk:
                return
            if len(rest) > _MAX_LINE:
                rest = b"-"  # makes no line
            if time.monotonic() > self._deadline:
                self.problem = f"{self._name} is too large: only its first {size >> 20} MiB were read in time"
                return
        self.problem = f"{self._name} is too large: only its first {size >> 20} MiB were read"

    def _take(self, lines: list[bytes]) -> None:
        wanted = self._wanted
        steps = 0
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                continue
            start = int(match[1], 16)
            end = start + int(match[2], 16)
            at = first = bisect_left(wanted, start)
            while at < len(wanted) and wanted[at] < end:
                self.found[at] = match[3][: _MAX_NAME + 1].rstrip()
                at += 1
            steps += at - first
            if steps > _STEPS:  # only lies cover so much so often
                if time.monotonic() > self._deadline:
                    return
                steps = 0
