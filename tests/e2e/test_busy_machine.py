# SPDX-License-Identifier: Apache-2.0
"""What is the program's own fault on a machine whose cores others have."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import pytest

from busy import busy_loops
from parprof.attribution.interval import Z
from profiling import BUILD
from reports import record_command, report_of

HZ = 999


@pytest.mark.parametrize(
    ("program", "others"), [("singles.gomp", 2), ("singles.omp", 2), ("singles.gomp", 4)]
)
def test_who_waits_for_its_team_wants_no_core(program: str, others: int, tmp_path: Path) -> None:
    """One thread works in a `single`, the other spins at its barrier and is preempted there by other programs: these
    have a core that the program has no use for. Only while the one that works has none, it is theirs."""
    profile = tmp_path / "single.pb.gz"
    with busy_loops(others):
        done = subprocess.run(
            [*record_command(profile, "-F", HZ), str(BUILD / program), "25"],
            env={**os.environ, "OMP_WAIT_POLICY": "active"},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    told = {name: float(seconds) for name, seconds in (line.split() for line in done.stdout.splitlines())}
    totals = report_of(profile)["totals"]
    assert told["elapsed"] > 1.5 * told["cpu"] / 2, "nobody took a core away"
    near = Z * math.sqrt(told["alone"] / HZ) + 0.03 * told["alone"]
    assert totals["idleness_s"] == pytest.approx(told["alone"], abs=near)
    assert totals["work_s"] == pytest.approx(told["cpu"], rel=0.1)
    assert totals["accounted"] == pytest.approx(1, abs=0.05)
