# SPDX-License-Identifier: Apache-2.0
"""`parprof report --cores`: the same run on more cores, or on fewer, against what attribution says with that n."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.__main__ import main
from parprof.attribution import attribute
from parprof.attribution.concurrency import levels_of
from parprof.attribution.gain import row_gain
from parprof.causes.ranking import find_causes
from parprof.errors import UsageError
from parprof.exporters import pprof
from parprof.exporters.on_cores import on_cores
from parprof.exporters.pprof_reader import read_as
from parprof.facts.reading import decode
from parprof.metrics import IDLENESS, OUTSIDE, STALL, WORK, Metrics, total
from parprof.model import Interval, PathSample, ProcessInfo, Profile, ThreadState
from parprof.profile.assemble import make_profile
from profiles import frame, heat

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


def row(n_working: int, cores: int, count: int = 100) -> PathSample:
    metrics = attribute(count, 1e6, n_working, cores, ThreadState.WORKING)
    return PathSample((frame("f"),), metrics, levels=levels_of(count * 1e6, n_working, cores))


@given(st.integers(1, 7), st.integers(1, 64), st.integers(1, 64))
def test_one_n_w_is_what_attribution_says(n_working: int, before: int, cores: int) -> None:
    profile = Profile(ProcessInfo(cores=before), 1.0, 1000, [row(n_working, before)])
    found = on_cores(profile, cores)
    assert found.process.cores == cores
    expected = row(n_working, cores).metrics
    assert found.samples[0].metrics[IDLENESS] == pytest.approx(expected[IDLENESS], rel=1e-9, abs=1e-3)
    assert found.samples[0].metrics[WORK] == expected[WORK]
    assert profile.samples[0].metrics == row(n_working, before).metrics


@given(st.integers(8, 100), st.integers(8, 64), st.integers(1, 64))
def test_where_n_w_is_known_by_ranges_fewer_cores_idle_less(n_working: int, before: int, cores: int) -> None:
    profile = Profile(ProcessInfo(cores=before), 1.0, 1000, [row(n_working, before)])
    idle = on_cores(profile, cores).samples[0].metrics[IDLENESS]
    if n_working <= before or cores <= before:
        assert idle == pytest.approx(row(n_working, cores).metrics[IDLENESS], rel=1e-9, abs=1e-3)
    assert idle <= row(1, cores).metrics[IDLENESS]


@pytest.mark.parametrize("name", ["libgomp", "pthreads", "planted/openmp_serial"])
@pytest.mark.parametrize("cores", [1, 8, 64])
def test_a_profile_is_as_if_it_were_made_of_its_facts_with_that_n(name: str, cores: int) -> None:
    measured, namer = read_as(RECORDINGS / f"{name}.facts", decode)
    found = on_cores(make_profile(measured, namer), cores)
    expected = make_profile(replace(measured, cores=cores), namer)
    for metric in (IDLENESS, STALL):
        whole = total(one.metrics for one in expected.samples)
        mine = {id(one): one.metrics[metric] for one in found.samples}
        assert sum(mine.values()) == pytest.approx(whole[metric], rel=0.02, abs=0.01 * whole.effort_ns)
    if (
        expected.accounting and cores >= 2
    ):  # older recordings have none; on one core threads would wait for it
        assert found.accounting
        assert found.accounting.accounted == pytest.approx(expected.accounting.accounted, abs=0.02)


def test_what_a_fix_gains_on_more_cores() -> None:
    """0.3 s alone, 4 s of work on 4 cores: with 64 cores the serial part is nearly all of what remains."""
    profile = heat()
    many = on_cores(profile, 64)
    serial = total(one.metrics for one in many.samples if frame("write_boundary", 33) in one.path)
    whole = total(one.metrics for one in many.samples)
    elapsed, alone = whole.effort_ns / 64, 0.3e9
    assert row_gain(serial, whole) == pytest.approx(elapsed / (elapsed - alone + alone / 64))
    assert find_causes(many)[0].gain_bound > 1.0
    assert "n is 64, as --cores says; it was measured with 4" in many.notes
    assert on_cores(profile, 4) is profile


def test_intervals_add_up_to_their_rows() -> None:
    profile = heat()
    halves = [
        Interval(at, at + 1.0, (), {
            number: Metrics.of({metric: value / 2 for metric, value in one.metrics.values.items()})
            for number, one in enumerate(profile.samples)
        })
        for at in (0.0, 1.0)
    ]  # fmt: skip
    found = on_cores(replace(profile, intervals=halves), 16)
    for number, one in enumerate(found.samples):
        parts = [interval.rows[number] for interval in found.intervals]
        for metric in (IDLENESS, STALL, OUTSIDE, WORK):
            assert sum(part[metric] for part in parts) == pytest.approx(one.metrics[metric])


def test_a_profile_without_n_w_is_refused() -> None:
    profile = heat()
    profile.samples[0].levels = ()
    with pytest.raises(UsageError, match="--cores"):
        on_cores(profile, 8)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "heat.pb.gz"
    pprof.write(heat(), str(file))
    assert main(["report", str(file), "--cores", "64", "--width", "120"]) == 0
    assert capsys.readouterr().out.startswith("heat 4096: 64 cores")
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(file), "--cores", "0"])
