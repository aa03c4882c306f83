"""Which call paths are most worth acting on (tallent-2009 sec. 2.3 and 5.4).

The paper's user descends from the root along the largest share of idleness and overhead until it splits up
into nothing much, and then reads Table 1 there. So does `advise`.
"""

from __future__ import annotations

from dataclasses import dataclass

from parprof.attribution.effort import Verdict, percent, verdict
from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.metrics import Metrics

KEPT_SHARE = 0.7
"""The descent goes on while the callees worth following hold this share of the lost effort together."""

LEAST_SHARE = 0.25
"""A call path is worth advice of its own from this share of all lost effort on: at most four ever are."""

NEGLIGIBLE_PERCENT = 0.5
"""Below this share of effort, lost effort is not worth any advice."""


def lost_ns(metrics: Metrics) -> float:
    """Effort that is no useful work: idleness and overhead (tallent-2009 sec. 2.1), and stall."""
    return metrics.idleness_ns + metrics.overhead_ns + metrics.stall_ns


@dataclass(frozen=True, slots=True)
class Advice:
    """A subtree of the calling context tree, and what to do about it.

    ``path`` are the nodes from below the root to the subtree, empty for the whole program.
    """

    path: tuple[Node, ...]
    metrics: Metrics
    """Of the subtree, its callees included."""
    total: Metrics
    """Of the whole program."""
    verdict: Verdict

    @property
    def lost_percent(self) -> float:
        """The subtree's share of all lost effort."""
        return percent(lost_ns(self.metrics), lost_ns(self.total))

    @property
    def effort_percent(self) -> float:
        """What the subtree loses, as a share of all effort."""
        return percent(lost_ns(self.metrics), self.total.effort_ns)


def advise(tree: CallingContextTree) -> list[Advice]:
    """The call paths most worth acting on, the worst first; empty when nothing is worth it.

    Starting at the root, callees are followed that hold `LEAST_SHARE` of all lost effort each and
    `KEPT_SHARE` together of what the descent began with: at the root, or where it last split up. So a single
    path is followed to the deepest subtree that still has 70 % of the lost effort, and several are found
    where no single one dominates.

    Callees without known source (the inside of libc, say) are not followed unless they call something that
    has it: their callers are what can be changed. Nor does a path end in something that is effectively
    parallel itself.
    """
    total = tree.root.inclusive
    all_lost = lost_ns(total)
    if percent(all_lost, total.effort_ns) < NEGLIGIBLE_PERCENT:
        return []
    any_source = tree.root.leads_to_source
    found: list[Advice] = []
    pending: list[tuple[list[Node], int, float]] = [([], 0, all_lost)]
    while pending:
        path, fixed, base = pending.pop()
        node = path[-1] if path else tree.root
        while followed := _worth_following(node, all_lost, base, any_source):
            if len(followed) > 1:
                pending += [([*path, child], len(path) + 1, held) for child, held in followed]
                break
            node = followed[0][0]
            path.append(node)
        else:
            path = _with_source(path, fixed)
            while len(path) > fixed and verdict(path[-1].inclusive) is Verdict.PARALLEL:
                path.pop()
            metrics = path[-1].inclusive if path else total
            judged = verdict(metrics)
            if judged is not Verdict.PARALLEL:
                found.append(Advice(tuple(path), metrics, total, judged))
    return sorted(found, key=_order)


def _worth_following(node: Node, all_lost: float, base: float, any_source: bool) -> list[tuple[Node, float]]:
    """The callees to descend into, with the lost effort that each holds; none where to stop.

    ``any_source``: callees without source, which call nothing that has it, are not for them.
    """
    followed = []
    for child in node.children.values():
        held = lost_ns(child.inclusive)
        if held >= LEAST_SHARE * all_lost and (child.leads_to_source or not any_source):
            followed.append((child, held))
    return followed if sum(held for _, held in followed) >= KEPT_SHARE * base else []


def _with_source(path: list[Node], fixed: int) -> list[Node]:
    """The path up to its last node with known source, but at least its first ``fixed`` nodes."""
    last = max((at for at, node in enumerate(path, 1) if node.procedure.file), default=0)
    return path[: max(last, fixed)] if last else path


def _order(advice: Advice) -> tuple[float, list[Procedure]]:
    return -lost_ns(advice.metrics), [node.procedure for node in advice.path]
