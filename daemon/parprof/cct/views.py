"""Other ways to look at a calling context tree: functions alone, their callers, without loops or recursion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from parprof.cct.tree import END, CallingContextTree, LineMetrics, Procedure, Procedures, Way, hottest
from parprof.metrics import Metric, MetricColumns, Metrics, add_to, total
from parprof.model import Frame, Path
from parprof.values import dataclass


@dataclass(slots=True)
class FunctionTotals:
    """A row of the flat view: one procedure over all its contexts.

    ``inclusive`` counts a sample once, however often the procedure recurs on its call path.
    """

    procedure: Procedure
    start_line: int = 0
    exclusive: Metrics = field(default_factory=Metrics)
    inclusive: Metrics = field(default_factory=Metrics)
    lines: LineMetrics = field(default_factory=dict)
    calls: LineMetrics = field(default_factory=dict)

    def hottest_line(self, metric: Metric) -> int:
        """The line that weighs most: of the procedure's own samples, else of the calls it makes."""
        own = self.exclusive[metric] > 0 or not self.inclusive[metric]
        first, second = (self.lines, self.calls) if own else (self.calls, self.lines)
        return hottest(first, metric) or hottest(second, metric) or self.start_line


def _loopless(path: Path, moved: dict[tuple[int, int], Frame]) -> Path:
    """A path of procedures alone. What a loop calls is called on the loop's line.

    ``moved``: frames, by id, on other lines than their own, each made once.
    """
    out: list[int] = []
    lines: list[int] = []
    for at, frame in enumerate(path):
        if not frame.is_loop:
            out.append(at)
            lines.append(frame.line)
        elif out:
            lines[-1] = frame.line
    frames = (path[at] for at in out)
    return tuple(
        frame
        if frame.line == line
        else moved.get((id(frame), line)) or moved.setdefault((id(frame), line), replace(frame, line=line))
        for frame, line in zip(frames, lines, strict=True)
    )


def without_loops(tree: CallingContextTree) -> CallingContextTree:
    """The tree of procedures alone: what a loop has goes to the procedure that it is in."""
    if not any(frame.is_loop for way in tree.ways for frame in way.path):
        return tree
    out = CallingContextTree()
    moved: dict[tuple[int, int], Frame] = {}
    out.add(Way(_loopless(way.path, moved), way.metrics) for way in tree.ways)
    return out


def sampled_paths(tree: CallingContextTree) -> Iterator[tuple[tuple[Procedure, ...], Metrics, Metrics]]:
    """Call paths without loops, root first, with what they have themselves and with all that they call."""
    tree = without_loops(tree)
    own: dict[tuple[Procedure, ...], Metrics] = {}
    for way in tree.ways:
        add_to(own, tuple(tree.procedures.along(way.path)), way.metrics)
    above: list[tuple[tuple[Procedure, ...], Metrics]] = []  # each begins with the one before it

    def leave() -> tuple[tuple[Procedure, ...], Metrics, Metrics]:
        path, inclusive = above.pop()
        if above:
            above[-1][1].add(inclusive)
        return path, own[path], inclusive

    for path in sorted(own):  # what begins with a path comes right behind it
        while above and path[: len(above[-1][0])] != above[-1][0]:
            yield leave()
        above.append((path, own[path].copy()))
    while above:
        yield leave()


class _FlatRow:
    """A row of the flat view that is being made. What it calls is summed up at the end, all at once."""

    __slots__ = ("calls", "totals")

    def __init__(self, procedure: Procedure) -> None:
        self.totals = FunctionTotals(procedure)
        self.calls: dict[int, list[int]] = {}
        """By line: the numbers of the call paths that go on from there, each at the outermost instance."""

    def place(self, frame: Frame) -> list[int]:
        """Where the paths are kept that go on from a frame of the procedure."""
        start, totals = frame.start_line, self.totals
        if start and (not totals.start_line or start < totals.start_line):
            totals.start_line = start
        return self.calls.setdefault(frame.line, [])


def flat_view(tree: CallingContextTree) -> dict[Procedure, FunctionTotals]:
    """Totals by procedure; loops are parts of theirs."""
    tree = without_loops(tree)
    rows: dict[Procedure, _FlatRow] = {}
    known: dict[int, tuple[_FlatRow, list[int]]] = {}
    """By the ids of frames, which the tree keeps."""

    def find(frame: Frame) -> tuple[_FlatRow, list[int]]:
        procedure = tree.procedures.of(frame)
        row = rows.get(procedure) or rows.setdefault(procedure, _FlatRow(procedure))
        return known.setdefault(id(frame), (row, row.place(frame)))

    for number, way in enumerate(tree.ways):
        active: set[_FlatRow] = set()
        for frame in way.path[:-1]:
            row, calls = known.get(id(frame)) or find(frame)
            if row not in active:
                active.add(row)
                calls.append(number)
        for leaf in way.path[-1:]:
            row, _ = known.get(id(leaf)) or find(leaf)
            add_to(row.totals.lines, leaf.line, way.metrics)
            row.totals.exclusive.add(way.metrics)
            if row not in active:
                row.totals.inclusive.add(way.metrics)
    columns = MetricColumns([way.metrics for way in tree.ways])
    for row in rows.values():
        row.totals.calls = {line: columns.total(called) for line, called in row.calls.items() if called}
        row.totals.inclusive.add(total(row.totals.calls.values()))
    return {procedure: row.totals for procedure, row in rows.items()}


