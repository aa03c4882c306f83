"""What is worth remembering only as long as there is room, as it can be found out again."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Remembered(dict[_Key, _Value]):
    """A dictionary that forgets all it has when one entry more than it may hold is set.

    Frames and names of interpreters that have ended are of no use, and nothing tells of that: what is still in use is
    soon there again.

    >>> squares = Remembered[int, int](2)
    >>> for number in 1, 2, 2, 3:
    ...     squares[number] = number**2
    >>> squares
    {3: 9}
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        """``most``: entries, one at least."""
        super().__init__()
        self._most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        """Remember it."""
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)
