"""Parts of a measurement's time that become fewer and longer: each two become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Joinable(Protocol):
    """What can become one with what follows it."""

    def joined(self: Halvable, later: Halvable, /) -> Halvable:
        """This one and the one behind it as one; neither changes."""


Halvable = TypeVar("Halvable", bound=Joinable)


def halved(parts: Sequence[Halvable]) -> list[Halvable]:
    """Each two as one; the last stays as it is if it is left over."""
    pairs = [first.joined(second) for first, second in zip(parts[::2], parts[1::2], strict=False)]
    return [*pairs, *parts[len(pairs) * 2 :]]


def few(parts: Sequence[Halvable], size: Callable[[Sequence[Halvable]], int], most: int) -> list[Halvable]:
    """The same time in so few parts that they have the size ``most`` at most, all of them together; or in one."""
    out = list(parts)
    while len(out) > 1 and size(out) > most:
        out = halved(out)
    return out
