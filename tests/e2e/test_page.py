# SPDX-License-Identifier: Apache-2.0
"""The page of `parprof report --html` in a real browser: every way to use it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from browser import CHROMIUM, Browser
from parprof.attribution.effort import Effort
from parprof.exporters import diff_page, html
from parprof.metrics import Metrics
from parprof.model import Accounting, Frame, Origin, PathSample, ProcessInfo, Profile
from profiles import heat, sample

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not CHROMIUM, reason="needs a browser: apt install chromium"),
]

BAD = "</script><img src=x onerror=alert(1)>&\x1b\u202e"


def show(tab: Browser, folder: Path, profile: Profile, fragment: str = "", *, source: bool = True) -> Path:
    file = folder / "page.html"
    html.write(profile, str(file), source=source)
    tab.open(f"file://{file}{fragment}")
    return file


def drawn(tab: Browser) -> list[list[str]]:
    """What the rows of the flame graph show, as the script would draw it: the page has nothing but pixels."""
    text = tab.run("document.getElementById('chart').dataset.rows")
    return [row.split("\t") for row in text.split("\n")]


def address(tab: Browser) -> str:
    return str(tab.run("location.hash"))


def details(tab: Browser) -> str:
    return str(tab.run("document.getElementById('details').innerText"))


def rows(tab: Browser) -> list[str]:
    """The functions in the rows of the table."""
    return list(tab.run("[...document.querySelectorAll('#rows .name')].map(e => e.textContent)"))


def chosen(tab: Browser, control: str, value: str) -> None:
    tab.run(
        f"(e => {{ e.value = '{value}'; e.dispatchEvent(new Event('change')); }})"
        f"(document.getElementById('{control}'))"
    )


def test_a_cause_leads_into_the_picture(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, heat())
    assert drawn(tab)[0] == ["whole process"] and "main" in drawn(tab)[1]
    tab.click("a[href='#cause=1']")
    tab.wait_for("document.getElementById('details').innerText.startsWith('write_boundary')")
    assert drawn(tab) == [["whole process"], ["main"], ["write_boundary"], ["fprintf"]]
    assert tab.run("document.getElementById('by').value") == "lost"
    tab.run("history.back()")
    tab.wait_for("document.getElementById('details').innerText.startsWith('whole process')")


def test_zoom_by_mouse_and_keys_is_kept_in_the_address(tab: Browser, tmp_path: Path) -> None:
    file = show(tab, tmp_path, heat())
    x, y = tab.run("(b => [b.x + 30, b.y])(document.getElementById('chart').getBoundingClientRect())")
    tab.click_at(x, y + 50)  # the third row
    first = details(tab).split()[0]
    assert first == drawn(tab)[2][0] == "write_boundary"
    assert "at=" in address(tab)
    kept = address(tab)
    tab.open(f"file://{file}{kept}")
    assert details(tab).split()[0] == "write_boundary"
    tab.press("Escape")
    assert details(tab).startswith("whole process")
    tab.run("document.getElementById('chart').focus()")
    tab.press("ArrowDown", "ArrowDown")
    assert details(tab).startswith("write_boundary")
    tab.press("ArrowUp")
    assert details(tab).startswith("main")
    tab.press("ArrowDown", "Enter")
    assert address(tab) == kept


def test_by_every_metric_and_both_colours(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, heat())
    metrics = tab.run("[...document.getElementById('by').options].map(e => e.value)")
    assert metrics[:5] == ["idleness", "work", "overhead", "spin", "effort"]
    assert "blame" not in metrics
    seen = set()
    for colour in ("owner", "cores"):
        chosen(tab, "colour", colour)
        for metric in metrics:
            chosen(tab, "by", metric)
            seen.add(tab.run("document.getElementById('chart').toDataURL()"))
    assert len(seen) >= 2 * len(metrics) - 2  # overhead and all that is lost may look alike
    assert "colour=cores" in address(tab)
    chosen(tab, "by", "spin")
    assert ["barrier"] in drawn(tab) and ["write_boundary"] not in drawn(tab)


def test_inverted_and_sandwich(tab: Browser, tmp_path: Path) -> None:
    file = show(tab, tmp_path, heat())
    chosen(tab, "by", "work")
    chosen(tab, "shape", "inverted")
    assert drawn(tab)[:2] == [["whole process"], ["step", "fprintf", "fib"]]  # by useful work of their own
    assert drawn(tab)[2][0] == "solve" and drawn(tab)[3][0] == "main"
    tab.open(f"file://{file}#shape=sandwich&by=work&at=solve")
    assert drawn(tab)[0] == ["main"] and drawn(tab)[1] == ["solve"] and "step" in drawn(tab)[2]
    assert details(tab).startswith("solve")
    tab.open(f"file://{file}")
    tab.click("a[href='#cause=1']")
    tab.wait_for("document.getElementById('details').innerText.startsWith('write_boundary')")
    tab.press("s")
    assert "shape=sandwich" in address(tab) and drawn(tab)[1] == ["write_boundary"]


def test_table(tab: Browser, tmp_path: Path) -> None:
    file = show(tab, tmp_path, heat(), "#tab=table")
    assert rows(tab)[:3] == ["whole process", "main", "write_boundary"]
    tab.run("document.getElementById('rows').focus()")
    tab.press("ArrowDown", "ArrowLeft")
    assert rows(tab) == ["whole process", "main"]
    tab.press("Enter")
    assert "solve" in rows(tab)
    assert details(tab).startswith("main")
    chosen(tab, "view", "flat")
    assert rows(tab)[:2] == ["main", "write_boundary"]
    assert rows(tab).count("fib") == 1
    idle = tab.run(
        "[...document.querySelectorAll('#rows tbody tr:not(.space)')].map(r => r.cells[1].textContent)"
    )
    assert [float(one) for one in idle] == sorted(map(float, idle), reverse=True)
    assert float(idle[0]) == pytest.approx(100 * 0.96 / 5.42, abs=0.01)
    gains = tab.run(
        "[...document.querySelectorAll('#rows tbody tr:not(.space)')].map(r => [...r.cells].at(-2).textContent)"
    )
    assert gains[:2] == [f"{5.42 / 4.46:.2f}", f"{5.42 / 4.52:.2f}"]
    tab.run("document.querySelector('#rows tbody tr:not(.space)').click()")
    assert "the run at best 1.22 times as fast if that is fixed" in details(tab)
    tab.click("#rows th:nth-child(4) button")
    assert "sort=work.inclusive" in address(tab)
    kept = address(tab)
    order = rows(tab)
    tab.open(f"file://{file}{kept}")
    assert rows(tab) == order
    chosen(tab, "view", "callers")
    tab.run("document.getElementById('rows').focus()")
    tab.press("ArrowDown")
    for name in ("barrier", "solve", "main"):
        at = rows(tab).index(name)
        tab.run(
            f"[...document.querySelectorAll('#rows tbody tr:not(.space)')][{at}].querySelector('.fold').click()"
        )
        if name == "barrier":
            assert rows(tab)[at + 1] == "solve"


def test_search(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, heat())
    plain = tab.run("document.getElementById('chart').toDataURL()")
    tab.press("/", *"BOUND")
    assert tab.run("document.getElementById('search').value") == "BOUND"
    assert tab.run("document.getElementById('chart').toDataURL()") != plain
    assert "1 function found, with 93.8 % of idleness" in tab.run(
        "document.getElementById('found').textContent"
    )
    assert address(tab).endswith("search=BOUND")
    tab.press("Enter")
    assert details(tab).startswith("write_boundary")
    tab.press("Escape", "2")
    assert tab.run("[...document.querySelectorAll('.match')].map(e => e.textContent)") == ["write_boundary"]
    chosen(tab, "view", "flat")
    assert rows(tab) == ["write_boundary"]


def test_source(tab: Browser, tmp_path: Path) -> None:
    text = tmp_path / "heat.c"
    text.write_text("".join(f"int line_{n}; // {BAD}\n" for n in range(1, 100)))
    os.utime(text, (1e9, 1e9))
    profile = heat()
    loop = Frame("loop at heat.c:30-35", str(text), 33, 30, is_loop=True)
    for one in profile.samples:
        path = [replace(frame, file=str(text)) if frame.file else frame for frame in one.path]
        at = next((at for at, frame in enumerate(path) if frame.name == "write_boundary"), None)
        if at is not None:
            path.insert(at + 1, loop)
        one.path = tuple(path)
    show(tab, tmp_path, profile, "#tab=source")
    line = "[...document.querySelectorAll('#lines tbody tr')].find(r => r.cells[5]?.textContent === '33')"
    assert tab.run(f"{line}.cells[0].textContent") == "16.6"  # 0.9 of 5.42 s of effort
    assert tab.run(f"{line}.cells[6].textContent").startswith("int line_33; // </script><img")
    assert tab.run(f"{line}.cells[4].title") == "loop at 30-35"
    assert tab.run("document.getElementById('said').textContent") == str(text)
    tab.run(f"{line}.click()")
    assert address(tab) == "#tab=source&line=33"
    os.utime(text, (2e9, 2e9))
    show(tab, tmp_path, profile, "#tab=source")
    assert "changed since the recording" in tab.run("document.getElementById('said').textContent")
    show(tab, tmp_path, profile, "#tab=source", source=False)
    assert tab.run(f"{line}.cells[0].textContent") == "16.6"
    assert tab.run(f"{line}.cells[6].textContent") == ""
    tab.press("1")
    tab.click("a[href='#cause=1']")
    tab.wait_for("document.getElementById('details').innerText.startsWith('write_boundary')")
    tab.run("[...document.querySelectorAll('#details button')].find(e => e.textContent === 'source').click()")
    assert "tab=source" in address(tab)


def many_threads(number: int) -> Profile:
    """Workers with more and more work, in two processes."""
    samples = [
        PathSample(
            (Frame("main", "x.c", 1), Frame(f"work_{n % 7}", "x.c", 10 + n % 7)),
            Metrics(samples=n + 1, work_ns=1e6 * (n + 1), idleness_ns=5e5, spin_ns=1e5),
            Origin(100 + n % 2, f"prog{n % 2}", f"worker-{n}", tid=1000 + n),
        )
        for n in range(number)
    ]
    account = Accounting(4, 2.0, 4.0, 0, 0, 1.0, 0.0, None, (0.0, 1.0, 0.5, 0.25, 0.25))
    both = [ProcessInfo(100 + n, f"prog{n}", "", "none", 4) for n in range(2)]
    return Profile(replace(both[0], command="prog"), 2.0, 499, samples, accounting=account, processes=both)


def test_threads_of_a_process_tree(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, many_threads(100), "#tab=threads")
    names = tab.run("[...document.querySelectorAll('.who')].map(e => e.textContent)")
    assert len(names) == 100
    assert names[0].startswith("worker-99 1099 of prog1 101")
    widths = tab.run(
        "[...document.querySelectorAll('.strip')].map(s => s.firstChild.getBoundingClientRect().width)"
    )
    assert widths == sorted(widths, reverse=True) and widths[0] > 90 * widths[-1] > 0
    assert tab.run("document.querySelectorAll('.levels rect').length") == 5


@pytest.mark.parametrize("number", [0, 1])
def test_next_to_nothing(number: int, tab: Browser, tmp_path: Path) -> None:
    profile = Profile(ProcessInfo(7, "x", "x", cores=4), 1.0, 499, many_threads(number).samples)
    show(tab, tmp_path, profile)
    for key in "1234":
        tab.press(key)
    tab.press("1")
    for shape in ("inverted", "sandwich", "icicle"):
        chosen(tab, "shape", shape)
    tab.press("2")
    for view in ("callers", "flat", "paths"):
        chosen(tab, "view", view)
    assert "x" in tab.run("document.querySelector('h1').textContent")


@pytest.mark.parametrize("width", [400, 1000, 2000])
@pytest.mark.parametrize("dark", [False, True])
def test_widths_and_names(width: int, dark: bool, tab: Browser, tmp_path: Path) -> None:
    tab.resize(width, dark=dark)
    long = "std::map<" * 550 + ">"
    samples = [sample([Frame("main"), Frame(BAD, BAD, 3, 1, BAD), Frame(long)], 100, 1)]
    samples += [sample([Frame(f"deep_{n}") for n in range(300)], 100, 2)]
    show(tab, tmp_path, Profile(ProcessInfo(1, BAD, BAD, BAD, 4), 1.0, 499, samples, notes=[BAD]))
    for key in "2341":
        tab.press(key)
        assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.images.length") == 0
    assert tab.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(22, 25, 29)" if dark else "rgb(255, 255, 255)"
    )
    tab.press("/", *"deep_299", "Enter")
    assert details(tab).startswith("deep_299")
    tab.run(f"location.hash = '#shape=sandwich&by=effort&at={quote(long[:500])}'")
    tab.wait_for("document.getElementById('details').innerText.startsWith('std::map')")


@pytest.mark.parametrize("width", [420, 1280])
def test_the_bar_of_effort_is_to_scale(width: int, tab: Browser, tmp_path: Path) -> None:
    """A small part, too: room around its text would make it wider than it is."""
    tab.resize(width)
    show(tab, tmp_path, heat())
    across = "getBoundingClientRect().width"
    whole = tab.run(f"document.querySelector('.split').{across}")
    shares = zip(("useful", "overhead", "idleness"), Effort.of(heat().total()).percentages(), strict=True)
    for kind, percent in shares:
        drawn = tab.run(f"document.querySelector('.split .{kind}').{across}")
        assert drawn == pytest.approx(percent * whole / 100, abs=1.5), kind


def test_policy_keeps_scripts_out(tab: Browser, tmp_path: Path) -> None:
    show(tab, tmp_path, heat())
    tab.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"data:,\" onerror=\"window.broken = 1\">')"
    )
    tab.run("new Promise(done => setTimeout(done, 300))")
    assert tab.run("window.broken") is None
    assert tab.complaints
    tab.complaints.clear()


def test_from_the_command_line(tab: Browser, tmp_path: Path) -> None:
    from parprof.__main__ import main
    from parprof.exporters import pprof

    pprof.write(heat(), str(tmp_path / "x.pb.gz"))
    page = tmp_path / "x.html"
    assert main(["report", str(tmp_path / "x.pb.gz"), "--html", str(page), "--no-source"]) == 0
    tab.open(f"file://{page}#tab=source")
    assert "--no-source" in tab.run("document.getElementById('said').textContent")


def test_differences(tab: Browser, tmp_path: Path) -> None:
    before, after = heat(), heat()
    after.samples[0].metrics.idleness_ns /= 10  # of fprintf
    after.samples[2].path = tuple(replace(one, name=f"{BAD}{one.name}") for one in after.samples[2].path[-1:])
    page = tmp_path / "diff.html"
    diff_page.write(before, after, str(page))
    tab.open(f"file://{page}")
    assert rows(tab) == ["fprintf"]
    assert "1 real change among" in tab.run("document.getElementById('found').textContent")
    chosen(tab, "kind", "2")
    assert sorted(rows(tab)) == sorted(["step", "".join(BAD[:-2]) + "\\x1b\\u202estep"])
    tab.click("#real")
    tab.press("/", *"nothing of that name")
    assert rows(tab) == []
    kept = address(tab)
    assert "all=1" in kept and "search=nothing" in kept
    tab.open(f"file://{page}{kept.split('&search')[0]}")
    assert tab.run("document.getElementById('kind').value") == "2"
    assert not tab.run("document.getElementById('real').checked")
    assert "step" in rows(tab)


def test_the_flame_graph_of_differences(tab: Browser, tmp_path: Path) -> None:
    before, after = heat(), heat()
    after.samples[0].metrics.idleness_ns /= 10  # of fprintf
    page = tmp_path / "diff.html"
    diff_page.write(before, after, str(page))
    tab.open(f"file://{page}")
    assert drawn(tab)[:2] == [["whole process"], ["main"]]
    assert drawn(tab)[2:4] == [["write_boundary", "solve", "fib"], ["fprintf", "barrier", "fib"]]

    def colour(row: int, share: float) -> list[int]:
        chart = "document.getElementById('chart')"
        x = f"Math.round({share} * {chart}.width)"
        return list(tab.run(f"[...{chart}.getContext('2d').getImageData({x}, {20 * row + 3}, 1, 1).data]"))[
            :3
        ]

    unsure = [0xD3, 0xD7, 0xDC]
    assert colour(2, 0.9) == colour(3, 0.9) == unsure  # solve, fib
    assert colour(3, 0.5) == [0x6F, 0xA8, 0xDC]  # fprintf: less
    assert "lost with callees: 1.060 s became 0.520 s" in details(tab)
    tab.click("#chart")  # in the middle: barrier, or fprintf
    assert "at=" in address(tab)
    kept, said = address(tab), details(tab)
    tab.open(f"file://{page}{kept}")
    assert details(tab) == said and not said.startswith("whole process")
    tab.press("Escape")
    assert details(tab).startswith("whole process") and address(tab) in ("", "#")
    chosen(tab, "by", "before")
    assert "width=before" in address(tab)
    tab.run("document.getElementById('chart').focus()")
    tab.press("ArrowDown", "ArrowDown", "ArrowDown")
    assert details(tab).startswith("fprintf [libc.so.6]") and "-0.540" in details(tab)
    tab.press("Enter")
    assert "at=" in address(tab)
    for width in (400, 2000):
        tab.resize(width, dark=True)
        assert tab.run("document.documentElement.scrollWidth") <= width
    chosen(tab, "kind", "2")
    tab.press("Escape")
    assert colour(0, 0.5) == [0x8D, 0x95, 0x9F]  # as much useful work as before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")
def test_record_writes_it_beside_the_profile(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    script = tmp_path / "burn.py"
    script.write_text(
        "def burn():\n    total = 0\n    for n in range(9_000_000):\n        total += n\n\nburn()\n"
    )
    command = [
        "record",
        "-q",
        "-o",
        tmp_path / "x.pb.gz",
        "--html",
        page,
        "--no-report",
        "--",
        sys.executable,
        script,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "parprof", *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(Path(diff_page.__file__).parents[2])},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tab.open(f"file://{page}#by=work&tab=source")
    assert tab.run("document.querySelectorAll('.levels rect').length") >= 1
    assert "total += n" in tab.run("document.getElementById('lines').textContent")
    tab.run("location.hash = '#by=work'")
    tab.wait_for("!document.getElementById('flame').hidden")
    assert any("burn" in row for row in drawn(tab))


def test_served_by_the_daemon_nothing_is_fetched_again(tab: Browser) -> None:
    """A click must not show another profile than the one that it was made on."""
    page = html.page(heat(), [("all processes", "/")])
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = page.html().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", page.policy)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.open(f"http://127.0.0.1:{server.server_port}/profiles/42.html?by=work")
        assert tab.run("document.getElementById('by').value") == "work"
        tab.click("a[href='#cause=1']")
        tab.press("s", *"2341", "Escape")
        assert details(tab).startswith("whole process")
        server.shutdown()
    assert asked == ["/profiles/42.html?by=work"]
