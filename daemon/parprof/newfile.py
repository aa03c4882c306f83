"""Files that appear under their name at once and complete: written beside it, then renamed. All that parprof leaves on
a disk is written so: caches, profiles, what waits to be pushed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Self

UNFINISHED = ".new-"
"""How the names of files begin that are being written, or whose writer was killed."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


class NewFile:
    """A file that is being written through ``fd``; gone at the end of its block unless it was put in its place."""

    def __init__(self, directory: int, name: str, *, mode: int = 0o600, prefix: str = UNFINISHED) -> None:
        """Create it in a directory, of which the caller keeps the descriptor open until the end of the block.

        Raises:
            OSError: it cannot be created there.
        """
        self._directory = directory
        self.name = name
        self._unfinished = f"{prefix}{os.getpid()}-{os.urandom(8).hex()}"
        self.fd = os.open(self._unfinished, _FLAGS, mode, dir_fd=directory)

    def write(self, data: bytes | memoryview) -> None:
        """Write all of it.

        Raises:
            OSError: the disk is full, say.
        """
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    def put_in_place(self) -> None:
        """Give it its name, under which it replaces an older one.

        Raises:
            OSError: that cannot be done.
        """
        os.replace(self._unfinished, self.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._unfinished = ""

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, and remove it if it was not put in its place."""
        if self._unfinished:
            with suppress(OSError):
                os.unlink(self._unfinished, dir_fd=self._directory)
        os.close(self.fd)
