# SPDX-License-Identifier: Apache-2.0
"""tests/truth.py against hand-made logs and a slow, obvious count."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from truth import Interval, Truth

LOG = """\
parprof-truth 1
pid 77
dropped 3
function 0 long_work
function 1 short_work
interval 0 77 1000 7000 6000
interval 1 78 1000 3000 2000
interval 1 78 9000 10000 500
end 3
"""


def test_parse() -> None:
    truth = Truth.parse(LOG)
    assert (truth.pid, truth.dropped, truth.threads) == (77, 3, [77, 78])
    assert (truth.start_ns, truth.end_ns) == (1000, 10000)
    assert truth.intervals[-1] == Interval("short_work", 78, 9000, 10000, 500)


def test_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    assert Truth.read(tmp_path / "log").intervals == Truth.parse(LOG).intervals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a truth log"),
        ("parprof-truth 2\nend 0\n", "not a truth log"),
        (LOG.replace("end 3\n", ""), "cut short: 3 intervals, end None"),
        (LOG.replace("end 3", "end 4"), "cut short: 3 intervals, end 4"),
        (LOG.replace("interval 0", "interval 9"), "line 6"),
        (LOG.replace("7000 6000", "7000 x"), "line 6"),
        (LOG.replace("pid 77", "pid"), "line 2.*unknown record"),
    ],
)
def test_parse_rejects(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Truth.parse(text)


def test_working_at_counts_from_enter_up_to_exit() -> None:
    truth = Truth.parse(LOG)
    times = [0, 999, 1000, 2999, 3000, 6999, 7000, 8999, 9000, 9999, 10000]
    assert [truth.working_at(t) for t in times] == [0, 0, 2, 2, 1, 1, 0, 0, 1, 1, 0]


def test_near_edge_includes_the_margin() -> None:
    truth = Truth.parse(LOG)
    times = [899, 900, 1000, 1100, 1101, 5000, 6900, 7100, 7101]
    assert [truth.near_edge(t, 100) for t in times] == [
        False, True, True, True, False, False, True, True, False,
    ]  # fmt: skip


def test_function_at() -> None:
    truth = Truth.parse(LOG)
    assert truth.function_at(77, 999) is None
    assert truth.function_at(77, 1000) == "long_work"
    assert truth.function_at(77, 7000) is None
    assert truth.function_at(78, 3000) is None
    assert truth.function_at(78, 9000) == "short_work"
    assert truth.function_at(79, 1000) is None


def test_expected() -> None:
    truth = Truth.parse(LOG)
    # both work until 3000, then one alone; the last interval has half a core
    assert truth.expected(2) == {"long_work": (6000, 4000), "short_work": (2500, 500)}
    assert truth.expected(1) == {"long_work": (6000, 0), "short_work": (2500, 0)}
    assert truth.expected(4) == {
        "long_work": (6000, 2000 + 4000 * 3),
        "short_work": (2500, 2000 + 500 * 3),
    }


def test_expected_of_three_busy_of_four_is_a_third_each() -> None:
    truth = Truth([Interval("f", tid, 0, 900, 900) for tid in range(3)])
    assert truth.expected(4) == {"f": (2700, 900)}


def test_expected_clamps_more_threads_than_cores() -> None:
    truth = Truth([Interval("f", tid, 0, 1000, 500) for tid in range(4)])
    assert truth.expected(2) == {"f": (2000, 0)}


def test_intervals_that_touch_do_not_overlap() -> None:
    truth = Truth([Interval("f", 1, 0, 10, 10), Interval("g", 2, 10, 20, 10)])
    assert truth.working_at(10) == 1
    assert truth.expected(2) == {"f": (10, 10), "g": (10, 10)}


def test_empty() -> None:
    truth = Truth.parse("parprof-truth 1\npid 1\ndropped 0\nend 0\n")
    assert truth.expected(2) == {}
    assert (truth.start_ns, truth.end_ns) == (0, 0)
    assert truth.working_at(5) == 0
    assert not truth.near_edge(5, 100)


@st.composite
def logs(draw: st.DrawFn) -> Truth:
    intervals = []
    for tid in range(draw(st.integers(1, 4))):
        t_ns = 0
        for gap, length in draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8)):
            function = draw(st.sampled_from("fgh"))
            intervals.append(Interval(function, tid, t_ns + gap, t_ns + gap + length, length))
            t_ns += gap + length
    return Truth(intervals)


@given(truth=logs(), cores=st.integers(1, 4))
def test_agrees_with_a_count_at_every_instant(truth: Truth, cores: int) -> None:
    work = dict.fromkeys("fgh", 0.0)
    idleness = dict.fromkeys("fgh", 0.0)
    for t_ns in range(truth.start_ns, truth.end_ns + 1):
        inside = [i for i in truth.intervals if i.enter_ns <= t_ns < i.exit_ns]
        assert truth.working_at(t_ns) == len(inside)
        for interval in inside:
            assert truth.function_at(interval.tid, t_ns) == interval.function
            busy = min(len(inside), cores)
            work[interval.function] += 1
            idleness[interval.function] += (cores - busy) / busy
    expected = truth.expected(cores)
    for function in "fgh":
        assert expected.get(function, (0, 0)) == pytest.approx((work[function], idleness[function]))
