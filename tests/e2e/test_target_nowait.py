# SPDX-License-Identifier: Apache-2.0
"""`target nowait` on the host: what is offloaded runs as tasks, whose call paths begin where they are asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from profiling import BUILD
from reports import record_command, report_of

pytestmark = pytest.mark.beside


def test_what_is_offloaded_has_the_path_of_who_asked(tmp_path: Path) -> None:
    profile = tmp_path / "target.pb.gz"
    subprocess.run([*record_command(profile), str(BUILD / "target_nowait.gomp")], check=True)
    report = report_of(profile)
    total = report["totals"]["work_s"]
    work = {"offload": 0.0, "[unknown context]": 0.0}
    for path in report["paths"]:
        for name in work:
            if name in path["frames"]:
                work[name] += path["work_s"]
    assert work["[unknown context]"] < 0.03 * total
    # 16 rounds of 4 pieces of 10 million, of 16 x 44 million and 10 million
    assert work["offload"] == pytest.approx(640 / 714 * total, rel=0.05)
