"""Which rows a view has, and in what order: those of a tree with the lines that draw it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from parprof.attribution.interval import are_told_apart, period_ns, step_of
from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.cct.views import CallerNode, FunctionTotals, callers_view, flat_view, fold_recursion
from parprof.errors import UsageError
from parprof.exporters import breakdown
from parprof.exporters.views import View
from parprof.metrics import ACTIVATIONS, METRICS, Metrics
from parprof.model import Profile
from parprof.untrusted import printable
from parprof.values import dataclass

PRUNE_SHARE = 0.005
"""Rows are left out that hold less than this of all effort, of all samples and of the sort metric."""

CALLERS_FUNCTIONS = 10
"""Functions whose callers the callers view shows, at most."""

_ROWS_COMPARED = 10
"""So many rows from the top it is said of whether their order may be chance."""

_SAME_SHARE = 0.99
"""A caller and its only callee share a row if the callee has so much of what the caller has."""

_WITH_CALLS = ("context", "callers", "flat")
"""Views whose rows are functions."""

Item = Node | CallerNode | FunctionTotals
TreeItem = Node | CallerNode
Weight = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    guides: str
    """What draws the tree before its name."""
    items: tuple[Item, ...]
    """A caller and its only callees, as far as they share the row."""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rows to show."""

    rows: list[Row]
    left_out: int
    """How many are not shown."""
    recursive: int = 0
    """How many calls were folded into the first of a recursion."""


def tells_calls(view: View, total: Metrics) -> bool:
    """Whether rows are functions in call paths, of which calls were told apart; with -v, where there is room."""
    return view.details and view.view in _WITH_CALLS and total[ACTIVATIONS] > 0


def called_function(items: Sequence[Item]) -> Item:
    """Of items that share a row, the one whose calls it tells: the last one of which any were told apart."""
    functions = [one for one in items if not one.procedure.is_loop] or items[-1:]
    return next((one for one in reversed(functions) if one.exclusive[ACTIVATIONS]), functions[-1])


