# SPDX-License-Identifier: Apache-2.0
"""Children that a program forks and that run parallel regions from their first instant on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profiling import BUILD
from reports import record_command

pytestmark = pytest.mark.beside


def told(tmp_path: Path, mode: str, hz: int, program: str = "forked_teams.gomp") -> str:
    """What `record` and the long report say of the program."""
    profile = tmp_path / "forked.pb.gz"
    subprocess.run([*record_command(profile, "-F", hz), str(BUILD / program), mode], check=True)
    return subprocess.run(
        [sys.executable, "-m", "parprof", "report", "-v", str(profile)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_child_has_walks_to_its_creators_from_the_beginning(tmp_path: Path) -> None:
    """It begins with a quarter of what a process may save up for bursts; its samples take nearly all that comes in."""
    report = told(tmp_path, "sites", 999)
    assert "creation walks" not in report
    assert "[unknown context]" not in report


def test_children_that_live_for_a_moment_are_described_as_others_are(tmp_path: Path) -> None:
    report = told(tmp_path, "brief", 499)
    assert "made at run time" not in report  # their [vdso], which nobody had looked for
    assert "please report" not in report  # they lived longer than we knew of them


@pytest.mark.parametrize("program", ["forked_teams.gomp", "forked_teams.omp"])
def test_a_child_has_one_thread_that_does_what_its_parents_did(program: str, tmp_path: Path) -> None:
    """Also where no edge of it will ever tell, and the runtime's memory cannot be asked."""
    if not (BUILD / program).exists():
        pytest.skip("needs LLVM's libomp")
    report = told(tmp_path, "single", 499, program)
    assert "partly guessed" not in report and "spin (" in report
