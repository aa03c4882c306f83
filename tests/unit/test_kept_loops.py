# SPDX-License-Identifier: Apache-2.0
"""Loops that were dear to find are found once, and what is on disk is not believed blindly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.loops import LoopNest, find_loops, kept
from parprof.loops.extents import Extent
from parprof.loops.kept import KeptLoops, from_json, to_json
from parprof.loops.noreturn import Calls
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
    """Each function whose loops were really looked for."""
    made: list[Extent] = []

    def search(elf: object, vaddr: int, size: int, calls: Calls) -> LoopNest:
        made.append((vaddr, size))
        return find_loops(elf, vaddr, size, calls)  # type: ignore[arg-type]

    monkeypatch.setattr(kept, "find_loops", search)
    return made


def test_what_is_dear_is_found_once(
    libc: Dso, tmp_path: Path, searches: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert libc.elf is not None
    calls, qsort, other = Calls(libc.elf), extent_of(libc, "qsort_r"), extent_of(libc, "strtok_r")
    monkeypatch.setattr(kept, "DEAR_SECONDS", 0.0)
    found = KeptLoops(tmp_path).find(libc, qsort, calls)
    assert found.loops and searches == [qsort]
    assert KeptLoops(tmp_path).find(libc, qsort, calls) == found and len(searches) == 1
    KeptLoops(tmp_path).find(libc, other, calls)
    assert searches == [qsort, other], "each function has its own"
    for file in (tmp_path / "loops").iterdir():
        file.write_bytes(b"[")
    assert KeptLoops(tmp_path).find(libc, qsort, calls) == found and len(searches) == 3, "a damaged file"
    assert KeptLoops(tmp_path).find(libc, qsort, calls) == found and len(searches) == 3


def test_what_is_cheap_is_not_kept(
    libc: Dso, tmp_path: Path, searches: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert libc.elf is not None
    monkeypatch.setattr(kept, "DEAR_SECONDS", 60.0)
    for _ in range(2):
        KeptLoops(tmp_path).find(libc, extent_of(libc, "qsort_r"), Calls(libc.elf))
    assert len(searches) == 2 and not list(tmp_path.rglob("*"))


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
