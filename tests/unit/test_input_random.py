"""Random programs of several threads under `parprof input`, against the sets of coppa-2013's figure 10."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from input_oracle import Naive
from input_programs import BUILDS, build, measure
from input_random_programs import Program

__all__ = ["build"]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="for x86-64")
SEED, SCENARIOS, STEPS = 16, 60, 70

Counts = dict[tuple[str, int, int], tuple[int, int, int]]
"""Calls, thread-induced and external input; by routine, trms and rms."""


def expected_of(program: Program) -> Counts:
    naive = Naive()
    for event in program.events:
        naive.take(event)
    naive.finish()
    found: Counts = defaultdict(lambda: (0, 0, 0))
    for routine, sizes in naive.ended:
        key = program.names[routine], sizes.trms, sizes.rms
        calls, induced, external = found[key]
        found[key] = calls + 1, induced + sizes.induced, external + sizes.external
    return dict(found)


def counts_of(found: dict[str, Any], program: Program) -> Counts:
    names = set(program.names)
    return {
        (routine["name"], point["trms"], point["rms"]): (point["calls"], point["induced"], point["external"])
        for routine in found["routines"]
        if routine["name"] in names
        for point in routine["points"]
    }


@pytest.mark.parametrize("optimized", ["-O1", "-O2"])
@pytest.mark.parametrize("how", BUILDS)
def test_random_programs_agree_with_the_naive_sets(
    build: Any, how: str, optimized: str, tmp_path: Path
) -> None:
    """60 times one to three threads with 70 steps; calls, loads and stores of all sizes, atomics, system calls.

    Another seed by PARPROF_TEST_SEED.
    """
    program = Program(int(os.environ.get("PARPROF_TEST_SEED", SEED)), SCENARIOS, STEPS)
    source = tmp_path / f"random{optimized}.c"
    source.write_text(program.text)
    expected = expected_of(program)
    found = counts_of(measure(build(source, how, "-w", optimized, "-lpthread")), program)
    assert {name for name, *_ in found} == set(program.names)
    wrong = {key: (found.get(key), expected.get(key)) for key in found.keys() | expected.keys()}
    assert {key: both for key, both in sorted(wrong.items()) if both[0] != both[1]} == {}
    assert sum(induced for _, induced, _ in expected.values()) > 500  # it is about these
    assert sum(external for _, _, external in expected.values()) > 200
