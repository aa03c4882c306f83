# SPDX-License-Identifier: Apache-2.0
"""Profiles that older versions wrote still open: as reports, as pages, beside new ones.

tests/recordings/old has a file of each of the commits that they are named after, made there from its own
tests/recordings/libgomp.facts by `make_profile` and `pprof.write`. They stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parprof.__main__ import main
from parprof.exporters import pprof
from parprof.exporters.pprof_reader import read_as
from parprof.exporters.views import VIEWS
from parprof.facts.reading import decode
from parprof.profile.assemble import make_profile

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
OLD = ("719c99c", "8fe66f0")
_SHOWN = {("threads", ""): ": burn", ("concurrency", "8fe66f0"): "Record it again"}
"""By view and profile, what is there in place of a function: threads, and that nothing was kept."""


def old(name: str) -> str:
    return str(RECORDINGS / f"old/{name}.pb.gz")


@pytest.mark.parametrize("name", OLD)
def test_what_they_hold_is_read(name: str) -> None:
    profile = pprof.read(old(name))
    total = profile.total()
    assert (len(profile.samples), total.samples, profile.process.cores) == (150, 2423, 2)
    assert (total.work_ns / 1e9, total.idleness_ns / 1e9) == (pytest.approx(1.956, abs=1e-3),
                                                              pytest.approx(0.668, abs=1e-3))  # fmt: skip
    functions = {frame.name for row in profile.samples for frame in row.path}
    assert {"main", "serial_work", "skewed_long"} <= functions


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize(
    "options", [[], ["-v"], ["--physical"], ["--unfold"], ["--count-outside"]], ids=" ".join
)
def test_all_views_open(name: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for view in VIEWS:
        assert main(["report", old(name), "--view", view, "--limit", "200", *options]) == 0
        printed = capsys.readouterr()
        assert "2 cores" in printed.out or "cores n = 2" in printed.out
        assert _SHOWN.get((view, name), _SHOWN.get((view, ""), "serial_work")) in printed.out, view
        assert not printed.err, view


@pytest.mark.parametrize("name", OLD)
def test_json_and_pages_open(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", old(name), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["totals"]["samples"] == 2423 and report["scope"]["kind"] == "process"
    assert any(row["name"] == "serial_work" for row in report["functions"])
    assert main(["report", old(name), "--html", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "serial_work" in page


@pytest.mark.parametrize("name", OLD)
def test_they_are_compared_with_new_ones(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = make_profile(*read_as(RECORDINGS / "libgomp.facts", decode))
    pprof.write(now, str(tmp_path / "new"))
    for pair in ([old(name), str(tmp_path / "new")], [str(tmp_path / "new"), old(name)], [old(name)] * 2):
        assert main(["diff", *pair]) == 0
        assert "parallel efficiency" in capsys.readouterr().out
        assert main(["diff", *pair, "--html", str(tmp_path / "x.html")]) == 0
        assert (tmp_path / "x.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["merge", old(name), str(tmp_path / "new"), "-o", str(tmp_path / "sum")]) == 0
    capsys.readouterr()
    assert pprof.read(str(tmp_path / "sum")).total().samples > 2 * 2000
