"""Who has the mutex that a sleeping thread waits for: glibc notes it behind the word that the kernel is asked to wait
at. That of C++'s ``std::mutex`` and of most libraries is one of these; Rust's, Go's and Java's locks note nobody there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from parprof.process.futex_waits import futex_wait
from parprof.values import dataclass

_WAITED_FOR = 2
"""The word's value while threads sleep for the mutex."""
_MUTEX = struct.Struct("<IIiIi")
"""The word, how often it was taken, by whom, for how many, its kind (``struct __pthread_mutex_s``)."""
_MOST_USERS = 1 << 20
_TYPES, _FLAGS = 3, 0x380
"""Normal, recursive, checking and adaptive ones, with what does not matter here; robust ones, and those with
priorities, have another word."""


def holder_of(words: Sequence[str], read: Callable[[int, int], bytes]) -> int:
    """The number, in its own PID namespace, of the thread that has the mutex; 0 where it is not known, or no mutex.

    ``words``: of ``/proc/PID/task/TID/syscall``. ``read``: the process's memory, by address and size.
    """
    wait = futex_wait(words)
    if wait is None or wait.value != _WAITED_FOR:
        return 0
    data = b""
    with suppress(OSError):
        data = read(wait.address, _MUTEX.size)
    if len(data) < _MUTEX.size:
        return 0
    word, _, owner, users, kind = _MUTEX.unpack(data)
    is_mutex = word == _WAITED_FOR and 0 < users < _MOST_USERS and not kind & ~(_TYPES | _FLAGS)
    return owner if is_mutex and owner > 0 else 0


@dataclass(frozen=True, slots=True)
class Holders:
    """What follows from who waits for a mutex of whom."""

    circles: frozenset[int]
    """Each waits, directly or by way of others, for itself."""
    roots: tuple[int, ...]
    """They have mutexes that others wait for, and wait for none; the one that keeps most others waiting first."""


def follow(holders: Mapping[int, int]) -> Holders:
    """``holders``: by thread that waits for a mutex, the thread that has it.

    >>> follow({1: 2, 2: 1, 3: 1, 5: 6, 7: 5})
    Holders(circles=frozenset({1, 2}), roots=(6,))
    """
    circles: set[int] = set()
    kept: dict[int, int] = {}
    for start in holders:
        at, passed = start, {start}
        while (at := holders.get(at, 0)) and at not in passed:
            passed.add(at)
            if at not in holders:
                kept[at] = kept.get(at, 0) + 1
        if at == start:
            circles.add(start)
    return Holders(frozenset(circles), tuple(sorted(kept, key=lambda one: (-kept[one], one))))
