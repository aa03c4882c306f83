"""What this process itself holds: objects to close, descriptors, free memory."""

from __future__ import annotations

import ctypes
import gc
import resource
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Self

_MOST_FILES = 1 << 16
_COLLECTOR = 20_000, 10, 20
"""Thresholds of Python's collector: an interval's samples leave few cycles behind."""
_M_ARENA_MAX = -8
"""In glibc's malloc.h."""
_files_before: tuple[int, int] | None = None


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


def allow_many_files() -> None:
    """Raise our limit of open files as far as is sensible and permitted: links and processes take many.

    What we start is to have the old one: `restore_file_limit`.
    """
    global _files_before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            _files_before = _files_before or (soft, hard)


def restore_file_limit() -> None:
    """Undo `allow_many_files`: select(2) in many programs cannot cope with high numbers."""
    if _files_before is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, _files_before)


def collect_less() -> None:
    """Let Python look for cycles less often than it would."""
    gc.set_threshold(*_COLLECTOR)


def share_heap() -> None:
    """Have all threads allocate from one heap; to be called before there are any.

    The C library would give each a heap of its own, up to eight for each core, and each keeps what it once took. Python
    runs one thread at a time, so there is nothing to gain from that.
    """
    with suppress(AttributeError):  # musl has one in any case
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Give what the C library keeps of freed memory back to the system. Takes milliseconds."""
    with suppress(AttributeError):  # musl has no such function and no such habit
        ctypes.CDLL(None).malloc_trim(0)
