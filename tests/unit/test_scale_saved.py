"""The files of `parprof scale --pprof` are read again: by `parprof report` and `diff`, whoever wrote them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.__main__ import main
from parprof.errors import ProfileFormatError
from parprof.exporters import pprof, scale_diff, scale_page, scale_pprof, scale_table
from parprof.model import Frame, ProcessInfo, Profile
from parprof.scale import saved
from parprof.scale.calls import CallSite
from parprof.scale.model import Lost, Prediction, Scale, ScaleSite
from parprof.scale.record import CallSums, Flag, Measure, SiteKind

HOSTILE = '<script>"&\x1b[31m'


def site(label: str, line: int, bound_s: float, function: str = "solve") -> ScaleSite:
    place = f"solve.c:{line}"
    frames = (Frame(function, "/src/solve.c", line, 1, "/bin/solve", "ab", 0x40 + line),)
    return ScaleSite(
        SiteKind.REGION, f"{label} at {place}", place, frames, 2 * bound_s, 3, bound_s, 1, bound_s,
        0.0, 0.0, 0.5, 1.5, 1.0
    )  # fmt: skip


def call(callee: str, span_s: float) -> CallSite:
    none = Measure(0, 0.0, 0.0)
    profile = CallSums(7, Measure(1, 2.0, 1.0), none, 1.0, span_s)
    return CallSite("solve.c:9", "main", callee, profile, profile, (Frame(callee),))


def prediction(threads: int, *sites: ScaleSite, calls: tuple[CallSite, ...] = ()) -> Prediction:
    bound_s = sum(one.bound_s for one in sites)
    return Prediction(
        threads, 8.0, bound_s / 2, bound_s, 1.0, threads, Lost(0.1, 0.2, 0.0, 0.3), sites, False, Flag.CLOSED, calls
    )  # fmt: skip


def scale(*predictions: Prediction, command: str = "./solve", is_serial: bool = False) -> Scale:
    return Scale(command, predictions, ("a note",), is_serial)


A = scale(
    prediction(2, site("loop", 10, 4.0), site("region", 30, 2.0)),
    prediction(8, site("loop", 10, 3.0), site("region", 30, 2.0), calls=(call("part", 2.0),)),
)
B = scale(
    prediction(8, site("loop", 10, 1.0), site("region", 33, 2.5), calls=(call("part", 0.5),)),
    prediction(64, site("loop", 10, 0.5)),
)


def write(path: Path, what: Scale) -> str:
    with path.open("wb") as file:
        scale_pprof.write(what, file)
    return str(path)


def test_the_report_of_a_file_is_the_one_that_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = write(tmp_path / "a.pb.gz", A), tmp_path / "a.html"
    assert main(["report", path]) == 0
    assert capsys.readouterr().out == scale_table.text(A)
    assert main(["report", path, "--html", str(page)]) == 0
    assert page.read_text() == scale_page.page(A).html()
    capsys.readouterr()
    assert main(["report", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "scale"


def test_what_changed_by_cores_sites_and_calls() -> None:
    found = scale_diff.change(A, B)
    assert [(old.threads, new.threads) for old, new in found.pairs] == [(8, 8)]
    assert [(row.label, row.before_s, row.after_s) for row in found.sites] == [
        ("loop at solve.c:10", 3.0, 1.0),
        ("region at solve.c:33 (was solve.c:30)", 2.0, 2.5),
    ]
    assert {row.label for row in found.calls} == {"part at solve.c:9 in main"}
    assert found.calls[0].change_s == -1.5


def test_sites_of_other_functions_are_not_the_same() -> None:
    old, new = (
        scale(prediction(2, site("loop", 10, 1.0, "f"))),
        scale(prediction(2, site("loop", 20, 1.0, "g"))),
    )
    assert {(row.label, row.change_s) for row in scale_diff.change(old, new).sites} == {
        ("loop at solve.c:10", -1.0),
        ("loop at solve.c:20", 1.0),
    }


def test_diff_prints_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(tmp_path / name, one) for name, one in (("a", A), ("b", replace(B, command=HOSTILE)))]
    assert main(["diff", *paths]) == 0
    printed = capsys.readouterr().out
    assert "A  on 8 cores at best x1.60" in printed and "\x1b" not in printed
    assert "note: the commands differ: ./solve / <script>" in printed
    assert "\n       8       1.60      2.29   +43 %" in printed
    assert "  -2.00 s  loop at solve.c:10" in printed
    assert main(["diff", *paths, "--html", str(tmp_path / "d.html")]) == 0
    page = (tmp_path / "d.html").read_text()
    assert "loop at solve.c:10" in page and "<script" not in page and "style=" not in page


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (scale(prediction(3, site("loop", 1, 1.0))), "no number of threads in common"),
        (scale(prediction(8, site("loop", 1, 1.0)), is_serial=True), "alike for both"),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Scale, words: str
) -> None:
    paths = [write(tmp_path / name, one) for name, one in (("a", A), ("b", other))]
    assert main(["diff", *paths]) == 1
    assert words in capsys.readouterr().err


def test_work_and_span_is_not_compared_with_idleness_nor_added_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a", A)
    pprof.write(Profile(ProcessInfo(1, "x"), 1.0, 100, []), str(tmp_path / "b"))
    assert main(["diff", path, str(tmp_path / "b")]) == 1
    assert "one is of work and span, the other of idleness" in capsys.readouterr().err
    assert main(["merge", path, path, "-o", str(tmp_path / "c")]) == 1
    assert "cannot be added up" in capsys.readouterr().err


def test_a_file_without_the_answer_says_so() -> None:
    message = scale_pprof.encode(A)
    del message.comment[-1]
    with pytest.raises(ProfileFormatError, match="from before these could be read again"):
        scale_pprof.decode(message.SerializeToString())
    assert scale_pprof.decode(b"no profile") is None
    with pytest.raises(ProfileFormatError, match="damaged"):
        scale_pprof.decode(b"kind: scale")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(data=st.data())
def test_damage_is_one_error(data: st.DataObject) -> None:
    """Somewhere in a good file stands something else."""
    content = json.loads(saved.dumps(A))
    assert saved.loads(json.dumps(content)) == A
    at = content
    while at and data.draw(st.booleans()):
        inner = data.draw(st.sampled_from(at))
        if not isinstance(inner, list) or not inner:
            break
        at = inner
    at[data.draw(st.integers(0, len(at) - 1))] = data.draw(_JSON)
    try:
        found = saved.loads(json.dumps(content))
    except ProfileFormatError:
        return
    assert scale_table.text(found) and scale_page.page(found).html()
    assert gzip.compress(scale_pprof.encode(found).SerializeToString())
