# SPDX-License-Identifier: Apache-2.0
"""Builds of CPython whose structures are not known are refused by name: no frames rather than false ones."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.dso_cache import DsoCache
from parprof.jit.reader import JitReader
from parprof.languages.cpython.layouts import (
    DEBUG_OFFSETS_SIZE,
    LAYOUTS,
    debug_layout,
    is_free_threaded,
    kernel_facts,
)
from parprof.languages.front_ends import FrontEnds
from parprof.process.identity import inspect
from parprof.process.loadmap import LoadMap
from parprof.session.scopes import Scope
from parprof.session.target import Target, Watched

PROGRAM = """
#include <unistd.h>
__attribute__((aligned(16))) unsigned long _PyRuntime[512] = { %s };
unsigned long PyCode_Type[64] = { 1 };
%s
int _PyEval_EvalFrameDefault(void) { return 0; }
int main(void) { char c; write(1, "\\n", 1); return (int)read(0, &c, 1) + _PyEval_EvalFrameDefault(); }
"""
KNOWN = "parprof knows CPython 3.9 to 3.13 with a GIL"
COOKIE = int.from_bytes(b"xdebugpy", "little")
V313, V314 = 0x030D00F0, 0x030E00F0


def start(folder: Path, name: str, version: int, words: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """A process that has the symbols of an interpreter, and these words at the start of its ``_PyRuntime``."""
    program = folder / name
    said = f"const unsigned long Py_Version = {version}ul;" if version else ""
    source = PROGRAM % (", ".join(f"{word}ul" for word in words) or "0", said)
    command = ["gcc", "-rdynamic", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source.encode(), check=True)
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("name", "version", "words", "refused"),
    [
        ("python3.14", V314, (COOKIE, V314, 0), "CPython 3.14"),
        ("python3.14t", V314, (COOKIE, V314, 1), "free-threaded CPython 3.14"),
        ("python3.13t", V313, (COOKIE, V313, 1), "free-threaded CPython 3.13"),
        ("embedder", V313, (COOKIE, V313, 1), "free-threaded CPython 3.13"),
        ("python3.8", 0, (), "CPython 3.8"),
        ("python3.13", V313, (COOKIE, V313, 0), ""),
        ("python", 0, (), "CPython of an unknown version"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    name: str, version: int, words: tuple[int, ...], refused: str, tmp_path: Path, cache: DsoCache
) -> None:
    process = start(tmp_path, name, version, words)
    told: list[int] = []
    kernel: Any = SimpleNamespace(set_interpreter=lambda pid, facts, structure: told.append(pid))
    placer: Any = SimpleNamespace(update=lambda *_: None, forget=lambda _: None)
    scope = Scope(SimpleNamespace(state=lambda _: None), 1)  # type: ignore[arg-type]
    watched = Watched(kernel, cache, placer, JitReader())
    try:
        target = Target(watched, inspect(process.pid), 1, follow=True, stop=True, scope=scope)
        forked = Target(watched, inspect(process.pid), 2, follow=True, stop=True, scope=scope)
        assert target.read_load_map()
        forked.inherit(target)
        note = f"Python functions of {refused} are not known: {KNOWN}"
        for one in (target, forked):
            assert (one.language is None) == bool(refused)
            assert [text for text in one.notes() if "Python" in text] == ([note] if refused else [])
        assert bool(told) == (not refused)
        for one in (target, forked):
            one.close()
    finally:
        process.communicate(b"", 20)


def test_a_file_is_refused_for_all_processes_that_map_it(tmp_path: Path, cache: DsoCache) -> None:
    process = start(tmp_path, "python3.14", V314, (COOKIE, V314, 0))
    try:
        front_ends = FrontEnds()
        for _ in range(2):
            load_map = LoadMap.read(process.pid, None, cache)
            assert front_ends.find(load_map) is None
            assert front_ends.refusal(load_map).startswith("Python functions of CPython 3.14")
    finally:
        process.communicate(b"", 20)


def test_an_extension_of_no_interpreter_says_nothing(tmp_path: Path, cache: DsoCache) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        assert FrontEnds().refusal(LoadMap.read(process.pid, None, cache)) == ""
    finally:
        process.communicate(b"", 20)


@given(st.lists(st.integers(0, 120), min_size=70, max_size=70), st.integers(1, (1 << 64) - 1))
def test_the_offsets_of_a_free_threaded_build_are_not_taken(offsets: list[int], word: int) -> None:
    offsets[35] = offsets[32] + 8  # from the file name to the line table
    for free_threaded in (0, word):
        raw = b"xdebugpy" + struct.pack("<72Q", V313, free_threaded, *offsets)
        assert len(raw) == DEBUG_OFFSETS_SIZE
        assert is_free_threaded(raw) == bool(free_threaded)
        if free_threaded:
            assert debug_layout(LAYOUTS[13], raw) is None


@given(st.binary(max_size=40))
def test_other_bytes_say_nothing_of_threads(raw: bytes) -> None:
    assert not is_free_threaded(raw)


def test_where_the_gil_is() -> None:
    """Up to 3.11 one for all interpreters, from 3.12 on each has a pointer to its own."""
    for minor, layout in LAYOUTS.items():
        facts = kernel_facts(layout, 0x1000, 0x310)
        assert bool(facts["gil"]) == (minor < 12) == (not facts["interpreter_gil"])
        assert facts["gil"] % 8 == 0 and facts["gil_size"] > facts["gil_locked"] > facts["gil_holder"]
