"""Files that nobody saw mapped, by what the kernel knows of them: parprof.files.dso_cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parprof.files.dso_cache import DsoCache
from parprof.files.maps_line import MapsLine
from parprof.files.mounts import Mounts

GONE = 0x1000


@pytest.fixture(autouse=True)
def tables_of_a_chroot(monkeypatch: pytest.MonkeyPatch) -> None:
    """In it the mount that it lies in is in no table. To make a chroot takes root, and a system to put into it."""
    monkeypatch.setattr(Mounts, "paths", lambda *_: [])


def found(file: Path, *, inode: int, before: bytes = b"") -> str | None:
    """The path of the file of a mapping that is gone, whose place in its file system has ``before`` in front."""
    place = before + os.fsencode(file.resolve())
    line = MapsLine(GONE, 2 * GONE, True, 0, file.stat().st_dev, inode, place)
    with DsoCache() as cache:
        dso = cache.mapped(os.getpid(), line)
        return dso.path if dso is not None else None


@pytest.mark.parametrize("before", [b"/srv/jail", b"/jail"])
def test_a_file_is_found_in_a_chroot(before: bytes, tmp_path: Path) -> None:
    """Its place is told from the root of the file system, of which nothing in the chroot knows where it is."""
    file = tmp_path / "libwork.so"
    file.write_bytes(b"\x7fELF")
    assert found(file, inode=file.stat().st_ino, before=before) == str(file.resolve())


def test_another_file_of_that_place_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "libwork.so"
    file.write_bytes(b"\x7fELF")
    assert found(file, inode=file.stat().st_ino + 1, before=b"/srv/jail") is None
