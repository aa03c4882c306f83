# SPDX-License-Identifier: Apache-2.0
"""The profile file: round trips, other readers, hostile input, and where it may be written."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof import pprof_pb2 as pb
from parprof.__main__ import main
from parprof.errors import OutputError, ProfileFormatError
from parprof.exporters import pprof, pprof_reader
from parprof.exporters.output import open_output
from parprof.exporters.pprof_header import from_comments, to_comments, to_private_comments
from parprof.metrics import Metrics
from parprof.model import Frame, Origin, PathSample, ProcessInfo, Profile
from profiles import any_profile, frame, heat, sample


def packed(profile: Profile) -> bytes:
    file = io.BytesIO()
    pprof.write(profile, file)
    return file.getvalue()


def message(profile: Profile) -> pb.Profile:
    return pb.Profile.FromString(gzip.decompress(packed(profile)))


def text_of(out: pb.Profile, index: int) -> str:
    return out.string_table[index]


@given(any_profile)
def test_round_trip(profile: Profile) -> None:
    assert pprof_reader.decode(gzip.decompress(packed(profile))) == profile


@given(st.lists(st.floats(0, 1e10), min_size=1, max_size=50))
def test_rounding_keeps_totals(times: list[float]) -> None:
    samples = [PathSample((), Metrics(1, time, time / 3)) for time in times]
    profile = Profile(ProcessInfo(), 1.0, 1000, samples)
    before, after = profile.total(), pprof_reader.decode(gzip.decompress(packed(profile))).total()
    assert after.work_ns == pytest.approx(before.work_ns, abs=1)
    assert after.idleness_ns == pytest.approx(before.idleness_ns, abs=1)


def test_layout() -> None:
    """GIVEN a profile with an event and an inlined frame THEN the message is what DESIGN section 6 says."""
    inner = Frame("inner", "x.h", 3, 1, "/bin/x", "ab", 16, inlined=True)
    outer = Frame("outer", "x.c", 9, 8, "/bin/x", "ab", 16)
    metrics = Metrics(2, 20.0, 30.0, 5.0, 7.0, events={"page-faults": 4, "cache-misses": 1})
    one = PathSample((frame("main", 1), outer, inner), metrics, Origin(7, "x", "t", "libomp", "sync"))
    out = message(Profile(ProcessInfo(7, "x"), 2.0, 100, [one], start_time_s=3.5))
    columns = [f"{text_of(out, kind.type)}/{text_of(out, kind.unit)}" for kind in out.sample_type]
    assert columns == [
        "samples/count", "work/nanoseconds", "idleness/nanoseconds", "overhead/nanoseconds",
        "spin/nanoseconds", "cache-misses/count", "page-faults/count",
    ]  # fmt: skip
    assert text_of(out, out.default_sample_type) == "idleness"
    assert list(out.sample[0].value) == [2, 20, 30, 5, 7, 1, 4]
    assert (out.period, out.time_nanos, out.duration_nanos) == (10**7, 3_500_000_000, 2_000_000_000)
    places = {place.id: place for place in out.location}
    leaf, root = (places[number] for number in out.sample[0].location_id)
    functions = {function.id: text_of(out, function.name) for function in out.function}
    assert [(functions[line.function_id], line.line) for line in leaf.line] == [("inner", 3), ("outer", 9)]
    assert [functions[line.function_id] for line in root.line] == ["main"]
    assert leaf.address == 16
    labels = {text_of(out, label.key): text_of(out, label.str) or label.num for label in out.sample[0].label}
    assert labels == {"pid": 7, "comm": "x", "thread": "t", "runtime": "libomp", "overhead": "sync"}


def test_equal_profiles_make_equal_bytes() -> None:
    assert packed(heat()) == packed(heat())


def test_empty_labels_are_left_out() -> None:
    out = message(Profile(ProcessInfo(), 0, 0, [PathSample((frame("f"),), Metrics(1))]))
    assert not out.sample[0].label


@given(st.text(), st.text(), st.text())
def test_comments_keep_to_their_line(command: str, reason: str, note: str) -> None:
    profile = Profile(
        ProcessInfo(command=command), 1, 1, [], lost={reason: 1}, notes=[note], extra={reason: note}
    )
    lines = [*to_comments(profile), *to_private_comments(profile)]
    assert all(line.splitlines() == [line] for line in lines)
    assert from_comments(lines, 0, 0) == profile


def test_undecodable_names() -> None:
    """File names and command lines need not be UTF-8: they reach us with surrogates."""
    name = os.fsdecode(b"/tmp/\xff")
    profile = Profile(ProcessInfo(command=name), 1, 1, [sample([frame(name)], 1, 1)])
    again = pprof_reader.decode(gzip.decompress(packed(profile)))
    assert again.process.command == name
    assert again.samples[0].path[0].name == "/tmp/\\udcff"


def test_go_tool_pprof_reads_it(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("the go tool is not installed")
    file = tmp_path / "heat.pb.gz"
    pprof.write(heat(), file)
    env = {**os.environ, "HOME": str(tmp_path), "PPROF_TMPDIR": str(tmp_path), "GOFLAGS": "-mod=mod"}
    command = [go, "tool", "pprof", "-top", "-sample_index=idleness", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=True)
    assert "Type: idleness" in run.stdout
    assert "File: heat" in run.stdout
    rows = {line.split()[-1]: line.split() for line in run.stdout.splitlines() if line.strip()}
    assert rows["vfprintf"][0] == "600ms"
    assert rows["write_boundary"][3] == "900ms"
    assert rows["main"][4] == "100%"


def refused(data: bytes, tmp_path: Path) -> str:
    file = tmp_path / "bad.pb.gz"
    file.write_bytes(data)
    with pytest.raises(ProfileFormatError) as caught:
        pprof.read(file)
    text = str(caught.value)
    assert "\n" not in text
    assert str(file) in text
    return text


@pytest.mark.parametrize("way", ["report", "diff", "merge", "pipe"])
def test_a_profile_that_is_not_compressed_is_read_as_others_are(
    way: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `gunzip` and other tools write them."""
    packed_file, plain = tmp_path / "heat.pb.gz", tmp_path / "heat.pb"
    packed_file.write_bytes(packed(heat()))
    plain.write_bytes(gzip.decompress(packed(heat())))

    def said(file: Path) -> bytes:
        commands = {"diff": ["diff", packed_file, file], "merge": ["merge", packed_file, file, "-o", "-"]}
        if way == "pipe":
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        name = "-" if way == "pipe" else file
        assert main([str(word) for word in commands.get(way, ["report", name])]) == 0
        return capsysbinary.readouterr().out

    assert said(plain) == said(packed_file) != b""


