# SPDX-License-Identifier: Apache-2.0
"""Ranks of an MPI program on one machine wait by polling, in a library: a stand-in for it, told by its file's name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from profiling import BUILD
from reports import judge, record_command, report_of


def check(report: dict[str, Any], program: str) -> None:
    assert report["process"]["runtime"] == "mpi"
    totals = report["totals"]
    assert totals["work_s"] == pytest.approx(1.6, rel=0.05)
    assert totals["spin_s"] >= 0.4 * totals["idleness_s"]  # less where others have its core
    lost_s = totals["idleness_s"] + totals["stall_s"] + totals["stolen_s"] + totals["ready_s"]
    assert totals["idleness_s"] <= 0.8 * 1.15 and lost_s >= 0.8 * 0.85
    assert report["causes"], totals  # none stands out where others had most of the cores
    first = report["causes"][0]
    share = re.fullmatch(
        rf"one of 2 processes, {program} \(pid \d+\), does (\d+) % of the work here.*", first["what"]
    )
    assert first["kind"] == "imbalance" and share, first
    assert int(share[1]) == pytest.approx(75, abs=4)
    waiting = [path["frames"] for path in report["paths"] if path["spin_s"] > 0.3]
    assert len(waiting) == 1 and (waiting[0][0], waiting[0][-1]) == ("main", "MPI_Barrier"), waiting


@pytest.mark.parametrize("program", ["ranks", "ranks_openmpi"])
def test_a_rank_that_polls_waits(program: str, tmp_path: Path) -> None:
    """Of 20 steps the first rank computes for 60 ms each, the second for 20: for 40 ms a core has nothing to do."""
    profile = tmp_path / "ranks.pb.gz"
    # where samples are dear one stands for up to 64 to keep the budget, and shares are known to some ten percent
    command = [*record_command(profile, "--budget", 100), str(BUILD / program)]

    def record() -> dict[str, Any]:
        subprocess.run(command, check=True)
        return report_of(profile)

    judge(record, lambda report: check(report, program))
