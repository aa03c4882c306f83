"""The page of big profiles: its bytes, how soon a browser shows it, and whether it stays smooth.

``.venv/bin/python bench/page.py [--nodes 1000 10000 50000]`` makes profiles with so many call paths, the page of each,
and opens it in Chromium. Needs `chromium`.
"""

from __future__ import annotations

import argparse
import gzip
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "daemon"), str(ROOT / "tests")]

from machine import describe  # noqa: E402

from browser import Browser  # noqa: E402
from parprof.exporters import html  # noqa: E402
from parprof.facts.intervals import MOST  # noqa: E402
from parprof.metrics import Metrics  # noqa: E402
from parprof.model import Frame, Interval, Origin, PathSample, ProcessInfo, Profile  # noqa: E402

FUNCTIONS = 2000
MAX_DEPTH = 60
SAMPLE_NS = 2_004_008
RUNS = 5

_SHOWN = """Math.max(performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd,
    ...performance.getEntriesByType('paint').map(one => one.startTime))"""
_SETTLED = "new Promise(done => setTimeout(done, 1000))"
_SWITCH = """(() => {{ const begun = performance.now(); {what}; return performance.now() - begun; }})()"""
_SCROLL = """new Promise(done => {{
  const box = document.getElementById({box!r}), times = [];
  let last = performance.now();
  const step = now => {{
    times.push(now - last);
    last = now;
    box.scrollTop += 400;
    if (times.length < 60) requestAnimationFrame(step); else done(times.slice(5));
  }};
  requestAnimationFrame(step);
}})"""


def profile_of(nodes: int, seed: int = 1) -> Profile:
    """A tree with so many call paths, as bushy as those of real programs, and a sample of each."""
    dice = random.Random(seed)
    functions = [
        Frame(
            f"namespace_{n % 31}::function_{n}(int, char const*)",
            f"/src/file_{n % 97}.cc",
            10 + n,
            5,
            "/bin/program",
        )
        for n in range(FUNCTIONS)
    ]
    paths: list[tuple[Frame, ...]] = [(functions[0],)]
    taken = {paths[0]}
    while len(paths) < nodes - 1:
        base = dice.choice(paths[-200:] if dice.random() < 0.8 else paths)
        path = (*base, dice.choice(functions))
        if path not in taken and len(path) <= MAX_DEPTH:
            taken.add(path)
            paths.append(path)
    samples = [
        PathSample(
            path,
            Metrics(samples=n, work_ns=n * SAMPLE_NS, idleness_ns=dice.choice((0, 0, 3)) * n * SAMPLE_NS),
            Origin(1, "program", f"thread {dice.randrange(8)}", tid=1 + dice.randrange(8)),
        )
        for path in paths
        for n in (dice.choice((1, 1, 1, 2, 5, 20)),)
    ]
    return Profile(
        ProcessInfo(1, "program", "program", cores=4),
        60.0,
        499,
        samples,
        intervals=_intervals(samples, dice),
    )


def _intervals(samples: list[PathSample], dice: random.Random) -> list[Interval]:
    """As many as there may be, each sample spread over as many of them as it was counted times."""
    rows: list[dict[int, Metrics]] = [{} for _ in range(MOST)]
    for row, sample in enumerate(samples):
        number = min(sample.metrics.samples, 8)
        for at in sorted(dice.sample(range(MOST), number)):
            shares = {metric: value / number for metric, value in sample.metrics.values.items()}
            rows[at][row] = Metrics.of(shares)
    took = 60.0 / MOST
    return [Interval(at * took, (at + 1) * took, (0.0, took / 2, took / 2), rows[at]) for at in range(MOST)]


def switched(browser: Browser, control: str, value: str) -> float:
    """How long the page is busy with another choice, in milliseconds."""
    what = f"const e = document.getElementById('{control}'); e.value = '{value}'; e.dispatchEvent(new Event('change'))"
    return float(browser.run(_SWITCH.format(what=what)))


def brushed(browser: Browser) -> float:
    """How long the page is busy with another span of time, in milliseconds: the first takes longer."""
    browser.run("location.hash = '#tab=threads'")
    browser.run(_SETTLED)
    what = "document.getElementById('time').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    times = [float(browser.run(_SWITCH.format(what=what))) for _ in range(10)]
    return max(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What the page of big profiles costs.")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 10_000, 50_000])
    args = parser.parse_args()
    print(describe())
    print(f"{'nodes':>7} {'CPU s':>7} {'MB':>6} {'gzip MB':>8} {'shown ms':>9} {'metric ms':>10} {'inverted ms':>12} "
          f"{'table ms':>9} {'search ms':>10} {'span ms':>8} {'frame ms, median / worst':>25}")  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with Browser(Path(folder, "browser")) as browser:
            browser.resize(1600)
            for nodes in args.nodes:
                profile = profile_of(nodes)
                begun = time.process_time()
                document = html.page(profile).html().encode()
                made_s = time.process_time() - begun
                page = Path(folder, "page.html")
                page.write_bytes(document)
                shown = []
                for _ in range(RUNS):
                    browser.open(f"file://{page}")
                    shown.append(browser.run(_SHOWN))
                metric = switched(browser, "by", "work")
                inverted = switched(browser, "shape", "inverted")
                browser.run("location.hash = '#tab=table&view=flat'")
                browser.run(_SETTLED)
                table = switched(browser, "view", "callers")
                search = float(
                    browser.run(
                        _SWITCH.format(
                            what="const e = document.getElementById('search'); e.value = 'function_7';"
                            "e.dispatchEvent(new Event('input'))"
                        )
                    )
                )
                span = brushed(browser)
                browser.run("location.hash = '#tab=table&view=flat'")
                browser.run(_SETTLED)
                frames = browser.run(_SCROLL.format(box="rows"))
                print(
                    f"{nodes:7} {made_s:7.2f} {len(document) / 1e6:6.2f} {len(gzip.compress(document)) / 1e6:8.2f}"
                    f" {statistics.median(shown):9.0f} {metric:10.0f} {inverted:12.0f} {table:9.0f} {search:10.0f}"
                    f" {span:8.0f}"
                    f" {statistics.median(frames):13.1f} / {max(frames):5.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
