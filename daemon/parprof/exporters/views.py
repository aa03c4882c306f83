"""What of a profile can be shown in a table; apart from what shows it, which takes long to import."""

from __future__ import annotations

from parprof.values import dataclass

VIEWS = ("context", "callers", "flat", "threads", "lines", "concurrency")
"""Call paths from the root, functions and their callers, functions, threads, source lines, and how many threads worked
at once."""
RECURSION = ("fold", "levels")
DEFAULT_LIMIT = 40
"""Rows."""


@dataclass(frozen=True, slots=True)
class View:
    """What to show, and how."""

    view: str = "context"
    """One of `VIEWS`."""
    sort: str = "idleness"
    """The name of a metric, or of an event."""
    limit: int = DEFAULT_LIMIT
    """Rows at most."""
    width: int | None = None
    """Columns; None: as `Screen` finds them."""
    details: bool = False
    """All that is known of the measurement, instead of a few lines."""
    unfold: bool = False
    """Every frame as it was, in a row of its own."""
    recursion: str = "fold"
    """One of `RECURSION`: whether the levels of a recursion are rows."""

    @property
    def is_exclusive(self) -> bool:
        """Whether rows are mainly about what functions have themselves, not with what they call."""
        return self.view != "context"
