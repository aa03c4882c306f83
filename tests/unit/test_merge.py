# SPDX-License-Identifier: Apache-2.0
"""`parprof merge`: totals to the nanosecond, labels, and files that are no profiles."""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2 as pb
from parprof.commands.merge import MergeCommand
from parprof.errors import OutputError, ProfileFormatError, UsageError
from parprof.exporters import pprof
from parprof.metrics import Metrics
from parprof.model import PathSample, Profile
from profiles import any_profile, frame, heat


def merge(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    command = MergeCommand()
    command.prepare_parser(parser)
    return command.run(parser.parse_args([str(one) for one in arguments]))


def written(path: Path, profile: Profile) -> Path:
    pprof.write(profile, path)
    return path


def message(path: Path) -> pb.Profile:
    return pb.Profile.FromString(gzip.decompress(path.read_bytes()))


def columns(path: Path) -> dict[str, int]:
    """The total of each column, as whole numbers."""
    out = message(path)
    return {
        out.string_table[kind.type]: sum(sample.value[column] for sample in out.sample)
        for column, kind in enumerate(out.sample_type)
    }


def labels(path: Path) -> list[dict[str, str]]:
    out = message(path)
    text = out.string_table
    return [{text[one.key]: text[one.str] for one in sample.label if one.str} for sample in out.sample]


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    """Three ranks of a job on two nodes."""
    paths = []
    for number, name in enumerate(["n0-rank0", "n0-rank1", "n1-rank2"]):
        profile = heat()
        profile.process = replace(profile.process, pid=100 + number)
        profile.duration_s = 1.5 + number
        profile.lost = {"map full": number + 1}
        profile.notes = ["frames were cut"] + ["only here"] * (number == 1)
        profile.start_time_s += 2 - number
        profile.samples[0].metrics.work_ns += number  # a nanosecond counts
        paths.append(written(tmp_path / f"{name}.pb.gz", profile))
    return paths


def test_totals_and_header(ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.pb.gz"
    assert merge(*ranks, "-o", out) == 0
    one = columns(ranks[0])
    assert columns(out) == {name: 3 * value + 3 * (name == "work") for name, value in one.items()}
    merged = pprof.read(out)
    process = merged.process
    assert (process.comm, process.command, process.pid) == ("heat", "./heat 4096", 0)
    assert (process.cores, process.runtime, process.n_w_source) == (12, "libgomp", "exact")
    assert (merged.duration_s, merged.frequency_hz, merged.lost) == (3.5, 1000, {"map full": 6})
    assert merged.notes == ["frames were cut", "only here (1 of 3 files)"]
    assert merged.extra["merged_files"] == "3"
    assert merged.start_time_s == heat().start_time_s
    assert len(merged.samples) == len(heat().samples)  # rows are alike but for what they measured
    assert "merged 3 files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("times", "cores", "duration_s"),
    [
        (((0, 10), (10.5, 4)), 4, 14),  # one run after the other
        (((30, 4), (0, 10)), 4, 14),  # in whatever order they are given
        (((0, 10), (9.99, 4)), 4, 14),  # clocks are read at the begin and at the end, and not at once
        (((0, 10), (0.2, 10)), 8, 10.2),  # ranks of a job
        (((0, 10), (9, 10), (18, 10)), 8, 28),  # never more than two at a time
        (((0, 10), (1, 9), (20, 5), (21, 5)), 8, 16),  # a job of two ranks, twice
        (((None, 10), (0, 4)), 8, 10),  # nobody knows when
    ],
)
def test_runs_of_different_times_had_their_cores_one_after_the_other(
    tmp_path: Path, times: tuple[tuple[float | None, float], ...], cores: int, duration_s: float
) -> None:
    paths = []
    for number, (begin_s, took_s) in enumerate(times):
        start_s = 0.0 if begin_s is None else 1_700_000_000.0 + begin_s
        one = replace(heat(), start_time_s=start_s, duration_s=took_s)
        paths.append(written(tmp_path / f"{number}.pb.gz", one))
    out = tmp_path / "out.pb.gz"
    merge(*paths, "-o", out)
    merged = pprof.read(out)
    assert heat().process.cores == 4
    assert merged.process.cores == cores
    assert merged.duration_s == pytest.approx(duration_s, abs=0.02)


def test_it_is_said_that_runs_were_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = replace(heat(), start_time_s=heat().start_time_s + 60)
    paths = [written(tmp_path / "a.pb.gz", heat()), written(tmp_path / "b.pb.gz", later)]
    merge(*paths, "-o", tmp_path / "out.pb.gz")
    told = capsys.readouterr().err
    assert "merged 2 files: at most 4 cores at a time, 3.00 s in all, in 2 runs one after the other" in told


def test_labels_from_names(ranks: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    pattern = r"(?P<node>n\d+)-rank(?P<rank>\d+)(?P<none>x)?"
    merge(*ranks, "-o", out, "--label", "job=17", "--label-from-name", pattern)
    found = {(one["node"], one["rank"], one["job"]) for one in labels(out)}
    assert found == {("n0", "0", "17"), ("n0", "1", "17"), ("n1", "2", "17")}
    assert all(one["comm"] == "heat" and "none" not in one for one in labels(out))
    again = tmp_path / "again.pb.gz"
    merge(out, ranks[0], "-o", again, "--label", "job=18")
    assert {(one.get("node"), one["job"]) for one in labels(again)} == {
        ("n0", "18"),
        ("n1", "18"),
        (None, "18"),
    }
    assert columns(again)["work"] == columns(out)["work"] + columns(ranks[0])["work"]


@pytest.mark.skipif(shutil.which("go") is None, reason="needs go tool pprof")
def test_go_reads_the_result(ranks: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out.pb.gz"
    merge(*ranks, "-o", out, "--label-from-name", r"(?P<node>n\d+)-")
    command = ["go", "tool", "pprof", "-top", "-sample_index=idleness", "-unit=ms"]
    whole = subprocess.run([*command, out], capture_output=True, text=True, check=True).stdout
    assert "100% of 2880ms total" in whole
    assert "1800ms 62.50% 62.50%     1800ms 62.50%  vfprintf" in whole
    node = subprocess.run(
        [*command, "-tagfocus=node=n0", out], capture_output=True, text=True, check=True
    ).stdout
    assert "66.67% of 2880ms total" in node


def test_sums_beyond_what_a_float_holds(tmp_path: Path) -> None:
    """GIVEN more CPU time in one call path than 2^53 ns THEN no nanosecond is lost."""
    paths, expected = [], 0
    for number in range(5):
        work_ns = 2**52 - 1 - 2 * number
        expected += work_ns
        samples = [PathSample((frame("main"),), Metrics(1, float(work_ns)))]
        paths.append(written(tmp_path / f"{number}.pb.gz", replace(heat(), samples=samples)))
    out = tmp_path / "out.pb.gz"
    merge(*paths, "-o", out)
    assert expected > 2**53
    assert columns(out)["work"] == expected
    merge(out, out, "-o", tmp_path / "twice.pb.gz")
    assert columns(tmp_path / "twice.pb.gz")["work"] == 2 * expected


@settings(max_examples=25, deadline=None)
@given(st.lists(any_profile, min_size=1, max_size=4), st.randoms())
def test_totals_of_any_profiles(profiles: list[Profile], random: object) -> None:
    with tempfile.TemporaryDirectory() as place:
        paths = [written(Path(place, f"{number}"), profile) for number, profile in enumerate(profiles)]
        out, other = Path(place, "out"), Path(place, "other")
        merge(*paths, "-o", out)
        expected: dict[str, int] = {}
        for path in paths:
            for name, value in columns(path).items():
                expected[name] = expected.get(name, 0) + value
        assert columns(out) == expected
        random.shuffle(paths)  # type: ignore[attr-defined]
        merge(*paths[1:], paths[0], "-o", other)
        assert columns(other) == expected
        assert len(message(other).sample) == len(message(out).sample)


def test_both_projections_stay(tmp_path: Path) -> None:
    profile = heat()
    profile.samples[0].physical = (frame("clone"), *profile.samples[0].path)
    path = written(tmp_path / "one", profile)
    out = tmp_path / "out"
    merge(path, path, "-o", out, "--label", "node=n1")
    (row,) = (row for row in pprof.read(out).samples if row.physical)
    assert (row.physical, row.metrics.samples) == (profile.samples[0].physical, 400)
    assert {one["node"] for one in labels(out)} == {"n1"}


def test_what_files_do_not_have_in_common(ranks: list[Path], tmp_path: Path) -> None:
    other = heat()
    other.process = replace(
        other.process, comm="cold", command="./cold", runtime="libomp", n_w_source="sampled"
    )
    other.frequency_hz, other.event = 99, "cycles"
    out = tmp_path / "out.pb.gz"
    merge(ranks[0], written(tmp_path / "cold.pb.gz", other), "-o", out)
    merged = pprof.read(out)
    process = merged.process
    assert (process.comm, process.command, process.runtime) == ("(several)", "(2 commands)", "mixed")
    assert (process.n_w_source, merged.frequency_hz, merged.event) == ("mixed", 0, "mixed")


@pytest.fixture
def bad(tmp_path: Path, ranks: list[Path]) -> list[Path]:
    """Files that are no profiles, each in a way of its own."""
    contents = {
        "empty": b"", "text": b"hello", "cut": ranks[0].read_bytes()[:-20],
        "junk": gzip.compress(b"\xff" * 50), "other": gzip.compress(pb.Profile(string_table=[""]).SerializeToString()),
    }  # fmt: skip
    out = []
    for name, content in contents.items():
        out.append(tmp_path / f"{name}.pb.gz")
        out[-1].write_bytes(content)
    return [*out, tmp_path / "missing.pb.gz", tmp_path]


def test_bad_files_are_named(bad: list[Path], ranks: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("before")
    for path in bad:
        with pytest.raises(ProfileFormatError, match=f"cannot read .*{path.name}.*--skip-bad"):
            merge(ranks[0], path, ranks[1], "-o", out)
    assert out.read_text() == "before"


def test_skip_bad(
    bad: list[Path], ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert merge(ranks[0], *bad, ranks[1], "-o", out, "--skip-bad") == 0
    said = capsys.readouterr().err
    assert all(path.name in said for path in bad)
    assert f"merged 2 files, {len(bad)} left out" in said
    assert columns(out)["samples"] == 2 * columns(ranks[0])["samples"]
    assert pprof.read(out).extra["left_out_files"] == str(len(bad))
    with pytest.raises(ProfileFormatError, match="none of 7 files"):
        merge(*bad, "-o", tmp_path / "none", "--skip-bad")
    assert not (tmp_path / "none").exists()


def test_name_that_does_not_match(ranks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ProfileFormatError, match="n1-rank2.*does not match"):
        merge(*ranks, "-o", tmp_path / "out", "--label-from-name", "(?P<node>n0)")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--label", "x"], ["--label", "x="], ["--label", "a b=c"], ["--label", "pid=1"], ["--label", "logical=1"],
        ["--label-from-name", "("], ["--label-from-name", "n(.*)"], ["--label-from-name", "(?P<comm>.)"],
    ],
)  # fmt: skip
def test_usage(arguments: list[str], ranks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        merge(*ranks, "-o", tmp_path / "out", *arguments)
    assert caught.value.code == 2


def test_output_that_cannot_be_written(ranks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="directory does not exist"):
        merge(*ranks, "-o", tmp_path / "none" / "out")


def test_reads_pipes(ranks: list[Path], tmp_path: Path) -> None:
    """As the shell's ``<(...)`` gives them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(ranks[0].read_bytes(),))
    writer.start()
    merge(pipe, ranks[0], "-o", tmp_path / "out")
    writer.join()
    assert columns(tmp_path / "out")["work"] == 2 * columns(ranks[0])["work"]


def test_merging_one_file_changes_no_sample(ranks: list[Path], tmp_path: Path) -> None:
    merge(ranks[0], "-o", tmp_path / "out")
    before, after = pprof.read(ranks[0]), pprof.read(tmp_path / "out")
    assert after.samples == before.samples
    assert (after.process, after.lost, after.notes) == (before.process, before.lost, before.notes)


def test_an_input_is_never_overwritten(ranks: list[Path], tmp_path: Path) -> None:
    before = ranks[1].read_bytes()
    link = tmp_path / "link.pb.gz"
    link.symlink_to(ranks[1])
    for out in (ranks[1], link):
        with pytest.raises(UsageError, match="one of the files to merge"):
            merge(*ranks, "-o", out)
    assert ranks[1].read_bytes() == before


def test_what_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = heat(), heat()
    paths = [written(tmp_path / "one.pb.gz", one), written(tmp_path / "two.pb.gz", two)]
    merge(*paths, "-o", tmp_path / "out.pb.gz")
    assert "differ" not in capsys.readouterr().err
    two.process = replace(two.process, command="./cold", cores=2)
    written(paths[1], two)
    merge(*paths, "-o", tmp_path / "out.pb.gz")
    printed = capsys.readouterr().err
    assert "the programs differ: cold / heat" in printed
    assert "the cores n differ: 2 / 4" in printed


def test_a_file_that_is_given_twice_is_told(
    ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again.pb.gz"
    again.symlink_to(ranks[0])
    assert merge(ranks[0], ranks[1], again, "-o", tmp_path / "all.pb.gz") == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "times" in line]
    assert len(told) == 1 and "was given 2 times" in told[0] and ranks[0].name in told[0]


def test_loops_are_frames_if_asked_for(tmp_path: Path) -> None:
    profile = heat()
    path = profile.samples[0].path
    loop = replace(path[-1], name="loop at heat.c:1-9", is_loop=True, inlined=True)
    profile.samples[0] = replace(profile.samples[0], path=(*path, loop))
    source = written(tmp_path / "a.pb.gz", profile)
    for options in ([], ["--loops"]):
        out = tmp_path / "out.pb.gz"
        merge(source, "-o", out, *options)
        message = pb.Profile.FromString(gzip.decompress(out.read_bytes()))
        names = {message.string_table[function.name] for function in message.function}
        assert (loop.name in names) == bool(options)
        assert any(frame.is_loop for sample in pprof.read(out).samples for frame in sample.path)
