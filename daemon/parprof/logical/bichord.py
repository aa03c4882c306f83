"""Bichords: groups of physical frames with the logical frames that they stand for (tallent-2009 sec. 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from parprof.model import Frame, Path


class Association(Enum):
    """How many physical frames stand for how many logical ones; M is two or more."""

    ONE_TO_ONE = "1-1"
    """A function as it was written."""
    ONE_TO_NONE = "1-0"
    MANY_TO_NONE = "M-0"
    """The runtime's own code."""
    MANY_TO_ONE = "M-1"
    """What the runtime needs to carry out a single thing that the author wrote."""
    ONE_TO_MANY = "1-M"
    """A frame of the runtime in the place of callers that are on no stack, or on another thread's."""


class Bichord(NamedTuple):
    """A p-chord and its l-chord, outermost frame first. A p-chord is never empty."""

    association: Association
    physical: Path
    logical: Path

    @classmethod
    def of(cls, physical: Path, logical: Path) -> Bichord:
        """The bichord of these notes. Raises ValueError for what the paper excludes: 0-A and M-M."""
        if not physical or (len(physical) > 1 and len(logical) > 1):
            raise ValueError(f"{len(physical)}-{len(logical)} is no association of a bichord")
        if not logical:
            few, many = Association.ONE_TO_NONE, Association.MANY_TO_NONE
        elif len(logical) > 1:
            few = many = Association.ONE_TO_MANY
        else:
            few, many = Association.ONE_TO_ONE, Association.MANY_TO_ONE
        return cls(many if len(physical) > 1 else few, physical, logical)


LogicalPath = tuple[Bichord, ...]
"""A logical call path: bichords, root first."""


def bichords(physical: Sequence[Frame], logical: Sequence[Frame]) -> list[Bichord]:
    """One bichord of these notes, or two: M-M is always a combination of others (sec. 3.1)."""
    p, q = tuple(physical), tuple(logical)
    if len(p) > 1 and len(q) > 1:
        return [Bichord.of(p[:1], q[:-1]), Bichord.of(p[1:], q[-1:])]
    return [Bichord.of(p, q)]


def logical_projection(path: Iterable[Bichord]) -> Path:
    """The call path that the author knows."""
    return tuple(frame for bichord in path for frame in bichord.logical)
