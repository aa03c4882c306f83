"""What the pages share: text made harmless for HTML and XML, numbers for readers, colours, policies."""

from __future__ import annotations

import base64
import hashlib
from html import escape

from parprof.exporters.summary import printable
from parprof.metrics import Metrics

COLOURS = """
  :root { color-scheme: light dark;
    --page: #ffffff; --panel: #f4f5f7; --text: #1b1f24; --faint: #5b6470; --rule: #d6dae0; --link: #0b5cad;
    --useful: #6fa8dc; --overhead: #b9a5d6; --idleness: #e8783a; --bad: #b3261e; }
  @media (prefers-color-scheme: dark) { :root {
    --page: #16191d; --panel: #20252b; --text: #e6e9ed; --faint: #9aa4b0; --rule: #363d46; --link: #7cb7f5;
    --bad: #ff8a80; } }
"""
"""Light and dark, as in the HTML report."""

_USEFUL = (0x6F, 0xA8, 0xDC)
_IDLE = (0xE8, 0x78, 0x3A)


def text(value: str, limit: int = 200) -> str:
    """Text of any origin as content or attribute value of HTML and XML, clipped."""
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    return escape(printable(value).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd"))


def policy(css: str, rest: str = "") -> str:
    """A Content-Security-Policy that lets a page have this style element, links, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    base = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"{base}; style-src 'sha256-{digest}'{rest}"


def idle_colour(metrics: Metrics, cores: int) -> str:
    """From the colour of useful work, no core idle, to that of idleness, all others idle."""
    most = (cores - 1) / cores if cores > 1 else 1.0
    share = min(1.0, metrics.idleness_ns / metrics.effort_ns / most) if metrics.effort_ns else 0.0
    mixed = (round(useful + share * (idle - useful)) for useful, idle in zip(_USEFUL, _IDLE, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


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
