"""The paper's case study (schardl-2015 sec. 8): a breadth-first search that a change of grain makes scale.

The program's own clock, so results are exact. A layer's nodes of 128 vertices are tasks; each was worked through
serially, so that a layer takes as long as its largest node. The profile must say so, and what a smaller grain gives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parprof.__main__ import main
from scale_programs import with_hooks

SIDE, NODE, GRAIN, UNITS = 40, 128, 16, 10
THREADS = 64
pytestmark = pytest.mark.usefixtures("span_test_clock")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale-bfs")


def layers() -> list[int]:
    """Vertices of the grid by their distance from the corner: those of three coordinates with that sum."""
    sums = [1]
    for _ in range(3):
        sums = [
            sum(sums[k - one] for one in range(SIDE) if 0 <= k - one < len(sums))
            for k in range(len(sums) + SIDE - 1)
        ]
    return sums


def span_ns(grain: int) -> int:
    """Each layer takes what its longest piece takes: no more than a grain, or the whole layer if that is less."""
    return sum(min(count, grain) for count in layers()) * UNITS


def bound_ns(grain: int) -> float:
    """On 64 cores a layer takes no less than its even share either."""
    return sum(max(min(count, grain), count / THREADS) for count in layers()) * UNITS


def searched(directory: Path, grain: int, *options: str) -> dict[str, Any]:
    output = directory / "out.json"
    words = ["scale", "-q", *options, "--json", "-o", str(output)]
    assert main([*words, "--", with_hooks("span_bfs", directory), str(SIDE), str(grain)]) == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def parts_of_span(found: dict[str, Any]) -> dict[str, float]:
    """Local span on span by function, as a share of the span: what the paper sorts by."""
    parts: dict[str, float] = {}
    for one in found["sites"]:
        if one["kind"] == "call":
            share = one["on_span"]["local"]["span_s"] / found["span_s"]
            parts[one["callee"]] = parts.get(one["callee"], 0.0) + share
    return parts


@pytest.mark.parametrize("options", [("--serial",), ("--threads", str(THREADS))])
def test_the_diagnosis_before(directory: Path, options: tuple[str, ...]) -> None:
    found = searched(directory, NODE, *options)
    assert round(found["work_s"] * 1e9) == SIDE**3 * UNITS
    assert round(found["span_s"] * 1e9) == span_ns(NODE)
    assert found["parallelism"] < 6
    first = next(one for one in found["sites"] if one["kind"] == "call")
    assert first["callee"] == "visit_neighbours" and first["caller"] == "process_node"
    assert first["on_span"]["local"]["span_s"] > 0.99 * found["span_s"]
    assert first["on_work"]["top_call_site"]["parallelism"] == pytest.approx(1)
    (node,) = (one for one in found["sites"] if one["kind"] == "call" and one["callee"] == "process_node")
    assert node["on_work"]["top_call_site"]["parallelism"] == pytest.approx(1)


def test_what_the_smaller_grain_gives(directory: Path) -> None:
    """The paper's factor is 5 to 8 (parallelism 12 before, 60 and 100 after)."""
    before, after = (searched(directory, grain, "--threads", str(THREADS)) for grain in (NODE, GRAIN))
    assert round(after["work_s"] * 1e9) == SIDE**3 * UNITS
    assert round(after["span_s"] * 1e9) == span_ns(GRAIN)
    assert after["parallelism"] / before["parallelism"] == pytest.approx(span_ns(NODE) / span_ns(GRAIN))
    assert after["parallelism"] / before["parallelism"] > 5
    speedups = [one["threads"][0]["speedup"] for one in (before, after)]
    assert speedups == [pytest.approx(SIDE**3 * UNITS / bound_ns(grain), rel=1e-3) for grain in (NODE, GRAIN)]
    assert parts_of_span(after)["visit_neighbours"] > 0.99
    in_node = [one for one in after["sites"] if one["kind"] == "call" and one["callee"] == "process_node"]
    assert in_node[0]["on_work"]["top_call_site"]["parallelism"] > 4
