# SPDX-License-Identifier: Apache-2.0
"""Unwind tables by way of the child process and the cache on disk, and what goes wrong there."""

from __future__ import annotations

import gc
import os
import re
import signal
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parprof.cache import content_name
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.files.maps_line import MapsLine
from parprof.process.loadmap import LoadMap
from parprof.unwind import cache as caching
from parprof.unwind import worker
from parprof.unwind.asking import TableClient
from parprof.unwind.builder import TableBuilder
from parprof.unwind.cache import TableCache
from parprof.unwind.later import LaterTables
from parprof.unwind.rows import RuleType, pack
from parprof.unwind.table import UNFOLLOWED, UnwindTable, build_table
from parprof.workers.client import WorkerFailed
from stopwatch import Stopwatch
from unwind_elf import CODE, cie, eh_frame, elf_bytes, fde

BUILD_ID = "0123456789abcdef"
NAME = content_name(BUILD_ID, 1000, 0)
ROWS = struct.pack("<4I", 0x1000, pack(RuleType.RSP, 8), 0x1010, 0)
TABLE = UnwindTable(ROWS, BUILD_ID, {"CFA register": 3})


@pytest.fixture
def dsos() -> Iterator[Callable[[Path | str], Dso]]:
    def open_dso(path: Path | str) -> Dso:
        status = os.stat(path)
        line = MapsLine(0x1000, 0x2000, True, 0, status.st_dev, status.st_ino, os.fsencode(path))
        return cache.get(os.getpid(), line)

    with DsoCache() as cache:
        yield open_dso


def libc() -> str:
    for path in ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"):
        if os.path.exists(path):
            return path
    pytest.skip("there is no libc.so.6 here")


def elf_file(path: Path, program: bytes = b"\x41\x0e\x10", functions: int = 1) -> Path:
    """A small file without build id."""
    path.write_bytes(elf_bytes(eh_frame(*((CODE + 0x40 * n, 0x40, program) for n in range(functions)))))
    return path


def expected(path: Path | str) -> UnwindTable:
    with ElfFile.open(str(path)) as elf:
        return build_table(elf)


def same(one: UnwindTable | None, other: UnwindTable) -> bool:
    assert one is not None
    return (bytes(one.rows), one.build_id, one.notes) == (bytes(other.rows), other.build_id, other.notes)


# the cache


