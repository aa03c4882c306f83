# SPDX-License-Identifier: Apache-2.0
"""The page of differences: which changes are real, and that names cannot break it."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

sys.path.insert(0, str(Path(__file__).parent))

from parprof.__main__ import main
from parprof.exporters import diff_page, pprof
from parprof.metrics import Metrics
from parprof.model import Frame, PathSample, ProcessInfo, Profile
from profiles import any_profile, heat

PERIOD_NS = 2_000_000.0


def data_of(page: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return data


def profile(**samples: int) -> Profile:
    """So many samples of each function, alone on 2 cores."""
    rows = [
        PathSample(
            (Frame("main"), Frame(name)),
            Metrics(samples=number, work_ns=number * PERIOD_NS, idleness_ns=number * PERIOD_NS),
        )
        for name, number in samples.items()
        if number
    ]
    return Profile(ProcessInfo(1, "x", "x", cores=2), sum(samples.values()) * PERIOD_NS / 1e9, 500, rows)


def real(a: Profile, b: Profile, kind: int = 0) -> set[str]:
    rows = data_of(diff_page.page(a, b).html())["rows"]
    return {row[0] for row in rows if row[2 + kind][3]}


def test_only_real_changes_are_marked() -> None:
    before, after = profile(same=1000, faster=800, gone=300, tiny=3), profile(same=1004, faster=300, tiny=5)
    assert real(before, after) == {"faster", "gone"}
    assert real(before, after, kind=1) == {"faster", "gone", "main"}
    assert real(before, after, kind=2) == {"faster", "gone"}
    page = diff_page.page(before, after).html()
    assert "4.21 s became 2.62 s (1.61 times as fast)" in page
    assert "of core time less is lost" in page


def test_what_is_measured_differs_from_run_to_run() -> None:
    """GIVEN stall of a function: 8 ms more of 8 s of core time in one, 300 ms more in another."""
    before, after = profile(work=2000), profile(work=2000)
    for one, amounts_ms in ((before, {"f": 1, "g": 500}), (after, {"f": 9, "g": 800})):
        one.samples += [
            PathSample((Frame("main"), Frame(name)), Metrics(stall_ns=amount_ms * 1e6))
            for name, amount_ms in amounts_ms.items()
        ]
    assert real(before, after) == {"g"}


def test_two_samplings_of_one_program_seldom_differ() -> None:
    dice = random.Random(7)
    marked = compared = 0
    for _ in range(100):
        a, b = (
            profile(**{f"f{n}": sum(dice.random() < 0.5 for _ in range(60 * n)) for n in range(1, 6)})
            for _ in range(2)
        )
        marked += len(real(a, b) - {"main"})
        compared += 5
    assert marked <= 0.05 * compared


def test_doubts_are_told(tmp_path: Path) -> None:
    other = heat()
    other.process = replace(other.process, cores=8)
    pprof.write(heat(), str(tmp_path / "a"))
    pprof.write(replace(other, event="cycles"), str(tmp_path / "b"))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text()
    assert "the cores n differ: 4 / 8" in page
    assert "the sampled events differ: cpu-clock / cycles" in page
    assert "<dt>note</dt>" not in diff_page.page(heat(), heat()).html()
    assert data_of(diff_page.page(heat(), heat()).html())["rows"] == []


def test_nothing_to_compare() -> None:
    assert "one of the profiles has no samples" in diff_page.page(heat(), profile()).html()


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.tags.append(tag)


@given(any_profile, any_profile)
def test_nothing_breaks_out(a: Profile, b: Profile) -> None:
    page = diff_page.page(a, b).html()
    tags = Tags(page).tags
    assert tags.count("script") == 2
    assert "img" not in tags
    data_of(page)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pprof.write(heat(), str(tmp_path / "a"))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--html", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").read_text().startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out == ""


def changes(page: str) -> dict[tuple[str, ...], list[list[float]]]:
    """By call path: what the flame graph knows of it."""
    graph = data_of(page)["graph"]
    paths: list[tuple[str, ...]] = []
    for parent, name in zip(graph["parent"], graph["name"], strict=True):
        paths.append((*paths[parent], name) if parent >= 0 else ())
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, graph["changes"], strict=True))


def test_call_paths_meet_wherever_they_were_built_and_whatever_loops_they_are_in() -> None:
    before, after = profile(same=1000, faster=800, gone=300), profile(same=1004, faster=300, come=200)
    loop = Frame("loop at x.c:7-9", "/src/x.c", 8, 7, is_loop=True)
    for one, folder in ((before, "/old"), (after, "/new")):
        for at, row in enumerate(one.samples):
            path = [replace(frame, file=f"{folder}/x.c", module=f"{folder}/x") for frame in row.path]
            if one is after and at % 2:
                path.insert(1, loop)
            row.path = tuple(path)
    found = changes(diff_page.page(before, after).html())
    assert set(found) == {
        (), ("main",), ("main", "same"), ("main", "faster"), ("main", "gone"), ("main", "come")
    }  # fmt: skip
    marked = {path[-1] for path, (lost, _) in found.items() if path and lost[3]}
    assert marked == {"main", "faster", "gone", "come"}
    assert found["main", "gone"][0][:2] == [600_000, 0] and found["main", "come"][0][:2] == [0, 400_000]
    whole, parts = found[("main",)], [kinds for path, kinds in found.items() if len(path) == 2]
    for kind in range(2):
        for side in range(2):
            assert whole[kind][side] == sum(part[kind][side] for part in parts)


def test_many_call_paths_leave_the_small_ones_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parprof.exporters.diff_graph.MAX_NODES", 3)
    page = diff_page.page(profile(a=100, b=50, c=10), profile(a=100, b=40, c=10)).html()
    assert set(changes(page)) == {(), ("main",), ("main", "a")}
    assert data_of(page)["graph"]["left_out"] == 2
