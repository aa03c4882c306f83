"""What other packages bring, by entry points: a bad one is left out with a warning, and stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeVar

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


def brought(group: str, what: str, make: Callable[[object], _T]) -> list[_T]:
    """What the entry points of a group name, each made into what is wanted.

    ``what``: the word for it in warnings. ``make`` raises whatever it likes about what is none.
    """
    found = []
    for entry in entry_points(group=group):
        try:
            found.append(make(entry.load()))
        except Exception as error:  # it is not our code
            _LOG.warning("%s %s is left out: %s: %s", what, entry.value, type(error).__name__, error)
    return found
