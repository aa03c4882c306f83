"""Which function of a process is to blame for the cores that stood idle while it worked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

LEAST_SHARE = 0.1
"""A function with less than this share of the idleness is not to blame by itself."""
LEAST_SAMPLES = 10
"""Of fewer nothing is said: they may be anything."""

FunctionName = TypeVar("FunctionName", bound=Hashable)


def worst(
    idleness: Mapping[FunctionName, float], whole: float, least: float = LEAST_SHARE
) -> tuple[FunctionName, float] | None:
    """The function with most idleness, and its share of the whole; None where no core, or by no one, was lost.

    ``idleness``: of some functions, in any unit, which is that of ``whole``.

    >>> worst({"serial_part": 93.0, "loop": 2.0}, 100.0)
    ('serial_part', 0.93)
    >>> worst({"serial_part": 9.0}, 100.0), worst({}, 100.0), worst({"f": 0.0}, 0.0)
    (None, None, None)
    """
    name = max(idleness, key=idleness.__getitem__, default=None)
    if name is None or whole <= 0 or idleness[name] < least * whole:
        return None
    return name, min(idleness[name] / whole, 1.0)
