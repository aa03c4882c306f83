"""A profile's flame graph as one SVG document, callers on top. It has links instead of a script.

Frames are nested ``svg`` elements, placed in percent: they clip their names and follow the window's width.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlencode

from parprof.attribution import Effort, percent
from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.exporters.summary import place
from parprof.metrics import IDLENESS, METRICS, Metric, Metrics, Shown
from parprof.model import Profile
from parprof.service.http.markup import COLOURS, duration, idle_colour, policy, text

_Weight = tuple[str, Callable[[Metrics], float]]


def weights() -> dict[str, _Weight]:
    """What a frame's width can show: title, and value."""
    return {
        "idleness": ("idleness", lambda m: m.idleness_ns),
        "effort": ("effort", lambda m: m.effort_ns),
        "work": ("useful work", lambda m: max(0.0, m.work_ns - m.overhead_ns)),
        "overhead": ("overhead", lambda m: m.overhead_ns),
        **{metric.name: _weight(metric) for metric in METRICS.at(Shown.GRAPH) if metric.additive},
    }


def _weight(metric: Metric) -> _Weight:
    return metric.title, lambda metrics: metrics[metric]


MAX_FRAMES = 3000
MAX_ROWS = 400
MIN_SHARE = 0.0008
"""Narrower frames are left out: about a pixel."""

MIN_NAMED_SHARE = 0.007
"""Narrower frames have no name in them, only in their tooltip: no letter would fit."""

_ROW = 19
_TOP = 104

CSS = (
    COLOURS
    + """
  svg { background: var(--page); }
  text { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; fill: var(--text); }
  .frame text { fill: #14171a; }
  .frame:hover rect, .frame:focus rect { stroke: var(--text); stroke-width: 2; }
  .above { opacity: .55; }
  .title { font: 600 16px system-ui, sans-serif; }
  .words, .words text { font: 13px system-ui, sans-serif; }
  .faint { fill: var(--faint); }
  .words a text, .words a tspan { fill: var(--link); text-decoration: underline; }
  .words .here { font-weight: 600; }
"""
)
POLICY = policy(CSS)


@dataclass(frozen=True, slots=True)
class View:
    """What to show: ``by`` is one of `weights`, ``focus`` the id of a frame, or empty."""

    by: str = "idleness"
    seconds: float = 30.0
    focus: str = ""

    def link(self, by: str, focus: str) -> str:
        """The same of something else, as an attribute value."""
        query = {"by": by, "seconds": f"{self.seconds:g}"} | ({"focus": focus} if focus else {})
        return "?" + urlencode(query).replace("&", "&amp;")


@dataclass(frozen=True, slots=True)
class _Box:
    node: Node
    id: str
    left: float
    width: float
    row: int
    above: bool = False


def flame_graph(profile: Profile, view: View) -> str:
    """The document. All text in it is escaped."""
    tree = CallingContextTree(profile.samples)
    title, weigh = weights()[view.by]
    chain = _find(tree.root, view.focus)
    boxes, left_out = _layout(chain, weigh)
    rows = max((box.row for box in boxes), default=0) + 1
    notes = []
    if view.focus and len(chain) == 1:
        notes.append("The frame that was asked for has no samples now.")
    if not weigh(tree.root.inclusive):
        notes.append(f"There is no {title} in this profile.")
    elif left_out:
        notes.append(f"{left_out:,} call paths are too small to see, or too deep, and left out.")
    total = tree.root.inclusive
    body = "".join(_frame(box, total, profile.process.cores, view) for box in boxes)
    height = _TOP + rows * _ROW + 16 + 20 * len(notes)
    foot = "".join(
        f'<text class="words faint" x="12" y="{_TOP + rows * _ROW + 20 + 20 * line}">{text(note)}</text>'
        for line, note in enumerate(notes)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}">'
        f"<title>{text(f'parprof: {profile.process.comm}')}</title><style>{CSS}</style>"
        f"{_head(profile, total, view)}{body}{foot}</svg>\n"
    )


