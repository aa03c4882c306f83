# SPDX-License-Identifier: Apache-2.0
"""The answers to programs with planted problems, from recordings of them; `bench/answers.py` runs the programs."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parprof.causes.cause import Cause
from parprof.causes.diagnosis import Kind
from parprof.causes.ranking import find_causes
from parprof.exporters.pprof_reader import read_as
from parprof.facts.reading import decode
from parprof.profile.assemble import make_profile
from planted import COMBINED, RECORDINGS, SINGLE, Program

MAX_BYTES = 50_000


@functools.cache
def causes(program: Program) -> list[Cause]:
    return find_causes(make_profile(*read_as(RECORDINGS / f"{program.name}.facts", decode)))


def said(program: Program) -> list[str]:
    return [f"{cause.kind} {cause.function} {cause.lost_percent:.1f} %" for cause in causes(program)]


def test_every_recording_is_judged_and_small() -> None:
    known = {program.name for program in (*SINGLE, *COMBINED)}
    files = list(RECORDINGS.glob("*.facts"))
    assert {path.stem for path in files} == known
    assert max(path.stat().st_size for path in files) < MAX_BYTES


def test_nine_of_ten_first_causes_are_right() -> None:
    wrong = {program.name: said(program) for program in SINGLE if not program.is_answered(causes(program))}
    assert len(SINGLE) >= 20
    assert len(wrong) <= len(SINGLE) // 10, wrong


@pytest.mark.parametrize("program", COMBINED, ids=lambda program: program.name)
def test_all_problems_of_a_program_are_named(program: Program) -> None:
    assert program.is_answered(causes(program)), said(program)


@pytest.mark.parametrize("program", (*SINGLE, *COMBINED), ids=lambda program: program.name)
def test_nothing_innocent_is_named(program: Program) -> None:
    assert not program.wronged(causes(program)), said(program)


@pytest.mark.parametrize("program", (*SINGLE, *COMBINED), ids=lambda program: program.name)
def test_bounds_hold_together(program: Program) -> None:
    found = causes(program)
    assert sum(cause.lost_percent for cause in found) <= 100
    for cause in found:
        low, high = cause.interval_percent
        assert 0 <= low < cause.lost_percent < high <= 100
        assert cause.gain_bound == pytest.approx(1 / (1 - cause.lost_percent / 100))
        assert cause.metrics.samples >= 50 or cause.kind is Kind.STALL  # which is counted, not sampled


def test_a_stall_is_told_with_its_time_and_its_call() -> None:
    told = {
        program.name: re.sub(r"pid \d+", "pid N", causes(program)[0].what)
        for program in SINGLE
        if program.name.endswith(("_read", "_sleep"))
    }
    assert told == {
        "openmp_read": "nobody works for 0.38 s (of 0.53) while this waits for a pipe (read), "
        "and openmp (pid N) for time to pass in read_slowly (nanosleep) meanwhile",
        "threads_sleep": "nobody works for 0.30 s (of 0.60) while this waits for time to pass (nanosleep)",
    }
