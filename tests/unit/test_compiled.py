# SPDX-License-Identifier: Apache-2.0
"""Test programs are made again when anything that they are made of has changed, and else they are not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import compiled

SOURCE = '#include "value.h"\nint other(void);\nint main(void) { return VALUE + other(); }\n'


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "kept")
    return tmp_path / "kept"


def built(directory: Path, value: int, other: int, *flags: str) -> int:
    """What a program of two files and a header returns."""
    source, linked, program = directory / "main.c", directory / "other.o", directory / "program"
    source.write_text(SOURCE)
    (directory / "value.h").write_text(f"#define VALUE {value}\n")
    text = f"int other(void) {{ return {other}; }}"
    subprocess.run(["gcc", "-x", "c", "-c", "-", "-o", linked], input=text.encode(), check=True)
    compiled.compile_once(["gcc", *flags, source, linked, "-o", program], linked)
    return subprocess.run([program], check=False).returncode


def test_all_that_it_is_made_of_counts(kept: Path, tmp_path: Path) -> None:
    assert built(tmp_path, 3, 4) == 7 and len(list(kept.iterdir())) == 1
    assert built(tmp_path, 5, 4) == 9, "a header"
    assert built(tmp_path, 5, 1) == 6, "a file that it is linked with"
    assert built(tmp_path, 5, 1, "-O1") == 6 and len(list(kept.iterdir())) == 4
    assert built(tmp_path, 3, 4) == 7 and len(list(kept.iterdir())) == 4


def test_what_was_made_is_taken(kept: Path, tmp_path: Path) -> None:
    built(tmp_path, 3, 4)
    (made,) = kept.iterdir()
    made.write_text("#!/bin/sh\nexit 99\n")
    assert built(tmp_path, 3, 4) == 99
    assert built(tmp_path, 3, 5) == 8


def test_a_text_is_a_source_file(kept: Path, tmp_path: Path) -> None:
    command = ["gcc", "-x", "c", "-", "-o", tmp_path / "program"]
    for code in (3, 4, 3):
        compiled.compile_once(command, text=f"int main(void) {{ return {code}; }}")
        assert subprocess.run([tmp_path / "program"], check=False).returncode == code
    assert len(list(kept.iterdir())) == 2


def test_a_source_file_of_a_run_is_one_of_later_runs_too(kept: Path, tmp_path: Path) -> None:
    """Else the place of each run's own, which debug information has, would make it another program."""
    programs = set()
    for run, value in (("first", 3), ("second", 3), ("third", 4)):
        (tmp_path / run).mkdir()
        source = tmp_path / run / "main.c"
        source.write_text(f"int main(void) {{ return {value}; }}")
        where = compiled.kept_source(source)
        assert where.name == "main.c" and where.read_text() == source.read_text()
        compiled.compile_once(["gcc", "-g", where, "-o", tmp_path / "program"])
        assert subprocess.run([tmp_path / "program"], check=False).returncode == value
        programs.add((tmp_path / "program").read_bytes())
    assert len(programs) == len([one for one in kept.iterdir() if one.is_file()]) == 2


def test_where_nothing_can_be_kept_a_source_file_stays_where_it_is(kept: Path, tmp_path: Path) -> None:
    kept.write_text("")
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }")
    assert compiled.kept_source(source) == source


def test_of_what_does_not_compile_nothing_is_kept(kept: Path, tmp_path: Path) -> None:
    for text in ("int main(void) { return x; }", "#error no"):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            compiled.compile_once(["gcc", "-x", "c", "-", "-o", tmp_path / "program"], text=text)
        assert "error" in caught.value.__notes__[0]
    assert not kept.exists()


def test_old_ones_go(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_MAX_KEPT", 2)
    for value in range(3):
        built(tmp_path, value, 1)
    assert len(list(kept.iterdir())) == 1