def test_more_than_fits_is_refused_compressed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pprof_reader, "MAX_BYTES", 1 << 20)
    many = b"\0" * ((1 << 20) + 1)
    assert "more than 1 MiB" in refused(gzip.compress(many), tmp_path)
    assert "more than 1 MiB" in refused(many, tmp_path)


def test_not_gzip(tmp_path: Path) -> None:
    assert "not a pprof profile, or damaged; name a file that parprof wrote" in refused(b"hello", tmp_path)
    assert "damaged" in refused(b"\x1f\x8b" + b"x" * 99, tmp_path)
    assert "empty" in refused(b"", tmp_path)
    assert "empty" in refused(gzip.compress(b""), tmp_path)


@pytest.mark.parametrize("keep", [1, 9, 100, -1])
def test_truncated(keep: int, tmp_path: Path) -> None:
    refused(packed(heat())[:keep], tmp_path)


def test_not_protobuf(tmp_path: Path) -> None:
    assert "not a pprof profile" in refused(gzip.compress(b"\xff" * 50), tmp_path)


def test_foreign_profile(tmp_path: Path) -> None:
    out = pb.Profile(string_table=["", "samples", "count", "cpu", "nanoseconds"])
    out.sample_type.add(type=1, unit=2)
    out.sample_type.add(type=3, unit=4)
    said = refused(gzip.compress(out.SerializeToString()), tmp_path)
    assert "samples/count, cpu/nanoseconds" in said
    assert "go tool pprof" in said


