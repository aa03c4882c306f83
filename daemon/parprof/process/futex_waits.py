"""Threads that sleep in the system call futex(2), as ``/proc/PID/task/TID/syscall`` tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_FUTEX = "202"
_OPERATION, _PRIVATE = 127, 128
_WAITS = (0, 9)
"""FUTEX_WAIT and FUTEX_WAIT_BITSET."""


class FutexWait(NamedTuple):
    """What a thread asked the kernel to wait for: that the word at an address is changed."""

    address: int
    value: int
    """Of 32 bits: what the word was then."""
    is_private: bool
    """Whether the word is one of this process alone."""


def futex_wait(words: Sequence[str]) -> FutexWait | None:
    """What a thread waits for; None: nothing, in this way. ``words``: of that file.

    >>> futex_wait("202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f11".split())
    FutexWait(address=32512, value=2, is_private=True)
    """
    if len(words) < 4 or words[0] != _FUTEX:
        return None
    address, operation, value = (int(word, 16) for word in words[1:4])
    if operation & _OPERATION not in _WAITS:
        return None
    return FutexWait(address, value & 0xFFFFFFFF, bool(operation & _PRIVATE))
