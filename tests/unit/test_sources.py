# SPDX-License-Identifier: Apache-2.0
"""The source in the page: which lines, and which files are never read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof.exporters import sources
from parprof.model import Frame, ProcessInfo, Profile
from profiles import sample


def profile(*paths: list[Frame]) -> Profile:
    return Profile(
        ProcessInfo(cores=4),
        1.0,
        1000,
        [sample(path, 100, 1) for path in paths],
        start_time_s=1_700_000_000.0,
    )


def of(file: Path | str, line: int = 3, *, read: bool = True) -> dict[str, Any]:
    (found,) = sources.sources(profile([Frame("f", str(file), line)]), read=read)
    return found


def old(path: Path, text: str = "one\ntwo\nthree\nfour\n") -> Path:
    path.write_text(text)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


def test_lines_and_loops(tmp_path: Path) -> None:
    a, b = str(old(tmp_path / "a.c")), str(tmp_path / "b.c")
    loop = Frame("loop at a.c:2-3", a, 3, 2, is_loop=True)
    paths = [Frame("main", b, 7), Frame("f", a, 3), loop, Frame("write", module="libc.so.6")]
    recursion = [Frame("main", b, 7), Frame("main", b, 7), Frame("main", b, 8)]
    first, second = sources.sources(profile(paths, recursion), read=True)
    by_file = {one["file"]: one for one in (first, second)}
    assert by_file[a]["lines"] == {
        3: [300_000, 300_000, 100_000, 100_000, 100]
    }  # write's cost, where it was called
    assert by_file[a]["loops"] == [(2, 3)]
    assert by_file[a]["parts"] == [(1, ["one", "two", "three", "four", ""])]
    assert by_file[a]["note"] == ""
    assert by_file[b]["lines"] == {
        7: [0, 600_000, 0, 200_000, 200],  # once, though it recurs
        8: [300_000, 300_000, 100_000, 100_000, 100],
    }
    assert by_file[b]["parts"] == []
    assert by_file[b]["note"].startswith("not shown: No such file")


def test_only_around_what_was_sampled(tmp_path: Path) -> None:
    file = old(tmp_path / "x.py", "".join(f"{n}\n" for n in range(1, 1001)))
    frames = [[Frame("f", str(file), line)] for line in (3, 60, 500)]
    (found,) = sources.sources(profile(*frames), read=True)
    assert [(first, len(lines)) for first, lines in found["parts"]] == [(1, 100), (460, 81)]
    assert found["parts"][1][1][0] == "460"


def test_changed_since(tmp_path: Path) -> None:
    file = old(tmp_path / "x.c")
    assert of(file)["note"] == ""
    os.utime(file, (1_700_000_002, 1_700_000_002))
    assert of(file)["note"].startswith("changed since the recording")
    assert of(old(file), 5000)["note"].startswith("it has fewer lines")
    assert of(file, read=False) == {**of(file), "parts": [], "note": "left out (--no-source)"}


def test_only_regular_files_that_look_like_source_are_read(tmp_path: Path) -> None:
    real = old(tmp_path / "real.c", "secret\n" * 5)
    (tmp_path / "link.c").symlink_to(real)
    os.mkfifo(tmp_path / "fifo.c")  # to open it would wait for ever
    (tmp_path / "folder.c").mkdir()
    (tmp_path / "binary.c").write_bytes(b"\x7fELF\0\0")
    with (tmp_path / "huge.c").open("wb") as file:
        file.truncate(sources.MAX_FILE_BYTES + 1)
    for name in ("link.c", "fifo.c", "folder.c", "binary.c", "huge.c"):
        found = of(tmp_path / name)
        assert found["parts"] == [] and found["note"].startswith("not shown: "), name
    for name in (
        "/etc/shadow",
        "/etc/passwd",
        "/root/.ssh/id_rsa",
        "/proc/self/environ",
        "",
        "a\0.c",
        "x" * 9000 + ".c",
    ):
        if name:
            assert of(name)["parts"] == [], name
    assert of(real)["parts"]


def test_sudo_lends_no_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = old(tmp_path / "x.c")
    file.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(file.stat().st_uid + 1))
    assert of(file)["note"] == "not shown: who called sudo may not read it"
    file.chmod(0o644)
    assert of(file)["parts"]
    file.chmod(0o600)
    monkeypatch.setenv("SUDO_UID", str(file.stat().st_uid))
    assert of(file)["parts"]


def test_all_text_is_bounded_and_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_TEXT_BYTES", 300)
    frames = []
    for name in "abc":
        file = old(tmp_path / f"{name}.c", "\x1b[31m\u202e" + "x" * 5000 + "\n" + "y" * 100)
        frames.append([Frame("f", str(file), 1)])
    found = sources.sources(profile(*frames), read=True)
    text = [line for one in found for _, lines in one["parts"] for line in lines]
    assert sum(map(len, text)) <= 300
    assert all("\x1b" not in line and "\u202e" not in line for line in text)
    assert [one["note"] for one in found].count("cut short: there is too much of it") >= 2


def test_system_code_has_no_place(tmp_path: Path) -> None:
    path = [
        Frame("main", "/src/x.c", 1),
        Frame("malloc", "/build/glibc/malloc.c", 99, 1, "/usr/lib/libc.so.6"),
    ]
    (found,) = sources.sources(profile(path), read=False)
    assert found["file"] == "/src/x.c"
    assert found["lines"] == {1: [300_000, 300_000, 100_000, 100_000, 100]}
