"""What only parprof reads in its files: one comment line, which other tools do not show, as it begins with ``#``.

It holds what would clutter their views: details of the head, loops, for each sample the projection of its call
path that ``location_id`` does not have, and what of it was when. Loops, paths and intervals speak of locations and
samples by number, and other tools number these anew; so a checksum tells whether they are still the same.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

from parprof import pprof_pb2 as pb
from parprof.errors import ProfileFormatError
from parprof.values import dataclass

PREFIX = "# parprof: "

_MOST = 2**63 - 1
_T = TypeVar("_T")


class HiddenLoop(NamedTuple):
    """A loop that is left out of a location's lines."""

    position: int
    """Among all of them, innermost first."""
    name: str
    file: str
    line: int
    start_line: int


@dataclass(slots=True)
class Private:
    """The content of the comment."""

    head: list[str] = field(default_factory=list)
    """Comment lines about the whole that are nothing for readers."""
    loops: dict[int, list[HiddenLoop]] = field(default_factory=dict)
    """By location."""
    projection: str = ""
    """Which one ``paths`` are: physical or logical; empty where there are none."""
    paths: list[list[int]] = field(default_factory=list)
    """Location ids, leaf first; each path once."""
    path_of: list[int] = field(default_factory=list)
    """By sample: which path; -1: the same as ``location_id``."""
    intervals: dict[str, Any] = field(default_factory=dict)
    """See `parprof.exporters.pprof_intervals`."""
    checksum: str = ""

    def encode(self, message: pb.Profile) -> str:
        """The comment of a message, all else of which is complete but for its strings."""
        numbered = bool(self.loops or self.paths or self.intervals)
        content: dict[str, Any] = {
            "head": self.head,
            "loops": {str(number): loops for number, loops in self.loops.items()},
            self.projection: [" ".join(map(str, path)) for path in self.paths],
            "path_of": self.path_of if self.paths else [],
            "intervals": self.intervals,
            "checksum": checksum(message) if numbered else "",
        }
        return PREFIX + json.dumps({key: value for key, value in content.items() if value})

    @classmethod
    def decode(cls, comment: str) -> Private:
        """What a comment says.

        Raises:
            ProfileFormatError: it is none of ours, or damaged.
        """
        try:
            content = json.loads(comment.removeprefix(PREFIX))
            projection = next((name for name in ("physical", "logical") if name in content), "")
            return cls(
                _list(content.get("head", []), _text),
                {_number(int(key)): _list(value, _loop) for key, value in content.get("loops", {}).items()},
                projection,
                _list(content.get(projection, []), _path),
                _list(content.get("path_of", []), int),
                _object(content.get("intervals", {})),
                _text(content.get("checksum", "")),
            )
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ProfileFormatError("it is corrupt: its comment of private details is damaged") from error


def checksum(message: pb.Profile) -> str:
    """Of the locations and samples of a message."""
    value = 0
    parts: tuple[Iterable[pb.Location | pb.Sample], ...] = (message.location, message.sample)
    for part in parts:
        for one in part:
            value = zlib.crc32(one.SerializeToString(deterministic=True), value)
    return f"{value:08x}"


def _list(value: Any, of: Callable[[Any], _T]) -> list[_T]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return [of(one) for one in value]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError("no count")
    return value


def _path(value: Any) -> list[int]:
    return [_number(int(word)) for word in _text(value).split()]


def _loop(value: Any) -> HiddenLoop:
    position, name, file, line, start_line = value
    return HiddenLoop(_number(position), _text(name), _text(file), _number(line), _number(start_line))
