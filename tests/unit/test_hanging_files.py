# SPDX-License-Identifier: Apache-2.0
"""Files on a file system that stops to answer: a real one, FUSE, whose process goes on strike."""

from __future__ import annotations

import ctypes.util
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parprof.calls import finder
from parprof.calls.wanted import parse_wanted
from parprof.errors import TargetError
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfError, ElfFile
from parprof.files.guard import FileGuard, FileNotAnswering
from parprof.files.mounts import Mounts, parse_mount
from parprof.process.loadmap import LoadMap
from parprof.symbols.perfmap import PerfMap
from parprof.symbols.symbolizer import Symbolizer
from parprof.unwind.builder import TableBuilder
from parprof.unwind.table import build_table
from parprof.workers import client

SERVER = Path(__file__).parents[1] / "hanging_fuse.py"
LIBRARIES = ("libz.so.1", "libzstd.so.1", "libexpat.so.1", "libgcc_s.so.1")
MAPPER = """
import mmap, os, sys
kept = []
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        kept.append(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC))
print("ready", flush=True)
sys.stdin.read()
"""


class Hanging:
    """The file system, with copies of two libraries, and a process that has them mapped."""

    def __init__(self, directory: Path, server: subprocess.Popen[str], mapper: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.server = server
        self.mapper = mapper

    def tell(self, what: str) -> None:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(what + "\n")
        self.server.stdin.flush()
        assert self.server.stdout.readline() == "done\n"


def libraries() -> list[Path]:
    found = [Path("/lib/x86_64-linux-gnu") / name for name in LIBRARIES]
    found = [path for path in found if path.exists()][:2]
    if len(found) < 2:
        pytest.skip("no libraries to copy")
    return found


@contextmanager
def process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            pytest.skip("FUSE file systems cannot be mounted here")
        yield child
    finally:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()
        child.stdout.close()
        child.wait(20)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    if os.geteuid() or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    copies = libraries()
    with process([sys.executable, str(SERVER), str(tmp_path), *map(str, copies)]) as server:
        names = [str(tmp_path / path.name) for path in copies]
        with process([sys.executable, "-c", MAPPER, *names]) as mapper:
            yield Hanging(tmp_path, server, mapper)
            assert server.stdin is not None
            server.stdin.close()  # ends it first: whoever still waits gets an error
            server.wait(20)


@pytest.fixture(autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path_factory.mktemp("cache")))


def copies_in(load_map: LoadMap, hanging: Hanging) -> list[Dso]:
    return [dso for dso in load_map.dsos() if dso.path.startswith(str(hanging.directory))]


def others_in(load_map: LoadMap, hanging: Hanging) -> list[Dso]:
    return [
        dso for dso in load_map.dsos() if dso.key[0] == "file" and dso not in copies_in(load_map, hanging)
    ]


def test_what_answers_is_read_like_any_other(hanging: Hanging, cache: DsoCache) -> None:
    load_map = LoadMap.read(hanging.mapper.pid, None, cache)
    copies = copies_in(load_map, hanging)
    assert len(copies) == 2
    with TableBuilder() as builder, Symbolizer() as symbolizer:
        for dso, path in zip(sorted(copies, key=lambda dso: dso.name), sorted(libraries()), strict=True):
            with ElfFile.open(str(path)) as original:
                assert dso.elf is not None and dso.build_id == original.build_id
                table = builder.table(dso)
                assert table is not None and table.rows == build_table(original).rows
                function = next(symbol for symbol in original.symbols() if symbol.size)
                assert symbolizer.frames(dso, function.value, False)[0].name.startswith(function.name[:3])
        assert not builder.problems
    held = {os.readlink(f"/proc/self/fd/{name}"): name for name in os.listdir("/proc/self/fd") if int(name) > 2
            if os.path.exists(f"/proc/self/fd/{name}")}  # fmt: skip
    ours = [name for path, name in held.items() if path.startswith(str(hanging.directory))]
    assert len(ours) == 2
    for name in ours:  # none that could be read from: closing such a one would ask the file system
        assert int(Path(f"/proc/self/fdinfo/{name}").read_text().split()[3], 8) & os.O_PATH


