"""Libraries for the target: built once, kept where nobody else can put one, and a clear error where that fails."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from parprof.errors import KernelUnsupported
from parprof.instruments import toolchain
from parprof.instruments.toolchain import Library

ANSWER = Library("answer", ("answer.c",), ("answer.h",))


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "sources"
    directory.mkdir()
    (directory / "answer.h").write_text("#define ANSWER 42\n")
    (directory / "answer.c").write_text('#include "answer.h"\nint answer(void) { return ANSWER; }\n')
    monkeypatch.setattr(toolchain, "source_directory", lambda: directory)
    monkeypatch.setattr(toolchain, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return directory


def test_it_is_built_once_and_works(sources: Path) -> None:
    path = ANSWER.path()
    assert ctypes.CDLL(str(path)).answer() == 42
    built = path.stat().st_mtime_ns
    assert ANSWER.path() == path and path.stat().st_mtime_ns == built
    (sources / "answer.h").write_text("#define ANSWER 43\n")
    assert ctypes.CDLL(str(ANSWER.path())).answer() == 43


def test_a_prebuilt_one_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.PREBUILT.mkdir()
    prebuilt = toolchain.PREBUILT / ANSWER.prebuilt_name
    prebuilt.write_bytes(b"")
    monkeypatch.setenv("PATH", "")
    assert ANSWER.path() == prebuilt


def test_no_compiler_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KernelUnsupported, match="apt install gcc"):
        ANSWER.path()


def test_what_the_compiler_says_is_told(sources: Path) -> None:
    (sources / "answer.c").write_text("int answer(void) { return nothing; }\n")
    with pytest.raises(KernelUnsupported, match="answer does not compile here: .*nothing"):
        ANSWER.path()


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(KernelUnsupported, match="set PARPROF_CACHE"):
        ANSWER.path()
