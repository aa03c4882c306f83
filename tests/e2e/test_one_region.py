# SPDX-License-Identifier: Apache-2.0
"""A program that is one parallel region, whose body nobody knows before it runs: it has no second time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from profiling import BUILD
from reports import record_command, report_of


@pytest.mark.parametrize("program", ["one_region.gomp", "one_region.gomp.stripped"])
def test_its_threads_work(program: str, tmp_path: Path) -> None:
    profile = tmp_path / "one.pb.gz"
    subprocess.run([*record_command(profile), str(BUILD / program)], check=True)
    report = report_of(profile)
    totals = report["totals"]
    assert report["process"]["cores"] == 2
    assert totals["spin_s"] < 0.05 * totals["work_s"]
    assert totals["work_s"] + totals["ready_s"] + totals["stolen_s"] == pytest.approx(2.0, rel=0.1)
    unknown = [path for path in report["paths"] if path["frames"][0] == "[unknown context]"]
    assert not unknown
