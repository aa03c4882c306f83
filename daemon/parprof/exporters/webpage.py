"""What all our web pages share: one shell with light and dark colours, harmless text, and a strict policy.

A page is one file that loads nothing and sends nothing. Its script and styles stand in it, and its
Content-Security-Policy allows these very ones by their hashes: whatever a target's names smuggle into the page,
it is not run. So there can be no ``style`` attributes in a page; a class and a line in `WebPage.style` do that.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files

from parprof.untrusted import visible
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page, to be written to a file (`html`) or served (with `policy` as a header too)."""

    title: str
    """Any text: it is made harmless here."""
    body: str
    """HTML: the text in it went through `text`, data for the script through `data_block`."""
    style: str = ""
    """CSS beside that of all pages."""
    script: str = ""
    """JavaScript, run when the body is there."""
    refresh_seconds: int = 0
    """How often a browser loads it anew; 0: never."""
    theme: bool = False
    """With a button for light or dark colours, whatever the system prefers. Without scripts it is as the system is."""

    def html(self) -> str:
        """The whole document."""
        refresh = (
            f'<meta http-equiv="refresh" content="{self.refresh_seconds}">\n' if self.refresh_seconds else ""
        )
        whole = self._whole_script()
        script = f"<script>{whole}</script>\n" if whole else ""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{self._policy()}">\n'
            f'{refresh}<link rel="icon" href="data:,">\n<title>{text(self.title, 300)}</title>\n'
            f"<style>{self._whole_style()}</style>\n</head>\n<body>\n{self.body}\n"
            f"{script}</body>\n</html>\n"
        )

    @property
    def policy(self) -> str:
        """The Content-Security-Policy to serve it with: the page's own, and that no other page may frame it."""
        return f"{self._policy()}; frame-ancestors 'none'"

    def _policy(self) -> str:
        rules = ["default-src 'none'", "base-uri 'none'", "form-action 'none'", "img-src data:"]
        rules.append(f"style-src {_hash(self._whole_style())}")
        if whole := self._whole_script():
            rules.append(f"script-src {_hash(whole)}")
        return "; ".join(rules)

    def _whole_script(self) -> str:
        return (asset("theme.js") if self.theme else "") + self.script

    def _whole_style(self) -> str:
        return asset("webpage.css") + self.style


def text(value: str, limit: int = 1 << 16) -> str:
    """Text of any origin as content or attribute value of HTML, clipped to about ``limit`` characters.

    >>> text("<b>\\x1b[31m")
    '&lt;b&gt;\\\\x1b[31m'
    """
    return escape(visible(value, limit))


def data_block(identifier: str, data: object) -> str:
    """Data for the page's script, which finds it as the text of the element with this id, in JSON."""
    shown = json.dumps(data, separators=(",", ":"))
    for dangerous in "<>&":  # nothing in it can end the element
        shown = shown.replace(dangerous, f"\\u{ord(dangerous):04x}")
    return f'<script type="application/json" id="{identifier}">{shown}</script>'


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what is to say of each, both HTML already; pairs that say nothing are left out."""
    return "<dl>" + "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs if value) + "</dl>"


def percentage(ratio: float, digits: int = 0) -> str:
    """A ratio in percent: ``37 %``."""
    return f"{100 * ratio:.{digits}f} %"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits: ``412 ms``, ``8.3 s``, ``12 min``, ``5.2 h``, ``3.1 d``."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds else "0 s"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{seconds:.{0 if seconds >= 100 else 1}f} s"


@cache
def asset(name: str) -> str:
    """A style sheet or script of this folder."""
    return files("parprof.exporters").joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    """How a policy names an element that stands in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
