# SPDX-License-Identifier: Apache-2.0
"""Loops that were dear to find are found once, and what is on disk is not believed blindly."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.eh_frame_header import Extent
from parprof.loops import LoopNest, find_loops, kept
from parprof.loops.kept import KeptLoops, from_json, to_json
from parprof.workers import client
from symbol_programs import open_dso

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture
def libc() -> Iterator[Dso]:
    with DsoCache() as cache:
        yield open_dso(cache, LIBC)


def extent_of(dso: Dso, name: str) -> Extent:
    assert dso.elf is not None
    symbol = dso.elf.lookup({name})[name][0]
    return symbol.value, symbol.size


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Extent]:
    """Each function whose loops a child was asked for."""
    made: list[Extent] = []
    ask = KeptLoops._ask

    def asked(self: KeptLoops, dso: Dso, extent: Extent) -> tuple[LoopNest, float]:
        made.append(extent)
        return ask(self, dso, extent)

    monkeypatch.setattr(KeptLoops, "_ask", asked)
    return made


def find(base: Path, dso: Dso, extent: Extent) -> LoopNest:
    with KeptLoops(base) as loops:
        return loops.find(dso, extent)


def test_what_is_dear_is_found_once(
    libc: Dso, tmp_path: Path, searches: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert libc.elf is not None
    qsort, other = extent_of(libc, "qsort_r"), extent_of(libc, "strtok_r")
    monkeypatch.setattr(kept, "DEAR_SECONDS", 0.0)
    found = find(tmp_path, libc, qsort)
    assert found.loops and searches == [qsort]
    assert found == find_loops(libc.elf, *qsort), "the child says what is found here"
    assert find(tmp_path, libc, qsort) == found and len(searches) == 1
    find(tmp_path, libc, other)
    assert searches == [qsort, other], "each function has its own"
    for file in (tmp_path / "loops").iterdir():
        file.write_bytes(b"[")
    assert find(tmp_path, libc, qsort) == found and len(searches) == 3, "a damaged file"
    assert find(tmp_path, libc, qsort) == found and len(searches) == 3


def test_what_is_cheap_is_not_kept(
    libc: Dso, tmp_path: Path, searches: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "DEAR_SECONDS", 60.0)
    for _ in range(2):
        find(tmp_path, libc, extent_of(libc, "qsort_r"))
    assert len(searches) == 2 and not list(tmp_path.rglob("*"))


def test_a_file_that_ends_the_child_is_given_up(
    libc: Dso, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hostile code that a disassembler does not survive costs its loops, and no more than two children."""
    started: list[str] = []

    def start(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        started.append(module)
        ours, theirs = socket.socketpair()
        theirs.close()
        return subprocess.Popen(["true"]), ours

    monkeypatch.setattr(client, "start_child", start)
    with KeptLoops(tmp_path) as loops:
        nests = [loops.find(libc, (0x1000 + at, 64)) for at in range(5)]
    assert started == ["parprof.loops.worker"] * 2
    assert all(not nest.loops and "looking for loops" in nest.notes[0] for nest in nests)


@given(JSON)
def test_nonsense_is_no_loops(raw: object) -> None:
    with pytest.raises(ValueError):
        from_json(raw)


@pytest.mark.parametrize(
    "field, value",
    [
        ("innermost", [7]),
        ("starts", []),
        ("loops", [[0, [1], 0, 0]]),
        ("loops", [[0, [1], 5, 0]]),
        ("end", None),
        ("end", 1),
        ("addresses", [0, 0]),
        ("addresses", [1, 1]),
        ("starts", [1]),
        ("loops", [[-1, [1], -1, 0]]),
        ("loops", [[0, [1 << 64], -1, 0]]),
        ("notes", 7),
    ],
)
def test_loops_that_cannot_be(field: str, value: object) -> None:
    whole = {
        "loops": [[0, [1], -1, 0]],
        "notes": [],
        "addresses": [0, 1],
        "starts": [0],
        "innermost": [0],
        "end": 2,
    }
    assert to_json(from_json(whole)) == {**whole, "loops": [[0, (1,), -1, 0]]}
    with pytest.raises(ValueError):
        from_json({**whole, field: value})
