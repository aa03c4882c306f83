# SPDX-License-Identifier: Apache-2.0
"""Logical and physical call paths in one file, and lock blame."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2 as pb
from parprof.commands.report import ReportCommand
from parprof.errors import ProfileFormatError
from parprof.exporters import pprof, pprof_reader, projection
from parprof.exporters.pprof_header import checksum
from parprof.exporters.pprof_private import PREFIX, Private
from parprof.metrics import Metrics
from parprof.model import Frame, Origin, PathSample, ProcessInfo, Profile
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


def hidden(out: pb.Profile) -> Private:
    (comment,) = (out.string_table[at] for at in out.comment if out.string_table[at].startswith(PREFIX))
    return Private.decode(comment)


def with_hidden(out: pb.Profile, private: Private) -> pb.Profile:
    """The message with another private comment, its checksum included."""
    out.string_table[out.comment[-1]] = private.encode(out)
    return out


def of_before(profile: Profile, physical: bool = False) -> pb.Profile:
    """A file as it was until 0.9: the second path is a label."""
    out = message(profile, physical)
    private = hidden(out)
    del out.comment[-1]
    for sample, at in zip(out.sample, private.path_of, strict=True):
        if at >= 0:
            out.string_table.extend((private.projection, " ".join(map(str, private.paths[at]))))
            sample.label.add(key=len(out.string_table) - 2, str=len(out.string_table) - 1)
    out.string_table.append(f"locations: {checksum(out.location)}")
    out.comment.append(len(out.string_table) - 1)
    return out


@pytest.mark.parametrize("physical", [False, True])
def test_files_of_before_are_read(physical: bool) -> None:
    assert pprof_reader.decode(of_before(region(), physical).SerializeToString()) == region()


def test_layout() -> None:
    """GIVEN one sample with two projections THEN the second is in the private comment, location ids leaf first."""
    out = message(region())
    assert leaf_names(out) == ["body", "main"]
    private = hidden(out)
    assert (private.projection, private.path_of) == ("physical", [0, -1])
    (ids,) = private.paths
    places = {place.id: place for place in out.location}
    names = {function.id: out.string_table[function.name] for function in out.function}
    assert [names[places[number].line[0].function_id] for number in ids] == [
        "body._omp_fn.0", "gomp_thread_start",
    ]  # fmt: skip
    out = message(region(), physical=True)
    assert leaf_names(out) == ["body._omp_fn.0", "main"]
    assert hidden(out).projection == "logical"


def test_nothing_private_is_seen_by_other_tools() -> None:
    """Labels are tags of other tools, and ``go tool pprof`` prints all comments but those that begin with #."""
    profile = replace(region(), extra={"switches": "5"}, processes=[ProcessInfo(5, "x")])
    out = message(profile)
    assert {out.string_table[label.key] for sample in out.sample for label in sample.label} == {"pid", "comm"}
    seen = [out.string_table[at] for at in out.comment if not out.string_table[at].startswith("#")]
    assert not any(line.startswith(("extra.", "process:", "accounting:", "locations:")) for line in seen)
    assert pprof_reader.decode(out.SerializeToString()) == profile


@pytest.mark.parametrize(
    "comment",
    ["", "1", "[]", '{"head": 1}', '{"head": [1]}', '{"loops": []}', '{"loops": {"x": []}}', '{"loops": {"1": [[0]]}}',
     '{"loops": {"1": [[-1, "a", "b", 1, 1]]}}', '{"physical": ["x"]}', '{"physical": ["-1"]}', '{"path_of": ["x"]}',
     '{"path_of": [0]}',
     '{"physical": ["1"], "path_of": [3, 3]}', '{"physical": ["99"], "path_of": [0, 0]}', "[" * 9999, '{"checksum": 1}',
     '{"physical": ["' + "9" * 40 + '"]}'],
)  # fmt: skip
def test_hostile_private_comments_are_refused(comment: str) -> None:
    out = message(region())
    out.string_table[out.comment[-1]] = PREFIX + comment
    with pytest.raises(ProfileFormatError):
        pprof_reader.decode(out.SerializeToString())


