# SPDX-License-Identifier: Apache-2.0
"""The compiled object is made once for each kernel and each version of what makes it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from parprof.kernel import objects
from parprof.kernel.compiler import OBJECT_HEADERS, OBJECT_PARTS, source_directory
from test_architecture import MODULES, imports

COMPILED: dict[str, Any] = {"maps": {}, "programs": {}, "layouts": {}}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One for each time that an object was compiled; the cache is a directory of the test's own."""
    out: list[Path] = []

    def compile_in_child(output: Path) -> dict[str, Any]:
        out.append(output)
        return COMPILED

    monkeypatch.setenv("PARPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "compile_in_child", compile_in_child)
    return out


def the_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache/bpf").iterdir()
    return file


def test_compiled_once(runs: list[Path]) -> None:
    assert [objects.get_object(), objects.get_object()] == [COMPILED] * 2
    assert len(runs) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b'{"maps": {}}', b"\xff"])
def test_a_damaged_object_is_compiled_anew(runs: list[Path], tmp_path: Path, content: bytes) -> None:
    objects.get_object()
    the_file(tmp_path).write_bytes(content)
    assert objects.get_object() == COMPILED
    assert len(runs) == 2


def test_an_object_that_others_can_write_is_not_loaded(runs: list[Path], tmp_path: Path) -> None:
    objects.get_object()
    the_file(tmp_path).chmod(0o666)
    objects.get_object()
    assert len(runs) == 2


def test_objects_of_other_kernels_do_not_pile_up(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_CACHE_BYTES", 8192)
    for number in range(4):
        monkeypatch.setattr(objects, "cache_name", lambda number=number: f"{number}.json")
        objects.get_object()
        os.utime(tmp_path / f"cache/bpf/{number}.json", (1000 + number, 1000))
    assert {file.name for file in (tmp_path / "cache/bpf").iterdir()} == {"2.json", "3.json"}


def test_the_name_stands_for_all_modules_that_make_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And thus for each of them: a change makes another name."""
    made_by, waiting = set(), {"parprof.kernel.compiler"}
    while waiting:
        module = waiting.pop()
        made_by.add(module)
        waiting |= {one for one in imports(MODULES[module]) if one.startswith("parprof.kernel.")} - made_by
    assert {f"{module.rpartition('.')[2]}.py" for module in made_by} == set(objects.COMPILER_MODULES)

    sources = {path.name for path in source_directory().glob("*.[ch]")}
    assert sources == {*OBJECT_HEADERS, *OBJECT_PARTS}

    copies = tmp_path / "kernel"
    shutil.copytree(Path(objects.__file__).parent, copies)
    before = objects.cache_name()
    monkeypatch.setattr(objects, "__file__", str(copies / "objects.py"))
    assert objects.cache_name() == before
    names = set()
    for module in objects.COMPILER_MODULES:
        with open(copies / module, "a") as file:
            file.write("# another one\n")
        names.add(objects.cache_name())
    assert len(names - {before}) == len(objects.COMPILER_MODULES)
