"""A function as results name it."""

from __future__ import annotations

from dataclasses import field

from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A function by what it is called."""

    name: str
    module: str = ""
    file: str = ""
    line: int = field(default=0, compare=False)
    """Where it begins; its copies say that of their first instruction, which may be another."""