def test_private_path_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    out = message(region())
    private = hidden(out)
    private.paths, private.path_of = [[1] * 600], [0, 0]
    data = with_hidden(out, private).SerializeToString()
    assert len(pprof_reader.decode(data).samples[1].physical) == 600
    monkeypatch.setattr(pprof_reader, "MAX_FRAMES", 1000)
    with pytest.raises(ProfileFormatError, match="frames"):
        pprof_reader.decode(data)


def looped() -> Profile:
    """Half of main's time is in a loop, in which helper is inlined, which has a loop of its own."""
    main = Frame("main", "heat.c", 12, 3, "heat", "b1d", 0x40)
    loop = replace(main, name="loop at heat.c:11-14", start_line=11, is_loop=True, inlined=True)
    helper = Frame("helper", "heat.c", 2, 1, "heat", "b1d", 0x40, inlined=True)
    inner = replace(helper, name="loop at heat.c:1-2", is_loop=True)
    samples = [
        PathSample((main, loop, helper, inner), Metrics(3, 3e9, 1e9), Origin(5, "x")),
        PathSample((replace(main, address=0x10, line=4),), Metrics(1, 1e9), Origin(5, "x")),
    ]
    return Profile(ProcessInfo(5, "x", "x", cores=2), 4.0, 1000, samples)


@pytest.mark.parametrize("loops", [False, True])
def test_loops_are_functions_of_other_tools_only_if_asked_for(loops: bool) -> None:
    file = io.BytesIO()
    pprof.write(looped(), file, loops=loops)
    out = pb.Profile.FromString(gzip.decompress(file.getvalue()))
    names = {function.id: out.string_table[function.name] for function in out.function}
    lines = [names[line.function_id] for line in out.location[0].line]
    assert lines == (
        ["loop at heat.c:1-2", "helper", "loop at heat.c:11-14", "main"] if loops else ["helper", "main"]
    )
    assert pprof_reader.decode(out.SerializeToString()) == looped()
    out.location[0].address += 1  # by another tool
    again = pprof_reader.decode(out.SerializeToString())
    assert any(frame.is_loop for frame in again.samples[0].path) == loops
    assert any("another tool rewrote this file" in note for note in again.notes) != loops


def test_files_of_one_projection_are_as_before() -> None:
    out = message(heat())
    assert not {"physical", "logical"} & set(out.string_table)
    assert not any(text.startswith("locations: ") for text in out.string_table)
    assert message(heat(), physical=True) == out


def changed(text: str) -> pb.Profile:
    out = of_before(region())
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
    out = of_before(region())
    out.sample[0].label[-1].str = 10**9
    with pytest.raises(ProfileFormatError, match="no string"):
        pprof_reader.decode(out.SerializeToString())


def test_label_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pprof_reader, "MAX_FRAMES", 1000)
    with pytest.raises(ProfileFormatError, match="frames"):
        pprof_reader.decode(changed(" ".join(["1"] * 1001)).SerializeToString())
    out = changed(" ".join(["1"] * 600))  # one string, used twice
    label = next(label for label in out.sample[0].label if out.string_table[label.key] == "physical")
    out.sample[1].label.add(key=label.key, str=label.str)
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
@pytest.mark.parametrize("made", [message, of_before])
def test_renumbered_locations_are_not_misread(
    made: Callable[[Profile, bool], pb.Profile], physical: bool
) -> None:
    """GIVEN a file that another tool rewrote: ids in private details are stale THEN they are ignored, which is said."""
    out = made(region(), physical)
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
    out = of_before(region())
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


def test_go_tool_pprof_gives_functions_what_their_loops_take(tmp_path: Path) -> None:
    file = tmp_path / "x.pb.gz"
    pprof.write(looped(), file)
    top = go_top(file, "work")
    assert re.search(r"^ +3s 75.00% 75.00% .* helper", top, re.MULTILINE)
    assert "loop at" not in top and "parprof:" not in top and "logical" not in top
    pprof.write(looped(), file, loops=True)
    assert re.search(r"^ +3s 75.00% 75.00% .* loop at heat.c:1-2", go_top(file, "work"), re.MULTILINE)


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
    assert rows[0].split()[5] == "0.50"
    with pytest.raises(SystemExit):
        run(file, "--blame", "threads")
