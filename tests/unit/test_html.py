# SPDX-License-Identifier: Apache-2.0
"""The web page: complete, self-contained, and safe against hostile names."""

from __future__ import annotations

import json
import re
import sys
import unittest.mock
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import given

sys.path.insert(0, str(Path(__file__).parent))

from parprof.cct.tree import CallingContextTree
from parprof.exporters import graph, html
from parprof.model import Accounting, ProcessInfo, Profile
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


def data_of(page: html.WebPage | str) -> dict[str, Any]:
    document = page if isinstance(page, str) else page.html()
    data: dict[str, Any] = json.loads(Page(document).texts["data"])
    return data


def rows_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes with the names of what they are, and what they have themselves."""
    nodes, procedures, names = data["nodes"], data["procedures"], data["names"]
    return [
        {
            "name": names[procedures["name"][procedure]],
            "parent": nodes["parent"][at],
            "verdict": data["verdicts"][nodes["verdict"][at]],
            "owner": data["owners"][procedures["owner"][procedure]],
            "own": {name: column[at] for name, column in nodes["own"].items()},
        }
        for at, procedure in enumerate(nodes["procedure"])
    ]


def test_content() -> None:
    document = html.page(heat(), unfold=True).html()
    page = Page(document)
    assert "./heat 4096" in page.texts["h1"]
    assert page.texts["p"].startswith("serial code in main > write_boundary (heat.c:33): one thread works")
    data = data_of(document)
    assert data["cores"] == 4
    assert data["total"] == [4510, 4_460_000, 960_000, 100_000, 50_000, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    rows = rows_of(data)
    assert rows[0]["parent"] == -1
    assert rows[1]["name"] == "main"
    for at, metric in enumerate(data["metrics"]):  # what nodes have themselves is all there is
        assert sum(row["own"][metric["name"]] for row in rows) == data["total"][at]
    verdicts = {row["name"]: row["verdict"] for row in rows}
    assert verdicts["write_boundary"] == "refine"
    assert verdicts["step"] == "effectively parallel"
    assert verdicts["barrier"] == "coarsen"
    assert {row["name"]: row["owner"] for row in rows} | {"main": "program", "fprintf": "system"} == {
        row["name"]: row["owner"] for row in rows
    }
    columns = {one["name"]: one["column"] for one in data["metrics"]}
    assert (
        columns["blame"] and not data["total"][list(columns).index("blame")]
    )  # shown only where there is any
    assert len(data["procedures"]["name"]) == 1 + 9


def test_a_cause_leads_to_its_call_path() -> None:
    data = data_of(html.page(heat()))
    serial, *_ = data["causes"]
    rows = rows_of(data)
    assert rows[serial]["name"] == "write_boundary"
    assert rows[rows[serial]["parent"]]["name"] == "main"
    assert '<a href="#cause=1">' in html.page(heat()).html()


def test_system_code_is_folded_unless_asked_for() -> None:
    names = {row["name"] for row in rows_of(data_of(html.page(heat())))}
    assert "fprintf" in names and "vfprintf" not in names
    assert "vfprintf" in {row["name"] for row in rows_of(data_of(html.page(heat(), unfold=True)))}


def test_concurrency_and_accounting() -> None:
    profile = heat()
    assert "<figure" not in html.page(profile).html()
    profile.accounting = Accounting(4, 1.5, 4.46, 0, 0, 0.96, 0.0, 0.96, (0.05, 0.25, 0.1, 0.1, 1.0))
    page = Page(html.page(profile).html())
    assert "1 at work: 0.250 s" in page.texts["title"]
    document = html.page(profile).html()
    assert document.index("<dt>accounted</dt>") < document.index('id="tabs"')


def test_threads() -> None:
    data = data_of(html.page(heat()))
    ((name, values),) = data["threads"]["rows"]
    assert name.startswith("worker")
    assert values == data["total"]


def test_processes_are_above_the_picture() -> None:
    shown = heat()
    assert 'class="processes"' not in html.page(shown).html()
    shown.processes = [
        replace(shown.process, pid=pid, comm=comm) for pid, comm in ((42, "heat"), (43, "<b>"))
    ]
    shown.samples[0].origin = shown.samples[0].origin._replace(pid=43)
    found = html.page(shown).html()
    table = found.partition('class="processes"')[2].partition("</table>")[0]
    assert "2 processes worked" in table and table.count("<tr>") == 3
    assert "<td>heat (42)</td><td>96 %</td>" in table and "<td>&lt;b&gt; (43)</td><td>4.5 %</td>" in table
    assert found.index('class="processes"') < found.index('id="tabs"')
    assert "<dt>processes</dt>" not in found


def test_profiling_has_a_column_only_where_there_is_some() -> None:
    profile = heat()
    assert data_of(html.page(profile))["total"][6] == 0
    profile.samples[0].metrics.profiling_ns = 3e6
    data = data_of(html.page(profile))
    assert data["metrics"][6]["name"] == "profiling" and data["metrics"][6]["column"]
    assert data["total"][6] == 3000


@given(any_profile)
def test_nothing_breaks_out(profile: Profile) -> None:
    text = html.page(profile).html()
    page = Page(text)
    data = json.loads(page.texts["data"])
    assert all(parent < position for position, parent in enumerate(data["nodes"]["parent"]))
    assert page.tags.count("script") == 3
    assert [url for url in page.urls if not url.startswith("#cause=")] == ["data:,"]


def test_hostile_names() -> None:
    bad = "</script><img src=http://x/ onerror=alert(1)>{{data}}<!--\x1b"
    process = ProcessInfo(1, bad, bad, bad, 4, bad)
    profile = Profile(
        process, 1.0, 100, [sample([frame(bad, 1, bad, bad)], 9, 1)], lost={bad: 1}, notes=[bad]
    )
    text = html.page(profile).html()
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == 3
    assert any(name.startswith("</script><img") for name in json.loads(page.texts["data"])["names"])


def test_self_contained() -> None:
    text = html.page(heat()).html()
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in text
    assert not re.search(r"<[^>]*\son[a-z]+=", text)  # the policy forbids handlers in tags


def test_every_metric_of_the_old_flame_graph_is_there() -> None:
    """`?by=` of the daemon's addresses names them."""
    page = html.page(heat())
    for key in ("idleness", "work", "overhead"):
        assert re.search(rf"^  {key}: {{label: ", page.script, re.MULTILINE)
    assert re.search(r"^METRICS\.effort = {label: ", page.script, re.MULTILINE)
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
    data = data_of(text)
    assert len(data["procedures"]["name"]) == 1 + 2000 + 1
    assert rows_of(data)[-1]["name"] == "[small call paths]"
    assert rows_of(data)[-1]["own"]["samples"] == 1  # nothing is lost


def test_the_largest_call_paths_are_kept() -> None:
    samples = [sample([frame("main"), frame(f"f{n}"), frame("g")], 1 + n, 1) for n in range(60)]
    tree = CallingContextTree(samples)
    with unittest.mock.patch.object(graph, "MAX_NODES", 42):
        found = graph.graph(tree, 4)
    assert len(found.data["nodes"]["parent"]) == 42 + 1 + (found.left_out > 60)
    rows = rows_of(found.data)
    assert {"f59", "f40"} < {row["name"] for row in rows}
    assert "f1" not in {row["name"] for row in rows}
    assert sum(row["own"]["samples"] for row in rows) == sum(range(61))


def test_written(tmp_path: Path) -> None:
    html.write(heat(), str(tmp_path / "out.html"))
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    html.write(Profile(ProcessInfo(), 0.0, 0, []), str(tmp_path / "out.html"))
