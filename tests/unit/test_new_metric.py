# SPDX-License-Identifier: Apache-2.0
"""GIVEN one more entry in the table of metrics THEN every output shows it, and nothing else was to be done."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2 as pb
from parprof.cct.tree import CallingContextTree
from parprof.commands.diff import print_diff
from parprof.commands.merge import MergeCommand
from parprof.commands.showing import print_report
from parprof.commands.top import Feed, as_data, table
from parprof.commands.views import add_row_options
from parprof.exporters import html, json_report, pprof
from parprof.exporters.views import View
from parprof.metrics import METRICS, WORK, Metric
from parprof.model import Profile
from parprof.service.control import control_pb2
from parprof.service.control.amounts import to_wire
from parprof.service.http import status_page
from parprof.service.metrics.collector import MetricsPage
from parprof.service.recent import RecentProfiles
from parprof.units import BYTES, NANOSECONDS
from profiles import heat
from stand_in_service import StandInService

FROST = Metric("frost", NANOSECONDS, "Time in which memory was waited for")
LARGEST = Metric("largest", BYTES, "The largest input that a call had", combine=max)
"""One that does not add up."""


@pytest.fixture(autouse=True)
def entries() -> Iterator[None]:
    """Two more entries in the table."""
    for metric in (FROST, LARGEST):
        METRICS.add(metric)
    yield
    for metric in (FROST, LARGEST):
        METRICS.remove(metric)


@pytest.fixture
def profile() -> Profile:
    """heat, of which two call paths frosted, and got inputs."""
    out = heat()
    for number, sample in enumerate(out.samples[:2], 1):
        sample.metrics[FROST] = number * 1e8
        sample.metrics[LARGEST] = number * 1000
    return out


@pytest.fixture
def service() -> StandInService:
    """A daemon whose processes frosted."""
    out = StandInService()
    for program in out.programs:
        for metrics in (program.totals, *program.by_function.values()):
            metrics[FROST] = 2e9
            metrics[LARGEST] = 4096
    out.advance(4)
    return out


def test_pprof(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "one.pb.gz"
    pprof.write(profile, path)
    message = pb.Profile.FromString(gzip.decompress(path.read_bytes()))
    text = message.string_table
    columns = [f"{text[kind.type]}/{text[kind.unit]}" for kind in message.sample_type]
    while columns[-1].startswith(("elapsed/", "work_at_")):  # no metrics; they follow all that are
        columns.pop()
    assert columns[-2:] == ["frost/nanoseconds", "largest/bytes"]
    end = len(columns)
    assert [sample.value[end - 2 : end] for sample in message.sample][:2] == [
        [10**8, 1000],
        [2 * 10**8, 2000],
    ]
    read = pprof.read(path)
    assert read.samples == profile.samples
    assert (read.total()[FROST], read.total()[LARGEST]) == (3e8, 2000)


def test_merge(profile: Profile, tmp_path: Path) -> None:
    for name in "ab":
        pprof.write(profile, tmp_path / name)
    parser = argparse.ArgumentParser()
    command = MergeCommand()
    command.prepare_parser(parser)
    command.run(parser.parse_args([str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "out")]))
    total = pprof.read(tmp_path / "out").total()
    assert (total[FROST], total[LARGEST]) == (6e8, 2000)


def test_calling_context_tree(profile: Profile) -> None:
    root = CallingContextTree(profile.samples).root
    assert (root.inclusive[FROST], root.inclusive[LARGEST]) == (3e8, 2000)
    (main,) = root.children.values()
    assert (
        main.inclusive[LARGEST] == max(child.inclusive[LARGEST] for child in main.children.values()) == 2000
    )


def test_json(profile: Profile) -> None:
    report = json_report.report(profile)
    assert (report["totals"]["frost_s"], report["totals"]["largest_bytes"]) == (0.3, 2000)
    assert sum(path["frost_s"] for path in report["paths"]) == pytest.approx(0.3)


def test_terminal(profile: Profile) -> None:
    parser = argparse.ArgumentParser()
    add_row_options(parser)
    for name in ("frost", "largest"):
        assert parser.parse_args(["--sort", name]).sort == name
        out = io.StringIO()
        print_report(profile, View(sort=name, details=True), file=out)
        text = out.getvalue()
        assert "frost: 0.30 s: time in which memory was waited for" in text
        assert "frost s" in text and "largest bytes" in text
        assert text.splitlines()[-1]


def test_diff(profile: Profile) -> None:
    out = io.StringIO()
    print_diff(heat(), profile, "frost", 10, out)
    assert "frost +0.300 s" in " ".join(out.getvalue().split())
    assert "change of frost" in out.getvalue()


def test_html(profile: Profile) -> None:
    page = html.page(profile).html()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [one["name"] for one in data["metrics"]][-2:] == ["frost", "largest"]
    assert data["total"][-2:] == [300_000, 2000]
    assert all(one["column"] for one in data["metrics"][-2:])
    assert [one["unit"] for one in data["metrics"]][-2:] == ["s", "bytes"]
    assert [one["combine"] for one in data["metrics"]][-2:] == ["add", "max"]
    drawn = {one["name"]: one["graph"] for one in data["metrics"]}
    assert drawn["frost"] and not drawn["largest"]  # widths of callees must add up


def test_status_page(service: StandInService) -> None:
    page = status_page.status_page(service.snapshot(), (), {"sort": "frost"}).html()
    assert "Time in which memory was waited for" in page
    assert "frost 4.0 s" in page  # of all processes
    assert "4,096 bytes" in page


def test_prometheus(service: StandInService) -> None:
    text = MetricsPage(service).render()[1][0].decode()
    lines = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line[0] != "#"
    }
    assert lines["parprof_node_frost_seconds_total"] == 4.0
    assert lines["parprof_node_largest_bytes"] == 4096
    assert "# TYPE parprof_largest_bytes gauge" in text
    names = {name.partition("{")[0] for name in lines}
    assert {"parprof_frost_seconds_total", "parprof_function_frost_seconds_total"} <= names
    assert {"parprof_largest_bytes", "parprof_function_largest_bytes"} <= names


def test_control_protocol_and_top(service: StandInService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feed, "__init__", lambda self, path: None)
    feed = Feed(None)
    feed.status, feed.before = control_pb2.Status(), None
    process = service.snapshot().processes[0]
    sent = control_pb2.Process(pid=7, comm="heat", totals=to_wire(process.totals), started_time_s=100.0)
    feed.now = control_pb2.ProcessList.FromString(
        control_pb2.ProcessList(time_s=104.0, processes=[sent]).SerializeToString()
    )
    (use,) = feed.uses("frost")
    assert (use[FROST], use[LARGEST]) == (0.5, 4096)
    assert use[WORK] == process.totals.work_ns / 1e9 / 4
    (one,) = as_data(feed, "frost")["processes"]
    assert (one["frost"], one["totals"]["frost_s"], one["totals"]["largest_bytes"]) == (0.5, 2.0, 4096)
    console = Console(file=io.StringIO(), width=120)
    console.print(table(feed, "frost", 120, None))
    assert "frost" in console.file.getvalue()


def test_recent_profiles(profile: Profile) -> None:
    recent = RecentProfiles()
    for _ in range(3):
        recent.add(profile)
    found = recent.profile(profile.process.pid, 1e9)
    assert found is not None
    assert (found.total()[FROST], found.total()[LARGEST]) == (9e8, 2000)