def test_a_table_comes_back_from_disk(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    assert cache.load(NAME, BUILD_ID) is None
    assert cache.store(NAME, TABLE)
    found = cache.load(NAME, BUILD_ID)
    assert same(found, TABLE)
    assert found is not None and isinstance(found.rows, memoryview) and found.rows.readonly
    assert found.rule(0x100F) == pack(RuleType.RSP, 8)
    assert TableCache(tmp_path).load(NAME, "ff") is None  # the name of another file: removed
    assert cache.load(NAME, BUILD_ID) is None


def test_empty_tables_and_files_without_build_id(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    assert content_name("", 5, 0) == ""
    assert not cache.store("", TABLE)
    assert cache.load("", "") is None
    assert cache.store(NAME, UnwindTable(b"", BUILD_ID))
    found = cache.load(NAME, BUILD_ID)
    assert found is not None and found.count == 0 and found.rule(5) == 0
    assert content_name(BUILD_ID, 5, 0) != content_name(BUILD_ID, 5, 1) != content_name(BUILD_ID, 6, 1)
    assert not cache.store(NAME, UnwindTable(b"", BUILD_ID, {"x" * (1 << 17): 1}))


def cached_file(base: Path) -> Path:
    (path,) = (base / "unwind").iterdir()
    return path


def checked(raw: bytes) -> bytes:
    """The same with a right checksum, of a table of one block."""
    behind = 40 + int.from_bytes(raw[20:24], "little") + 8
    return raw[:36] + struct.pack("<I", zlib.crc32(raw[20:36] + raw[40:behind])) + raw[40:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "no header": lambda raw: raw[:39],
    "short": lambda raw: raw[:-8],
    "long": lambda raw: raw + bytes(8),
    "row": lambda raw: raw[:-1] + b"\x01",
    "description": lambda raw: raw.replace(b"CFA", b"CFB"),
    "magic": lambda raw: b"X" + raw[1:],
    "format": lambda raw: raw[:16] + struct.pack("<I", caching.FORMAT + 1) + raw[20:],
    "count": lambda raw: raw[:24] + struct.pack("<I", 1 << 31) + raw[28:],
    "no JSON": lambda raw: checked(raw.replace(b'{"build_id"', b'["build_id"')),
    "list": lambda raw: checked(raw[:40] + b"[]".ljust(raw.index(b"}") - 39) + raw[raw.index(b"}") + 1 :]),
    "no notes": lambda raw: checked(raw.replace(b'"notes"', b'"noted"')),
    "no number": lambda raw: checked(raw.replace(b": 3}", b':""}')),
    "deep": lambda raw: checked(raw[:40] + b"[" * (len(raw) - 56) + raw[-16:]),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_cache_file_is_removed(how: str, tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    cache.store(NAME, TABLE)
    path = cached_file(tmp_path)
    raw = path.read_bytes()
    assert same(cache.load(NAME, BUILD_ID), TABLE)
    damaged = DAMAGE[how](raw)
    assert damaged != raw
    path.write_bytes(damaged)
    assert cache.load(NAME, BUILD_ID) is None
    assert not path.exists()


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    cache.store(NAME, TABLE)
    path = cached_file(tmp_path)
    raw = path.read_bytes()
    for bit in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert cache.load(NAME, BUILD_ID) is None
    path.write_bytes(raw)
    assert same(cache.load(NAME, BUILD_ID), TABLE)


def test_two_versions_of_parprof_leave_each_other_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TableCache(tmp_path)
    cache.store(NAME, TABLE)
    with monkeypatch.context() as later:
        later.setattr(caching, "FORMAT", caching.FORMAT + 1)
        assert cache.load(NAME, BUILD_ID) is None
        cache.store(NAME, TABLE)
        assert same(cache.load(NAME, BUILD_ID), TABLE)
    assert same(cache.load(NAME, BUILD_ID), TABLE)


@pytest.mark.parametrize("what", ["file", "directory", "base"])
def test_what_others_can_write_is_not_used(what: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    cache = TableCache(base)
    cache.store(NAME, TABLE)
    assert cache.load(NAME, BUILD_ID)
    path = {"file": cached_file(base), "directory": base / "unwind", "base": base}[what]
    path.chmod(0o777)
    assert cache.load(NAME, BUILD_ID) is None
    if what != "file":
        assert not cache.store(NAME, TABLE)
        assert cache.disk.problem


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    cache.store(NAME, TABLE)
    os.chown(cached_file(tmp_path), 12345, 12345)
    assert cache.load(NAME, BUILD_ID) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    cache.store(NAME, TABLE)
    path = cached_file(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.load(NAME, BUILD_ID) is None


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    cache = TableCache(tmp_path, max_bytes=5 * 8192)
    big = UnwindTable(ROWS * 400, BUILD_ID)
    names = [content_name(BUILD_ID, number, 0) for number in range(9)]
    for name in names:
        assert cache.store(name, big)
        assert cache.load(names[0], BUILD_ID)
    left = {path.name.removesuffix(f"-{caching.FORMAT}") for path in (tmp_path / "unwind").iterdir()}
    assert {names[0], names[-1]} <= left
    assert names[1] not in left
    assert len(left) == 5


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    cache = TableCache(tmp_path)
    monkeypatch.setattr(os, "write", write)
    assert not cache.store(NAME, TABLE)
    assert list((tmp_path / "unwind").iterdir()) == []


# the builder


def test_tables_of_libc_are_built_once(tmp_path: Path, dsos: Callable[[str], Dso]) -> None:
    dso = dsos(libc())
    for built, loaded in ((1, 0), (0, 1)):
        with TableBuilder(TableCache(tmp_path)) as builder:
            table = builder.table(dso)
            assert same(table, expected(libc()))
            assert (builder.built, builder.loaded, builder.problems) == (built, loaded, {})
            assert (builder.worker_pid != 0) is bool(built)
    cached_file(tmp_path).write_bytes(b"damaged")
    with TableBuilder(TableCache(tmp_path)) as builder:
        assert same(builder.table(dso), expected(libc()))
        assert builder.built == 1
        assert same(builder.table(dso), expected(libc()))
        assert builder.loaded == 1
    assert same(table, expected(libc()))  # outlives its builder


def test_without_a_cache_and_without_build_id(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    path = elf_file(tmp_path / "a")
    with TableBuilder() as builder:
        assert same(builder.table(dsos(path)), expected(path))
        assert same(builder.table(dsos(path)), expected(path))
        assert builder.built == 2
    with TableBuilder(TableCache(tmp_path / "cache")) as builder:
        assert same(builder.table(dsos(path)), expected(path))
    assert not (tmp_path / "cache").exists()


def test_prefetch(tmp_path: Path, dsos: Callable[[Path | str], Dso]) -> None:
    paths = [elf_file(tmp_path / f"{number}", functions=number + 1) for number in range(80)]
    with TableBuilder() as builder:
        builder.prefetch(dsos(path) for path in [*paths, *paths])
        assert not builder.ready(dsos(paths[-1]))
        for path in paths:
            assert same(builder.table(dsos(path)), expected(path))
        assert 80 <= builder.built <= 240, "at most once for each time that it is asked for"
        builder.prefetch([dsos(paths[0])])
        deadline = time.monotonic() + 10
        while not builder.ready(dsos(paths[0])):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for start in (1, 41):  # nobody asks for these: the first ones go
            builder.prefetch(dsos(path) for path in paths[start : start + 40])
            while not builder.ready(dsos(paths[start + 20])):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert same(builder.table(dsos(paths[1])), expected(paths[1]))


def test_files_for_which_there_is_no_room_yet_are_expected(
    tmp_path: Path, dsos: Callable[[Path], Dso]
) -> None:
    """Who must not wait asks for a table when it is not expected any more: a program that loads a plug-in with 300
    libraries had most of these built while all else stood still."""
    paths = [elf_file(tmp_path / f"{number}") for number in range(200)]
    files = [dsos(path) for path in paths]
    with TableBuilder() as builder:
        builder.prefetch(files)
        deadline = time.monotonic() + 30
        while not builder.ready(files[0]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert all(builder.expected(each) for each in files[100:])
        waiting = dict(zip(paths, files, strict=True))
        while waiting:
            assert time.monotonic() < deadline
            for path, dso in list(waiting.items()):
                if not builder.expected(dso):
                    assert builder.ready(dso)
                    assert same(builder.table(dso), expected(path))
                    del waiting[path]
            builder.go_on(waiting.values())
            time.sleep(0.01)
        assert builder.built == 200


def test_files_that_somebody_waits_for_come_first(
    tmp_path: Path, dsos: Callable[[Path], Dso], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that has just begun has hundreds to read for all that runs; who attaches looks at one process."""
    files = [dsos(elf_file(tmp_path / f"{number}")) for number in range(200)]
    with TableBuilder() as builder:
        begun, build = [], builder._client.build

        def note(path: str, *given: Any) -> UnwindTable:
            begun.append(path)
            return build(path, *given)

        monkeypatch.setattr(builder._client, "build", note)
        pid = started(builder, files[0])
        os.kill(pid, signal.SIGSTOP)
        builder.prefetch(files[1:])
        wanted = [files[40], files[150], files[199]]  # one in the queue, and two for which there was no room
        builder.hurry(wanted)
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 30
        while not all(map(builder.ready, wanted)):
            assert time.monotonic() < deadline
        assert {dso.path for dso in wanted} <= set(begun[:8]), "before the others"
        waiting = files[1:]
        while waiting := [dso for dso in waiting if builder.expected(dso)]:
            assert time.monotonic() < deadline
            builder.go_on(waiting)
            time.sleep(0.01)
        assert builder.built == 200, "which are not forgotten"


def test_who_waits_for_a_table_does_not_wait_for_all_others(
    tmp_path: Path, dsos: Callable[[Path], Dso]
) -> None:
    files = [dsos(elf_file(tmp_path / f"{number}")) for number in range(60)]
    with TableBuilder() as builder:
        pid = started(builder, files[0])
        os.kill(pid, signal.SIGSTOP)
        builder.prefetch(files[1:])
        goes_on = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))
        goes_on.start()
        assert same(builder.table(files[59]), expected(files[59].path))
        assert builder.built < 30, "of 60, when one was being built"
        goes_on.join()


def test_tables_of_a_process(tmp_path: Path) -> None:
    with DsoCache() as cache:
        files = LoadMap.read(os.getpid(), None, cache).dsos()
        for _ in range(2):
            with TableBuilder(TableCache(tmp_path)) as builder:
                builder.prefetch(files)
                tables = {dso.path: builder.table(dso) for dso in files}
                assert builder.problems == {}
            assert tables[next(path for path in tables if "libc.so" in path)]
            assert all(table is not None for path, table in tables.items() if path[0] == "/")
            assert (tables.get("[vdso]") is not None) is ("[vdso]" in tables)
        begin = time.process_time()
        with TableBuilder(TableCache(tmp_path)) as builder:
            assert all(builder.table(dso) for dso in files if dso.elf is not None and dso.build_id)
            assert builder.built == 0
        assert time.process_time() - begin < 1.0


def test_files_that_cannot_have_a_table(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    (tmp_path / "text").write_text("no ELF file")
    (tmp_path / "arm").write_bytes(elf_bytes(eh_frame((CODE, 9, b"")), machine=183))
    empty = tmp_path / "empty"
    empty.write_bytes(elf_bytes(b"", header=b""))
    with TableBuilder() as builder:
        assert builder.table(dsos(tmp_path / "text")) is None
        assert builder.table(dsos(tmp_path / "arm")) is None
        assert builder.problems.keys() == {str(tmp_path / "arm")}
        problem = builder.problems[str(tmp_path / "arm")]
        assert problem == f"{tmp_path / 'arm'} is not for x86-64 (machine 183)"
        table = builder.table(dsos(empty))
        assert table is not None and table.count == 0
        assert builder.table(Dso(("label", "[anon]"), "[anon]", problem="no file")) is None
        pid = builder.worker_pid
        assert pid
    assert not Path(f"/proc/{pid}").exists()


def started(builder: TableBuilder, dso: Dso) -> int:
    assert builder.table(dso) is not None
    return builder.worker_pid


def test_a_child_that_hangs(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    good, bad = dsos(elf_file(tmp_path / "good")), dsos(elf_file(tmp_path / "bad"))
    with TableBuilder(file_seconds=60) as builder:  # a busy machine takes long to start a child
        for _ in range(2):
            pid = started(builder, good)
            os.kill(pid, signal.SIGSTOP)
            builder._file_seconds = 0.5
            begin, watch = time.monotonic(), Stopwatch()
            assert builder.table(bad) is None
            assert time.monotonic() - begin > 0.4 and watch.seconds < 3
            builder._file_seconds = 60
            assert "too long" in builder.problems[bad.path]
            assert not Path(f"/proc/{pid}").exists()
        pid = started(builder, good)
        assert builder.table(bad) is None  # not asked for a third time
        assert builder.worker_pid == pid


def test_a_child_that_crashes(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    good, bad = dsos(elf_file(tmp_path / "good")), dsos(elf_file(tmp_path / "bad"))
    with TableBuilder() as builder:
        pid = started(builder, good)
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        assert builder.table(good) is not None  # dead between requests: nobody's fault
        assert builder.worker_pid != pid
        pid = builder.worker_pid
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
        timer.start()
        assert builder.table(bad) is None
        timer.join()
        assert "the child was killed" in builder.problems[bad.path]
        assert builder.table(bad) is not None  # a second attempt
        assert bad.path not in builder.problems


def test_close_does_not_wait_for_a_child_that_hangs(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    files = [dsos(elf_file(tmp_path / f"{number}")) for number in range(20)]
    builder = TableBuilder()
    pid = started(builder, files[0])
    os.kill(pid, signal.SIGSTOP)
    builder.prefetch(files)
    watch = Stopwatch()
    builder.close()
    assert watch.seconds < 3
    assert builder.table(files[1]) is None
    builder.trim()
    builder.close()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    "answer", [{}, {"rows": -1}, {"rows": 1 << 30}, {"rows": "9"}, {"rows": None}, {"problem": 5}]
)
def test_answers_are_checked(
    answer: dict[str, object], tmp_path: Path, dsos: Callable[[Path], Dso], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableClient, "ask", lambda *_: answer)
    path = elf_file(tmp_path / "a")
    with TableBuilder() as builder:
        assert builder.table(dsos(path)) is None
        assert builder.problems.keys() == {str(path)}


def test_notes_are_checked(
    tmp_path: Path, dsos: Callable[[Path], Dso], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableClient, "ask", lambda *_: {"rows": 0, "notes": {"\x1b": 1, "a": "b"}})
    with TableBuilder() as builder:
        table = builder.table(dsos(elf_file(tmp_path / "a")))
        assert table is not None and table.notes == {"\\x1b": 1}
        monkeypatch.setattr(TableClient, "ask", lambda *_: {"rows": 0, "notes": 7})
        table = builder.table(dsos(elf_file(tmp_path / "b")))
        assert table is not None and table.notes == {}


def partly_described(path: Path) -> Path:
    """A library with code that has no call frame information: two words are pushed there."""
    bare = "push %rbx\npush %rcx\n.fill 40, 1, 0x90\npop %rcx\npop %rbx\nret\n.fill 20, 1, 0x90\n"
    described = "first: .cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\npop %rbx\nret\n.cfi_endproc\n"
    path.with_suffix(".s").write_text(f".text\n.globl first\n{described}.globl bare\nbare: {bare}")
    command = ["gcc", "-shared", "-nostdlib", "-Wl,--build-id", "-o", str(path), str(path.with_suffix(".s"))]
    subprocess.run(command, check=True)
    return path


def test_code_that_takes_long_is_followed_when_there_is_time(
    tmp_path: Path, dsos: Callable[[Path], Dso], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCV's, 22 MiB of Intel's: whoever looks first gets a table without it, those behind a whole one."""
    monkeypatch.setattr("parprof.unwind.table.add_prologues", lambda rows, _: rows)
    dso = dsos(partly_described(tmp_path / "code.so"))
    assert dso.elf is not None
    inside = dso.elf.lookup(["bare"])["bare"][0].value + 20
    cache = TableCache(tmp_path / "cache")

    def on_disk() -> caching.Table:
        table = cache.load(dso.content_name(), dso.build_id)
        assert table is not None
        return table

    def wait_until_whole() -> caching.Table:
        deadline = time.monotonic() + 30
        while UNFOLLOWED in (table := on_disk()).notes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return table

    with TableBuilder(cache, follow_bytes=16) as builder:
        first = builder.table(dso)
        assert first is not None and first.rule(inside) == 0 and first.notes[UNFOLLOWED] > 60
        assert wait_until_whole().rule(inside) == pack(RuleType.RSP, 24)
        deadline = time.monotonic() + 30
        while not (whole := builder.take_whole()):  # it is told when it is on disk
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert whole == {dso.key} and not builder.take_whole()
    assert builder.built == 1
    cache.store(dso.content_name(), UnwindTable(first.rows, dso.build_id, first.notes))
    with TableBuilder(cache) as builder:  # it did not come to it then
        again = builder.table(dso)
        assert again is not None and again.rule(inside) == 0
        assert wait_until_whole().rule(inside) == pack(RuleType.RSP, 24)
    assert (builder.built, builder.loaded) == (0, 1)


def test_what_cannot_be_followed_later_is_not_tried_each_time(
    tmp_path: Path, dsos: Callable[[Path], Dso], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> UnwindTable:
        raise WorkerFailed("crashed")

    dso, cache = dsos(partly_described(tmp_path / "code.so")), TableCache(tmp_path / "cache")
    name = dso.content_name()
    table = UnwindTable(ROWS, dso.build_id, {UNFOLLOWED: 100, "CFA register": 3})
    monkeypatch.setattr(TableClient, "build", fail)
    for closes in (True, False):
        cache.store(name, table)
        with LaterTables(cache) as later:
            if not closes:
                later.complete(table, dso)
                deadline = time.monotonic() + 30
                while UNFOLLOWED in cache.load(name, dso.build_id).notes:  # type: ignore[union-attr]
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            assert not later.take_whole(), "it is as it was"
        stored = cache.load(name, dso.build_id)
        assert stored is not None and stored.rows == ROWS
        assert stored.notes == (table.notes if closes else {"CFA register": 3})


def test_following_later_ends_at_once(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    """With the command; the next one begins anew."""
    dso, cache = dsos(partly_described(tmp_path / "code.so")), TableCache(tmp_path / "cache")
    table = UnwindTable(ROWS, dso.build_id, {UNFOLLOWED: 100})
    cache.store(dso.content_name(), table)
    with LaterTables(cache) as later:
        later._client.prepare()
        os.kill(later._client.pid, signal.SIGSTOP)
        later.complete(table, dso)
        child = later._client.pid
    assert not Path(f"/proc/{child}").exists()
    stored = cache.load(dso.content_name(), dso.build_id)
    assert stored is not None and UNFOLLOWED in stored.notes


def test_the_child_gives_up_privileges_and_ends(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    with TableBuilder() as builder:
        pid = started(builder, dsos(elf_file(tmp_path / "a")))
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        if os.geteuid() == 0:
            assert "Uid:\t65534\t65534" in status
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(rf"^Max address space +{worker.MEMORY_LIMIT} ", limits, re.MULTILINE)
        builder.trim(idle_seconds=60)
        assert builder.worker_pid == pid
        builder.trim(idle_seconds=0)
        assert builder.worker_pid == 0
    assert not Path(f"/proc/{pid}").exists()


def test_memory_of_the_parent_stays_small(tmp_path: Path, dsos: Callable[[Path], Dso]) -> None:
    path = tmp_path / "big"
    count = 1 << 16
    head = cie()
    functions = b"".join(
        fde(len(head) + 32 * n, (1 << 24) + 16 * n, 16, b"\x41\x0e\x10\x41\x0e\x18\x41\x0e\x20")
        for n in range(count)
    )
    assert len(functions) == 32 * count
    path.write_bytes(elf_bytes(head + functions + bytes(4), code=1 << 24, code_size=count * 16))
    gc.collect()
    with TableBuilder() as builder:
        started(builder, dsos(elf_file(tmp_path / "small")))
        before = anonymous_kb()
        table = builder.table(dsos(path))
        assert table is not None and table.count == 4 * count + 1
        assert anonymous_kb() - before < 4096


def anonymous_kb() -> int:
    match = re.search(r"^RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match
    return int(match[1])


def test_the_answer_of_the_child(tmp_path: Path) -> None:
    path = elf_file(tmp_path / "a")
    with open(path, "rb") as source, open(tmp_path / "rows", "w+b") as out:
        assert worker.answer({}, [source.fileno(), out.fileno()]) == {"problem": "", "rows": 3, "notes": {}}
        assert out.read() == expected(path).rows
        assert "not an ELF" in worker.answer({}, [out.fileno(), out.fileno()])["problem"]
        assert worker.answer({}, [source.fileno()])["problem"]
        assert worker.answer({}, [])["problem"]
    with open(path, "rb") as source:
        assert worker.answer({}, [source.fileno(), source.fileno()])["problem"]  # not open for writing


def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> UnwindTable:
        raise MemoryError

    monkeypatch.setattr(worker, "build_table", exhausted)
    with open(elf_file(tmp_path / "a"), "rb") as source:
        assert "memory" in worker.answer({}, [source.fileno(), source.fileno()])["problem"]
