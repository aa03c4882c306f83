"""Files whose code processes run: kept open, so that they can be read after the process or the name is gone.

A file is opened through ``/proc/PID/map_files`` where we may (that works in containers and chroots and for
unlinked files), else by its path inside the process's root, and then only if it is the very file that is
mapped. What is on a file system that may hang is opened and read by a child process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from parprof.cache import content_name, version_name
from parprof.errors import TargetError
from parprof.files.elf import ElfError, ElfFile
from parprof.files.guard import FileGuard, FileNotAnswering
from parprof.files.open_file import DirectFile, FileStatus, OpenFile
from parprof.resources import SelfClosing
from parprof.untrusted import open_regular

FileKey = tuple[Any, ...]
"""What tells files apart: a kind, and for a file its device, inode, modification time and size."""
ANONYMOUS, NO_MAPPING = "[anon]", "[unknown]"
_MEMORY = frozenset((ANONYMOUS, NO_MAPPING, "[heap]", "[stack]"))


class Opening(NamedTuple):
    """How a file can be opened. ``guard`` where that may hang; ``any`` if whatever is there is the right one."""

    path: bytes
    guard: FileGuard | None
    device: int
    inode: int
    any: bool

    def status(self) -> FileStatus | None:
        """What is there, where that can be asked without opening it. Raises OSError."""
        return FileStatus.of(os.stat(self.path)) if self.guard is None else None

    def open(self) -> OpenFile:
        """The file. Raises OSError."""
        if self.guard is None:
            return DirectFile(open_regular(self.path))
        return self.guard.open(self.path, self.device, self.device, 0 if self.any else self.inode)


class Dso(SelfClosing):
    """A file that holds code, or memory that stands for one (``[vdso]``, ``[anon]``: no file).

    ``path`` is as the process sees it, ``name`` its last part; both are safe to show.
    """

    def __init__(
        self,
        key: FileKey,
        path: str,
        *,
        ways: tuple[Opening, ...] = (),
        file: OpenFile | None = None,
        problem: str = "",
        on_use: Callable[[Dso], None] | None = None,
    ) -> None:
        """Made by `DsoCache` alone. ``ways`` are how the file can be opened (again)."""
        self._file = file
        self.key = key
        self.path = path
        self.name = path.rpartition("/")[2] or path
        self.device, self.inode = key[1:3] if key[0] == "file" else (0, 0)
        self.problem = problem
        """Why there is no ELF file, once that is known; empty otherwise."""
        self._ways = ways
        self._on_use = on_use
        self._elf: ElfFile | None = None

    @property
    def mapped_as(self) -> tuple[int, int]:
        """Device and inode as load maps show them; zeros if there is no file."""
        return (self._ways[0].device, self._ways[0].inode) if self._ways else (0, 0)

    def code_delta(self) -> int | None:
        """What is added to an offset in the file's code for the ELF address there; None if it differs by segment."""
        found = {segment.vaddr - segment.offset for segment in self.elf.code} if self.elf else ()
        return next(iter(found)) if len(found) == 1 else None

    @property
    def is_memory(self) -> bool:
        """Whether it is memory into which programs put code that they make: without a file, or with a nameless one."""
        return self.path in _MEMORY or self.path.startswith("/memfd:")

    @property
    def is_open(self) -> bool:
        """Whether the file is held open."""
        return self._file is not None and self._file.is_open

    def file(self) -> OpenFile:
        """The file, which stays ours; it is opened again if need be.

        Raises:
            TargetError: there is no file, or it cannot be opened any more.
        """
        if self._file is None or not self._file.is_open:
            self.close()
            self._file = self._open()
        if self._on_use is not None:
            self._on_use(self)
        return self._file

    def fd(self) -> int:
        """A descriptor of the file, which stays ours: to name it, maybe not to read from it.

        Raises:
            TargetError: there is no file, or it cannot be opened any more.
        """
        return self.file().fileno()

    def content_name(self) -> str:
        """The name under which what is known of its content is kept on disk; empty if that is not to be kept."""
        if self.elf is None:
            return ""
        try:
            status = self.file().status()
        except (TargetError, OSError):
            return ""
        if self.build_id:
            return content_name(self.build_id, status.size, status.owner)
        return version_name(
            status.device, status.inode, status.size, status.owner, status.ctime_ns, time.time_ns()
        )

    def _open(self) -> OpenFile:
        reason = "no way leads to it"
        for way in self._ways:
            try:
                file = way.open()
                if file_key(file.status()) == self.key:
                    return file
                file.close()
            except OSError as error:
                reason = error.strerror or str(error)
                if isinstance(error, FileNotAnswering):
                    break
        raise TargetError(f"{self.path} cannot be opened: {self.problem or reason}")

    @property
    def elf(self) -> ElfFile | None:
        """The file's contents; None if there is no file or it is no ELF file: ``problem`` says why."""
        if self._elf is None and not self.problem:
            try:
                self._elf = ElfFile(self._pread, self.file().status().size, self.path)
            except (TargetError, FileNotAnswering):  # may be better the next time
                return None
            except (ElfError, OSError) as error:
                if not isinstance(error.__cause__, FileNotAnswering):
                    self.problem = str(error)
        return self._elf

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            return self.file().pread(offset, size)
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
        """Close the file. It is opened again, while there is a way, when it is used."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        """Path and identity, for those who debug."""
        return f"Dso({self.path!r}, {self.key[0]} {self.device:#x}:{self.inode})"


def file_key(status: FileStatus) -> FileKey:
    """What tells a file from others, and from itself before it was written to."""
    return ("file", status.device, status.inode, status.mtime_ns, status.size)
