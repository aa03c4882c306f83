# SPDX-License-Identifier: Apache-2.0
"""That samples charged together, where they go the same way, are charged as each by itself would be."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.attribution import attribute
from parprof.causes.evidence import Callee, Evidence
from parprof.causes.tallies import Tally
from parprof.cct.tree import Procedure
from parprof.metrics import total
from parprof.model import Frame, Origin, PathSample, ThreadState

CORES = 4
TRUNK = tuple(Frame(name, "x.c", 10, 1, "/bin/x", "", address) for address, name in enumerate("abc", 1))
TEAM = Frame("gomp_thread_start", "", 0, 0, "/usr/lib/libgomp.so.1", "", 0x900)


def program(name: str, line: int, body: bool = False) -> Frame:
    """A frame of the program; with ``body``, of a region in that function."""
    return Frame(name + "._omp_fn.0" * body, "x.c", line, 1, "/bin/x", "", 0x1000 + 64 * ord(name) + line)


steps = st.builds(program, st.sampled_from("acdefg"), st.sampled_from((11, 12)), st.booleans())


@st.composite
def rows(draw: st.DrawFn) -> PathSample:
    """A sample on a path that begins as most do; that of a team's thread runs a piece of it, from some step on."""
    trunk = TRUNK[: draw(st.sampled_from((3, 3, 3, 2)))]
    path = (*trunk, *draw(st.lists(steps, max_size=5)))
    tid = draw(st.integers(1, 3))
    begins = draw(st.integers(1, len(path)))
    physical = (TEAM, *path[begins:]) if tid > 1 and begins < len(path) else ()
    metrics = attribute(draw(st.integers(1, 3)), 1e6, 2, CORES, ThreadState.WORKING)
    return PathSample(path, metrics, Origin(1, "x", "x", "libgomp", tid=tid), physical)


def plain(tally: Tally) -> dict[str, float]:
    """What a tally adds up to, by name."""
    return {
        **{metric.name: value for metric, value in tally.metrics.values.items()},
        **{f"{thread} {m.name}": v for thread, row in tally.threads.items() for m, v in row.values.items()},
        "in_region": tally.in_region_ns,
        "within_region": tally.within_region_ns,
        "called_back": tally.called_back_ns,
    }


def charged(evidence: Evidence) -> Counter[tuple[object, ...]]:
    """What is charged to each place, by its chain of callees, a line of it or itself, and what of it."""
    out: Counter[tuple[object, ...]] = Counter()
    pending: list[tuple[object, ...]] = [((), evidence.root)]
    while pending:
        chain, place = pending.pop()
        parts = {"all": place.all, "own": place.own, **place.by_line}
        for part, tally in parts.items():
            for name, value in plain(tally).items():
                out[chain, part, name] += round(value)
        for procedure, work_ns in evidence.functions.items():
            out["function", procedure] = round(work_ns)
        pending += (((*chain, callee), below) for callee, below in place.children.items())
    return +out


@given(st.lists(rows(), min_size=1, max_size=12))
def test_what_places_are_charged_with_adds_up(samples: list[PathSample]) -> None:
    apart: Counter[tuple[object, ...]] = Counter()
    for sample in samples:
        apart += charged(Evidence([sample], CORES))
    assert charged(Evidence(samples, CORES)) == apart


def test_where_regions_begin_ways_part() -> None:
    """What a function calls outside of a region and in one are two places, also on the same path."""
    path = (*TRUNK, program("d", 11), program("e", 11), program("f", 11))
    serial = PathSample(path, attribute(1, 1e6, 1, CORES, ThreadState.WORKING), Origin(1, "x", tid=1))
    piece = PathSample(
        path, attribute(1, 1e6, 1, CORES, ThreadState.WORKING), Origin(1, "x", tid=2), (TEAM, *path[4:])
    )
    evidence = Evidence([serial, piece], CORES)
    place = evidence.root
    for name in "abcde":
        place = place.children[Callee(Procedure(name, "/bin/x", "x.c"), False)]
    assert {callee.is_in_region for callee in place.children} == {False, True}
    assert place.all.metrics == total([serial.metrics, piece.metrics])
    assert place.all.in_region_ns == 1e6