def frame_id(parent: str, procedure: Procedure) -> str:
    """A name for a frame that the next profile of the process will have too: a hash of its call path."""
    key = "\0".join((parent, procedure.name, procedure.module, procedure.file, str(procedure.is_loop)))
    return hashlib.blake2s(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _find(root: Node, focus: str) -> list[tuple[Node, str]]:
    """The frames from the root to the one with this id, with their ids; only the root when there is none."""
    if focus:
        pending: list[tuple[tuple[Node, str], int]] = [((root, ""), 0)]
        chain: list[tuple[Node, str]] = []
        while pending:
            (node, own), depth = pending.pop()
            del chain[depth:]
            chain.append((node, own))
            if own == focus:
                return chain
            pending += [
                ((child, frame_id(own, procedure)), depth + 1) for procedure, child in node.children.items()
            ]
    return [(root, "")]


def _layout(chain: list[tuple[Node, str]], weigh: Callable[[Metrics], float]) -> tuple[list[_Box], int]:
    """Boxes in parts of the width, the widest first; and how many call paths have none."""
    boxes = [_Box(node, own, 0.0, 1.0, row, above=True) for row, (node, own) in enumerate(chain[:-1])]
    top, top_id = chain[-1]
    whole = weigh(top.inclusive)
    if whole <= 0:
        return [*boxes, _Box(top, top_id, 0.0, 1.0, len(boxes))], 0
    order = count()
    pending = [(-1.0, next(order), _Box(top, top_id, 0.0, 1.0, len(boxes)))]
    left_out = 0
    while pending:
        _, _, box = heapq.heappop(pending)
        if len(boxes) >= MAX_FRAMES or box.row >= MAX_ROWS:
            left_out += 1
            continue
        boxes.append(box)
        left = box.left
        children = [(weigh(child.inclusive) / whole, child) for child in box.node.children.values()]
        for wanted, child in sorted(children, key=lambda pair: -pair[0]):
            # A file may say that callees have more than their caller.
            share = min(wanted, box.left + box.width - left)
            if share < MIN_SHARE:
                left_out += wanted > 0
                continue
            own = frame_id(box.id, child.procedure)
            heapq.heappush(pending, (-share, next(order), _Box(child, own, left, share, box.row + 1)))
            left += share
    return boxes, left_out


def _frame(box: _Box, total: Metrics, cores: int, view: View) -> str:
    procedure, metrics = box.node.procedure, box.node.inclusive
    name = procedure.name or ("[unknown]" if box.row else "whole process")
    where = place(procedure, box.node.hottest_line(IDLENESS))
    effort, own = Effort.of(metrics), box.node.exclusive
    idle = cores * metrics.idleness_ns / metrics.effort_ns if metrics.effort_ns else 0.0
    parts = (
        ("idleness", effort.idleness_ns, own.idleness_ns),
        ("useful work", effort.useful_ns, Effort.of(own).useful_ns),
        ("overhead", effort.overhead_ns, own.overhead_ns),
    )
    shares = ", ".join(
        f"{label} {percent(part, total.effort_ns):.1f} % (itself {percent(mine, total.effort_ns):.1f} %)"
        for label, part, mine in parts
    )
    tip = (
        f"{name} {where}\nof all effort: {shares}\nspin {duration(metrics.spin_ns / 1e9)}, "
        f"{metrics.samples:,} samples, {idle:.1f} of {cores} cores idle while it ran"
    )
    shown = f'<text x="4" y="13">{text(name)}</text>' if box.width >= MIN_NAMED_SHARE else ""
    tip = "\n".join(text(line, 400) for line in tip.split("\n", 3))
    return (
        f'<a class="frame{" above" if box.above else ""}" href="{view.link(view.by, box.id)}"><title>{tip}</title>'
        f'<svg x="{100 * box.left:.3f}%" y="{_TOP + box.row * _ROW}" width="{100 * box.width:.3f}%"'
        f' height="{_ROW - 1}"><rect width="100%" height="100%" rx="2" fill="{idle_colour(metrics, cores)}"/>'
        f"{shown}</svg></a>"
    )


def _head(profile: Profile, total: Metrics, view: View) -> str:
    process, effort = profile.process, Effort.of(total)
    useful, overhead, idleness = effort.percentages()
    optional = {metric.name for metric in METRICS if metric.optional}
    choices = "".join(
        f'<tspan class="here" dx="12">{title}</tspan>'
        if by == view.by
        else f'<a href="{view.link(by, view.focus)}"><tspan dx="12">{title}</tspan></a>'
        for by, (title, weigh) in weights().items()
        if by == view.by or by not in optional or weigh(total)
    )
    pid, query = process.pid, f"?seconds={view.seconds:g}"
    others = "".join(
        f'<a href="{href}"><tspan dx="12">{name}</tspan></a>'
        for name, href in (
            ("whole process", view.link(view.by, "")),
            ("report", f"{pid}.html{query}"),
            ("pprof", f"{pid}.pb.gz{query}"),
            ("all processes", "/"),
        )
    )
    facts = (
        f"{duration(profile.duration_s)} at {profile.frequency_hz} Hz, {total.samples:,} samples,"
        f" {sum(profile.lost.values()):,} lost. n = {process.cores}, n_w source {process.n_w_source}, runtime"
        f" {process.runtime}. Efficiency {useful:.1f} %: overhead {overhead:.1f} %, idleness {idleness:.1f} %."
    )
    title = f"{process.comm or 'process'} (pid {pid})"
    return (
        f'<text class="title" x="12" y="26">{text(title)}</text>'
        f'<text class="words faint" x="12" y="48">{text(facts, 400)}</text>'
        f'<text class="words" x="12" y="70"><tspan class="faint">width by</tspan>{choices}</text>'
        f'<text class="words" x="12" y="92"><tspan class="faint">show</tspan>{others}</text>'
    )
