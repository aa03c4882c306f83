# SPDX-License-Identifier: Apache-2.0
"""Each term of n x time = work + ready + stolen + idleness + stall against what program and kernel say of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from identity import HZ, MODES, Run, record_mode, record_pool, record_quota
from parprof.attribution.interval import Z
from quota import NoQuota, quota_group

pytestmark = pytest.mark.beside

START_S = 0.05
"""Of a program before its main and behind it, on a busy machine: it knows nothing of that, but for what it tells as
``before``."""


def check(run: Run) -> None:
    totals = run.report["totals"]
    # a quota of one core is a tenth of a second in each tenth, whenever that begins: more than a second's worth in one
    over = max(run.told["cpu"] / run.available_s - 1, 0.0)
    assert totals["accounted"] == pytest.approx(1 + over, abs=0.05 if run.is_exact else 0.001)
    assert sum(run.report["concurrency"]) == pytest.approx(run.report["elapsed_s"], abs=0.001)
    start_s = START_S + run.told.get("before", 0.0)
    for term in run.terms():
        sampled = term.name == "work"
        near = Z * math.sqrt(term.told_s / HZ) if sampled else 0.0
        assert term.found_s == pytest.approx(term.told_s, rel=0.02, abs=start_s + near), term.name
    assert not run.parted


@pytest.mark.parametrize("mode", [one for one in MODES if one != "children"])
def test_threads(mode: str, tmp_path: Path) -> None:
    run = record_mode(mode, tmp_path)
    check(run)
    totals = run.report["totals"]
    if "turn" in mode or "lock" in mode:  # one works at a time, so nobody is missing for long
        assert run.report["concurrency"][0] < 0.1 * run.report["elapsed_s"]
    if mode.startswith("8 threads"):
        assert totals["idleness_s"] + totals["stall_s"] < 0.15 * run.available_s


def test_a_pool_of_processes(tmp_path: Path) -> None:
    check(record_pool(tmp_path))


def test_a_thousand_short_children(tmp_path: Path) -> None:
    check(record_mode("children", tmp_path))


@pytest.mark.alone
def test_under_a_quota(tmp_path: Path) -> None:
    try:
        with quota_group(1.0) as procs:
            run = record_quota(procs, tmp_path)
    except NoQuota as error:
        pytest.skip(str(error))
    check(run)
    assert run.told["cpu"] < 1.2 * run.told["elapsed"]
