# SPDX-License-Identifier: Apache-2.0
"""Threads that want CPython's global lock while one has it: `hog` computes in Python all the time, `asker` threads give
the lock away every millisecond (they sleep), and have to get it back. The same with a ``threading.Lock``: one holds it
most of the time and computes, others want it. With `own` it is as with `gil`, and an interpreter with a lock of its own
computes beside them (3.12 and later).

usage: gil.py gil|lock|own SECONDS. It ends when the one that computes has used so much CPU time: others wait for
as long on a busy machine. Prints how long those that want it waited, in seconds: what their sleeps, or taking the lock,
took beyond what they would take alone, at least and at most. The least is without the time in which they had no core,
just before and just after a wait included; the most of `lock` is by the clock alone.
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
delayed = [0.0] * ASKERS
"""For how long each had no core, about its waits for `lock`."""
lock = threading.Lock()
compute_s = float(sys.argv[2])
done = threading.Event()


def without_core_s() -> float:
    """For how long this thread was ready to run and had no core so far."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def hog() -> int:
    """Has the lock whenever it can."""
    total = 0
    end = time.thread_time() + compute_s
    while time.thread_time() < end:
        for i in range(20_000):
            total += i & 7
    done.set()
    return total


def asker(number: int) -> None:
    """Wants it all the time, and does next to nothing with it."""
    without = without_core_s()  # a thread that begins may wait long for a core
    while not done.is_set():
        begin = time.perf_counter()
        time.sleep(NAP_S)
        waited[number] += time.perf_counter() - begin - NAP_S
    waited[number] -= without_core_s() - without


def keeper() -> int:
    """Computes while it has the lock; between two times it gives others the chance to take it."""
    total = 0
    end = time.thread_time() + compute_s
    while time.thread_time() < end:
        with lock:
            for i in range(400_000):
                total += i & 7
        time.sleep(NAP_S)
    done.set()
    return total


def wanter(number: int) -> None:
    """Has the lock for a moment."""
    while not done.is_set():
        without, begin = without_core_s(), time.perf_counter()
        with lock:
            waited[number] += time.perf_counter() - begin
        delayed[number] += without_core_s() - without
        time.sleep(NAP_S)


APART = """
import time
def apart(seconds):
    total = 0
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for i in range(20_000):
            total += i & 7
apart({seconds})
"""


def in_own_interpreter() -> None:
    """Computes under a lock that nobody else wants."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters = importlib.import_module(name)
    interpreters.run_string(interpreters.create(), APART.format(seconds=compute_s))


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
    print(f"{sum(waited) - sum(delayed):.3f} {sum(waited):.3f}")
