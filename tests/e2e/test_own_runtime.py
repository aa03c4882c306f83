# SPDX-License-Identifier: Apache-2.0
"""The example of docs/runtimes.md: a runtime that a package of one's own adds, by its edges or as a pool."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from profiling import ROOT
from reports import judge, record_command, report_of

pytestmark = pytest.mark.beside

CREW = ROOT / "examples/crew"
SECONDS = 2.0


def installed(folder: Path, group: str) -> str:
    """The import path with the example in it as ``pip install`` leaves it, with the entry points of one group."""
    declared = tomllib.loads((CREW / "pyproject.toml").read_text())["project"]
    info = folder / "parprof_crew-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in declared["entry-points"][group].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")
    (folder / "parprof_crew.py").write_text((CREW / "parprof_crew.py").read_text())
    folder.chmod(0o755)
    return os.pathsep.join([str(ROOT / "daemon"), str(folder)])


def profile(folder: Path, path: str, runtime: str, source: str) -> None:
    """Run the example with that import path, and check what is said of it. ``source``: of n_w."""
    program, file = folder / "demo", folder / "demo.pb.gz"
    subprocess.run(
        ["gcc", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", CREW / "demo.c", "-o", program],
        check=True,
    )
    command = [*record_command(file, "-F", 499), str(program), str(SECONDS)]

    def record() -> dict[str, Any]:
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
        return report_of(file)

    def check_all(report: dict[str, Any]) -> None:
        assert (report["process"]["runtime"], report["process"]["n_w_source"]) == (runtime, source)
        check(report)

    judge(record, check_all)


def shares(report: dict[str, Any], metric: str) -> dict[tuple[str, str], float]:
    """Of the parts that threads run, by the phase that they are below."""
    out: dict[tuple[str, str], float] = {}
    for path in report["paths"]:
        part = next((name for name in path["frames"] if name.endswith("_part")), "")
        phase = next((name for name in path["frames"] if name in ("even", "skewed")), path["frames"][0])
        if part:
            out[part, phase] = out.get((part, phase), 0) + path[metric]
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    return tmp_path


def check(report: dict[str, Any]) -> None:
    work = shares(report, "work_s")
    whole = sum(work.values())
    assert whole == pytest.approx(SECONDS * (1 + 2 / 3), rel=0.15)
    assert work["even_part", "even"] == pytest.approx(SECONDS, rel=0.15)
    assert work["skewed_part", "skewed"] == pytest.approx(SECONDS * 2 / 3, rel=0.15)
    for (part, phase), seconds in work.items():
        assert part.startswith(phase) or seconds < 0.03 * whole, work
    idle = shares(report, "idleness_s")
    assert idle["skewed_part", "skewed"] > 0.7 * sum(idle.values())


def test_as_a_runtime_whose_edges_are_probed(folder: Path) -> None:
    profile(folder, installed(folder / "package", "parprof.runtimes"), "crew", "exact")


def test_as_a_pool_without_probes(folder: Path) -> None:
    """Whose work a thread of the pool does is told by who is seen in the same function."""
    profile(folder, installed(folder / "package", "parprof.pools"), "none", "scheduler")
