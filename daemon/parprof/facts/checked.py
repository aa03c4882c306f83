"""Values of a JSON document that anybody may have written: each is what it should be, or there is a clear error."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from parprof.errors import ProfileFormatError
from parprof.untrusted import visible

U64 = (1 << 64) - 1
MAX_TEXT = 1 << 16


def parse(data: bytes) -> Any:
    """A JSON document.

    Raises:
        ProfileFormatError: it is none.
    """
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ProfileFormatError("it is truncated or damaged; record it again") from error


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


class Checked:
    """A value and where it is, which errors name.

    >>> Checked({"a": [1, 2]}, "x")["a"].integers(most=9)
    [1, 2]
    """

    __slots__ = ("_value", "_where")

    def __init__(self, value: Any, where: str) -> None:
        self._value = value
        self._where = where

    def damaged(self, what: str) -> ProfileFormatError:
        """An error to raise."""
        return ProfileFormatError(f"it is damaged: {self._where} {what}")

    def __getitem__(self, name: str) -> Checked:
        """A member of an object. Raises ProfileFormatError, as all that follow."""
        if type(self._value) is not dict or name not in self._value:
            raise self.damaged(f"has no {name!r}")
        return Checked(self._value[name], f"{self._where}.{name}")

    def rows(self, name: str, most: int) -> list[Checked]:
        """The items of a member of an object that older files do not have: none, then."""
        return self[name].items(most) if type(self._value) is dict and name in self._value else []

    @property
    def is_null(self) -> bool:
        """Whether it is null."""
        return self._value is None

    def integer(self, most: int = U64, least: int = 0) -> int:
        """An integer in [least, most]."""
        if type(self._value) is not int or not least <= self._value <= most:
            raise self.damaged(f"is no number from {least} to {most}")
        return self._value

    def number(self, most: float = 1e18) -> float:
        """A number in [0, most]."""
        if type(self._value) not in (int, float) or not 0 <= self._value <= most:
            raise self.damaged("is no number in its range")
        found = float(self._value)
        assert math.isfinite(found)
        return found

    def text(self) -> str:
        """A text that is safe to show."""
        if type(self._value) is not str:
            raise self.damaged("is no text")
        return visible(self._value, MAX_TEXT)

    def items(self, most: int) -> list[Checked]:
        """The items of an array of at most so many."""
        return [Checked(item, self._where) for item in self._array(most)]

    def row(self, length: int) -> list[Checked]:
        """The items of an array of so many."""
        found = self.items(length)
        if len(found) != length:
            raise self.damaged(f"has rows that are not {length} long")
        return found

    def integers(self, *, most: int = U64, least: int = 0, length: int = 1 << 24) -> list[int]:
        """An array of at most ``length`` integers in [least, most]."""
        values = self._array(length)
        if not all(type(value) is int and least <= value <= most for value in values):
            raise self.damaged(f"has what is no number from {least} to {most}")
        return values

    def steps(self, length: int = 1 << 24) -> list[int]:
        """Numbers in rising order, from the differences between them."""
        out, at = [], 0
        for step in self.integers(length=length):
            at += step
            out.append(at)
        if at > U64:
            raise self.damaged("has numbers that are too large")
        return out

    def texts(self, most: int = 1 << 16) -> list[str]:
        """An array of texts."""
        return [item.text() for item in self.items(most)]

    def members(self, most: int = 1 << 12) -> dict[str, Checked]:
        """The members of an object."""
        if type(self._value) is not dict or len(self._value) > most:
            raise self.damaged(f"is no object of at most {most} members")
        return {
            visible(name, MAX_TEXT): Checked(value, f"{self._where}.{visible(name, 64)}")
            for name, value in self._value.items()
        }

    def _array(self, most: int) -> list[Any]:
        if type(self._value) is not list or len(self._value) > most:
            raise self.damaged(f"is no array of at most {most} items")
        return self._value
