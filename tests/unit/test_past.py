# SPDX-License-Identifier: Apache-2.0
"""The last quarter of an hour of the machine, in points and in pictures."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from parprof.metrics import UNUSED, Metrics
from parprof.service.http.charts import HEIGHT, WIDTH, chart
from parprof.service.model import MachinePoint
from parprof.service.past import SECONDS, Past, point_of, spans


def filled(seconds: float, step_s: float) -> Past:
    past = Past()
    for number in range(int(seconds / step_s) + 1):
        past.add(MachinePoint(1000 + number * step_s, 0.0, 0.0, 0.0, 0.0, 0.0, number))
    return past


@pytest.mark.parametrize("step_s", [0.5, 10.0, 300.0])
def test_points_are_few_and_reach_back_a_quarter_of_an_hour(step_s: float) -> None:
    points = filled(4 * SECONDS, step_s).points()
    newest = points[-1].clock_s
    assert newest == 1000 + 4 * SECONDS, "the newest is always there"
    assert points[0].clock_s <= newest - SECONDS < points[1].clock_s
    assert len(points) <= SECONDS / 5 + 3
    steps = [after.clock_s - before.clock_s for before, after in pairwise(points)]
    assert min(steps[:-1]) >= min(5.0, step_s)


def test_what_was_between_two_points() -> None:
    """4 of 5 core seconds were useful, 3 more were idle; in the second half nothing was done."""
    total = Metrics(work_ns=5e9, overhead_ns=1e9)
    total[UNUSED] = 3e9
    points = [
        point_of(0.0, Metrics(), 0.0, 0.0, 7),
        point_of(10.0, total, 12.0, 0.05, 27),
        point_of(20.0, total, 32.0, 0.05, 27),
    ]
    first, then = spans(points)
    assert (first.begin_s, first.end_s, then.end_s) == (0.0, 10.0, 20.0)
    assert first.efficiency == pytest.approx(4 / 8) and then.efficiency is None
    assert (first.unused_cores, first.idle_cores, then.idle_cores) == pytest.approx((0.3, 1.2, 2.0))
    assert (first.cost_cores, first.lost, then.lost) == pytest.approx((0.005, 2.0, 0.0))
    assert spans(points[:1]) == [] == spans([])


def test_a_chart_has_gaps_and_says_in_words_what_it_shows() -> None:
    now_s = 2000.0
    steps = [(now_s - 900, now_s - 600, 0.5), (now_s - 600, now_s - 300, None), (now_s - 300, now_s, 1.0)]
    page = ElementTree.fromstring(
        f"<div>{chart('efficiency', steps, now_s, 1.0, lambda one: f'{one:.0%}')}</div>"
    )
    title = page.find("svg/title")
    assert title is not None and title.text == "efficiency in the last 15 min: 50% to 100%, now 100%"
    first, then = (
        [tuple(map(float, spot.split(","))) for spot in line.attrib["points"].split()]
        for line in page.findall("svg/polyline")
    )
    assert first == [(0, HEIGHT / 2), (WIDTH / 3, HEIGHT / 2)]
    assert then == [(2 * WIDTH / 3, 2), (WIDTH, 2)]
    assert [one.text for one in page.findall("div/span")] == ["15 min ago", "up to 100%", "now"]
    assert chart("x", [(0.0, 1.0, None)], 1.0, 1.0, str) == "" == chart("x", [], 1.0, 1.0, str)


def test_what_is_beyond_the_line_is_shown() -> None:
    picture = chart("cost", [(0.0, 10.0, 0.03)], 10.0, 0.01, lambda one: f"{one:.2f}")
    assert "up to 0.03" in picture and 'y1="26.0"' in picture
