# SPDX-License-Identifier: Apache-2.0
"""The web page: complete, self-contained, and safe against hostile names."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given

sys.path.insert(0, str(Path(__file__).parent))

from parprof.exporters import html
from parprof.model import ProcessInfo, Profile
from profiles import any_profile, frame, heat, sample


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.urls: list[str] = []
        self.texts: dict[str, str] = {}
        self._open = ["page"]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href")]
        self._open.append(dict(attrs).get("id") or tag)

    def handle_data(self, data: str) -> None:
        self.texts[self._open[-1]] = self.texts.get(self._open[-1], "") + data


def test_content() -> None:
    page = Page(html.page(heat()).html())
    assert "./heat 4096" in page.texts["h1"]
    assert page.texts["p"].startswith("serial code in main > write_boundary (heat.c:33): one thread works")
    data = json.loads(page.texts["data"])
    assert data["cores"] == 4
    assert data["total"] == [4510, 4_460_000, 960_000, 100_000, 50_000, 0, 0, 0, 0, 0, 0, 0, 0]
    root, first = data["nodes"][:2]
    assert root[0] == -1
    assert data["names"][first[1]] == "main"
    verdicts = {data["names"][node[1]]: data["verdicts"][node[5]] for node in data["nodes"]}
    assert verdicts["write_boundary"] == "refine"
    assert verdicts["step"] == "effectively parallel"
    assert verdicts["barrier"] == "coarsen"
    assert "verdict with callees" in page.texts["button"]
    assert "blame s itself" not in page.texts["button"]
    assert page.tags.count("tr") == 1 + 9


def test_profiling_has_a_column_only_where_there_is_some() -> None:
    profile = heat()
    assert "profiling s itself" not in Page(html.page(profile).html()).texts["button"]
    profile.samples[0].metrics.profiling_ns = 3e6
    page = Page(html.page(profile).html())
    assert "profiling s itself" in page.texts["button"]
    assert json.loads(page.texts["data"])["total"][6] == 3000


@given(any_profile)
def test_nothing_breaks_out(profile: Profile) -> None:
    text = html.page(profile).html()
    page = Page(text)
    data = json.loads(page.texts["data"])
    assert all(node[0] < position for position, node in enumerate(data["nodes"]))
    assert page.tags.count("script") == 2
    assert page.urls == ["data:,"]


def test_hostile_names() -> None:
    bad = "</script><img src=http://x/ onerror=alert(1)>{{data}}<!--\x1b"
    process = ProcessInfo(1, bad, bad, bad, 4, bad)
    profile = Profile(
        process, 1.0, 100, [sample([frame(bad, 1, bad, bad)], 9, 1)], lost={bad: 1}, notes=[bad]
    )
    text = html.page(profile).html()
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert json.loads(page.texts["data"])["names"][2].startswith("</script><img")


def test_self_contained() -> None:
    text = html.page(heat()).html()
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in text


def test_every_metric_of_the_old_flame_graph_is_there() -> None:
    """`?by=` of the daemon's addresses names them."""
    page = html.page(heat())
    for key in ("idleness", "work", "overhead"):
        assert re.search(rf"^    {key}: {{label: ", page.script, re.MULTILINE)
    assert re.search(r"^  METRICS\.effort = {label: ", page.script, re.MULTILINE)
    drawn = {one["name"] for one in json.loads(Page(page.html()).texts["data"])["metrics"] if one["graph"]}
    assert {"spin", "blame", "profiling"} <= drawn


def test_links_and_widths() -> None:
    page = html.page(heat(), [("all <processes>", "/?a=1&b=2")])
    document = page.html()
    assert '<a href="/?a=1&amp;b=2">all &lt;processes&gt;</a>' in document
    assert ".split .useful { flex: 80.443 0 0;" in page.style
    assert not re.search(r"<[^>]* style=", document)  # the policy forbids them


def test_deep_paths_and_small_ones() -> None:
    samples = [
        sample([frame(f"f{depth}") for depth in range(2000)], 10**6, 1),
        sample([frame("tiny")], 1, 1),
    ]
    text = html.page(Profile(ProcessInfo(cores=4), 1.0, 1000, samples)).html()
    assert "1 call paths too small to see" in text
    assert "The table has the 1000 functions" in text


def test_written(tmp_path: Path) -> None:
    html.write(heat(), str(tmp_path / "out.html"))
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    html.write(Profile(ProcessInfo(), 0.0, 0, []), str(tmp_path / "out.html"))
