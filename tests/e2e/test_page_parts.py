# SPDX-License-Identifier: Apache-2.0
"""A span of time and a thread on the page of a report: chosen by mouse, key and address, and shown in all views."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from parprof.exporters import html, pprof
from parprof.metrics import Metrics
from parprof.model import Accounting, Frame, Interval, Origin, PathSample, ProcessInfo, Profile

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not CHROMIUM, reason="needs a browser: apt install chromium"),
]

MILLI = 1_000_000


def stages() -> Profile:
    """2 s on 2 cores in 20 intervals: one thread reads (1 s), two compute (0.5 s), then nobody works (0.5 s)."""
    main, helper = (Origin(7, "prog", name, tid=tid) for name, tid in (("main", 7), ("helper", 8)))
    read, compute, wait = (
        (Frame("main", "x.c", 50, module="/bin/prog"), Frame(name, "x.c", line, module="/bin/prog"))
        for name, line in (("read_input", 10), ("compute", 20), ("finish", 30))
    )
    each = [
        (read, main, Metrics(samples=50, work_ns=100 * MILLI, idleness_ns=100 * MILLI), range(10)),
        (compute, main, Metrics(samples=50, work_ns=100 * MILLI), range(10, 15)),
        (compute, helper, Metrics(samples=50, work_ns=100 * MILLI), range(10, 15)),
        (wait, main, Metrics(stall_ns=200 * MILLI), range(15, 20)),
    ]
    samples, rows = [], [dict[int, Metrics]() for _ in range(20)]
    for row, (path, origin, metrics, when) in enumerate(each):
        whole = Metrics()
        for at in when:
            rows[at][row] = metrics.copy()
            whole.add(metrics)
        samples.append(PathSample(path, whole, origin))
    levels = [(0.0, 0.1)] * 10 + [(0.0, 0.0, 0.1)] * 5 + [(0.1,)] * 5
    intervals = [Interval(at / 10, (at + 1) / 10, levels[at], rows[at]) for at in range(20)]
    account = Accounting(2, 2.0, 2.0, 0, 0, 1.0, 1.0, None, (0.5, 1.0, 0.5))
    process = ProcessInfo(7, "prog", "./prog", cores=2)
    return Profile(process, 2.0, 500, samples, accounting=account, intervals=intervals)


def show(tab: Browser, folder: Path, fragment: str = "", profile: Profile | None = None) -> Path:
    file = folder / "page.html"
    html.write(profile or stages(), str(file))
    tab.open(f"file://{file}{fragment}")
    return file


def drawn(tab: Browser) -> list[list[str]]:
    text = tab.run("document.getElementById('chart').dataset.rows")
    return [row.split("\t") for row in text.split("\n")]


def answer(tab: Browser) -> str:
    return str(
        tab.run("document.getElementById('part').hidden ? '' : document.getElementById('part').innerText")
    )


def address(tab: Browser) -> str:
    return str(tab.run("location.hash"))


def details(tab: Browser) -> str:
    return str(tab.run("document.getElementById('details').innerText"))


def at(tab: Browser, share: float, lane: int = 0) -> tuple[float, float]:
    """A place in a strip, so far along its time."""
    x, y, width, height = tab.run(
        f"(b => [b.x, b.y, b.width, b.height])(document.querySelectorAll('.lane')[{lane}].getBoundingClientRect())"
    )
    return x + share * width, y + height / 2


def rows(tab: Browser) -> dict[str, list[str]]:
    """The cells of the table by function."""
    cells = tab.run(
        "[...document.querySelectorAll('#rows tbody tr:not(.space)')].map(r => "
        "[r.querySelector('.name').textContent, ...[...r.cells].slice(1).map(c => c.textContent)])"
    )
    return {name: values for name, *values in cells}


@pytest.mark.parametrize("lane", [0, 1])
def test_a_span_is_dragged(lane: int, tab: Browser, tmp_path: Path) -> None:
    file = show(tab, tmp_path, "#tab=threads")
    assert answer(tab) == ""
    assert tab.run("document.getElementById('flame').hidden")
    tab.drag(at(tab, 0.06, lane), at(tab, 0.44, lane))
    assert "from=0.100&to=0.900" in address(tab)
    assert answer(tab).startswith("0.10 to 0.90 s of 2.00 s")
    assert "useful work 50.0 % · idleness 50.0 %" in answer(tab)
    assert "1.00 threads at work on average, of 2 cores · 400 samples" in answer(tab)
    assert "read_input (x.c:10) loses 50.0 %, 1.0 of 2 cores idle while it runs" in answer(tab)
    assert drawn(tab) == [["whole process"], ["main"], ["read_input"]]
    kept = address(tab)
    tab.drag(at(tab, 0.56, lane), at(tab, 0.74, lane))
    assert "idleness" not in answer(tab).split("\n")[1] and "2.00 threads at work" in answer(tab)
    tab.run("history.back()")
    tab.wait_for("document.getElementById('part').innerText.startsWith('0.10 to 0.90')")
    tab.open(f"file://{file}{kept}")
    assert answer(tab).startswith("0.10 to 0.90 s of 2.00 s")
    assert drawn(tab)[2] == ["read_input"]
    left, width = tab.run("(b => [b.x, b.width])(document.querySelector('.span').getBoundingClientRect())")
    assert left == pytest.approx(at(tab, 0.05)[0], abs=2) and width == pytest.approx(
        at(tab, 0.45)[0] - at(tab, 0.05)[0], abs=2
    )
    tab.press("Escape")
    assert answer(tab) == "" and address(tab) == "#tab=threads"


def test_backwards_and_with_a_click(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, "#tab=threads")
    tab.drag(at(tab, 0.99), at(tab, 0.76))
    assert "from=1.500&to=2.000" in address(tab)
    assert "nobody working 100.0 %" in answer(tab)
    assert "finish (x.c:30) loses 100.0 %, 2.0 of 2 cores idle while it runs" in answer(tab)
    tab.click_at(*at(tab, 0.52))
    assert "from=1.000&to=1.100" in address(tab)
    tab.run("[...document.querySelectorAll('#part button')].find(e => e.textContent === 'whole run').click()")
    assert answer(tab) == ""


def test_a_span_by_keys(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, "#tab=threads")
    tab.run("document.getElementById('time').focus()")
    tab.press("ArrowRight")
    assert "from=0.000&to=0.100" in address(tab)
    tab.press("ArrowRight", "ArrowRight")
    assert "from=0.200&to=0.300" in address(tab)
    tab.press("ArrowRight", "ArrowRight", "ArrowLeft", shift=True)
    assert "from=0.200&to=0.400" in address(tab)
    assert (
        tab.run("document.getElementById('time').getAttribute('aria-valuetext')")
        == "0.20 to 0.40 s of 2.00 s"
    )
    tab.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert "from=0.000&to=0.200" in address(tab)
    assert tab.run("document.activeElement.id") == "time"
    tab.press("Escape", "ArrowLeft")
    assert "from=1.900&to=2.000" in address(tab)


def test_every_view_is_of_the_span(tab: Browser, tmp_path: Path) -> None:
    file = show(tab, tmp_path, "#tab=table&view=flat&from=1.0&to=1.5")
    assert rows(tab)["compute"][2] == "100.00" and rows(tab)["compute"][-1] == "effectively parallel"
    assert rows(tab)["read_input"][0] == "0.00" and rows(tab)["read_input"][-1] == "unknown"
    tab.run("location.hash = '#tab=table&view=flat&from=0&to=1.5'")
    tab.wait_for("document.getElementById('part').innerText.startsWith('0.00 to 1.50')")
    assert float(rows(tab)["read_input"][0]) == pytest.approx(100 / 3, abs=0.01)
    assert rows(tab)["read_input"][-1] == "refine"
    assert rows(tab)["read_input"][-2] == "1.33"  # of the whole run, of which it idles 1 s of 4
    tab.run("document.getElementById('view').value = 'callers'")
    tab.run("document.getElementById('view').dispatchEvent(new Event('change'))")
    assert float(rows(tab)["read_input"][0]) == pytest.approx(100 / 3, abs=0.01)
    tab.open(f"file://{file}#shape=inverted&by=work&from=1.0&to=1.5")
    assert drawn(tab) == [["whole process"], ["compute"], ["main"]]
    tab.run("location.hash = '#shape=inverted&by=work&from=0&to=1'")
    tab.wait_for("document.getElementById('part').innerText.startsWith('0.00 to 1.00')")
    assert drawn(tab) == [["whole process"], ["read_input"], ["main"]]
    tab.press("Escape")
    assert sorted(drawn(tab)[1]) == ["compute", "read_input"]
    tab.open(f"file://{file}#tab=source&from=1.0&to=1.5")
    assert "of the whole run" in tab.run("document.getElementById('said').textContent")
    tab.click("a[href='#cause=1']")  # which is of the whole run
    tab.wait_for("document.getElementById('part').hidden")


def test_the_answer_leads_into_the_picture(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, "#from=0&to=1.5")
    tab.click("#part li button")
    assert details(tab).startswith("read_input") and "from=0.000&to=1.500" in address(tab)
    assert "by=lost" in address(tab)


def test_one_thread(tab: Browser, tmp_path: Path) -> None:
    file = show(tab, tmp_path, "#tab=threads")
    tab.run("[...document.querySelectorAll('.who')].find(e => e.textContent.startsWith('helper')).click()")
    assert answer(tab).startswith("thread helper 8: compute") and "thread=2" in address(tab)
    assert drawn(tab) == [["whole process"], ["main"], ["compute"]]
    assert "250 samples" in details(tab)
    tab.press("1")
    assert drawn(tab)[2] == ["compute"]
    kept = address(tab)
    tab.open(f"file://{file}{kept}")
    assert answer(tab).startswith("thread helper 8")
    tab.run("document.getElementById('thread').value = '0'")
    tab.run("document.getElementById('thread').dispatchEvent(new Event('change'))")
    assert answer(tab).startswith("thread main 7") and sorted(drawn(tab)[2]) == ["compute", "read_input"]
    tab.open(f"file://{file}#tab=threads&thread=2&from=0&to=0.5")
    assert answer(tab).startswith("0.00 to 0.50 s of 2.00 s, thread helper 8")
    assert "0 samples" in answer(tab)
    tab.click(".who[aria-pressed=true]")
    assert answer(tab).startswith("0.00 to 0.50 s of 2.00 s\n") or "thread" not in answer(tab).split("\n")[0]


def test_a_thread_of_a_profile_without_times(tab: Browser, tmp_path: Path) -> None:
    profile = stages()
    profile.intervals = []
    show(tab, tmp_path, "#tab=threads&from=0.5&to=1", profile)
    assert answer(tab) == "" and "older version" in tab.run("document.getElementById('threads').innerText")
    tab.run("[...document.querySelectorAll('.who')].find(e => e.textContent.startsWith('helper')).click()")
    assert answer(tab).startswith("thread helper 8")
    assert "by=work" in address(tab) and drawn(tab)[2] == ["compute"]  # of idleness it has nothing


@pytest.mark.parametrize(
    "fragment", ["from=x&to=y", "from=9&to=1", "from=-5", "to=1e99", "thread=99", "thread=-1"]
)
def test_odd_addresses(fragment: str, tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, f"#tab=threads&{fragment}")
    assert tab.run("document.querySelectorAll('.lane').length") == 3


@pytest.mark.parametrize("width", [400, 1200, 2000])
@pytest.mark.parametrize("dark", [False, True])
def test_widths(width: int, dark: bool, tab: Browser, tmp_path: Path) -> None:
    tab.resize(width, dark=dark)
    show(tab, tmp_path, "#tab=threads&from=0.5&to=1&thread=1")
    assert tab.run("document.documentElement.scrollWidth") <= width
    x, width_, whole = tab.run(
        "(b => [b.x, b.width, document.getElementById('time').getBoundingClientRect().width])"
        "(document.querySelector('.span').getBoundingClientRect())"
    )
    assert width_ == pytest.approx(whole / 4, abs=2) and x > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")
def test_of_a_real_recording(tab: Browser, tmp_path: Path) -> None:
    """Two functions and a sleep between them, as the program itself saw them."""
    script = tmp_path / "stages.py"
    script.write_text(
        "import time\n"
        "def burn():\n    for n in range(20_000): pass\n"
        "def first(end):\n    while time.process_time() < end: burn()\n"
        "def second(end):\n    while time.process_time() < end: burn()\n"
        "first(time.process_time() + 0.6)\n"
        "time.sleep(0.8)\n"
        "second(time.process_time() + 0.5)\n"
    )
    out, page = tmp_path / "x.pb.gz", tmp_path / "x.html"
    command = ["record", "-q", "-o", out, "--html", page, "--no-report", "--", sys.executable, script]
    done = subprocess.run(
        [sys.executable, "-m", "parprof", *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(Path(html.__file__).parents[2])},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    profile = pprof.read(str(out))
    for row, sample in enumerate(profile.samples):  # nothing is lost, nothing is twice
        parts = [one.rows[row] for one in profile.intervals if row in one.rows]
        for metric, value in sample.metrics.values.items():
            assert sum(part[metric] for part in parts) == pytest.approx(
                value, rel=1e-3, abs=1000 * len(parts)
            )

    def seconds(name: str) -> list[float]:
        """CPU time of a function in each interval."""
        wanted = {n for n, one in enumerate(profile.samples) if any(f.name == name for f in one.path)}
        return [
            sum(metrics.cpu_ns for row, metrics in one.rows.items() if row in wanted) / 1e9
            for one in profile.intervals
        ]

    first, second = seconds("first"), seconds("second")
    assert sum(first) == pytest.approx(0.6, abs=0.1) and sum(second) == pytest.approx(0.5, abs=0.1)
    end = max(at for at, value in enumerate(first) if value)
    begin = min(at for at, value in enumerate(second) if value)
    assert end < begin
    slept = profile.intervals[end + 1 : begin]
    assert sum(one.level_s[0] for one in slept if one.level_s) == pytest.approx(0.8, abs=0.15)
    waited = [sum(metrics.stall_ns for metrics in one.rows.values()) / 1e9 for one in slept]
    assert sum(waited) == pytest.approx(0.8 * profile.process.cores, rel=0.25)
    tab.open(f"file://{page}#tab=threads&by=work&to={profile.intervals[end].end_s}")
    shown = {name for row in drawn(tab) for name in row}
    assert "first" in shown and "second" not in shown
    tab.open(f"file://{page}#tab=threads&by=work&from={profile.intervals[begin].begin_s}")
    shown = {name for row in drawn(tab) for name in row}
    assert "second" in shown and "first" not in shown
