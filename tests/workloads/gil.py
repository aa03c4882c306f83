# SPDX-License-Identifier: Apache-2.0
"""Threads that want CPython's global lock while one has it: `hog` computes in Python all the time, `asker` threads give
the lock away every millisecond (they sleep), and have to get it back. The same with a ``threading.Lock``: one holds it
most of the time and computes, others want it. With `own` it is as with `gil`, and an interpreter with a lock of its own
computes beside them (3.12 and later).

usage: gil.py gil|lock|own SECONDS. Prints how long those that want it waited, in seconds: what their sleeps, or taking
the lock, took beyond what they would take alone, and without the time in which they had no core.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path

NAP_S = 0.001
ASKERS = 2
waited = [0.0] * ASKERS
lock = threading.Lock()
end = time.perf_counter() + float(sys.argv[2])


def without_core_s() -> float:
    """For how long this thread was ready to run and had no core so far."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def hog() -> int:
    """Has the lock whenever it can."""
    total = 0
    while time.perf_counter() < end:
        for i in range(20_000):
            total += i & 7
    return total


def asker(number: int) -> None:
    """Wants it all the time, and does next to nothing with it."""
    while time.perf_counter() < end:
        begin = time.perf_counter()
        time.sleep(NAP_S)
        waited[number] += time.perf_counter() - begin - NAP_S
    waited[number] -= without_core_s()


def keeper() -> int:
    """Computes while it has the lock; between two times it gives others the chance to take it."""
    total = 0
    while time.perf_counter() < end:
        with lock:
            for i in range(400_000):
                total += i & 7
        time.sleep(NAP_S)
    return total


def wanter(number: int) -> None:
    """Has the lock for a moment."""
    while time.perf_counter() < end:
        without, begin = without_core_s(), time.perf_counter()
        with lock:
            waited[number] += time.perf_counter() - begin
        waited[number] -= without_core_s() - without
        time.sleep(NAP_S)


APART = """
import time
def apart(end):
    total = 0
    while time.perf_counter() < end:
        for i in range(20_000):
            total += i & 7
apart({end})
"""


def in_own_interpreter() -> None:
    """Computes under a lock that nobody else wants."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters = importlib.import_module(name)
    interpreters.run_string(interpreters.create(), APART.format(end=end))


if __name__ == "__main__":
    holds, wants = (keeper, wanter) if sys.argv[1] == "lock" else (hog, asker)
    threads = [threading.Thread(target=wants, args=(number,)) for number in range(ASKERS)]
    if sys.argv[1] == "own":
        threads.append(threading.Thread(target=in_own_interpreter))
    for thread in threads:
        thread.start()
    holds()
    for thread in threads:
        thread.join()
    print(f"{sum(waited):.3f}")
