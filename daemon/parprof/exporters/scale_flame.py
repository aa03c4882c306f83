"""The critical path as a flame graph: which code, and in it which site, the span is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from parprof.exporters.scale_table import short_time
from parprof.exporters.webpage import percentage, text
from parprof.scale.model import Prediction, ScaleSite, shortened
from parprof.values import dataclass

STYLE = """
.flame rect { stroke: Canvas; stroke-width: 1; }
.flame text { fill: #1b1b1b; }
.code { fill: #e8c468; } .site { fill: #e2725b; }
"""
_WIDTH, _ROW = 1000, 20
_MIN_WIDTH = 1.0
_MAX_BLOCKS = 2000
_LETTER_WIDTH = 6.6


@dataclass(slots=True)
class Block:
    """Code with what is in it; ``span_s`` has that of all."""

    name: str
    is_site: bool = False
    span_s: float = 0.0
    inner: dict[tuple[str, bool], Block] = field(default_factory=dict)

    def depth(self) -> int:
        """Rows that it takes with all that is in it."""
        return 1 + max((one.depth() for one in self.inner.values()), default=0)


def tree_of(sites: Sequence[ScaleSite]) -> Block:
    """All sites on the critical path, below the functions and loops that they are in."""
    root = Block("span")
    for site in sites:
        if not site.span_s:
            continue
        names = [(shortened(frame.name), False) for frame in site.frames]
        block = root
        block.span_s += site.span_s
        for key in (*names, (site.label, True)):
            block = block.inner.setdefault(key, Block(*key))
            block.span_s += site.span_s
    return root


def flame(main: Prediction) -> str:
    """An SVG: the whole span on top, what it is made of below, the widest first."""
    root = tree_of(main.sites)
    if not root.span_s:
        return ""
    blocks = [one for one, _ in zip(_blocks(root, 0.0, 0, root.span_s), range(_MAX_BLOCKS), strict=False)]
    return (
        f'<svg class="flame wide" viewBox="0 0 {_WIDTH} {_ROW * root.depth()}" role="img" '
        f'aria-label="flame graph of the critical path">{"".join(blocks)}</svg>'
    )


def _blocks(block: Block, x: float, row: int, total_s: float) -> Iterator[str]:
    width = _WIDTH * block.span_s / total_s
    if width < _MIN_WIDTH:
        return
    title = f"{block.name}: {short_time(block.span_s)}, {percentage(block.span_s / total_s, 1)} of the span"
    yield (
        f'<rect class="{"site" if block.is_site else "code"}" x="{x:.1f}" y="{row * _ROW}" width="{width:.1f}" '
        f'height="{_ROW}"><title>{text(title)}</title></rect>'
    )
    if name := _clip(block.name, int((width - 8) / _LETTER_WIDTH)):
        yield f'<text x="{x + 4:.1f}" y="{row * _ROW + 14}">{text(name)}</text>'
    for one in sorted(block.inner.values(), key=lambda inner: (-inner.span_s, inner.name)):
        yield from _blocks(one, x, row + 1, total_s)
        x += _WIDTH * one.span_s / total_s


def _clip(name: str, room: int) -> str:
    if room < 3:
        return ""
    return name if len(name) <= room else f"{name[: room - 2]}.."
