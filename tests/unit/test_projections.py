# SPDX-License-Identifier: Apache-2.0
"""Logical and physical call paths in one file, and lock blame."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2 as pb
from parprof.commands.report import ReportCommand
from parprof.errors import ProfileFormatError
from parprof.exporters import pprof, pprof_reader, projection
from parprof.metrics import Metrics
from parprof.model import Origin, PathSample, ProcessInfo, Profile
from profiles import any_profile, frame, heat, library


def message(profile: Profile, physical: bool = False) -> pb.Profile:
    file = io.BytesIO()
    pprof.write(profile, file, physical=physical)
    return pb.Profile.FromString(gzip.decompress(file.getvalue()))


def again(profile: Profile, physical: bool = False) -> Profile:
    return pprof_reader.decode(message(profile, physical).SerializeToString())


def region() -> Profile:
    """A worker's sample that belongs to ``main``, one of ``main`` itself, and 0.5 s of blame."""
    worker = (library("gomp_thread_start"), frame("body._omp_fn.0", 20))
    samples = [
        PathSample(
            (frame("main", 7), frame("body", 20)), Metrics(3, 3e9, 1e9), Origin(5, "x"), physical=worker
        ),
        PathSample((frame("main", 9),), Metrics(1, 1e9, blame_ns=5e8), Origin(5, "x")),
    ]
    return Profile(ProcessInfo(5, "x", "x", cores=2), 4.0, 1000, samples)


@given(any_profile, st.booleans())
def test_both_projections_come_back(profile: Profile, physical: bool) -> None:
    assert again(profile, physical) == profile


@given(any_profile)
def test_totals_are_equal_to_the_sample(profile: Profile) -> None:
    other = projection.physical(profile)
    assert other.total() == profile.total()
    assert len(other.samples) == len(profile.samples)
    assert [sample.path for sample in other.samples] == [s.physical or s.path for s in profile.samples]
    assert not any(sample.physical for sample in other.samples)
    assert projection.physical(other) == other


def leaf_names(out: pb.Profile) -> list[str]:
    functions = {function.id: out.string_table[function.name] for function in out.function}
    places = {place.id: place for place in out.location}
    return [functions[places[sample.location_id[0]].line[0].function_id] for sample in out.sample]


def test_layout() -> None:
    """GIVEN one sample with two projections THEN the second is a label, location ids leaf first."""
    out = message(region())
    assert leaf_names(out) == ["body", "main"]
    labels = {out.string_table[label.key]: out.string_table[label.str] for label in out.sample[0].label}
    ids = [int(word) for word in labels["physical"].split(" ")]
    places = {place.id: place for place in out.location}
    names = {function.id: out.string_table[function.name] for function in out.function}
    assert [names[places[number].line[0].function_id] for number in ids] == [
        "body._omp_fn.0", "gomp_thread_start",
    ]  # fmt: skip
    assert "physical" not in {out.string_table[label.key] for label in out.sample[1].label}
    out = message(region(), physical=True)
    assert leaf_names(out) == ["body._omp_fn.0", "main"]
    assert "logical" in {out.string_table[label.key] for label in out.sample[0].label}


def test_files_of_one_projection_are_as_before() -> None:
    out = message(heat())
    assert not {"physical", "logical"} & set(out.string_table)
    assert not any(text.startswith("locations: ") for text in out.string_table)
    assert message(heat(), physical=True) == out


def changed(text: str) -> pb.Profile:
    out = message(region())
    label = next(label for label in out.sample[0].label if out.string_table[label.key] == "physical")
    out.string_table.append(text)
    label.str = len(out.string_table) - 1
    return out


@pytest.mark.parametrize(
    "text", ["x", "1  2", " ", "-1", "1\n2", "999", "0", "1 " * 3, "\u0661", "9" * 30, "1,2", "0x1", "1e0"]
)
def test_hostile_labels_are_refused(text: str) -> None:
    with pytest.raises(ProfileFormatError):
        pprof_reader.decode(changed(text).SerializeToString())


def test_a_label_that_points_nowhere_is_refused() -> None:
    out = message(region())
    out.sample[0].label[0].str = 10**9
    with pytest.raises(ProfileFormatError, match="no string"):
        pprof_reader.decode(out.SerializeToString())


def test_label_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pprof_reader, "MAX_FRAMES", 1000)
    with pytest.raises(ProfileFormatError, match="frames"):
        pprof_reader.decode(changed(" ".join(["1"] * 1001)).SerializeToString())
    out = changed(" ".join(["1"] * 600))  # one string, used twice
    out.sample[1].label.add(key=out.sample[0].label[0].key, str=out.sample[0].label[0].str)
    with pytest.raises(ProfileFormatError, match="frames"):
        pprof_reader.decode(out.SerializeToString())


@settings(max_examples=100)
@given(st.text(max_size=20))
def test_any_label_is_read_or_refused(text: str) -> None:
    try:
        profile = pprof_reader.decode(changed(text).SerializeToString())
    except ProfileFormatError:
        return
    assert profile.total() == region().total()


@pytest.mark.parametrize("physical", [False, True])
def test_renumbered_locations_are_not_misread(physical: bool) -> None:
    """GIVEN a file that another tool rewrote: ids in labels are stale THEN they are ignored, and it says so."""
    out = message(region(), physical)
    ids = {place.id: place.id + 1 for place in out.location}
    for place in out.location:
        place.id = ids[place.id]
    for one in out.sample:
        one.location_id[:] = [ids[number] for number in one.location_id]
    profile = pprof_reader.decode(out.SerializeToString())
    assert not any(sample.physical for sample in profile.samples)
    assert [sample.path[-1].name for sample in profile.samples] == [
        "body._omp_fn.0" if physical else "body", "main",
    ]  # fmt: skip
    assert any("another tool rewrote this file" in note for note in profile.notes)


