# SPDX-License-Identifier: Apache-2.0
"""The daemon's pages in a real browser, served over a real socket: from the status page to one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import daemon_process as dp
from browser import CHROMIUM, Browser
from parprof.service.http import HttpServer
from parprof.service.http.status_page import MAX_ROWS
from stand_in_service import Program, StandInService

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not CHROMIUM, reason="needs a browser: apt install chromium"),
]

LANES = "document.querySelectorAll('.lane').length"


@pytest.fixture
def served() -> Iterator[tuple[StandInService, str]]:
    service = StandInService()
    with HttpServer(service, "127.0.0.1:0") as server:
        server.start()
        yield service, f"http://{server.address}"


def test_from_the_status_page_to_a_span_of_a_process(
    tab: Browser, served: tuple[StandInService, str]
) -> None:
    service, address = served
    tab.open(f"{address}/")
    tab.click("td.name a[href^='/processes/42']")
    tab.wait_for("location.pathname === '/processes/42' && document.readyState === 'complete'")
    tab.wait_for(f"{LANES} > 1")
    assert tab.run("document.querySelectorAll('.card').length") == 5
    assert service.asked == [(42, None)]
    x, y, width = tab.run(
        "(b => [b.x, b.y + b.height / 2, b.width])(document.getElementById('time').getBoundingClientRect())"
    )
    tab.drag((x + 0.05 * width, y), (x + 0.3 * width, y))
    assert tab.run("document.getElementById('part').innerText").startswith("0.00 to 2.00 s of 6.00 s")
    tab.click("#part li button")
    tab.press("s", *"2341", "Escape")
    assert service.asked == [(42, None)]  # whatever is clicked, it is of this profile
    link = tab.run(
        "[...document.querySelectorAll('a')].find(e => e.textContent === 'link to this profile').href"
    )
    tab.open(link)
    assert service.asked[-1] == (42, (3, 8))


@pytest.mark.parametrize("width", [400, 1200, 2000])
@pytest.mark.parametrize("dark", [False, True])
def test_the_machine_in_cards(
    width: int, dark: bool, tab: Browser, served: tuple[StandInService, str]
) -> None:
    """Above the table, whole, and as many beside each other as there is room for."""
    tab.resize(width, dark=dark)
    tab.open(f"{served[1]}/")
    boxes = tab.run(
        "[...document.querySelectorAll('.card')].map(e => e.getBoundingClientRect()).map(b => [b.x, b.y, b.right])"
    )
    assert len(boxes) == 4 and all(right <= width for _, _, right in boxes)
    assert len({y for _, y, _ in boxes}) == {400: 4, 1200: 1, 2000: 1}[width]
    table_y = tab.run("document.querySelector('table').getBoundingClientRect().y")
    assert max(y for _, y, _ in boxes) < table_y
    assert tab.run("document.querySelector('.meter .taken').getBoundingClientRect().width") > 5


SHOWN = "[...document.querySelectorAll('tbody tr:not([hidden])')].map(e => e.querySelector('b').innerText)"


def test_search(tab: Browser, served: tuple[StandInService, str]) -> None:
    """Rows without what is typed go at once; a page that is loaded anew keeps it; Enter asks for those not shown."""
    service, address = served
    service.programs += [Program(1000 + number, f"crowd{number}") for number in range(MAX_ROWS)]
    service.programs.append(Program(5000, "crowdlast", 8, 0))
    service.advance(1)
    tab.open(f"{address}/?sort=idleness")
    assert "crowdlast" not in tab.run(SHOWN) and len(tab.run(SHOWN)) == MAX_ROWS
    tab.press("/")
    tab.press(*"heat")
    assert tab.run(SHOWN) == ["heat"]
    assert tab.run("document.getElementById('found').innerText").startswith(f"1 of {MAX_ROWS} that are shown")
    assert tab.run("location.search") == "?sort=idleness&find=heat"
    tab.press("Escape")
    assert len(tab.run(SHOWN)) == MAX_ROWS and tab.run("location.search") == "?sort=idleness"
    tab.press(*"crowdlast")
    assert tab.run(SHOWN) == []
    tab.press("Enter")
    tab.wait_for("location.search.endsWith('find=crowdlast') && document.readyState === 'complete'")
    tab.wait_for("document.querySelector('tbody tr b')?.innerText === 'crowdlast'")
    assert tab.run(SHOWN) == ["crowdlast"]
    tab.run("document.getElementById('search').focus()")
    tab.press("Escape")  # what is sought now is not all here
    tab.wait_for("!location.search.includes('find') && document.readyState === 'complete'")
    assert len(tab.run(SHOWN)) == MAX_ROWS


@pytest.mark.parametrize("dark", [False, True])
def test_colours_are_the_users_choice(dark: bool, tab: Browser, served: tuple[StandInService, str]) -> None:
    """Whatever the system prefers, on all pages, and where they are loaded anew; the flame graph, too."""
    light_page, dark_page = "rgb(255, 255, 255)", "rgb(22, 25, 29)"
    colour = "getComputedStyle(document.body).backgroundColor"
    tab.resize(1200, dark=dark)
    tab.open(f"{served[1]}/")
    assert tab.run(colour) == (dark_page if dark else light_page)
    for chosen, there in (("light", light_page), ("dark", dark_page)):
        tab.click("#theme")
        assert tab.run("document.getElementById('theme').innerText") == f"colours: {chosen}"
        assert tab.run(colour) == there
    tab.open(f"{served[1]}/processes/42#tab=flame")
    assert tab.run(colour) == dark_page
    pixels = "document.getElementById('chart').toDataURL()"
    before = tab.run(pixels)
    for _ in range(2):  # as the system, then light
        tab.click("#theme")
    assert tab.run(colour) == light_page and tab.run(pixels) != before
    for _ in range(2):  # for those who come next
        tab.click("#theme")
    assert tab.run("localStorage.getItem('parprof-theme')") == ""


@pytest.mark.parametrize("width", [400, 1200, 2000])
def test_a_quarter_of_an_hour_in_charts(width: int, tab: Browser, served: tuple[StandInService, str]) -> None:
    """Each card of the machine has one: as wide as it, its line up to its right edge, with what it is in words."""
    tab.resize(width)
    tab.open(f"{served[1]}/")
    charts = tab.run(
        "[...document.querySelectorAll('.card')].map(card => {"
        " const chart = card.querySelector('svg.past'), line = chart.querySelector('polyline').getBoundingClientRect(),"
        " box = chart.getBoundingClientRect();"
        " return [box.width / card.clientWidth, box.height, line.right - box.right,"
        " (line.left - box.left) / box.width, chart.querySelector('title').textContent]; })"
    )
    assert len(charts) == 4
    for share, height, beyond, begin, told in charts:
        assert share > 0.8 and 30 < height < 80 and abs(beyond) < 2
        assert begin == pytest.approx(1 - 99 * 5 / 900, abs=0.02), "the daemon began 8 minutes ago"
        assert " in the last 15 min: " in told
    assert tab.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [400, 1200, 2000])
@pytest.mark.parametrize("dark", [False, True])
def test_widths(width: int, dark: bool, tab: Browser, served: tuple[StandInService, str]) -> None:
    tab.resize(width, dark=dark)
    tab.open(f"{served[1]}/processes/42#tab=threads")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run(LANES) == 2
    assert tab.run("document.querySelector('.spark').getBoundingClientRect().height") > 30


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")
def test_a_real_process_over_time(tab: Browser, tmp_path: Path) -> None:
    spinner = dp.build(tmp_path, "pagespin")
    with dp.running(tmp_path / "daemon") as daemon, dp.started(spinner) as target:
        daemon.sampled(target.pid, 1.5)
        tab.open(f"http://{daemon.address}/")
        assert "now 100 %" in tab.run("document.querySelector('.card svg.past title').textContent")
        tab.click(f"td.name a[href^='/processes/{target.pid}']")
        tab.wait_for(f"document.readyState === 'complete' && {LANES} > 1")
        tab.run("document.getElementById('time').focus()")
        tab.press("ArrowRight")
        tab.wait_for("!document.getElementById('part').hidden")
        tab.run("document.getElementById('by').value = 'work'")
        tab.run("document.getElementById('by').dispatchEvent(new Event('change'))")
        assert "burn" in tab.run("document.getElementById('chart').dataset.rows")
        pprof = tab.run("[...document.querySelectorAll('a')].find(e => e.textContent === 'pprof').href")
        assert "intervals=" in pprof
        path = pprof[pprof.index("/profiles/") :]
        status, body = daemon.get(path)
        assert status == 200 and daemon.get(path) == (200, body)
