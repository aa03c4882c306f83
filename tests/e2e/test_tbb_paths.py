# SPDX-License-Identifier: Apache-2.0
"""Work of TBB's workers hangs below who called the algorithm, whose lambdas all have one name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from profiling import BUILD
from reports import record_command, report_of

pytestmark = pytest.mark.beside

PHASES = {
    "skewed_long": "tbb_skewed", "skewed_short": "tbb_skewed", "balanced_work": "tbb_balanced",
    "dynamic_work": "tbb_dynamic", "group_child": "tbb_group", "nested_outer_work": "tbb_nested",
    "nested_work": "tbb_nested", "source_work": "tbb_pipeline", "stage_work": "tbb_pipeline",
}  # fmt: skip
"""By work function: the phase that calls it."""


@pytest.mark.skipif(not (BUILD / "tbb_truth").exists(), reason="libtbb-dev is not installed")
def test_workers_of_tbb_are_below_who_called(tmp_path: Path) -> None:
    profile = tmp_path / "tbb.pb.gz"
    subprocess.run([*record_command(profile), str(BUILD / "tbb_truth"), "all", "--repeat", "2"], check=True)
    found: dict[str, dict[str, int]] = {name: {} for name in PHASES}
    for path in report_of(profile)["paths"]:
        work = next((name for name in path["frames"] if name in PHASES), None)
        if work is not None:
            phase = next((name for name in path["frames"] if name.startswith("tbb_")), path["frames"][0])
            found[work][phase] = found[work].get(phase, 0) + path["samples"]
    for work, phases in found.items():
        assert phases.get(PHASES[work], 0) > 0.97 * sum(phases.values()) > 0, (work, phases)
