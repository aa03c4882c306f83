"""Files whose code processes run: kept open, so that they can be read after the process or the name is gone.

A file is opened through ``/proc/PID/map_files`` where we may (that works in containers and chroots and for
unlinked files), else by its path inside the process's root, and then only if it is the very file that is
mapped.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self

from parprof.elf import ElfError, ElfFile
from parprof.errors import TargetError
from parprof.mapsline import MapsLine, printed_paths
from parprof.untrusted import open_regular, visible

Key = tuple[Any, ...]
"""What tells files apart: a kind, and for a file its device, inode, modification time and size."""
ANONYMOUS = "[anon]"
_KNOWN_LABELS = frozenset((b"[heap]", b"[stack]", b"[vsyscall]", b"[uprobes]"))
_SHARED_MEMORY = b"/dev/zero (deleted)"
_MAX_IMAGES = 16


class Dso:
    """A file that holds code, or memory that stands for one (``[vdso]``, ``[anon]``: no file).

    ``path`` is as the process sees it, ``name`` its last part; both are safe to show.
    """

    def __init__(
        self, key: Key, path: str, *, ways: tuple[bytes, ...] = (), fd: int = -1, problem: str = "",
        on_use: Callable[[Dso], None] | None = None,
    ) -> None:  # fmt: skip
        """Made by `DsoCache` alone. ``ways`` are paths by which the file can be opened."""
        self.key = key
        self.path = path
        self.name = path.rpartition("/")[2] or path
        self.device, self.inode = key[1:3] if key[0] == "file" else (0, 0)
        self.problem = problem
        """Why there is no ELF file, once that is known; empty otherwise."""
        self._ways = ways
        self._fd = fd
        self._on_use = on_use
        self._elf: ElfFile | None = None

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held."""
        return self._fd >= 0

    def fd(self) -> int:
        """A descriptor of the file, which stays ours; it is opened again if need be.

        Raises:
            TargetError: there is no file, or it cannot be opened any more.
        """
        if self._fd < 0:
            self._fd = self._open()
        if self._on_use is not None:
            self._on_use(self)
        return self._fd

    def _open(self) -> int:
        reason = "no way leads to it"
        for way in self._ways:
            try:
                fd = open_regular(way)
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            if _file_key(os.fstat(fd)) == self.key:
                return fd
            os.close(fd)
        raise TargetError(f"{self.path} cannot be opened: {self.problem or reason}")

    @property
    def elf(self) -> ElfFile | None:
        """The file's contents; None if there is no file or it is no ELF file: ``problem`` says why."""
        if self._elf is None and not self.problem:
            try:
                self._elf = ElfFile(self._pread, os.fstat(self.fd()).st_size, self.path)
            except TargetError:  # may be better the next time
                return None
            except (ElfError, OSError) as error:
                self.problem = str(error)
        return self._elf

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self.fd(), size, offset)
        except TargetError as error:
            raise OSError(0, str(error)) from error

    @property
    def build_id(self) -> str:
        """The file's build id in hexadecimal digits; empty if it has none."""
        with suppress(ElfError):
            return self.elf.build_id if self.elf else ""
        return ""

    def vaddr(self, file_offset: int) -> int:
        """The ELF virtual address of a byte of the file; the offset itself where that is unknown."""
        found = self.elf.vaddr(file_offset) if self.elf else None
        return file_offset if found is None else found

    def close(self) -> None:
        """Close the descriptor. `fd` opens it again while there is a way."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Path and identity, for those who debug."""
        return f"Dso({self.path!r}, {self.key[0]} {self.device:#x}:{self.inode})"


def _file_key(status: os.stat_result) -> Key:
    return ("file", status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _inside(root: bytes, paths: list[bytes]) -> list[bytes]:
    """These paths below a process's root; those of a plain chroot are printed with the root in front."""
    prefix = b"/"
    with suppress(OSError):
        prefix = os.readlink(root).rstrip(b"/") + b"/"
    return [root + b"/" + path.removeprefix(prefix if path.startswith(prefix) else b"/") for path in paths]


class DsoCache:
    """Shares the Dso objects of all processes, and bounds how many descriptors they hold.

    The least recently used ones beyond ``max_open`` are closed; they are opened again when they are needed
    and can be.
    """

    def __init__(self, max_open: int = 512) -> None:
        """Hold at most ``max_open`` descriptors."""
        self._max_open = max_open
        self._known: OrderedDict[Key, Dso] = OrderedDict()
        self._images: OrderedDict[Key, Dso] = OrderedDict()
        self._labels: dict[bytes, Dso] = {}

    def __len__(self) -> int:
        """Number of files known."""
        return len(self._known)

    def get(self, pid: int, line: MapsLine) -> Dso:
        """The Dso of an executable mapping of a process. One that cannot be opened says so in ``problem``."""
        if line.inode == 0 or line.path == _SHARED_MEMORY:
            return self._vdso(pid, line) if line.path == b"[vdso]" else self._label(line.path)
        by_map = f"/proc/{pid}/map_files/{line.start:x}-{line.end:x}".encode()
        paths = printed_paths(line.path)
        shown = visible(paths[0] if paths else line.path)
        inside = _inside(f"/proc/{pid}/root".encode(), paths)
        problem = "no path leads to it"
        for way in (by_map, *inside, *paths):
            try:
                status = os.stat(way)
                key = _file_key(status)
                if way is not by_map and not _is_same(status, line):
                    continue
                ways = (by_map, *inside, *paths)
                dso = self._known.get(key) or Dso(key, shown, ways=ways, on_use=self._used)
                dso.fd()
            except (OSError, TargetError) as error:
                if isinstance(error, PermissionError) or way is by_map:
                    problem = getattr(error, "strerror", None) or str(error)
                continue
            return dso
        return Dso(("unopened", line.device, line.inode, line.path), shown, problem=f"{shown}: {problem}")

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
            self._images[key] = Dso(key, "[vdso]", fd=fd)
            os.write(fd, image)
            if len(self._images) > _MAX_IMAGES:
                self._images.popitem(last=False)
        return self._images[key]

    def close_unused(self, in_use: Iterable[Dso]) -> None:
        """Forget all files but these: an open descriptor keeps a deleted file's space and its mount busy."""
        wanted = {dso.key for dso in in_use}
        for key in [key for key in self._known if key not in wanted]:
            self._known.pop(key).close()

    def close(self) -> None:
        """Close all descriptors."""
        self.close_unused(())
        for dso in self._images.values():
            dso.close()
        self._images.clear()

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        self.close()


def _is_same(status: os.stat_result, line: MapsLine) -> bool:
    """Whether that is the mapped file. File systems of many devices (btrfs, overlay) show another number."""
    if status.st_ino != line.inode:
        return False
    return status.st_dev == line.device or (os.major(status.st_dev) == 0 and os.major(line.device) == 0)
