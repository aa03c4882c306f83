# SPDX-License-Identifier: Apache-2.0
"""Pools whose callers sleep while the threads work, with two callers of known shares: one has twice the other's work.

They call by turns, for times that are longer than the intervals in which it is told who waited when.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from parprof.exporters import pprof_reader
from profiling import BUILD
from reports import record_command, report_of

pytestmark = pytest.mark.beside

SECONDS = {"short": 2 * 2 * 0.4, "long": 2 * 2 * 0.8}
"""CPU time of each caller's work in the program of C, whose pieces end in time: the shorter ones take eight intervals
of 50 ms, of which the first and the last may have some of the other caller's."""


def recorded(profile: Path, *command: str) -> tuple[dict[str, Any], str]:
    """The report of a command, and what it printed.

    A program that has little of the CPUs may not earn what it takes to follow its switches all the time. Who waits for
    the pool while nobody looks is a guess, and the report says so: such a run is made again, three times at most.
    """
    whole = [*record_command(profile, "-F", 499), *command]
    for _ in range(3):
        printed = subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout
        if not any("switches were too dear" in note for note in pprof_reader.read(profile).notes):
            break
    return report_of(profile), printed


def by_caller(report: dict[str, Any], callers: dict[str, str], below: str) -> dict[str, float]:
    """Seconds of work in what is called ``below``, by the caller in the paths to it."""
    out: Counter[str] = Counter()
    for path in report["paths"]:
        frames = path["frames"]
        if below in frames:
            out[next((name for one, name in callers.items() if one in frames), "nobody")] += path["work_s"]
    return dict(out)


def check(work: dict[str, float], truth: dict[str, float]) -> None:
    whole = sum(work.values())
    assert whole == pytest.approx(sum(truth.values()), rel=0.1)
    assert work.get("nobody", 0) < 0.02 * whole, work
    for name, seconds in truth.items():
        assert work[name] == pytest.approx(seconds, abs=0.07 * whole), work


def test_as_in_rayon(tmp_path: Path) -> None:
    profile = tmp_path / "pool.pb.gz"
    report, _ = recorded(profile, str(BUILD / "waited_pool"))
    callers = {"short_caller": "short", "long_caller": "long"}
    check(by_caller(report, callers, "burn"), SECONDS)
    for name in SECONDS:
        work = by_caller(report, callers, f"{name}_part")
        assert work[name] > 0.85 * sum(work.values()), "nobody gets what was done while he did not wait"
    path = next(one["frames"] for one in report["paths"] if "short_part" in one["frames"])
    assert "start_thread" not in path and "bystander" not in path
    assert any("call paths that waited for such work" in note for note in pprof_reader.read(profile).notes)


PYTHONS = {
    path.resolve(): str(path)
    for path in (
        *sorted((Path.home() / ".pyenv/versions").glob("3.1[0-3].*/bin/python3")),
        Path(sys.executable),
    )
}
"""Those that are here, each once, whatever leads to it; until 3.10 functions have no names of classes."""


@pytest.mark.parametrize("python", PYTHONS.values(), ids=lambda path: path.split("/")[-3])
@pytest.mark.parametrize("program", ["futures", "thread_pool", "event_loop"])
def test_in_python(program: str, python: str, tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / f"workloads/{program}.py"
    report, printed = recorded(tmp_path / "pool.pb.gz", python, str(source))
    check(by_caller(report, {"short": "short", "long": "long"}, "burn"), json.loads(printed))
