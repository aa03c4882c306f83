"""A file that is open for reading, whichever process holds it."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import NamedTuple

from parprof.resources import Closing


class FileStatus(NamedTuple):
    """What is asked of ``fstat``. Size in bytes, times in ns."""

    device: int
    inode: int
    mtime_ns: int
    size: int
    ctime_ns: int
    owner: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStatus:
        """The same from what the ``os`` module says."""
        return cls(
            status.st_dev,
            status.st_ino,
            status.st_mtime_ns,
            status.st_size,
            status.st_ctime_ns,
            status.st_uid,
        )

    def is_mapped_as(self, device: int, inode: int) -> bool:
        """Whether ``/proc/PID/maps`` may show the file so. On btrfs and overlays it shows another device."""
        if self.inode != inode:
            return False
        return self.device == device or (os.major(self.device) == 0 and os.major(device) == 0)


class OpenFile(Closing):
    """A regular file, open for reading."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it was not closed yet."""

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor of ours that names the file, for ``/proc/self/fd``; maybe not one to read from."""

    @abstractmethod
    def status(self) -> FileStatus:
        """What is known of it. Raises OSError."""

    @abstractmethod
    def pread(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes. Raises OSError."""

    @abstractmethod
    def lend(self) -> int:
        """A new descriptor to pass to a worker, which takes it with `parprof.workers.protocol.borrowed`.

        The caller closes it. It is the file's, or a socket from which the worker gets the file's.

        Raises:
            OSError: there is none.
        """


class DirectFile(OpenFile):
    """A file that this process holds itself."""

    def __init__(self, fd: int) -> None:
        """Take over a descriptor."""
        self._fd = fd

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._fd >= 0

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def status(self) -> FileStatus:
        """What the file system says now."""
        return FileStatus.of(os.fstat(self._fd))

    def pread(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes."""
        return os.pread(self._fd, size, offset)

    def lend(self) -> int:
        """A duplicate of the descriptor."""
        return os.dup(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