class CallerNode:
    """A node of the callers view: the top one is the procedure itself, its children are its callers.

    Both metrics are the *top* procedure's, as far as it was reached through this chain of callers.
    """

    __slots__ = (
        "_children",
        "_coming",
        "_tree",
        "exclusive",
        "inclusive",
        "lines",
        "procedure",
        "start_line",
    )

    def __init__(self, tree: CallingContextTree, procedure: Procedure, start_line: int = 0) -> None:
        """Of a tree."""
        self.procedure = procedure
        self.start_line = start_line
        self.exclusive = Metrics()
        self.inclusive = Metrics()
        self.lines: LineMetrics = {}
        self._tree = tree
        self._children: dict[Procedure, CallerNode] = {}
        self._coming: list[tuple[Path, int, Metrics, bool]] = []
        """Call paths, where on them this caller is, their metrics, and whether the top procedure has them itself."""

    def add(self, path: Path, at: int, metrics: Metrics, own: bool) -> None:
        """A call path leads from here, its frame ``at``, to the top procedure."""
        self.inclusive.add(metrics)
        if own:
            self.exclusive.add(metrics)
        if at:
            self._coming.append((path, at, metrics, own))

    @property
    def children(self) -> dict[Procedure, CallerNode]:
        """Its callers."""
        coming, self._coming = self._coming, []
        for path, at, metrics, own in coming:
            frame = path[at - 1]
            procedure = self._tree.procedures.of(frame)
            caller = self._children.get(procedure)
            if caller is None:
                caller = self._children[procedure] = CallerNode(self._tree, procedure, frame.start_line)
            caller.add(path, at - 1, metrics, own)
            add_to(caller.lines, frame.line, metrics)
        return self._children

    def hottest_line(self, metric: Metric) -> int:
        """The calling line (of the top procedure: any line) that weighs most, else the first line, else 0."""
        return hottest(self.lines, metric) or self.start_line


def callers_view(tree: CallingContextTree, functions: Iterable[FunctionTotals]) -> list[CallerNode]:
    """For each of these procedures the chains of callers through which it was entered. Loops are left out.

    A recursive procedure is entered where it is not yet on the path: what it calls of itself counts once.
    """
    tree = without_loops(tree)
    tops: dict[Procedure, CallerNode] = {}
    for row in functions:
        top = tops[row.procedure] = CallerNode(tree, row.procedure, row.start_line)
        top.lines = row.lines or row.calls
    for way in tree.ways:
        path = way.path
        procedures = tree.procedures.along(path)
        entered: dict[Procedure, int] = {}
        for at, procedure in enumerate(procedures):
            if procedure in tops:
                entered.setdefault(procedure, at)
        for procedure, at in entered.items():
            tops[procedure].add(path, at, way.metrics, procedures[-1] == procedure)
    return list(tops.values())


class _FoldedWay(Way):
    """A call path on which no procedure calls itself: where one recurs, the path goes on from its first instance.

    A node is known by the place in the path where it was met first.
    """

    __slots__ = ("_after", "_procedures", "_straight")

    def __init__(self, path: Path, metrics: Metrics, procedures: Procedures) -> None:
        """``procedures``: those of the tree. Few paths are looked at beyond their first frame."""
        super().__init__(path, metrics)
        self._procedures = procedures
        self._after: dict[int, list[int]] | None = None
        self._straight = -1

    def _fold(self) -> dict[int, list[int]]:
        after: dict[int, list[int]] = {}
        chain = [-1]  # from the root of the tree to where the path is now
        numbers = self._procedures.numbers_along(self.path)
        on_chain: dict[int, int] = {}
        met: dict[tuple[int, int], int] = {}
        here = -1
        for at, number in enumerate(numbers):
            back = on_chain.get(number)
            if back is not None:
                for left in chain[back + 1 :]:
                    on_chain.pop(numbers[left], None)
                del chain[back + 1 :]
                here = chain[-1]
                continue
            node = met.setdefault((here, number), at)
            if node == at:
                after.setdefault(here, []).append(at)
            if number >= 0:  # no loop
                on_chain[number] = len(chain)
            chain.append(node)
            here = node
        after.setdefault(here, []).append(END)
        self._after = after
        return after

    @property
    def straight(self) -> int:
        """Up to where it first comes to a procedure that recurs."""
        if self._straight < 0:
            numbers = self._procedures.numbers_along(self.path)
            last = dict(zip(numbers, range(len(numbers)), strict=True))
            recur = (at for at, number in enumerate(numbers) if number >= 0 and last[number] != at)
            self._straight = next(recur, len(numbers) - 1)
        return self._straight

    def after(self, at: int) -> Sequence[int]:
        """The nodes that it goes on to from one, and `END` if it ends there."""
        if at < 0:
            return (0,)
        if self._after is None and at < self.straight:
            return (at + 1,)
        return (self._after or self._fold()).get(at, ())


def fold_recursion(tree: CallingContextTree) -> tuple[CallingContextTree, int]:
    """A tree in which no procedure calls itself, directly or not, and the most calls that recur on any one path.

    Where a procedure recurs on a path, the path goes on from its first instance. Inclusive metrics still
    count a sample once; but in indirect recursion a callee's may contain some that its caller counts as
    its own. Loops do not recur by themselves.
    """
    most = 0
    ways: list[Way] = []
    for way in tree.ways:
        numbers = tree.procedures.numbers_along(way.path)
        recurring = len(numbers) - len(set(numbers))
        if recurring:  # if there are no loops besides
            functions = [number for number in numbers if number >= 0]
            recurring = len(functions) - len(set(functions))
        most = max(most, recurring)
        ways.append(_FoldedWay(way.path, way.metrics, tree.procedures) if recurring else way)
    out = CallingContextTree()
    out.add(ways)
    return out, most
