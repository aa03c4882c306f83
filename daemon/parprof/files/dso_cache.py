"""Shares the open files of all processes, and decides which of them can be touched without a guard."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress

from parprof.errors import TargetError
from parprof.files.dso import ANONYMOUS, Dso, FileKey, Opening, file_key
from parprof.files.guard import FileGuard, FileNotAnswering
from parprof.files.maps_line import MapsLine, printed_paths
from parprof.files.mounts import MountTables
from parprof.files.open_file import DirectFile
from parprof.resources import Closing
from parprof.untrusted import visible

_KNOWN_LABELS = frozenset((b"[heap]", b"[stack]", b"[vsyscall]", b"[uprobes]"))
_SHARED_MEMORY = b"/dev/zero (deleted)"
_MAX_IMAGES = 16


def _inside(root: bytes, paths: list[bytes]) -> list[tuple[bytes, bytes]]:
    """(our path, the process's own) of paths below its root; those of a chroot are printed with the root in front."""
    prefix = b"/"
    with suppress(OSError):
        prefix = os.readlink(root).rstrip(b"/") + b"/"
    inner = [b"/" + path.removeprefix(prefix if path.startswith(prefix) else b"/") for path in paths]
    return [(root + path, path) for path in inner]


def _tails(path: bytes) -> Iterator[bytes]:
    """A path without its first parts: what it is in a chroot, whose own place no table of mounts in it tells."""
    at = path.find(b"/", 1)
    while at > 0:
        yield path[at:]
        at = path.find(b"/", at + 1)


class DsoCache(Closing):
    """Shares the Dso objects of all processes, and bounds how many descriptors they hold.

    The least recently used ones beyond ``max_open`` are closed; they are opened again when they are needed
    and can be.
    """

    def __init__(self, max_open: int = 512) -> None:
        """Hold at most ``max_open`` descriptors."""
        self._max_open = max_open
        self._known: OrderedDict[FileKey, Dso] = OrderedDict()
        self._images: OrderedDict[FileKey, Dso] = OrderedDict()
        self._labels: dict[bytes, Dso] = {}
        self._ours: dict[MapsLine, Dso] = {}
        self._mounts = MountTables()
        self._guard = FileGuard()

    def __len__(self) -> int:
        """Number of files known."""
        return len(self._known)

    def get(self, pid: int, line: MapsLine) -> Dso:
        """The Dso of an executable mapping of a process. One that cannot be opened says so in ``problem``."""
        if line.inode == 0 or line.path == _SHARED_MEMORY:
            return self._vdso(pid, line) if line.path == b"[vdso]" else self._label(line.path)
        paths = printed_paths(line.path)
        shown = visible(paths[0] if paths else line.path)
        ways = self._ways(pid, line, paths)
        problem = "no path leads to it"
        for way in ways:
            try:
                return self._by_way(way, ways, shown)
            except (OSError, TargetError) as error:
                if isinstance(error, PermissionError | FileNotAnswering) or way.any:
                    problem = getattr(error, "strerror", None) or str(error)
                if isinstance(error, FileNotAnswering):
                    break  # the other ways lead to the same file
        return Dso(("unopened", line.device, line.inode, line.path), shown, problem=problem)

    def ours(self, line: MapsLine) -> Dso:
        """The Dso of an executable mapping of our own process, which stays."""
        if line not in self._ours:
            self._ours[line] = self.get(os.getpid(), line)
        return self._ours[line]

    def mapped(self, pid: int, line: MapsLine) -> Dso | None:
        """The Dso of an executable mapping as the kernel found it; None if it cannot be found.

        The path of ``line`` is that in the file system of ``line.device``, or empty. It leads to the file when the
        mapping is gone and nobody has seen it before.
        """
        if not line.inode:
            return self._label(b"")
        try:
            path = os.readlink(f"/proc/{pid}/map_files/{line.start:x}-{line.end:x}".encode())
        except OSError:
            mapped_as = line.device, line.inode
            known = next((dso for dso in self._known.values() if dso.mapped_as == mapped_as), None)
            return known or self._by_place(pid, line)
        return self._opened(pid, line._replace(path=path))

    def _by_place(self, pid: int, line: MapsLine) -> Dso | None:
        """The Dso of a file that is no longer mapped, by its place in its file system."""
        if not line.path:
            return None
        places = self._mounts.of(pid).paths(line.device, line.path)
        places = places or self._mounts.of("self").paths(line.device, line.path)
        found = (self._opened(pid, line._replace(path=place)) for place in places or _tails(line.path))
        return next((dso for dso in found if dso is not None), None)

    def _opened(self, pid: int, line: MapsLine) -> Dso | None:
        dso = self.get(pid, line)
        return None if dso.key[0] == "unopened" else dso

    def _ways(self, pid: int, line: MapsLine, paths: list[bytes]) -> tuple[Opening, ...]:
        theirs, ours = self._mounts.of(pid), self._mounts.of("self")
        local = theirs.is_local_device(line.device)
        if local is None:
            local = ours.is_local_device(line.device)
        by_map = f"/proc/{pid}/map_files/{line.start:x}-{line.end:x}".encode()
        found = [(by_map, bool(local))]
        for path, inner in _inside(f"/proc/{pid}/root".encode(), paths):
            found.append((path, bool(local and theirs.is_local_path(inner))))
        found += [(path, bool(local and ours.is_local_path(path))) for path in paths]
        return tuple(
            Opening(path, None if safe else self._guard, line.device, line.inode, path is by_map)
            for path, safe in found
        )

    def _by_way(self, way: Opening, ways: tuple[Opening, ...], shown: str) -> Dso:
        status, file = way.status(), None
        if status is None:
            file = way.open()
            status = file.status()
        elif not way.any and not status.is_mapped_as(way.device, way.inode):
            raise FileNotFoundError(errno.ENOENT, "another file has its path now")
        key = file_key(status)
        dso = self._known.get(key)
        if dso is None:
            dso = Dso(key, shown, ways=ways, file=file, on_use=self._used)
        elif file is not None:
            file.close()
        dso.file()
        return dso

    def answers_again(self) -> bool:
        """Whether a file system that did not answer does so now: its files can be had by reading load maps again."""
        return self._guard.answers_again()

    def _used(self, dso: Dso) -> None:
        self._known[dso.key] = dso
        self._known.move_to_end(dso.key)
        while len(self._known) > self._max_open:
            self._known.popitem(last=False)[1].close()

    def _label(self, label: bytes) -> Dso:
        if label not in _KNOWN_LABELS:
            label = ANONYMOUS.encode()
        name = label.decode()
        return self._labels.setdefault(label, Dso(("label", name), name, problem="no file"))

    def _vdso(self, pid: int, line: MapsLine) -> Dso:
        """The kernel's code in user space, copied out of a process into a memory file."""
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                image = os.pread(memory, min(line.end - line.start, 1 << 16), line.start)
            finally:
                os.close(memory)
        except OSError as error:
            return Dso(("label", "[vdso]"), "[vdso]", problem=f"[vdso]: {error.strerror}")
        key = ("vdso", image)
        if key not in self._images:
            fd = os.memfd_create("parprof-vdso", os.MFD_CLOEXEC)
            self._images[key] = Dso(key, "[vdso]", file=DirectFile(fd))
            os.write(fd, image)
            if len(self._images) > _MAX_IMAGES:
                self._images.popitem(last=False)
        return self._images[key]

    def close_unused(self, in_use: Iterable[Dso]) -> None:
        """Forget all files but these: an open descriptor keeps a deleted file's space and its mount busy."""
        wanted = {dso.key for dso in in_use}
        for key in [key for key in self._known if key not in wanted]:
            self._known.pop(key).close()
        self._guard.trim()

    def close(self) -> None:
        """Close all descriptors."""
        self.close_unused(())
        for dso in self._images.values():
            dso.close()
        self._images.clear()
        self._guard.close()