def test_what_does_not_answer_is_left_out(hanging: Hanging, cache: DsoCache) -> None:
    hanging.tell("hang")
    load_map = LoadMap.read(hanging.mapper.pid, None, cache)
    copies = copies_in(load_map, hanging)
    assert [dso.key[0] for dso in copies] == ["unopened"] * 2
    assert all("does not answer" in dso.problem and dso.elf is None for dso in copies)
    others = others_in(load_map, hanging)
    assert len(others) > 2 and all(dso.elf is not None for dso in others)
    with TableBuilder() as builder:
        assert all(builder.table(dso) is None for dso in copies)
        assert {dso.path for dso in copies} == set(builder.problems)
        assert all(builder.table(dso) is not None for dso in others)

        assert (
            LoadMap.read(hanging.mapper.pid, load_map, cache).mappings[0].dso.key
            == load_map.mappings[0].dso.key
        )
        assert not cache.answers_again()
        hanging.tell("answer")
        while not cache.answers_again():
            time.sleep(0.01)
        again = LoadMap.read(hanging.mapper.pid, load_map, cache)
        copies = copies_in(again, hanging)
        assert [dso.key[0] for dso in copies] == ["file"] * 2
        assert all(builder.table(dso) is not None for dso in copies)
        assert not builder.problems


def test_what_stops_to_answer_later(hanging: Hanging, cache: DsoCache) -> None:
    load_map = LoadMap.read(hanging.mapper.pid, None, cache)
    first, second = copies_in(load_map, hanging)
    assert first.elf is not None
    hanging.tell("hang")
    with pytest.raises(ElfError, match="does not answer"):
        first.elf.read_at(4096, 10)
    assert second.elf is None and second.problem == ""  # may be better the next time
    others = (dso for dso in others_in(load_map, hanging) if dso.build_id)
    other = min(others, key=lambda dso: Path(dso.path).stat().st_size)  # the limit of time is for what hangs
    with TableBuilder(file_seconds=1.0) as builder, Symbolizer(file_seconds=1.0) as symbolizer:
        assert builder.table(first) is None
        assert "does not answer" in builder.problems[first.path]
        assert builder.table(other) is not None
        found = symbolizer.resolve([(first, 0x5000, False), (other, 0x1000, False)])
        assert found[first, 0x5000, False][0].name == f"{first.name}+0x5000"
        assert "does not answer" in symbolizer.problems[first.path]


def test_a_worker_that_hangs_in_a_file_is_left_behind(hanging: Hanging, cache: DsoCache) -> None:
    """The child gets the file while that still answers, and never comes back from reading it."""
    load_map = LoadMap.read(hanging.mapper.pid, None, cache)
    first, _ = copies_in(load_map, hanging)
    assert first.build_id
    fd = first.file().lend()
    hanging.tell("hang")
    other, another = [dso for dso in others_in(load_map, hanging) if dso.build_id][:2]
    with TableBuilder(file_seconds=2.0) as builder:
        assert builder.table(another) is not None, "the child runs, and has all the time for the file"
        with pytest.raises(Exception, match="too long"):
            builder._client.build(first.path, fd, first.build_id, 2.0)
        os.close(fd)
        assert client._abandoned
        assert builder.table(other) is not None
    hanging.tell("answer")
    for child in client._abandoned:
        assert child.wait(20) < 0


def test_functions_in_what_stops_to_answer_later(
    hanging: Hanging, cache: DsoCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "FILE_SECONDS", 2.0)
    load_map = LoadMap.read(hanging.mapper.pid, None, cache)
    first, second = copies_in(load_map, hanging)
    assert first.elf is not None
    hanging.tell("hang")
    with finder.FunctionFinder([parse_wanted("usleep")], lambda places: {}, lambda: False) as found:
        assert [one.name for _, file in found.find(load_map) for one in file.routines] == ["usleep"]
        told = found.unsearched()
    assert len(told) == 2 and all(any(dso.path in text for text in told) for dso in (first, second))


def test_the_path_leads_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with FileGuard() as guard:
        status = (tmp_path / "a").stat()
        with pytest.raises(FileNotFoundError):
            guard.open(bytes(tmp_path / "a"), 1, status.st_dev, status.st_ino + 1)
        with pytest.raises(FileNotFoundError):
            guard.open(bytes(tmp_path / "b"), 1)
        with pytest.raises(OSError, match="not a regular file"):
            guard.open(b"/dev/null", 1)
        with guard.open(bytes(tmp_path / "a"), 1, status.st_dev, status.st_ino) as file:
            assert file.pread(0, 10) == b"x" and file.status().size == 1
            (lane,) = guard._lanes.values()
            assert lane._child is not None
            lane._child.kill()
            lane._child.wait()
            with pytest.raises(FileNotAnswering):
                file.pread(0, 10)
            assert not file.is_open
        with guard.open(bytes(tmp_path / "a"), 1) as file:
            assert file.pread(0, 10) == b"x"
            guard.trim()
            assert file.pread(0, 1) == b"x"
        guard.trim()
        assert lane._child is None


