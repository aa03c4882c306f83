# SPDX-License-Identifier: Apache-2.0
"""A real parprofd whose metrics have no pids: processes of one name come and go."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pytest

import daemon_process as dp

pytestmark = pytest.mark.beside

WORK = "parprof_work_seconds_total"


def test_counters_outlive_processes(tmp_path: Path) -> None:
    """Each run of a program adds to one series, which never falls, and functions add up to it."""
    program = dp.build(tmp_path, "again")
    with dp.running(tmp_path / "parprofd", {"metrics": {"pid": False}}) as daemon:
        last, shapes = 0.0, set()
        for _ in range(3):
            with dp.started(program):
                here = last + 0.3
                page = daemon.page_when("more work", lambda page, here=here: page.value(WORK) > here)
                assert page.value("parprof_processes") == 1
            page = daemon.page_when("its end", lambda page: not page.value("parprof_processes"))
            (one,) = page.of(WORK)
            assert one[0]["comm"] == program.name and one[1] >= last
            assert not [labels for _, labels, _ in page.samples if "pid" in labels]
            last = one[1]
            assert abs(page.value("parprof_function_work_seconds_total") - last) < 1e-6 * last
            assert page.value("parprof_node_work_seconds_total") >= 0.999 * last
            shapes.add(frozenset((name, *sorted(labels.items())) for name, labels, _ in page.samples
                                 if labels.get("comm")))  # fmt: skip
        series = {len(shape) for shape in shapes}
        assert max(series) <= 56, "no series for each run"
