"""Probes that serve all processes: once for each file, through however many mounts it is seen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from parprof.errors import ProbeAttachError
from parprof.kernel.uprobes import Site
from parprof.probes import shared as sharedprobes
from parprof.probes.shared import SharedProbes

OVERLAY, BTRFS = sharedprobes._OVERLAY, 0x9123683E


class Kernel:
    def __init__(self) -> None:
        self.probed: list[str] = []

    def attach_probes(self, pid: int, sites: list[Site]) -> Kernel:
        assert pid == 0
        self.probed += [site.path for site in sites]
        return self

    def close(self) -> None:
        self.probed.clear()


class Files:
    """What `os.stat` and ``statfs`` say, by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._known: dict[str, tuple[Any, int]] = {}
        stat = os.stat
        monkeypatch.setattr(
            os, "stat", lambda path, **how: self._known.get(path, (None,))[0] or stat(path, **how)
        )
        monkeypatch.setattr(sharedprobes, "_file_system", lambda path: self._known[path][1])

    def add(
        self, path: str, kind: int, device: int, inode: int = 5, size: int = 9, mtime: int = 1, ctime: int = 2
    ) -> str:
        class Status:
            st_dev, st_ino, st_size, st_mtime_ns, st_ctime_ns = device, inode, size, mtime, ctime

        self._known[path] = Status, kind
        return path


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(monkeypatch)


def probed(*paths: str, offset: int = 64) -> list[str]:
    """What a kernel is told to probe, by a call for each path and then one for all."""
    kernel = Kernel()
    shared = SharedProbes(kernel)  # type: ignore[arg-type]
    for path in paths:
        shared.attach([Site(path, offset, 4)])
    one_by_one = list(kernel.probed)
    shared.close()
    shared.attach([Site(path, offset, 4) for path in paths])
    assert len(kernel.probed) == len(one_by_one)
    return one_by_one


def test_containers_of_one_image_share_a_probe(files: Files) -> None:
    mounts = [files.add(f"/proc/self/fd/{n}", OVERLAY, os.makedev(0, 40 + n)) for n in range(5)]
    assert probed(*mounts) == mounts[:1]


@pytest.mark.parametrize("other", [{"inode": 6}, {"size": 10}, {"mtime": 3}, {"ctime": 4}])
def test_another_file_of_an_image_is_another(files: Files, other: dict[str, int]) -> None:
    """The time of change alone is another where a container has made the file its own."""
    first = files.add("a", OVERLAY, os.makedev(0, 40))
    second = files.add("b", OVERLAY, os.makedev(0, 41), **other)
    assert probed(first, second) == [first, second]


@pytest.mark.parametrize(("kind", "major"), [(BTRFS, 0), (0xEF53, 8)])
def test_snapshots_and_clones_are_other_files(files: Files, kind: int, major: int) -> None:
    first, second = (files.add(name, kind, os.makedev(major, n)) for n, name in enumerate("ab"))
    assert probed(first, second, first) == [first, second]


def test_another_offset_is_another_site(files: Files) -> None:
    path, kernel = files.add("a", OVERLAY, os.makedev(0, 40)), Kernel()
    SharedProbes(kernel).attach([Site(path, 64, 4), Site(path, 65, 4), Site(path, 64, 4)])  # type: ignore[arg-type]
    assert kernel.probed == [path, path]


def test_real_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"x")
    second.write_bytes(b"x")
    (tmp_path / "link").symlink_to(first)
    assert probed(str(first), str(second), str(tmp_path / "link")) == [str(first), str(second)]
    with pytest.raises(ProbeAttachError, match="No such file"):
        probed(str(tmp_path / "gone"))


def test_the_kind_of_a_file_system_is_asked_for() -> None:
    assert sharedprobes._file_system("/proc/self/stat") == 0x9FA0
    with pytest.raises(FileNotFoundError):
        sharedprobes._file_system("/proc/self/gone")
