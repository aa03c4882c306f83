"""Numbers with their nouns, as a person would write them."""

from __future__ import annotations


def many(count: int, noun: str) -> str:
    """So many of what a noun with a regular plural stands for.

    >>> many(1, "file"), many(1234, "sample"), many(2, "process")
    ('1 file', '1,234 samples', '2 processes')
    """
    plural = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count:,} {noun}{plural}"