class Rows:
    """Chooses the rows of one view of one tree, sorted by one metric."""

    def __init__(
        self,
        tree: CallingContextTree,
        profile: Profile,
        view: View,
        guides: tuple[str, str, str, str],
        elapsed_share: Callable[[Procedure], float] | None = None,
    ) -> None:
        """``guides``: what trees are drawn with. ``elapsed_share``: of a function, where rows without any are left out.

        Raises:
            UsageError: rows cannot be sorted by that.
        """
        self._tree = tree
        self._profile = profile
        self._view = view
        self._guides = guides
        self._elapsed_share = elapsed_share
        self._own = view.is_exclusive
        self._total = tree.root.inclusive
        self._amount = _amount_of(view.sort, self._total)
        self._tells_calls = tells_calls(view, self._total)

    @property
    def has_order(self) -> bool:
        """Whether there is any of what they are sorted by."""
        return bool(self._amount(self._total))

    def choose(self) -> Chosen:
        """Those of the view."""
        if self._view.view == "context":
            tree, recursive = self._tree, 0
            if self._view.recursion == "fold":
                tree, recursive = fold_recursion(self._tree)
            return Chosen(*self._forest(tree.root.children.values()), recursive)
        if self._view.view == "callers":
            return Chosen(*self._forest(self._tops()))
        return Chosen(*self._flat(self._totals()))

    def alike(self, rows: Sequence[Row]) -> list[list[Item]]:
        """Rows next to each other, of one caller, of which the first may as well be the last.

        Only those that begin among the first few rows.
        """
        metric = METRICS.by_name().get(self._view.sort)
        step = step_of(metric, period_ns(self._total), self._profile.process.cores) if metric else 0.0
        groups: list[list[Item]] = []
        seen: set[int] = set()
        for first in range(min(len(rows), _ROWS_COMPARED)):
            most = self._amount(self._metrics(rows[first].items[0]))
            group, at = [first], _next_sibling(rows, first)
            while at and first not in seen:
                amount = self._amount(self._metrics(rows[at].items[0]))
                if not amount or are_told_apart(most, amount, step):
                    break
                group.append(at)
                at = _next_sibling(rows, at)
            if len(group) > 1:
                seen.update(group)
                groups.append([rows[one].items[-1] for one in group])
        return groups

    def _metrics(self, item: Item) -> Metrics:
        return item.exclusive if self._own else item.inclusive

    def _key(self, metrics: Metrics) -> Weight:
        return self._amount(metrics), metrics.effort_ns, metrics.samples

    def _weight(self, item: Item) -> tuple[Weight, Weight]:
        return self._key(self._metrics(item)), self._key(item.inclusive)

    def _negligible(self, metrics: Metrics) -> bool:
        """Whether a row is not worth showing."""
        shares = zip(self._key(metrics), self._key(self._total), strict=True)
        return not any(whole and part >= PRUNE_SHARE * whole for part, whole in shares)

    def _totals(self) -> list[FunctionTotals]:
        """The rows of a view that is no tree."""
        if self._view.view == "threads":
            return list(breakdown.by_thread(self._profile.samples).values())
        if self._view.view == "lines":
            return breakdown.by_line(self._profile.samples)
        return list(flat_view(self._tree).values())

    def _flat(self, rows: list[FunctionTotals]) -> tuple[list[Row], int]:
        kept = [row for row in rows if not self._negligible(row.inclusive)]
        if (share := self._elapsed_share) is not None:
            kept = [row for row in rows if share(row.procedure) >= PRUNE_SHARE]
        kept.sort(key=lambda row: (self._weight(row), row.procedure), reverse=True)
        kept = kept[: self._view.limit]
        return [Row("", (row,)) for row in kept], len(rows) - len(kept)

    def _tops(self) -> list[CallerNode]:
        """The functions that the callers view is about."""
        rows = [row for row in flat_view(self._tree).values() if not self._negligible(row.exclusive)]
        rows.sort(key=lambda row: (self._weight(row), row.procedure), reverse=True)
        return callers_view(self._tree, rows[:CALLERS_FUNCTIONS])

    def _forest(self, roots: Iterable[TreeItem]) -> tuple[list[Row], int]:
        """The heaviest nodes as the lines of a tree, and how many nodes are not shown.

        A caller weighs at least what its callee does and comes first, so no row lacks the row above it. Items that
        share a row count as one.
        """
        candidates: list[tuple[TreeItem, ...]] = []
        left_out = 0
        pending = list(roots)
        while pending:
            item = pending.pop()
            if self._negligible(self._metrics(item)):
                left_out += 1
                continue
            chain = [item]
            while (only := self._only_callee(chain[-1])) is not None and self._is_called_as_often(
                only, chain
            ):
                left_out += len(chain[-1].children) - 1
                chain.append(only)
            candidates.append(tuple(chain))
            pending.extend(chain[-1].children.values())
        candidates.sort(key=lambda chain: self._weight(chain[0]), reverse=True)
        left_out += max(len(candidates) - self._view.limit, 0)
        return self._drawn(candidates[: self._view.limit]), left_out

    def _only_callee(self, item: TreeItem) -> TreeItem | None:
        """The callee that has nearly all that its caller has, so that one row says it all."""
        if self._view.unfold or self._own:
            return None
        whole = self._parts(item)
        least = tuple(_SAME_SHARE * part for part in whole)
        rest = tuple(part - most for part, most in zip(whole, least, strict=True))
        only: TreeItem | None = None
        for callee in item.children.values():
            parts = self._parts(callee)
            if only is None and all(part >= enough for part, enough in zip(parts, least, strict=True)):
                only = callee
            elif any(part > little for part, little in zip(parts, rest, strict=True)):
                return None  # where calls recur, folded, one callee's may be within another's
        return only

    def _parts(self, item: TreeItem) -> tuple[float, ...]:
        """What a caller and its callee must have alike to share a row."""
        metrics = item.inclusive
        return (*self._key(metrics), metrics.spin_ns, metrics.overhead_ns)

    def _is_called_as_often(self, item: TreeItem, chain: Sequence[TreeItem]) -> bool:
        """Whether calls that a row tells of an item may be taken for those of its callers in the row."""
        if not self._tells_calls:
            return True
        calls, before = item.exclusive[ACTIVATIONS], called_function(chain).exclusive[ACTIVATIONS]
        return not calls or not before or calls == before

    def _drawn(self, kept: list[tuple[TreeItem, ...]]) -> list[Row]:
        """Draw the trees that these items make, the heaviest first everywhere, as in ``kept``."""
        rank = {id(chain[0]): position for position, chain in enumerate(kept)}
        inner = {id(child) for chain in kept for child in chain[-1].children.values()}
        branch, last_branch, beside, beneath = self._guides
        rows: list[Row] = []
        pending = [(chain, "", "", 0) for chain in reversed(kept) if id(chain[0]) not in inner]
        while pending:
            chain, guides, before, depth = pending.pop()
            rows.append(Row(guides, chain, depth))
            places = sorted(rank[id(child)] for child in chain[-1].children.values() if id(child) in rank)
            below = [(kept[at], before + branch, before + beside, depth + 1) for at in places]
            if below:
                below[-1] = (kept[places[-1]], before + last_branch, before + beneath, depth + 1)
            pending.extend(reversed(below))
        return rows


def _next_sibling(rows: Sequence[Row], at: int) -> int:
    """The next row below the same caller; 0: there is none."""
    for other in range(at + 1, len(rows)):
        if rows[other].depth <= rows[at].depth:
            return other if rows[other].depth == rows[at].depth else 0
    return 0


def _amount_of(sort: str, total: Metrics) -> Callable[[Metrics], float]:
    """How much a row has of what rows are sorted by.

    Raises:
        UsageError: there is no such metric or event.
    """
    metric = METRICS.by_name().get(sort)
    if metric is not None:
        return lambda metrics: metrics[metric]
    if sort in total.events or not total.samples:
        return lambda metrics: metrics.events.get(sort, 0)
    known = ", ".join([*METRICS.by_name(), *sorted(map(printable, total.events))])
    raise UsageError(f"--sort {printable(sort)}: there is no such metric or event here; take one of {known}")
