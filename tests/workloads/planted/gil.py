# SPDX-License-Identifier: Apache-2.0
"""Problems of Python programs. The argument says which one: threads that take turns, one thread alone, or one thread
between the phases of threads that work outside of the interpreter."""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable

DATA = bytes(range(256)) * 40_000


def count_words(rounds: int = 3_000_000) -> int:
    """Pure Python: one thread of a process at a time."""
    total = 0
    for i in range(rounds):
        total += i & 7
    return total


def pack() -> int:
    """Outside of the interpreter: several threads at a time."""
    return sum(len(zlib.compress(DATA[k:], 6)) for k in range(4))


def tokenize() -> int:
    """What one thread does while the others have nothing to do."""
    total = 0
    for i in range(6_000_000):
        total += i & 7
    return total


def in_threads(run: Callable[[], object]) -> None:
    """In two threads."""
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(problem: str) -> None:
    """One of them."""
    if problem == "threads":
        in_threads(count_words)
    elif problem == "serial":
        in_threads(pack)
        tokenize()
        in_threads(pack)
    else:
        count_words(8_000_000)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(argument)
