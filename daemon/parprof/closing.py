"""What objects that hold descriptors or processes have in common: they are closed at the end of a ``with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """To be used in a ``with`` statement, or closed by hand. Closing twice does no harm."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SelfClosing(Closing):
    """Closed at the latest when nothing refers to it any more."""

    def __del__(self) -> None:
        self.close()
