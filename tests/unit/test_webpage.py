# SPDX-License-Identifier: Apache-2.0
"""The shell of all web pages: what it lets a browser do, and what it makes of hostile text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from parprof.exporters.webpage import WebPage, data_block, definitions, text

BAD = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b\udce9"
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class Parsed(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self._open = ""
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._open] = self.texts.get(self._open, "") + data


def digest(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def rules(policy: str) -> dict[str, str]:
    return dict(rule.strip().split(" ", 1) for rule in policy.split(";"))  # type: ignore[misc]


def test_the_policy_allows_these_very_elements() -> None:
    page = WebPage("t", "<p>b</p>", "p { color: red }", "alert(1)")
    parsed = Parsed(page.html())
    allowed = rules(page.policy)
    assert allowed["style-src"] == f"'sha256-{digest(parsed.texts['style'])}'"
    assert allowed["script-src"] == f"'sha256-{digest('alert(1)')}'"
    assert allowed["default-src"] == allowed["frame-ancestors"] == "'none'"
    own = dict(parsed.attributes)["content"]
    assert own is not None and {**rules(own), "frame-ancestors": "'none'"} == allowed


def test_a_page_with_a_button_for_colours() -> None:
    for script in ("", "alert(1)"):
        page = WebPage("t", "", script=script, theme=True)
        whole = Parsed(page.html()).texts["script"]
        assert whole.endswith(script) and "themechange" in whole
        assert rules(page.policy)["script-src"] == f"'sha256-{digest(whole)}'"
    assert 'data-theme="' not in page.html(), "as the system is, until somebody chooses"


def test_a_page_without_a_script_may_run_none() -> None:
    page = WebPage("t", "")
    assert "script-src" not in rules(page.policy)
    assert "script" not in Parsed(page.html()).tags


def test_nothing_is_loaded() -> None:
    document = WebPage("t", "").html()
    assert not re.search(r"https?://|@import|url\(|src=", document)


def test_light_and_dark() -> None:
    document = WebPage("t", "").html()
    assert "color-scheme: light dark" in document
    assert "prefers-color-scheme: dark" in document


def test_refresh() -> None:
    assert "refresh" not in WebPage("t", "").html()
    assert '<meta http-equiv="refresh" content="10">' in WebPage("t", "", refresh_seconds=10).html()


def test_hostile_text() -> None:
    body = f'<p title="{text(BAD)}">{text(BAD)}</p>' + definitions([(text(BAD), text(BAD)), ("empty", "")])
    parsed = Parsed(WebPage(BAD, body).html())
    assert not {"script", "img"} & set(parsed.tags)
    assert parsed.texts["title"].startswith("</title></style></script><script>")
    assert parsed.tags.count("dt") == 1
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    parsed.texts["p"].encode("utf-8")
    assert "\\x1b\\udce9" in parsed.texts["p"]
    assert len(text("<" * 10_000, 100)) == 4 * 100 + 3


@given(json_data)
def test_data_come_out_as_they_went_in(data: object) -> None:
    parsed = Parsed(WebPage("t", data_block("data", data)).html())
    assert parsed.tags.count("script") == 1
    assert json.loads(parsed.texts["data"]) == data


def test_data_cannot_end_their_element() -> None:
    parsed = Parsed(data_block("data", [BAD, "<!--<script>"]))
    assert parsed.tags == ["script"]
    assert json.loads(parsed.texts["data"]) == [BAD, "<!--<script>"]
