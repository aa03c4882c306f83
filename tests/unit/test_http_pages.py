# SPDX-License-Identifier: Apache-2.0
"""Status page and flame graph: complete, self-contained, safe against hostile names, readable without scripts."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

sys.path.insert(0, str(Path(__file__).parent))

from parprof.metrics import Metrics
from parprof.model import Frame, PathSample, ProcessInfo, Profile
from parprof.service.http import flamegraph, status_page
from parprof.service.http.flamegraph import View, flame_graph
from parprof.service.http.markup import duration
from parprof.service.http.sparkline import MAX_POINTS, WIDTH, sparkline
from parprof.service.model import Labels, Recent
from profiles import any_profile, heat
from stand_in_service import Program, StandInService

BAD = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b\ufffe\udce9"
SVG = "{http://www.w3.org/2000/svg}"


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

    def handle_data(self, data: str) -> None:
        if self._open == "style":
            self.style += data
        elif self.cells and self.cells[-1]:
            self.cells[-1][-1] += data


def status(service: StandInService, *trouble: str, **query: str) -> Page:
    return Page(status_page.status_page(service.snapshot(), trouble, query))


def test_status() -> None:
    service = StandInService()
    page = status(service, "the loop has not turned for 9 s")
    heat_row = next(cells for cells in page.cells if "heat" in cells[0])
    process = service.snapshot().processes[0]
    assert f"{process.n_working} / 8" in heat_row[2]
    assert "mean n_w" in heat_row[1]
    assert "useful work" in heat_row[4]
    assert heat_row[7] == "0.40 %"
    assert "exact" in heat_row[8]
    text = status_page.status_page(service.snapshot(), ("the loop has not turned for 9 s",), {})
    for expected in (
        "the loop has not turned for 9 s",
        "ring_full 100",
        "exact → sampled 100",
        "libomp: stripped 100",
        "pyroscope sent 100",
        "0.20 %",
        "2 watched",
    ):
        assert expected in text
    assert "/profiles/42.svg" in page.links
    assert "/profiles/42.svg?by=work" in page.links


def test_status_is_self_contained_and_needs_no_script() -> None:
    page = status(StandInService())
    assert not {"script", "img", "iframe", "object", "form"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on")} | {"style"} & page.attributes
    assert all(re.match(r"/|data:,$", link) and not link.startswith("//") for link in page.links)
    assert allowed_style(status_page.POLICY) == digest(page.style)
    assert not re.search(r"@import|url\(", page.style)


def test_hostile_names_on_the_status_page() -> None:
    program = Program(7, BAD, runtime=BAD, n_w_source=BAD, command=BAD, notes=(BAD,), functions={BAD: 1.0})
    program.labels = Labels("", 0, BAD, BAD, BAD, BAD)
    service = StandInService([program])
    service.lost[BAD] = 5
    service.attach_failures[BAD, BAD] = 1
    service.transitions[BAD, BAD] = 1
    service.advance(1)
    page = status(service, BAD, sort=BAD, refresh=BAD)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.tags.count("style") == page.tags.count("title") - page.tags.count("svg") + 3 == 1


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
    assert more == "/?sort=idleness&all=1"
    assert len(status(service, all="1").cells) == 321


def test_no_processes() -> None:
    assert "No process is watched now." in status(StandInService([])).cells[1][0]


def test_refresh() -> None:
    text = status_page.status_page(StandInService().snapshot(), (), {"refresh": "1", "sort": "cost"})
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
    page = Page(status_page.status_page(replace(snapshot, processes=(idle,)), (), {}))
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


# Flame graph


def frames(document: str) -> dict[str, list[tuple[float, float, int]]]:
    """Left and width in percent, and row, of the frames by name."""
    out: dict[str, list[tuple[float, float, int]]] = {}
    for link in ElementTree.fromstring(document).findall(f"{SVG}a"):
        box = link.find(f"{SVG}svg")
        assert box is not None
        left, width = (float(box.attrib[name].rstrip("%")) for name in ("x", "width"))
        out.setdefault(box.findtext(f"{SVG}text") or "", []).append((left, width, int(box.attrib["y"])))
    return out


@pytest.mark.parametrize(
    ("by", "widths"),
    [
        # 300 ms x 3 of idleness in write_boundary, 60 ms x 1 in fib: 960 ms.
        ("idleness", {"main": 100, "write_boundary": 93.75, "fib": 6.25}),
        ("effort", {"main": 100, "solve": 100 * 4100 / 5420, "write_boundary": 100 * 1200 / 5420}),
        ("work", {"solve": 100 * 4000 / 4360, "write_boundary": 100 * 300 / 4360}),
        ("overhead", {"barrier": 100}),
        ("spin", {"barrier": 100}),
    ],
)
def test_widths(by: str, widths: dict[str, float]) -> None:
    found = frames(flame_graph(heat(), View(by)))
    for name, width in widths.items():
        assert found[name][0][1] == pytest.approx(width, abs=0.001)


def test_frames_lie_beneath_their_callers() -> None:
    found = frames(flame_graph(heat(), View("effort")))
    caller, callees = found["write_boundary"][0], found["fprintf"]
    assert callees[0][0] == caller[0]
    assert callees[0][2] > caller[2]
    assert len(found["fib"]) == 3


def test_focus() -> None:
    whole = flame_graph(heat(), View("effort", 12))
    link = next(
        a.attrib["href"]
        for a in ElementTree.fromstring(whole).findall(f"{SVG}a")
        if a.findtext(f"{SVG}svg/{SVG}text") == "write_boundary"
    )
    match = re.fullmatch(r"\?by=effort&seconds=12&focus=([0-9a-f]{16})", link)
    assert match is not None
    found = frames(flame_graph(heat(), View("effort", 12, match[1])))
    assert set(found) == {"whole process", "main", "write_boundary", "fprintf", "vfprintf", "write"}
    assert found["write_boundary"][0][:2] == (0, 100)
    assert found["vfprintf"][0][1] == pytest.approx(66.667, abs=0.001)


def test_focus_on_what_is_gone() -> None:
    text = flame_graph(heat(), View("effort", 12, "0" * 16))
    assert "has no samples now" in text
    assert "solve" in frames(text)


def test_nothing_to_show() -> None:
    empty = replace(heat(), samples=[])
    assert "There is no idleness in this profile." in flame_graph(empty, View())


def test_graph_is_bounded() -> None:
    def path(number: int, depth: int) -> PathSample:
        names = tuple(Frame(f"f{number}_{level}") for level in range(depth))
        return PathSample(names, Metrics(1, 1e6, 1e6))

    wide = replace(heat(), samples=[path(number, 10) for number in range(900)])
    found = frames(flame_graph(wide, View()))
    assert len(found) <= flamegraph.MAX_FRAMES
    deep = replace(heat(), samples=[path(0, 5000)])
    text = flame_graph(deep, View())
    assert len(frames(text)) == flamegraph.MAX_ROWS
    assert "left out" in text


@settings(max_examples=60, deadline=None)
@given(any_profile)
def test_any_profile_is_a_well_formed_graph(profile: Profile) -> None:
    for by in flamegraph.weights():
        for left, width, _ in (
            box for boxes in frames(flame_graph(profile, View(by))).values() for box in boxes
        ):
            assert 0 <= left <= 100
            assert 0 < width <= 100.001


def test_hostile_names_in_the_graph() -> None:
    process = ProcessInfo(1, BAD, BAD, BAD, 4, BAD)
    sample = PathSample((Frame(BAD, BAD, 1, 1, BAD), Frame("x" * 10_000)), Metrics(1, 1e9, 1e9))
    text = flame_graph(Profile(process, 1.0, 100, [sample]), View())
    assert len(text) < 10_000
    document = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in document.iter()} == {
        "svg", "title", "style", "text", "tspan", "a", "rect"
    }  # fmt: skip
    assert not {
        name for element in document.iter() for name in element.attrib if name.startswith(("on", "style"))
    }


def test_graph_is_self_contained() -> None:
    document = ElementTree.fromstring(flame_graph(heat(), View()))
    style = document.findtext(f"{SVG}style") or ""
    assert allowed_style(flamegraph.POLICY) == digest(style)
    links = [element.attrib["href"] for element in document.iter() if "href" in element.attrib]
    assert links
    assert all(re.match(r"\?|/$|42\.(html|pb\.gz)\?", link) for link in links)


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
