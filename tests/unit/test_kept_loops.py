# SPDX-License-Identifier: Apache-2.0
"""Loops are found once, and what is on disk is not believed blindly."""

from __future__ import annotations

import json
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
from parprof.loops import shelf
from parprof.loops.kept import KeptLoops
from parprof.loops.nest import LoopNest, find_loops
from parprof.loops.nest_json import from_json, to_json
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


@pytest.mark.parametrize("is_dear", [False, True])
def test_what_was_found_once_is_known(
    is_dear: bool, libc: Dso, tmp_path: Path, searches: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert libc.elf is not None
    qsort, other = extent_of(libc, "qsort_r"), extent_of(libc, "strtok_r")
    monkeypatch.setattr(shelf, "DEAR_SECONDS", 0.0 if is_dear else 60.0)
    found = find(tmp_path, libc, qsort)
    assert found.loops and searches == [qsort]
    assert found == find_loops(libc.elf, *qsort), "the child says what is found here"
    assert find(tmp_path, libc, qsort) == found and len(searches) == 1
    second = find(tmp_path, libc, other)
    assert searches == [qsort, other], "each function has its own"
    assert len(list((tmp_path / "loops").iterdir())) == (2 if is_dear else 1)
    for damage in (b"[", b"[1]", b'{"1-2": 3}', b"\xff"):
        del searches[:]
        for file in (tmp_path / "loops").iterdir():
            file.write_bytes(damage)
        assert [find(tmp_path, libc, one) for one in (qsort, other, qsort)] == [found, second, found]
        assert searches == [qsort, other], "a damaged file"


def test_a_page_that_is_no_loops_is_found_anew(libc: Dso, tmp_path: Path, searches: list[Extent]) -> None:
    qsort = extent_of(libc, "qsort_r")
    found = find(tmp_path, libc, qsort)
    (file,) = (tmp_path / "loops").iterdir()
    pages = json.loads(file.read_bytes())
    file.write_text(json.dumps(dict.fromkeys(pages, '{"loops":[]}')))
    assert find(tmp_path, libc, qsort) == found and searches == [qsort] * 2
    assert json.loads(file.read_bytes()) == pages


def test_what_is_kept_of_one_file_is_bounded(libc: Dso, tmp_path: Path) -> None:
    kept = shelf.Shelf(tmp_path)
    nest = LoopNest(notes=["x" * 4000])
    for number in range(100):
        kept.put(libc, (number, 1), nest, 0.0)
    kept.put(libc, (100, 1), LoopNest(notes=["x" * 20_000]), 0.0)
    kept.save()
    (file,) = (tmp_path / "loops").iterdir()
    assert 40 * 4000 < file.stat().st_size < 1 << 19
    again = shelf.Shelf(tmp_path)
    known = [again.get(libc, (number, 1)) is not None for number in range(101)]
    assert known == sorted(known, reverse=True) and 40 < sum(known) < 100


def test_the_child_starts_only_where_nothing_is_known(
    libc: Dso, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = client.start_child

    def counted(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        started.append(module)
        return start(module)

    monkeypatch.setattr(client, "start_child", counted)
    for expected in (1, 1, 2):
        with KeptLoops(tmp_path) as loops:
            loops.prepare(libc)
            loops.find(libc, extent_of(libc, "qsort_r" if expected == 1 else "strtok_r"))
        assert len(started) == expected


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