def corrupt(change: str, tmp_path: Path) -> str:
    out = message(heat())
    exec(change, {"p": out, "pb": pb})  # the changes are those below
    return refused(gzip.compress(out.SerializeToString()), tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("p.function[0].name = 10**6", "no string 1000000"),
        ("p.function[0].name = -1", "no string -1"),
        ("p.sample[0].location_id[0] = 999", "no location 999"),
        ("p.location[0].line[0].function_id = 999", "no function 999"),
        ("p.location[0].mapping_id = 999", "no mapping 999"),
        ("p.location[1].id = p.location[0].id", "used twice"),
        ("p.location[0].id = 0", "is 0"),
        ("p.sample[0].value.append(1)", "does not fit"),
        ("del p.sample[0].value[:]", "does not fit"),
        ("p.sample[0].value[1] = -5", "negative"),
        ("p.string_table[p.comment[0]] = 'schema: 2'", "newer"),
        ("p.string_table[p.comment[2]] = 'pid: x'", "pid"),
        ("p.string_table[p.comment[0]] = 'lost.x: ' + '9' * 5000", "lost.x"),
        ("p.string_table[p.comment[-1]] = 'cost.target_percent: nan'", "cost.target_percent"),
    ],
)
def test_corrupt(change: str, said: str, tmp_path: Path) -> None:
    assert said in corrupt(change, tmp_path)


def test_locations_without_lines_and_unknown_comments_are_fine() -> None:
    """What other tools may make of our files."""
    out = message(heat())
    del out.location[0].line[:]
    out.string_table.append("merged by hand")
    out.comment.append(len(out.string_table) - 1)
    assert pprof_reader.decode(out.SerializeToString()).samples[0].path[-1].name == "libc.so.6+0x2000"


def test_bombs(tmp_path: Path) -> None:
    with mock.patch.object(pprof_reader, "MAX_BYTES", 3 << 20):
        assert "unpacks to more" in refused(gzip.compress(bytes(9 << 20)), tmp_path)
    with mock.patch.object(pprof_reader, "MAX_FRAMES", 10):
        assert "frames" in refused(packed(heat()), tmp_path)


@settings(max_examples=200)
@given(st.data())
def test_mutated_bytes(data: st.DataObject) -> None:
    raw = bytearray(gzip.decompress(packed(heat())))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    try:
        profile = pprof_reader.decode(bytes(raw[:cut]))
    except ProfileFormatError:
        return
    packed(profile)


@given(st.data())
def test_mutated_file(data: st.DataObject) -> None:
    raw = bytearray(packed(heat()))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(raw))):
        try:
            pprof.read("-")
        except ProfileFormatError as error:
            assert "standard input" in str(error)


def test_unopenable(tmp_path: Path) -> None:
    with pytest.raises(ProfileFormatError, match="No such file"):
        pprof.read(tmp_path / "none")
    with pytest.raises(ProfileFormatError, match="Is a directory"):
        pprof.read(tmp_path)


def test_standard_streams(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pprof.write(heat(), "-")
    data = capsysbinary.readouterr().out
    assert data == packed(heat())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert pprof.read("-") == pprof_reader.decode(gzip.decompress(data))


def test_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("old")
    file.chmod(0o640)
    with pytest.raises(RuntimeError), open_output(str(file)) as out:
        out.write(b"half")
        raise RuntimeError
    assert file.read_text() == "old"
    pprof.write(heat(), file)
    assert pprof.read(file).process.pid == 42
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["out"]


def test_links_and_devices_stay(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    pprof.write(heat(), link)
    assert link.is_symlink()
    assert (tmp_path / "target").is_file()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pprof.check_writable(str(pipe))
    pprof.write(heat(), pipe)
    assert os.read(reader, 1 << 20) == packed(heat())
    os.close(reader)
    assert pipe.is_fifo()


def test_check_writable_leaves_no_trace(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("kept")
    pprof.check_writable(str(old))
    pprof.check_writable(str(tmp_path / "new"))
    pprof.check_writable("-")
    assert os.listdir(tmp_path) == ["old"]
    assert old.read_text() == "kept"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing/x", "create that"),
        (".", "is a directory"),
        ("new/", "is a directory"),
        ("file/x", "not a directory"),
    ],
)
def test_unwritable_paths(path: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = f"{tmp_path}/{path}"
    with pytest.raises(OutputError, match=said):
        pprof.check_writable(target)
    with pytest.raises(OutputError, match=said):
        pprof.write(heat(), target)
    assert os.listdir(tmp_path) == ["file"]


def test_check_writable_without_permission(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with mock.patch("os.open", side_effect=PermissionError(13, "Permission denied")):
            with pytest.raises(OutputError, match="permission denied; name a file"):
                pprof.check_writable(str(tmp_path / "x"))
        return
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="permission denied; name a file"):
        pprof.check_writable(str(tmp_path / "x"))
