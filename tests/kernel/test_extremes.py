"""Thousands of threads, regions nested five hundred deep, children that call no exec: n_w stays right, and what has
no room is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiling
from parprof.session.sources import Source

PROGRAM = "extremes.gomp"


def names_and_samples(run: profiling.Run) -> list[tuple[list[str], int]]:
    rows, _ = profiling.rows_of(run.session)
    assert sum(row.metrics.samples for row in rows) == run.session.samples(), "no sample is lost on the way"
    return [([frame.name for frame in row.path], row.metrics.samples) for row in rows]


@pytest.mark.parametrize("depth", [30, 500])
def test_deep_nesting(depth: int, tmp_path: Path) -> None:
    """A region takes two of the 64 frames that are remembered; beyond that, samples put n_w right."""
    run = profiling.record(PROGRAM, ["nested", str(depth), "30"], tmp_path / "log", source=Source.EXACT)
    agreement = profiling.compare(run.session.trace, run.truth)
    assert agreement.judged > 500
    assert agreement.wrong_share <= (0.01 if depth < 32 else 0.03), agreement.cases
    assert bool(run.lost.get("nesting")) == (depth > 32), "more than are remembered, and counted as such"
    found = names_and_samples(run)
    inner = [(path, count) for path, count in found if "innermost" in path]
    assert sum(count for _, count in inner) > 300
    for path, _ in inner:
        if depth < 32:
            assert path[0] == "main" and path.count("descend") == depth, path
        else:
            assert path[0].startswith("[") or path.count("descend") > 64, path[:5]
    plain = [(path, count) for path, count in found if "plain" in path]
    whole = sum(count for path, count in plain if path[0] == "main" and "descend" not in path)
    assert whole >= 0.99 * sum(count for _, count in plain) > 200, "what comes after is not drawn in"


def test_thousands_of_threads(tmp_path: Path) -> None:
    # on a busy machine their switches are over the budget, and those that wait for a CPU are not known any more
    run = profiling.record(PROGRAM, ["threads", "3000"], tmp_path / "log", budget=profiling.UNLIMITED)
    agreement = profiling.compare(run.session.trace, run.truth)
    assert agreement.judged > 500
    assert agreement.wrong_share <= 0.01, agreement.cases
    assert not run.lost.get("threads_full")
    assert run.target.source is Source.EXACT, "OpenMP's own state says nothing of these threads"
    assert run.target.memory.plan and "starts threads of its own" in run.target.memory.spoilt_by
    work = [(path, count) for path, count in names_and_samples(run) if "one_of_many" in path]
    whole = sum(count for path, count in work if path[0] == "main")
    assert whole >= 0.99 * sum(count for _, count in work) > 500


def test_a_forked_child_is_probed(tmp_path: Path) -> None:
    run = profiling.record(PROGRAM, ["forked", "30"], tmp_path / "log")
    (child,) = [target for target in run.session.targets.values() if target.pid == run.truth.pid]
    assert child.source is Source.EXACT and not child.failures
    assert child.probe_hits > 100, "its regions are seen"
    agreement = profiling.compare([r for r in run.session.trace if r.image == child.image], run.truth)
    assert agreement.judged > 500
    assert agreement.wrong_share <= 0.02, agreement.cases