def test_labels_without_their_checksum_are_ignored() -> None:
    out = message(region())
    del out.comment[-1]
    assert not any(sample.physical for sample in pprof_reader.decode(out.SerializeToString()).samples)


def go_top(file: Path, index: str) -> str:
    go = shutil.which("go")
    if go is None:
        pytest.skip("the go tool is not installed")
    env = {**os.environ, "HOME": str(file.parent), "PPROF_TMPDIR": str(file.parent), "GOFLAGS": "-mod=mod"}
    command = [go, "tool", "pprof", "-top", f"-sample_index={index}", str(file)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=True).stdout


def test_go_tool_pprof_reads_both_and_blame(tmp_path: Path) -> None:
    file = tmp_path / "x.pb.gz"
    pprof.write(region(), file)
    top = go_top(file, "work")
    assert "body" in top
    assert "gomp_thread_start" not in top
    assert "Type: blame" in go_top(file, "blame")
    pprof.write(region(), file, physical=True)
    assert "gomp_thread_start" in go_top(file, "work")


def test_what_go_tool_pprof_writes_is_not_misread(tmp_path: Path) -> None:
    file, rewritten = tmp_path / "x.pb.gz", tmp_path / "y.pb.gz"
    pprof.write(region(), file)
    go = shutil.which("go")
    if go is None:
        pytest.skip("the go tool is not installed")
    env = {**os.environ, "HOME": str(tmp_path), "PPROF_TMPDIR": str(tmp_path), "GOFLAGS": "-mod=mod"}
    command = [go, "tool", "pprof", "-proto", "-output", str(rewritten), str(file)]
    subprocess.run(command, capture_output=True, env=env, timeout=60, check=True)
    profile = pprof.read(rewritten)
    assert profile.total().work_ns == region().total().work_ns
    for sample in profile.samples:
        if sample.physical:
            assert [frame.name for frame in sample.physical] == ["gomp_thread_start", "body._omp_fn.0"]


def test_blame_has_a_column_only_where_there_is_some() -> None:
    def columns(profile: Profile) -> list[str]:
        out = message(profile)
        return [out.string_table[kind.type] for kind in out.sample_type]

    assert "blame" not in columns(heat())
    assert columns(region())[-1] == "blame"
    with_events = region()
    with_events.samples[0].metrics.events = {"blame": 3}  # an event of that name is another column}
    assert columns(with_events)[-2:] == ["blame", "blame"]
    assert again(with_events) == with_events
    del with_events.samples[1]
    assert again(with_events) == with_events


def test_profiling_has_a_column_only_where_there_is_some() -> None:
    def columns(profile: Profile) -> list[str]:
        out = message(profile)
        return [out.string_table[kind.type] for kind in out.sample_type]

    assert "profiling" not in columns(region())
    both = region()
    both.samples[1].metrics.profiling_ns = 2e6
    assert columns(both)[-2:] == ["blame", "profiling"]
    assert again(both) == both
    both.samples[0].metrics.events = {"profiling": 3}  # an event of that name is another column}
    assert columns(both)[-2:] == ["profiling", "profiling"]
    assert again(both) == both
    both.samples[1].metrics.blame_ns = 0.0
    assert columns(both)[-3:] == ["spin", "profiling", "profiling"]
    assert again(both) == both


def test_blame_is_no_effort() -> None:
    total = region().total()
    assert total.blame_ns == 5e8
    without = total.copy()
    without.blame_ns = 0.0
    assert total.effort_ns == without.effort_ns


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    command = ReportCommand()
    command.prepare_parser(parser)
    assert command.run(parser.parse_args(arguments)) == 0


@pytest.mark.parametrize("first", [False, True])
def test_report_command(first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "x.pb.gz")
    pprof.write(region(), file, physical=first)
    run(file)
    logical = capsys.readouterr().out
    assert "body (heat.c:20)" in logical
    assert "gomp_thread_start" not in logical
    run(file, "--physical")
    physical = capsys.readouterr().out
    assert "gomp_thread_start" in physical
    run(file, "--json")
    one = json.loads(capsys.readouterr().out)
    run(file, "--json", "--physical")
    other = json.loads(capsys.readouterr().out)
    assert one["totals"] == other["totals"]
    assert one["totals"]["blame_s"] == 0.5
    assert ["gomp_thread_start", "body._omp_fn.0"] in [row["frames"] for row in other["paths"]]
    page = tmp_path / "x.html"
    run(file, "--physical", "--html", str(page))
    assert "gomp_thread_start" in page.read_text()


def test_blame_locks_sorts_by_blame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "x.pb.gz")
    pprof.write(region(), file)
    run(file, "-v", "--view", "flat", "--blame", "locks")
    printed = capsys.readouterr().out
    assert "blame: other threads waited 0.50 s for locks" in printed
    assert "blame s" in printed
    rows = printed.split("\n\n")[1].splitlines()[2:]
    assert rows[0].endswith("main (heat.c:9)")
    assert rows[0].split()[4] == "0.50"
    with pytest.raises(SystemExit):
        run(file, "--blame", "threads")
