# SPDX-License-Identifier: Apache-2.0
"""Names of JIT-compiled code from /tmp/perf-PID.map, real and hostile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parprof.symbols import perfmap
from parprof.symbols.perfmap import PerfMap
from stopwatch import Stopwatch


class Process:
    """A process as ``/proc`` shows it, made of files."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.tmp = self.proc / "7/root/tmp"
        self.tmp.mkdir(parents=True)
        self.write_status(os.getuid())
        self.file = self.tmp / "perf-3.map"

    def write_status(self, uid: int) -> None:
        status = f"Name:\tNSpid: 9\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t7\t3\n"
        (self.proc / "7/status").write_text(status)

    def names(self, *addresses: int, seconds: float = 5.0) -> tuple[dict[int, str], str]:
        with PerfMap(7, self.proc) as found:
            return found.names(addresses, seconds), found.problem


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def test_names(process: Process) -> None:
    process.file.write_text(
        "1000 20 first\n1020 10 LazyCompile:*run /srv/a b.js:3\n0x2000 0x10 with prefix\n\n"
        "nonsense\n3000 zz bad\n4000 10\n5000 0 empty\n1000 10 moved\n7fff00000000 1000 high\n"
    )
    asked = (0xFFF, 0x1000, 0x100F, 0x1010, 0x1020, 0x1030, 0x2001, 0x3000, 0x4000, 0x5000, 0x7FFF00000FFF)
    assert process.names(*asked) == (
        {
            0x1000: "moved",
            0x100F: "moved",
            0x1010: "first",
            0x1020: "LazyCompile:*run /srv/a b.js:3",
            0x2001: "with prefix",
            0x7FFF00000FFF: "high",
        },
        "",
    )


def test_no_file_no_process(process: Process) -> None:
    assert process.names(0x1000) == ({}, "")
    with PerfMap(99, process.proc) as found:
        assert found.names([1]) == {}
    found.close()
    assert found.names([1]) == {}
    process.file.write_text("1000 20 a")  # no newline: still being written
    assert process.names(0x1000) == ({}, "")


@pytest.mark.parametrize("kind", ["link", "directory", "pipe", "link in tmp", "tmp is a link"])
def test_only_regular_files(kind: str, process: Process, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1000 20 secret\n")
    if kind == "link":
        process.file.symlink_to(tmp_path / "secret")
    elif kind == "directory":
        process.file.mkdir()
    elif kind == "pipe":
        os.mkfifo(process.file)
    else:
        process.tmp.rmdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "other/perf-3.map").write_text("1000 20 secret\n")
        process.tmp.symlink_to(tmp_path / "other")
    watch = Stopwatch()
    names, problem = process.names(0x1000)
    assert names == {} and watch.seconds < 2
    assert "link" in kind and "tmp" in kind or "regular" in problem or problem == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_only_files_of_the_user(process: Process) -> None:
    process.file.write_text("1000 20 theirs\n")
    os.chown(process.file, 4711, 4711)
    assert process.names(0x1000) == ({}, "perf-3.map is not used: it belongs to another user")
    process.write_status(4711)
    assert process.names(0x1000) == ({0x1000: "theirs"}, "")
    os.chown(process.file, 0, 0)
    assert process.names(0x1000) == ({0x1000: "theirs"}, "")


def test_text_is_made_harmless(process: Process) -> None:
    process.file.write_bytes(b"1000 20 \x1b[31mred\xff\r\n2000 10 " + b"n" * 100_000 + b"\n3000 10 last\n")
    names, _ = process.names(0x1000, 0x2000, 0x3000)
    assert names[0x1000] == "\\x1b[31mred\\xff"
    assert len(names[0x2000]) < 1100
    assert names[0x3000] == "last"


def test_a_line_without_end(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfmap, "_CHUNK", 1 << 12)
    process.file.write_bytes(b"1000 20 " + b"x" * 1_000_000 + b"\n2000 10 next\n")
    names, _ = process.names(0x1000, 0x2000)
    assert names == {0x2000: "next"}


def test_size_is_bounded(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfmap, "MAX_BYTES", 1 << 20)
    process.file.write_text("1000 20 first\n" + "2000 10 filler\n" * 100_000 + "3000 10 last\n")
    names, problem = process.names(0x1000, 0x3000)
    assert names == {0x1000: "first"}
    assert "too large" in problem


def test_time_is_bounded(process: Process) -> None:
    """Many lines that each cover all that is asked for."""
    process.file.write_text("0 ffffffffffff all\n" * 200_000)
    watch = Stopwatch()
    names, problem = process.names(*range(0, 100_000, 7), seconds=0.4)
    assert watch.seconds < 3
    assert problem and set(names.values()) <= {"all"}


@pytest.fixture
def jit() -> Iterator[subprocess.Popen[str]]:
    """A process that writes its own map file, as CPython 3.12 and node do."""
    script = (
        "import os\nwith open(f'/tmp/perf-{os.getpid()}.map', 'w') as f: f.write('1000 20 py::work:a.py\\n')\n"
        "print(flush=True)\ninput()\nos.unlink(f.name)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin and child.stdout
    child.stdout.readline()
    yield child
    child.communicate("\n")


def test_a_real_process(jit: subprocess.Popen[str]) -> None:
    with PerfMap(jit.pid) as found:
        assert found.names([0x1010]) == {0x1010: "py::work:a.py"}


def test_after_the_process(tmp_path: Path) -> None:
    script = "import os; open(f'/tmp/perf-{os.getpid()}.map', 'w').write('1000 20 ended\\n'); input()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True)
    file = Path(f"/tmp/perf-{child.pid}.map")
    try:
        with PerfMap(child.pid) as found:
            child.communicate("\n")
            assert found.names([0x1000]) == {0x1000: "ended"}
    finally:
        file.unlink(missing_ok=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_in_a_container(tmp_path: Path) -> None:
    """The file is below the process's root, under the process id of its namespace."""
    script = (
        "mount -t tmpfs none /tmp && echo '1000 20 contained' >/tmp/perf-1.map && chmod 600 /tmp/perf-1.map"
        " && echo ready && read x"
    )
    child = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert child.stdin and child.stdout
        if child.stdout.readline() != "ready\n":
            pytest.skip("cannot make namespaces here")
        inside = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])
        with PerfMap(inside) as found:
            assert found.names([0x1000]) == {0x1000: "contained"}
    finally:
        child.communicate("\n")


def test_a_map_that_has_grown_is_read_again(process: Process) -> None:
    process.file.write_text("1000 20 first\n")
    with PerfMap(7, process.proc) as found:
        assert found.names([0x1000, 0x2000]) == {0x1000: "first"}
        reads = count_reads(found)
        assert found.names([0x2000]) == {} and reads == []
        with process.file.open("a") as file:
            file.write("2000 20 second\n")
        assert found.names([0x2000]) == {0x2000: "second"} and len(reads) == 1


def count_reads(found: PerfMap) -> list[object]:
    reads: list[object] = []
    read = found._names

    def counted(wanted: list[int], seconds: float) -> dict[int, str]:
        reads.append(wanted)
        return read(wanted, seconds)

    found._names = counted  # type: ignore[method-assign]
    return reads
