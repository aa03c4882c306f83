"""Regular expressions that are compiled when they are first used.

A command imports 140 of them and uses 15: compiling them all was 0.02 of the 0.5 s of CPU time of ``parprof record``
(Python 3.11, 2 x AMD EPYC). So what modules define goes through `regex`, and not through ``re.compile``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, AnyStr, Generic

if TYPE_CHECKING:
    regex = re.compile
else:

    def regex(text: AnyStr, flags: int = 0) -> LatePattern[AnyStr]:
        """As ``re.compile``, but for when it is compiled; so an error in it is told at its first use.

        >>> regex("(?P<n>[0-9]+) s").fullmatch("12 s")["n"]
        '12'
        """
        return LatePattern(text, flags)


class LatePattern(Generic[AnyStr]):
    """What `regex` answers: type checkers take it for a ``re.Pattern``, whose attributes it has."""

    def __init__(self, text: AnyStr, flags: int) -> None:
        self._given: tuple[AnyStr, int] = (text, flags)

    def __getattr__(self, name: str) -> Any:
        """Only called for what it does not have yet: from then on it has all that a compiled one has."""
        if name.startswith("_"):
            raise AttributeError(name)
        compiled = re.compile(*self._given)
        self.__dict__.update(
            {one: getattr(compiled, one) for one in dir(compiled) if not one.startswith("_")}
        )
        return getattr(compiled, name)
