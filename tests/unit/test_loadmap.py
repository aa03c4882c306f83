# SPDX-License-Identifier: Apache-2.0
"""parprof.process.loadmap and parprof.files.dso with live processes, and with lines that no kernel would print."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import fcntl
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parprof.errors import TargetError
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.elf import ElfFile
from parprof.files.maps_line import MapsLine, parse_line
from parprof.probes.plan import maps_runtime
from parprof.process.executable import ExecutableMappings
from parprof.process.loadmap import LoadMap, Mapping, mapped_names

LIBC = ctypes.util.find_library("c") or "libc.so.6"
CHILD = """
import mmap, os, sys
kept = []
for name in sys.argv[2:]:
    fd = os.open(name, os.O_RDONLY)
    size = max(os.fstat(fd).st_size, 1)
    kept.append(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    os.close(fd)
    if sys.argv[1] == "unlink":
        os.unlink(name)
if sys.argv[1] == "anonymous":
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    kept.append(mmap.mmap(-1, 8192, flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
if sys.argv[1] == "shared":
    kept.append(mmap.mmap(-1, 8192, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def mapping_child(how: str, *names: Path) -> Iterator[int]:
    """A process that maps these files as code."""
    command = [sys.executable, "-c", CHILD, how, *map(str, names)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def libc_path() -> Path:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libc." in line:
            return Path(line.split()[-1])
    pytest.skip("this Python uses no shared libc")


def test_own_functions_are_found(cache: DsoCache) -> None:
    load_map = LoadMap.read(os.getpid(), None, cache)
    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value or 0
    found = load_map.find(address)
    assert found is not None
    dso, vaddr = found
    assert dso.name.startswith("libc")
    assert dso.elf is not None
    assert vaddr in {symbol.value for symbol in dso.elf.lookup(["getpid", "__getpid"]).get("getpid", ())}
    with ElfFile.open(dso.path) as elf:
        assert elf.build_id == dso.build_id != ""
    assert (dso.device, dso.inode) == (os.stat(dso.path).st_dev, os.stat(dso.path).st_ino)


def test_what_a_process_will_need_is_told_by_names(tmp_path: Path) -> None:
    """Whether programs for work edges are to be loaded, before anything of its files is known."""
    plain, bundled, polling = (
        tmp_path / name for name in ("libplain.so", "libgomp-a34b.so.1.0.0", "libopenblas.so")
    )
    for path in (plain, bundled, polling):
        shutil.copy(libc_path(), path)
    with mapping_child("keep", plain, polling) as pid:
        assert {plain.name, polling.name} <= mapped_names(pid)
        assert not maps_runtime(pid)
    with mapping_child("unlink", plain, bundled) as pid:
        assert maps_runtime(pid)
    assert not mapped_names(pid) and not maps_runtime(pid), "it has ended"


def test_gaps_and_ends(cache: DsoCache) -> None:
    load_map = LoadMap.read(os.getpid(), None, cache)
    assert load_map.find(0) is None
    assert load_map.find((1 << 64) - 1) is None
    for mapping in load_map.mappings:
        assert load_map.find(mapping.start) is not None
        found = load_map.find(mapping.end - 1)
        assert found is not None and found[0] is mapping.dso
        after = load_map.find(mapping.end)
        assert (
            after is None
            or after[0] is not mapping.dso
            or any(m.start == mapping.end for m in load_map.mappings)
        )


def test_epochs(cache: DsoCache) -> None:
    first = LoadMap.read(os.getpid(), None, cache)
    assert LoadMap.read(os.getpid(), first, cache) is first
    with mapping_child("keep") as pid:
        other = LoadMap.read(pid, first, cache)
        assert other is not first
        shared = {dso.key: dso for dso in first.dsos()}
        assert any(shared.get(dso.key) is dso for dso in other.dsos() if dso.key[0] == "file")
        assert LoadMap.read(pid, other, cache) is other


def test_vdso(cache: DsoCache) -> None:
    load_map = LoadMap.read(os.getpid(), None, cache)
    images = [dso for dso in load_map.dsos() if dso.key[0] == "vdso"]
    if not images:
        pytest.skip("this kernel maps no vdso, or hides it")
    (image,) = images
    assert image.name == "[vdso]"
    assert image.elf is not None
    assert any(symbol.name.endswith("clock_gettime") for symbol in image.elf.symbols())
    with mapping_child("keep") as pid:
        assert any(dso is image for dso in LoadMap.read(pid, None, cache).dsos())


@pytest.mark.parametrize("how", ["anonymous", "shared"])
def test_anonymous_code(cache: DsoCache, how: str) -> None:
    with mapping_child(how) as pid:
        load_map = LoadMap.read(pid, None, cache)
        (dso,) = [dso for dso in load_map.dsos() if dso.name == "[anon]"]
        mapping = next(mapping for mapping in load_map.mappings if mapping.dso is dso)
        assert load_map.find(mapping.start + 5) == (dso, mapping.start + 5)
        assert dso.elf is None
        assert dso.build_id == ""
        with pytest.raises(TargetError):
            dso.fd()


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "new\nline",
        "back\\012slash",
        "ends (deleted)",
        "esc\x1b[31m",
        "\udcff bytes",
        "ü",
    ],
)
@pytest.mark.parametrize("how", ["keep", "unlink"])
def test_hostile_file_names(cache: DsoCache, tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / name
    shutil.copy(libc_path(), path)
    size = path.stat().st_size
    if how == "unlink" and not can_open_map_files():
        pytest.skip("opening /proc/PID/map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")
    with mapping_child(how, path) as pid:
        load_map = LoadMap.read(pid, None, cache)
        (dso,) = [d for d in load_map.dsos() if str(tmp_path) in d.path]
        assert dso.path.isprintable()
        assert dso.elf is not None
        assert os.fstat(dso.fd()).st_size == size
    dso.build_id  # noqa: B018  the process is gone, the file is still open
    assert dso.elf.read_at(0, 4) == b"\x7fELF"


def can_open_map_files() -> bool:
    line = Path("/proc/self/maps").read_text().splitlines()[0]
    try:
        os.stat(f"/proc/self/map_files/{line.split()[0]}")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("name", ["plain", "with space", "new\nline", "back\\012slash", "ends (deleted)"])
def test_without_map_files(
    cache: DsoCache, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_stat = os.stat

    def refuse(path: object, *rest: object, **named: object) -> os.stat_result:
        if isinstance(path, bytes) and b"/map_files/" in path:
            raise PermissionError(1, "Operation not permitted")
        return real_stat(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("parprof.files.dso.os.stat", refuse)
    path = tmp_path / name
    shutil.copy(libc_path(), path)
    with mapping_child("keep", path) as pid:
        load_map = LoadMap.read(pid, None, cache)
        (dso,) = [d for d in load_map.dsos() if str(tmp_path) in d.path]
        assert dso.inode == path.stat().st_ino
        shutil.copy(libc_path(), tmp_path / "new")
        os.replace(tmp_path / "new", path)  # another file by that name is not taken for it
        with DsoCache() as fresh:
            (dso,) = [d for d in LoadMap.read(pid, None, fresh).dsos() if str(tmp_path) in d.path]
            assert dso.elf is None
            assert dso.problem
            assert dso.vaddr(0x1234) == 0x1234


def test_not_an_elf_file(cache: DsoCache, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 5000)
    with mapping_child("keep", tmp_path / "text") as pid:
        load_map = LoadMap.read(pid, None, cache)
        mapping = next(m for m in load_map.mappings if m.dso.name == "text")
        assert load_map.find(mapping.start + 9) == (mapping.dso, 9)
        assert "not an ELF file" in mapping.dso.problem


def test_process_gone(cache: DsoCache) -> None:
    with mapping_child("keep") as pid:
        LoadMap.read(pid, None, cache)
    with pytest.raises(TargetError, match=f"process {pid} has ended"):
        LoadMap.read(pid, None, cache)


def test_zombie(cache: DsoCache) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TargetError, match="no code of its own"):
        LoadMap.read(child.pid, None, cache)
    child.wait()


def test_open_files_are_bounded(tmp_path: Path) -> None:
    names = []
    for number in range(8):
        names.append(tmp_path / f"file{number}")
        shutil.copy(libc_path(), names[-1])
    before = len(os.listdir("/proc/self/fd"))
    with mapping_child("keep", *names) as pid, DsoCache(max_open=3) as cache:
        load_map = LoadMap.read(pid, None, cache)
        assert sum(dso.is_open for dso in load_map.dsos() if dso.key[0] == "file") == 3
        for dso in load_map.dsos():
            if dso.name.startswith("file"):
                assert dso.build_id  # opened again
        assert sum(dso.is_open for dso in load_map.dsos() if dso.key[0] == "file") == 3
        last = [dso for dso in load_map.dsos() if dso.is_open and dso.name.startswith("file")][0]
        cache.close_unused([last])
        assert len(cache) == 1
        assert last.is_open
    del load_map, dso, last
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_dso_context_manager(cache: DsoCache) -> None:
    dso = LoadMap.read(os.getpid(), None, cache).dsos()[0]
    with dso:
        assert dso.fd() >= 0
    assert not dso.is_open
    assert dso.fd() >= 0


def mappings_of(pid: int) -> list[MapsLine]:
    with ExecutableMappings(pid) as now:
        parsed = [raw.parsed() for raw in now.read()]
    return [one for one in parsed if one is not None and one.path != b"[vsyscall]"]


def kernel_can_be_asked() -> bool:
    """Whether it knows the question: one of no size is wrong, rather than none that it understands."""
    with open("/proc/self/maps", "rb") as file:
        try:
            fcntl.ioctl(file, 0xC0686611, bytearray(104))
        except OSError as error:
            return error.errno != errno.ENOTTY
    return True


def test_who_is_asked_says_what_the_text_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with anything in them, files that are gone, memory without a file."""
    names = [tmp_path / name for name in ("a b", "new\nline", "lit\\012eral", "x (deleted)")]
    for name in names:
        name.write_bytes(bytes(4096))
    for how, files in (("unlink", names), ("anonymous", []), ("shared", [])):
        with mapping_child(how, *files) as pid:
            asked = mappings_of(pid)
            assert ExecutableMappings._can_ask is kernel_can_be_asked()
            monkeypatch.setattr(ExecutableMappings, "_can_ask", False)
            assert mappings_of(pid) == asked and len(asked) > len(files)
            monkeypatch.undo()


def test_a_process_in_the_middle_of_an_exec_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no code of its own then, but the page that all have (unless the kernel was told to have none)."""
    monkeypatch.setattr(ExecutableMappings, "_ask", lambda *_: False)
    with ExecutableMappings(os.getpid()) as now:
        assert [raw.told for raw in now.read() if raw.path is None], "the text says what there is"


def test_a_path_that_is_longer_than_the_kernel_can_say(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open("file", os.O_RDWR | os.O_CREAT, dir_fd=here)
    try:
        os.write(file, bytes(4096))
        with mapping_child("", Path(f"/proc/{os.getpid()}/fd/{file}")) as pid:
            assert [one.inode for one in mappings_of(pid)].count(os.fstat(file).st_ino) == 1
    finally:
        os.close(file)
        os.close(here)


def test_parse_line() -> None:
    line = parse_line(b"7fc0ec2fb000-7fc0ec451000 r-xp 00026000 fe:00 339380      /usr/lib/a b (deleted)\n")
    assert line == MapsLine(
        0x7FC0EC2FB000, 0x7FC0EC451000, True, 0x26000, os.makedev(0xFE, 0), 339380, b"/usr/lib/a b (deleted)"
    )
    line = parse_line(
        b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
    )
    assert line is not None and line.executable and line.path == b"[vsyscall]"
    line = parse_line(b"1000-2000 rw-p 00000000 00:00 0 \n")
    assert line is not None and not line.executable and line.path == b""


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_parse_any_line(line: bytes) -> None:
    parse_line(line)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [b"1000", b"-", b"2000", b" ", b"r-xp", b"0", b"ff:00", b"9" * 40, b"g", b"\xff", b"/x"]
        ),
        max_size=14,
    )
)
def test_parse_nearly_a_line(parts: list[bytes]) -> None:
    parsed = parse_line(b"".join(parts))
    assert parsed is None or parsed.start < parsed.end


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 4096)), max_size=20))
def test_find_is_exact(pieces: list[tuple[int, int]]) -> None:
    label = Dso(("label", "[anon]"), "[anon]", problem="no file")
    mappings = {}
    at = 0
    for gap, size in pieces:
        at += gap
        mappings[b"%d" % at] = Mapping(at, at + size, 0, label)
        at += size
    load_map = LoadMap(1, mappings)
    for mapping in mappings.values():
        for address in (mapping.start - 1, mapping.start, mapping.end - 1, mapping.end):
            inside = any(m.start <= address < m.end for m in mappings.values())
            assert (load_map.find(address) is not None) == inside
