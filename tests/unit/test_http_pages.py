# SPDX-License-Identifier: Apache-2.0
"""The status page: complete, self-contained, safe against hostile names, readable without scripts."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof.exporters.webpage import WebPage, duration, percentage
from parprof.metrics import UNUSED, Metrics
from parprof.service.http import status_page
from parprof.service.http.process_page import process_page
from parprof.service.http.sparkline import MAX_POINTS, WIDTH, sparkline
from parprof.service.model import FunctionUse, Labels, Recent
from profiles import heat
from stand_in_service import Program, StandInService

BAD = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b\ufffe\udce9"


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.cells: list[list[str]] = []
        self.attributes: set[str] = set()
        self.style = ""
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag
        self.attributes.update(name for name, _ in attrs)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "style":
            self.style += data
        elif self.cells and self.cells[-1]:
            self.cells[-1][-1] += data


def made(service: StandInService, *trouble: str, **query: str) -> WebPage:
    return status_page.status_page(service.snapshot(), trouble, query)


def status(service: StandInService, *trouble: str, **query: str) -> Page:
    return Page(made(service, *trouble, **query).html())


def test_status() -> None:
    service = StandInService()
    page = status(service, "the loop has not turned for 9 s")
    heat_row = next(cells for cells in page.cells if "heat" in cells[0])
    process = service.snapshot().processes[0]
    assert f"{process.n_working} / 8" in heat_row[2]
    assert "mean n_w" in heat_row[1]
    assert "useful work" in heat_row[4]
    assert heat_row[8] == "0.40 %"
    assert "exact" in heat_row[9]
    text = made(service, "the loop has not turned for 9 s").html()
    for expected in (
        "the loop has not turned for 9 s",
        "ring_full 100",
        "exact → sampled 100",
        "libomp: stripped 100",
        "pyroscope sent 100",
        "pyroscope 100 (2.5 MB)</dd>",
        "pyroscope: no answer within 10 s",
        "0.20 %",
        "2 watched",
    ):
        assert expected in text
    which = f"since={service.started_s:.3f}"
    assert f"/profiles/42.html?{which}" in page.links
    assert f"/processes/42?{which}#tab=threads" in page.links
    assert f"/profiles/42.html?{which}&by=work" in page.links


def cards(service: StandInService, **changes: Any) -> dict[str, tuple[str, str]]:
    """The cards of the page: value, and the rest as HTML."""
    page = status_page.status_page(replace(service.snapshot(), **changes), (), {}).html()
    found = re.findall(r'<section class="card"><h2>(.*?)</h2><b>(.*?)</b>(.*?)</section>', page)
    return {name: (value, rest) for name, value, rest in found}


def test_cards() -> None:
    """What is held against what: cost against the budget, what is left idle against the machine."""
    service = StandInService([Program(42, "heat", 4, 0)])
    snapshot = service.snapshot()
    seconds = snapshot.watched_s
    found = cards(service, idle_s=3 * seconds, cores=8, lost={"ring_full": 1200, "settling": 34, "none": 0})
    assert list(found) == ["efficiency", "cores really idle", "cost", "lost"]
    value, told = found["cores really idle"]
    unused_s = snapshot.processes[0].totals[UNUSED] / 1e9
    assert value == f"{unused_s / seconds:.2f}" and "3.00 of the machine&#x27;s 8 had nothing to do" in told
    assert found["lost"][0] == "1,200" and "ring_full 1,200; to be expected: settling 34<" in found["lost"][1]
    value, told = found["cost"]
    assert (value, snapshot.budget_ratio) == ("0.20 %", 0.01)
    assert 'class="taken" width="20.0%"' in told and "budget 1.0 %" in told
    assert 'class="beyond" width="100.0%"' in cards(service, cost_ratio=0.02)["cost"][1]
    empty = cards(service, processes=(), ended=Metrics(), lost={}, clock_s=snapshot.begun_s)
    assert empty["efficiency"][0] == "–" and "nothing" in empty["lost"][1]


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_wall_clock_that_is_set_changes_no_number(jump_s: int) -> None:
    """Nor does time asleep, over which that clock goes on."""
    service = StandInService([Program(42, "heat")])
    before = service.snapshot()
    jumped = replace(before, time_s=before.time_s + jump_s)
    assert cards(service) == cards(service, time_s=jumped.time_s)
    one = before.processes[0]
    pages = [process_page(heat(), one, it, []).html() for it in (before, jumped)]
    assert pages[0] == pages[1]
    text = status_page.status_page(jumped, (), {}).html()
    assert "watching for 8.3 min" in text and "<polyline" in text.split("<table", 1)[1], "its sparkline"


def test_efficiency_is_by_what_was_really_idle() -> None:
    """Each of several programs is held against all cores: so their idleness is no measure of a machine."""
    solver = Program(77, "solver", 4, 0, is_parallel=False)
    service = StandInService([Program(42, "heat", 4, 0), solver])
    page = status(service)
    rows = {int(cells[0].split()[1]): cells for cells in page.cells[1:]}
    assert "serial" in rows[77][3] and "%" not in rows[77][3]
    assert "%" in rows[42][3]
    # each: 4 cores of work, 0.2 of them overhead, 4 of idleness; one of the 4 cores of heat's was idle in truth
    assert cards(service)["efficiency"][0] == percentage(7.6 / 9, 1)
    assert "of all cores 8.3 min were idle" in made(service).html()


def test_first_is_what_left_most_cores_idle_in_truth() -> None:
    serial = Program(1, "serial", 1, 0, is_parallel=False)
    service = StandInService([serial, Program(2, "solver", 7, 0), Program(3, "heat", 6, 0)])
    order = [int(cells[0].split()[1]) for cells in status(service).cells[1:]]
    assert order == [3, 2, 1]


def test_cards_show_the_last_quarter_of_an_hour() -> None:
    service = StandInService([Program(42, "heat", 4, 0)])
    found = cards(service)
    for name, told in (("efficiency", "76 % to 76 %, now 76 %"), ("cores really idle", "1.00 to 1.00, now 1.00"),
                       ("lost", "0.2 a second to 0.2 a second, now 0.2 a second")):  # fmt: skip
        assert 'class="past"' in found[name][1] and f"in the last 15 min: {told}" in found[name][1], name
    assert "0.20 % to 0.20 %" in found["cost"][1] and "up to 1.00 %" in found["cost"][1], "the budget"
    assert 'class="past"' not in cards(service, past=())["efficiency"][1]


def test_search() -> None:
    """By what is known of a process, in whatever letters; and together with what it belongs to."""
    heat, solver = Program(42, "heat"), Program(77, "Solver", functions={"relax": 1.0})
    heat.labels = Labels(unit="batch.service")
    service = StandInService([heat, solver])
    for sought, found in (("SOLVER", [77]), ("batch", [42]), ("relax", [77]), ("7", [77]), ("--input", [42, 77]),
                          ("nothing", [])):  # fmt: skip
        page = status(service, find=sought)
        assert sorted(int(cells[0].split()[1]) for cells in page.cells[1:] if len(cells) > 1) == found, sought
    page = status(service, find="heat", **{"in": "batch.service"})
    assert any("in=batch.service" in link and "find" not in link for link in page.links)
    assert any("find=heat" in link and "sort=cost" in link for link in page.links)
    text = made(service, find='"><b>').html()
    assert (
        "<b>&quot;" not in text.replace("<b>&quot;&gt;&lt;b&gt;</b>", "")
        and 'value="&quot;&gt;&lt;b&gt;"' in text
    )


def test_status_is_self_contained_and_needs_no_script() -> None:
    """The script has a hash; without it the field for searching is hidden, and colours are the system's."""
    whole = made(StandInService())
    page = Page(whole.html())
    assert page.tags.count("script") == 1
    assert re.search(r"<p hidden>.*?id=\"search\".*?</p>", whole.html())
    script = whole.html().rpartition("<script>")[2].partition("</script>")[0]
    assert f"script-src 'sha256-{digest(script)}'" in whole.policy
    assert not {"img", "iframe", "object", "form"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on")} | {"style"} & page.attributes
    assert all(re.match(r"/|data:,$", link) and not link.startswith("//") for link in page.links)
    assert allowed_style(made(StandInService()).policy) == digest(page.style)
    assert not re.search(r"@import|url\(", page.style)


def test_the_function_to_blame_is_named() -> None:
    service = StandInService()
    text = made(service).html()
    assert f'blame: <a href="/profiles/42.html?since={service.started_s:.3f}">solve</a> 70 %' in text
    heat = service.snapshot().processes[0]
    for none in (
        replace(heat, functions=(), totals=replace_idleness(heat.totals)),
        replace(heat, is_parallel=False),
        replace(
            heat, functions=(FunctionUse("solve", "/bin/heat", Metrics(9, 1e9, heat.totals.idleness_ns)),)
        ),
    ):
        page = status_page.status_page(replace(service.snapshot(), processes=(none,)), (), {}).html()
        assert "blame:" not in page


def replace_idleness(totals: Metrics) -> Metrics:
    out = totals.copy()
    out.idleness_ns = 0.0
    return out


def test_processes_of_a_unit_or_pod() -> None:
    heat, solver = Program(42, "heat"), Program(77, "solver")
    heat.labels = Labels(unit="a b&c.service")
    solver.labels = Labels(pod="01234567-89ab-cdef-0123-456789abcdef", pod_name="s-0", namespace="shop")
    service = StandInService([heat, solver])
    assert {"/?in=a+b%26c.service", "/?in=shop", "/?in=s-0"} <= set(status(service).links)
    for wanted, found in (("a b&c.service", [42]), ("shop", [77]), ("s-0", [77]), ("heat", [42]), ("42", [42]),
                          ("nowhere", [])):  # fmt: skip
        page = status(service, **{"in": wanted})
        assert [int(cells[0].split()[1]) for cells in page.cells[1:] if len(cells) > 1] == found, wanted
    assert any("in=shop" in link and "sort=cost" in link for link in status(service, **{"in": "shop"}).links)


def test_hostile_names_on_the_status_page() -> None:
    program = Program(7, BAD, runtime=BAD, n_w_source=BAD, command=BAD, notes=(BAD,), functions={BAD: 1.0})
    program.labels = Labels("", 0, BAD, BAD, BAD, BAD)
    service = StandInService([program])
    service.lost[BAD] = 5
    service.attach_failures[BAD, BAD] = 1
    service.transitions[BAD, BAD] = 1
    service.advance(1)
    page = status(service, BAD, sort=BAD, refresh=BAD, **{"in": BAD})
    page = status(service, BAD, sort=BAD, refresh=BAD)
    assert page.tags.count("script") == 1, "its own"
    assert "img" not in page.tags
    assert page.tags.count("style") == page.tags.count("title") - page.tags.count("svg") + 4 == 1


@pytest.mark.parametrize("sort", status_page.sorts())
def test_sorting(sort: str) -> None:
    service = StandInService([Program(number, f"p{number % 4}", number % 5, 0) for number in range(1, 12)])
    page = status(service, sort=sort)
    rows = {process.pid: process for process in service.snapshot().processes}
    order = [int(cells[0].split()[1]) for cells in page.cells[1:]]
    keys = [status_page.sorts()[sort](rows[pid]) for pid in order]
    assert keys == sorted(keys)
    assert len(order) == 11


def test_many_processes() -> None:
    service = StandInService([Program(number, "p") for number in range(1, 321)])
    page = status(service)
    assert len(page.cells) == 1 + status_page.MAX_ROWS
    more = next(link for link in page.links if "all=1" in link)
    assert more == "/?sort=unused&all=1"
    assert len(status(service, all="1").cells) == 321


def test_no_processes() -> None:
    assert "No process is watched now." in status(StandInService([])).cells[1][0]


def test_refresh() -> None:
    text = made(StandInService(), refresh="1", sort="cost").html()
    assert '<meta http-equiv="refresh" content="10">' in text
    assert 'href="/?sort=cost"' in text


def test_sparkline() -> None:
    points = [Recent(100.0 + second, 2.0, 0.5) for second in range(60)]
    lines = ElementTree.fromstring(sparkline(points, 4, 160.0)).findall("polyline")
    assert len(lines) == 1
    spots = [tuple(map(float, spot.split(","))) for spot in lines[0].attrib["points"].split()]
    assert spots[0][0] == 0
    assert spots[-1][0] == pytest.approx(WIDTH * 59 / 60, abs=0.1)
    assert {height for _, height in spots} == {15.0}


def test_without_samples_there_is_no_efficiency() -> None:
    points = [Recent(1.0, 0.0, 0.0), Recent(2.0, 0.0, 0.0)]
    assert "efficiency" not in sparkline(points, 4, 2.0)
    assert "lowest efficiency 50 %" in sparkline([*points, Recent(3.0, 1.0, 0.5)], 4, 3.0)
    service = StandInService([Program(7, "idle")])
    snapshot = service.snapshot()
    idle = replace(snapshot.processes[0], history=tuple(points), totals=Metrics())
    page = Page(status_page.status_page(replace(snapshot, processes=(idle,)), (), {}).html())
    assert page.cells[1][3] == "––"


def test_sparkline_shows_pauses_and_stays_small() -> None:
    points = [Recent(float(second), 1.0, 1.0) for second in (*range(10), *range(40, 50), 80)]
    picture = ElementTree.fromstring(sparkline(points, 4, 90.0))
    assert len(picture.findall("polyline")) == 2
    assert len(picture.findall("circle")) == 1
    many = [Recent(float(second), 9.0, 1.0) for second in range(500)]
    line = ElementTree.fromstring(sparkline(many, 4, 500.0)).find("polyline")
    assert line is not None and len(line.attrib["points"].split()) == MAX_POINTS
    assert sparkline([], 4, 1.0) == ""
    assert sparkline([Recent(2000.0, 1.0, 1.0)], 4, 1.0) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.0123, "12 ms"), (1, "1.0 s"), (99.96, "100.0 s"), (119, "119 s"), (120, "2.0 min"),
        (5999, "100 min"), (7200, "2.0 h"), (86400 * 3, "3.0 d"),
    ],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def digest(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()


def allowed_style(policy: str) -> str:
    match = re.search(r"style-src 'sha256-([^']+)'", policy)
    assert match is not None
    return match[1]
