"""What can be said of a frame by itself, found once for each: far fewer frames are made than paths go through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from parprof.model import Frame, Path

_Fact = TypeVar("_Fact")


class ByFrame(ABC, Generic[_Fact]):
    """By frames' ids: to compare frames takes longer than all else that is done with them."""

    def __init__(self) -> None:
        """Know none yet."""
        self._known: dict[int, _Fact] = {}
        self._frames: list[Frame] = []
        """They are kept: else the id of one may come to mean another."""

    @abstractmethod
    def _find(self, frame: Frame) -> _Fact:
        """Tell it of one frame."""

    def of(self, frame: Frame) -> _Fact:
        """That of one frame."""
        try:
            return self._known[id(frame)]
        except KeyError:
            fact = self._known[id(frame)] = self._find(frame)
            self._frames.append(frame)
            return fact

    def along(self, path: Path) -> list[_Fact]:
        """Those of a path's frames."""
        known = self._known
        try:
            return [known[id(frame)] for frame in path]
        except KeyError:
            return [self.of(frame) for frame in path]
