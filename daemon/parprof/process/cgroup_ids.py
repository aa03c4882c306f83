"""Cgroups by the numbers that the kernel gives them: their inodes in the hierarchy of version 2."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from parprof.process.cgroups import CGROUP_ROOT

_MAX_CGROUPS = 1 << 16


class CgroupIds:
    """Finds the path of a cgroup by its number. For one thread."""

    def __init__(self, root: Path = CGROUP_ROOT) -> None:
        """Nothing is read yet. ``root``: where version 2 is mounted, or version 1 with version 2 in ``unified``."""
        unified = root / "unified"
        self._root = os.fspath(unified if unified.is_dir() else root)
        self._paths: dict[int, str] = {}

    def path_of(self, number: int) -> str | None:
        """Its path from the mount on; None: there is none, or we cannot see it.

        All of them are read again for each number that is new.
        """
        if not self._is_still(number):
            self._read()
        return self._paths.get(number)

    def _is_still(self, number: int) -> bool:
        with suppress(KeyError, OSError):
            return os.stat(self._root + self._paths[number]).st_ino == number
        return False

    def _read(self) -> None:
        self._paths = {}
        with suppress(OSError):
            self._paths[os.stat(self._root).st_ino] = "/"
        left = [""]
        while left and len(self._paths) < _MAX_CGROUPS:
            above = left.pop()
            with suppress(OSError), os.scandir(self._root + above) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        path = f"{above}/{entry.name}"
                        self._paths[entry.inode()] = path
                        left.append(path)
