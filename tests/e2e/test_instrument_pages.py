# SPDX-License-Identifier: Apache-2.0
"""The pages of `parprof scale` and `parprof input` in a browser: windows of any width, names that are long."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from parprof.exporters import scale_page
from parprof.input import answer, page
from parprof.input.model import BLOCKS, InputProfile, Point, RoutineName
from parprof.model import Frame
from parprof.scale.model import Scale, predict
from parprof.scale.record import Address, Flag, SiteKind, SiteRecord, SpanRecord

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not CHROMIUM, reason="needs a browser: apt install chromium"),
]

_LEAST_LETTERS_PX = 8.0
_LONG = "std::vector<std::pair<std::string, long> >::_M_realloc_insert"


def _scale() -> Scale:
    def resolve(where: Address) -> tuple[Frame, ...]:
        return (Frame(_LONG, "/src/relaxation_of_the_inner_cells.cpp", where.vaddr, 1, "solve", "ab"),)

    nowhere = Address("", "", 0)
    kinds = (
        (SiteKind.SERIAL, 1.0, 1.0, 0.0),
        (SiteKind.REGION, 9.0, 2.0, 1.0),
        (SiteKind.TASK, 4.0, 0.5, 0.1),
    )
    sites = tuple(
        SiteRecord(line, kind, Address("/bin/solve", "ab", line), nowhere, work, 1, bound, 1, bound, uneven, 0.0, 0.0)
        for line, (kind, work, bound, uneven) in enumerate(kinds, 1000)
    )  # fmt: skip
    records = [
        SpanRecord(1, "./solve in.dat", Flag.CLOSED, n, n, 3, 0, 20.0, 4.0, False, sites) for n in (2, 8, 64)
    ]
    return Scale("./solve in.dat", tuple(predict(one, resolve) for one in records), ("a note",))


def _show_scale(tab: Browser, folder: Path) -> None:
    file = folder / "scale.html"
    file.write_text(scale_page.page(_scale()).html())
    tab.open(file.as_uri())


@pytest.mark.parametrize("width", [380, 1000, 1500])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_of_scale_fits_any_window(width: int, dark: bool, tab: Browser, tmp_path: Path) -> None:
    tab.resize(width, dark=dark)
    _show_scale(tab, tmp_path)
    assert tab.run("document.documentElement.scrollWidth") <= width
    heights = tab.run("[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)")
    assert min(heights) >= _LEAST_LETTERS_PX, "letters that nobody can read"
    on_blocks = "[...document.querySelectorAll('svg.wide text')].map(e => getComputedStyle(e).fill)"
    assert all(sum(map(int, colour[4:-1].split(","))) < 100 for colour in tab.run(on_blocks)), (
        "light on light"
    )


def test_names_begin_at_one_edge(tab: Browser, tmp_path: Path) -> None:
    _show_scale(tab, tmp_path)
    aligned = "e => getComputedStyle(e).textAlign"
    names = tab.run(f"[...document.querySelectorAll('td:not(.number), th:not(.number)')].map({aligned})")
    assert names and set(names) == {"left"}
    assert set(tab.run(f"[...document.querySelectorAll('.number')].map({aligned})")) == {"right"}


@pytest.mark.parametrize("name", ["grow", _LONG])
@pytest.mark.parametrize("width", [380, 1000])
def test_names_on_the_page_of_input_are_not_cut_into_letters(
    width: int, name: str, tab: Browser, tmp_path: Path
) -> None:
    profile = InputProfile("./count", "valgrind", BLOCKS)
    routine = profile.routine(RoutineName(name, "count", "/src/count.c", 5))
    for n in (10, 20, 40, 80, 160, 320):
        routine.add(Point(n, n, 1, n, n, 0, 0, n * n, n * n, n * n))
    tab.resize(width)
    file = tmp_path / "input.html"
    file.write_text(page.make(profile, answer.lines(profile)).html())
    tab.open(file.as_uri())
    assert tab.run("document.documentElement.scrollWidth") <= width
    column = tab.run("document.querySelector('.ahead th').getBoundingClientRect().width")
    assert column >= 80, "room for a word"
