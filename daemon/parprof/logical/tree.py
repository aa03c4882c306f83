"""The logical calling context tree, with notes shared between bichords (tallent-2009 sec. 3.2 and appendix).

A bichord is a list of notes, the outermost first; the n-th has its n-th physical and its n-th logical frame, as
far as there are any. Call paths share the notes of a common beginning, even if it ends within a bichord.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from parprof.cct.tree import CallingContextTree
from parprof.logical.bichord import Association, Bichord, LogicalPath
from parprof.metrics import Metrics
from parprof.model import Frame, Path


class Note(NamedTuple):
    """The appendix's X-structure; ``number`` is its note-id: 1 begins a bichord."""

    association: Association | None
    physical: Frame | None
    logical: Frame | None
    number: int


def sharable(mine: Note, other: Note) -> bool:
    """Whether a note of the tree may stand for that of another path below the same parent (appendix, sharable?).

    Frames must be equal where bichords are equal or one begins like the other; equal numbers align their
    beginnings, and make paths diverge after a bichord that they share in part; the association class sees to it
    that one of both chords is the same.
    """
    return (
        mine.physical == other.physical
        and mine.logical == other.logical
        and mine.association is not None
        and other.association is not None
        and mine.association.is_like(other.association)
        and mine.number == other.number
    )


def notes(bichord: Bichord) -> Iterator[Note]:
    """The notes of a bichord, outermost first."""
    association, physical, logical = bichord
    for index in range(max(len(physical), len(logical))):
        yield Note(
            association,
            physical[index] if index < len(physical) else None,
            logical[index] if index < len(logical) else None,
            index + 1,
        )


_Key = tuple[Frame | None, Frame | None, int]


@dataclass(slots=True, eq=False)
class LogicalNode:
    """A note in its calling context. ``metrics``: of the samples whose path ends here (the sample-point flag)."""

    note: Note
    parent: LogicalNode | None
    metrics: Metrics | None = None
    children: dict[_Key, list[LogicalNode]] = field(default_factory=dict)
    after: dict[int, tuple[Bichord, LogicalNode]] = field(default_factory=dict)
    """By identity of a bichord that was inserted below: the last of its nodes."""

    def child(self, note: Note) -> LogicalNode:
        """The node below that this note can share, made if there is none."""
        same = self.children.setdefault((note.physical, note.logical, note.number), [])
        found = next((node for node in same if node.note.association is note.association), None)
        found = found or next((node for node in same if sharable(node.note, note)), None)
        if found is None:
            found = LogicalNode(note, self)
            same.append(found)
        elif note.association is Association.ONE_TO_ONE:
            found.note = note  # the base-case flag: the bichord may also end here
        return found

    def path(self) -> LogicalPath:
        """The bichords from the root to this node; the last one ends with it."""
        chain: list[Note] = []
        node: LogicalNode | None = self
        while node is not None and node.note.number:
            chain.append(node.note)
            node = node.parent
        out: list[Bichord] = []
        start = 0
        chain.reverse()
        for index in range(1, len(chain) + 1):
            if index == len(chain) or chain[index].number == 1:
                part = chain[start:index]
                out.append(
                    Bichord.of(
                        tuple(note.physical for note in part if note.physical is not None),
                        tuple(note.logical for note in part if note.logical is not None),
                    )
                )
                start = index
        return tuple(out)


class LogicalCct:
    """Logical call paths merged from the root, with their metrics. Nothing in it is recursive."""

    def __init__(self) -> None:
        self.root = LogicalNode(Note(None, None, None, 0), None)

    def insert(self, path: LogicalPath, metrics: Metrics) -> LogicalNode:
        """Charge ``metrics`` to a logical call path, root first; returns the node of its sample point."""
        node = self.root
        for bichord in path:
            known = node.after.get(id(bichord))
            if known is None:
                end = node
                for note in notes(bichord):
                    end = end.child(note)
                known = node.after[id(bichord)] = (bichord, end)
            node = known[1]
        if node.metrics is None:
            node.metrics = Metrics()
        node.metrics.add(metrics)
        return node

    def walk(self) -> Iterator[LogicalNode]:
        """Every node below the root, parents before their children."""
        pending = [self.root]
        while pending:
            node = pending.pop()
            if node is not self.root:
                yield node
            pending += reversed([child for same in node.children.values() for child in same])

    def samples(self) -> Iterator[tuple[LogicalPath, Metrics]]:
        """The call paths that were sampled, each once, with their metrics."""
        if self.root.metrics is not None:
            yield (), self.root.metrics
        for node in self.walk():
            if node.metrics is not None:
                yield node.path(), node.metrics

    def physical(self) -> CallingContextTree:
        """The physical projection: what the threads' stacks looked like (sec. 3.2.1)."""
        return self._projection(physical=True)

    def logical(self) -> CallingContextTree:
        """The logical projection: what the author's code did (sec. 3.2.1)."""
        return self._projection(physical=False)

    def _projection(self, *, physical: bool) -> CallingContextTree:
        out = CallingContextTree()
        for path, metrics in self.samples():
            frames: Path = tuple(
                frame for bichord in path for frame in (bichord.physical if physical else bichord.logical)
            )
            out.insert_path(frames, metrics)
        return out
