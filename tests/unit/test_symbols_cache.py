# SPDX-License-Identifier: Apache-2.0
"""The cache on disk: used, trusted only where nobody else can write, rebuilt when damaged, bounded."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parprof.cache import CacheFile, DiskCache
from parprof.files.dso_cache import DsoCache
from parprof.model import Frame
from parprof.symbols import symcache
from parprof.symbols.symbolizer import Symbolizer
from symbol_programs import address_of, compile_program, line_of, need_symbolic, open_dso


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("cache") / "program")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where cache files are to appear."""
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    return tmp_path / "cache/symbols"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the cache files that were written since."""
    names: list[str] = []
    commit = CacheFile.commit

    def counted(self: CacheFile) -> bool:
        names.append(self.name)
        return commit(self)

    monkeypatch.setattr(CacheFile, "commit", counted)
    return names


@pytest.fixture
def dsos() -> Iterator[DsoCache]:
    with DsoCache() as out:
        yield out


def main_of(path: Path, dsos: DsoCache) -> tuple[Frame, dict[str, str]]:
    """The frame of ``main`` from a symbolizer of its own, and the problems there were."""
    dso = open_dso(dsos, path)
    with Symbolizer() as symbolizer:
        return symbolizer.frames(dso, address_of(dso, "main"), False)[-1], symbolizer.problems


def test_used_again(program: Path, folder: Path, written: list[str], dsos: DsoCache) -> None:
    need_symbolic()
    first, _ = main_of(program, dsos)
    assert first.line == line_of("int main")
    (file,) = folder.iterdir()
    assert written == [file.name]
    assert file.name.startswith(open_dso(dsos, program).build_id + "-")
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    os.utime(file, (1, 1))
    assert main_of(program, dsos) == (first, {})
    assert len(written) == 1
    assert file.stat().st_atime > 1_000_000 and file.stat().st_mtime == 1


def test_damaged_files_are_built_again(
    program: Path, folder: Path, written: list[str], dsos: DsoCache
) -> None:
    need_symbolic()
    first, _ = main_of(program, dsos)
    (file,) = folder.iterdir()
    good = file.read_bytes()
    dice = random.Random(1)
    damaged = [b"", b"x", good[:-1], good[: len(good) // 2], good + b"\0", bytes(len(good)), good[:-64]]
    for _ in range(3):
        at = dice.randrange(len(good))
        damaged.append(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
    damaged.append(good.replace(symcache._version(), b"0.0.1 7"))
    for number, content in enumerate(damaged, 2):
        file.write_bytes(content)
        assert main_of(program, dsos) == (first, {})
        assert len(written) == number, f"damage {number - 2}"
        assert file.read_bytes() == good


def test_one_build_id_two_files(folder: Path, written: list[str], dsos: DsoCache, tmp_path: Path) -> None:
    """Names of one must not show up in the other: anybody can make a file with the build id of another."""
    need_symbolic()
    for name in ("good", "evil"):
        source = tmp_path / f"{name}.c"
        source.write_text(f"int {name}(int x) {{ return x + 1; }} int main(int c) {{ return {name}(c); }}")
        command = ["gcc", "-g", "-O0", "-Wl,--build-id=0x" + "12" * 20, source, "-o", tmp_path / name]
        subprocess.run(list(map(str, command)), check=True)
    for _ in range(2):
        for name in ("evil", "good"):
            dso = open_dso(dsos, tmp_path / name)
            with Symbolizer() as symbolizer:
                assert symbolizer.frames(dso, address_of(dso, name), False)[-1].name == name
    assert len(written) == len(set(written)) == 2
    assert len(list(folder.iterdir())) == 2


def test_no_build_id_no_cache(program: Path, folder: Path, dsos: DsoCache, tmp_path: Path) -> None:
    path = tmp_path / "bare"
    subprocess.run(["objcopy", "--remove-section=.note.gnu.build-id", program, path], check=True)
    assert main_of(path, dsos)[0].name == "main"
    assert not folder.exists()


def test_no_debug_information_no_cache(program: Path, folder: Path, dsos: DsoCache, tmp_path: Path) -> None:
    subprocess.run(["strip", "-g", "-o", tmp_path / "names", program], check=True)
    assert main_of(tmp_path / "names", dsos)[0].name == "main"
    assert not folder.exists()


@pytest.mark.parametrize("what", ["base writable", "folder writable", "file", "no directory", "link"])
def test_not_trusted(
    what: str, program: Path, folder: Path, written: list[str], dsos: DsoCache, tmp_path: Path
) -> None:
    need_symbolic()
    first, _ = main_of(program, dsos)
    (file,) = folder.iterdir()
    used = True
    if what == "base writable":
        folder.parent.chmod(0o777)
        used = False
    elif what == "folder writable":
        folder.chmod(0o770)
        used = False
    elif what == "file":
        file.chmod(0o666)
    elif what == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        folder.rmdir()
        folder.write_text("")
        used = False
    written.clear()
    assert main_of(program, dsos) == (first, {})
    assert len(written) == used  # made anew, or not at all
    if used:
        assert file.stat().st_mode & 0o777 == 0o600 and not file.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_not_trusted_if_of_others(program: Path, folder: Path, written: list[str], dsos: DsoCache) -> None:
    need_symbolic()
    main_of(program, dsos)
    (file,) = folder.iterdir()
    os.chown(file, 4711, 4711)
    main_of(program, dsos)
    assert len(written) == 2 and file.stat().st_uid == 0
    os.chown(folder, 4711, 4711)
    main_of(program, dsos)
    assert len(written) == 2


def test_names_of_files(tmp_path: Path) -> None:
    cache = DiskCache("x", 1 << 20, tmp_path)
    for name in ("", ".", "..", "../a", "a/b", ".new-1", "x" * 300):
        assert cache.new(name) is None
    assert cache.open("nothing") is None and cache.problem == ""
    cache.remove("nothing")


def put(cache: DiskCache, name: str, size: int) -> None:
    new = cache.new(name)
    assert new is not None
    with new:
        os.write(new.fd, b"x" * size)
        assert new.commit()


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = DiskCache("x", 120_000, tmp_path)
    for index in range(9):
        put(cache, f"file{index}", 10_000)
        os.utime(tmp_path / f"x/file{index}", (1000 + index, 1000))
    fd = cache.open("file0")
    assert fd is not None
    os.close(fd)
    for index in range(9, 12):
        put(cache, f"file{index}", 10_000)
    left = {file.name for file in (tmp_path / "x").iterdir()}
    assert {"file0", "file11"} <= left and not {"file1", "file2"} & left
    put(cache, "large", 200_000)  # more than all of it: only itself
    assert {file.name for file in (tmp_path / "x").iterdir()} == {"large"}


def test_hundreds_of_files_are_not_looked_through_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, scandir = [0], os.scandir

    def counted(*arguments: int) -> Any:
        looks[0] += 1
        return scandir(*arguments)

    monkeypatch.setattr(os, "scandir", counted)
    cache = DiskCache("x", 1 << 20, tmp_path)
    for index in range(500):
        assert cache.write(f"file{index}", bytes(9000))
        used = sum(max(4096, file.stat().st_blocks * 512) for file in (tmp_path / "x").iterdir())
        assert used <= 1 << 20
    assert index + 1 > used // 12288 and looks[0] - 500 < 100, "iterdir is one of them"


def test_unfinished_files(tmp_path: Path) -> None:
    cache = DiskCache("x", 100_000, tmp_path)
    new = cache.new("a")
    assert new is not None
    with new:
        assert cache.open("a") is None
    assert list((tmp_path / "x").iterdir()) == []
    for name, age in ((".new-1-old", 86400), (".new-1-fresh", 0)):
        (tmp_path / "x" / name).write_text("")
        now = os.stat(tmp_path / "x" / name).st_mtime
        os.utime(tmp_path / "x" / name, (now - age, now - age))
    cache.prune()
    assert [file.name for file in (tmp_path / "x").iterdir()] == [".new-1-fresh"]


def test_size_of_one_file_is_bounded(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_symbolic()
    with open(program, "rb") as file:
        built = symcache.build(file.fileno())
    with open(tmp_path / "out", "w+b") as out:
        assert symcache.save(built, os.dup(out.fileno()))
        assert symcache.load(out.fileno()) is not None
        monkeypatch.setattr(symcache, "MAX_FILE", 4096)
        assert symcache.load(out.fileno()) is None
        assert not symcache.save(built, os.dup(out.fileno()))


def test_a_directory_that_is_gone_or_another_is_not_read_on(tmp_path: Path) -> None:
    """It is kept open, as hundreds of files are looked for there."""
    one, other = tmp_path / "one", tmp_path / "other"
    cache = DiskCache("things", 1 << 20, one)
    assert cache.read("a") is None
    assert cache.write("a", b"first") and cache.read("a") == b"first"
    one.rename(other)
    assert cache.write("a", b"second") and cache.read("b") is None
    shutil.rmtree(one)
    assert cache.read("a") is None and cache.write("a", b"third") and cache.read("a") == b"third"
    (one / "things").chmod(0o777)
    assert cache.read("a") is None and "others than root and we can write" in cache.problem


def test_its_directory_is_closed_with_it(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    cache = DiskCache("things", 1 << 20, tmp_path)
    assert cache.write("a", b"x") and cache.read("a") == b"x"
    del cache
    assert set(os.listdir("/proc/self/fd")) <= before
