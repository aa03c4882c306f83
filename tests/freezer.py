# SPDX-License-Identifier: Apache-2.0
"""Control groups that can be frozen, as `docker pause` and `systemctl freeze` do it, of either version."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parprof.process.cgroups import CGROUP_ROOT

_FREEZE = {1: ("freezer.state", "FROZEN", "THAWED"), 2: ("cgroup.freeze", "1", "0")}
VERSIONS = tuple(_FREEZE)
_PARENTS = {1: ("freezer",), 2: ("unified", ".")}


class NoFreezer(Exception):
    """No such group can be made here."""


class Freezer:
    """A group; its processes must be gone in the end."""

    def __init__(self, version: int) -> None:
        """``version``: 1 or 2, of control groups.

        Raises:
            NoFreezer: there are none of that version.
        """
        file, self._freeze, self._thaw = _FREEZE[version]
        for parent in _PARENTS[version]:
            group = CGROUP_ROOT / parent / f"parprof-frozen-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            if (group / file).exists():
                break
            group.rmdir()
        else:
            raise NoFreezer(f"no control group of version {version} can be frozen here")
        self._group = group
        self._file = group / file
        self.procs = group / "cgroup.procs"
        """Where a process id is written, so that the process is in it."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """For as long as the block lasts."""
        self._file.write_text(self._freeze)
        try:
            yield
        finally:
            self._file.write_text(self._thaw)

    def remove(self) -> None:
        """Its processes have ended, or are about to."""
        for _ in range(100):
            try:
                self._group.rmdir()
                return
            except OSError:
                time.sleep(0.02)


@contextmanager
def freezer(version: int) -> Iterator[Freezer]:
    """A group for as long as the block lasts.

    Raises:
        NoFreezer: see `Freezer`.
    """
    made = Freezer(version)
    try:
        yield made
    finally:
        made.remove()


def pid_in(file: Path) -> int:
    """The process id that a program writes there when it starts."""
    for _ in range(6000):  # the BPF programs may have to be compiled first
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.01)
    raise TimeoutError(file)