def test_a_guarded_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with DsoCache() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mounts, "is_local_device", lambda self, device: False)
        load_map = LoadMap.read(os.getpid(), None, cache)
        libc = next(dso for dso in load_map.dsos() if dso.name.startswith("libc."))
        assert libc.elf is not None
        inside = libc.elf.read_at(0, 1 << 20)
        libc.close()
        assert libc.elf.read_at(0, 1 << 20) == inside
        assert Path(ctypes.util.find_library("c") or "libc.so.6").name == libc.elf.soname
        fake = Dso(("file", 1, 2, 3, 4), "/gone")
        with pytest.raises(TargetError):
            fake.file()


@pytest.mark.parametrize(
    ("line", "local"),
    [
        (b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw", True),
        (b"42 27 0:39 / /tmp rw,nosuid shared:3 - fuse.sshfs host: rw", False),
        (b"42 27 8:1 / /tmp rw - fuseblk /dev/sda1 rw", False),
        (b"42 27 0:39 / /tmp rw master:2 shared:3 - nfs4 host:/a rw", False),
        (b"42 27 0:39 / /tmp rw - btrfs /dev/sda rw", True),
        (b"42 27 0:39 / /tmp rw - tmpfs none rw", True),
        (b"42 27 0:39 / /tmp rw - unheardof none rw", False),
    ],
)
def test_kinds_of_file_systems(line: bytes, local: bool) -> None:
    mount = parse_mount(line)
    assert mount is not None and mount.is_local is local
    root = parse_mount(b"27 1 254:0 / / rw - ext4 /dev/vda rw")
    assert root is not None
    mounts = Mounts([root, mount])
    assert mounts.is_local_device(mount.device) is local
    assert mounts.is_local_path(b"/lib/libc.so") is (mount.point == b"/tmp" or local)
    assert mounts.is_local_path(b"/tmp/a/libc.so") is local
    assert mounts.is_local_device(1) is None
    assert Mounts([]).is_local_path(b"/lib/libc.so") is None
    if mount.point == b"/tmp":
        assert Mounts([mount]).is_local_path(b"/tmp/libc.so") is (None if local else False)


def test_no_map_file_is_read_where_it_may_hang(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    with PerfMap(hanging.mapper.pid) as usual:
        assert usual.names([1]) == {} and not usual.problem
    mounts = Mounts.read(hanging.mapper.pid)
    assert mounts.is_local_path(bytes(hanging.directory) + b"/perf-1.map") is False
    monkeypatch.setattr(Mounts, "read", lambda pid: mounts)
    mounts._points[b"/tmp"] = False
    hanging.tell("hang")
    with PerfMap(hanging.mapper.pid) as other:
        assert other.names([1]) == {} and "never answer" in other.problem


def test_lines_that_are_none() -> None:
    for line in (b"", b"a b c", b"1 2 x:y / / rw - ext4 a b", b"1 2 3:4 / / rw", b"1 2 3:4 / / rw x -"):
        assert parse_mount(line) is None
    assert Mounts.read(1 << 30).is_local_device(0) is None


def test_a_line_of_mounts_that_was_cut_off_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of it may say that the file system is in another process."""
    text = Path("/proc/self/mountinfo").read_bytes()
    first, second = text.split(b"\n")[:2]
    whole = [parse_mount(first), parse_mount(second)]
    for size, found in ((len(first) + len(second) + 2, 2), (len(first) + len(second) + 1, 1)):
        monkeypatch.setattr("parprof.files.mounts._MAX_BYTES", size)
        assert Mounts.read("self")._mounts == whole[:found]


def test_a_guard_that_nobody_has_any_more_ends_its_children(tmp_path: Path) -> None:
    """Though a file was opened anew after `close`, and all of it is in a circle."""
    (tmp_path / "file").write_bytes(b"text")
    guard = FileGuard()
    guard.close()
    circle: list[object] = [guard, guard.open(os.fsencode(tmp_path / "file"), 1)]
    circle.append(circle)
    child = next(iter(guard._lanes.values()))._child
    assert child is not None and child.poll() is None
    del guard, circle
    gc.collect()
    assert child.poll() is not None


def test_places_of_a_file_that_is_known_by_its_file_system() -> None:
    lines = (
        b"27 1 254:0 / / rw - ext4 /dev/vda rw",
        b"36 27 254:0 /srv/a\\040b /mnt rw - ext4 /dev/vda rw",
        b"37 27 254:1 / /other rw - ext4 /dev/vdb rw",
    )
    mounts = Mounts([mount for line in lines if (mount := parse_mount(line))])
    device = os.makedev(254, 0)
    assert mounts.paths(device, b"/srv/a b/lib.so") == [b"/srv/a b/lib.so", b"/mnt/lib.so"]
    assert mounts.paths(device, b"/srv/a bc") == [b"/srv/a bc"]
    assert mounts.paths(os.makedev(254, 1), b"/lib.so") == [b"/other/lib.so"]
    assert mounts.paths(os.makedev(9, 9), b"/lib.so") == []
