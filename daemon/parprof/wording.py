"""Numbers with their nouns, and lists that are not too long, as a person would write them."""

from __future__ import annotations

from collections.abc import Sequence


def many(count: int, noun: str) -> str:
    """So many of what a noun with a regular plural stands for.

    >>> many(1, "file"), many(1234, "sample"), many(2, "process")
    ('1 file', '1,234 samples', '2 processes')
    """
    plural = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count:,} {noun}{plural}"


def some(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first of them, and how many more there are.

    >>> some(["a", "b"], 2), some(["a", "b", "c"], 1, " / ")
    ('a, b', 'a and 2 more')
    """
    left = len(names) - most
    return between.join(names[:most]) + (f" and {left} more" if left > 0 else "")
