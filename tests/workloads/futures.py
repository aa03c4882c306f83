# SPDX-License-Identifier: Apache-2.0
"""Two callers of one pool of threads, by turns: `short` has a third of the work done, `long` the rest; five times.

Both have the same function run, which is in C code that gives up the GIL for nearly all of its time, and seldom.
"""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor, wait

BLOCK = bytes(1 << 23)


def burn(seconds):
    """Hash for so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(BLOCK).digest()


def short(pool):
    list(pool.map(burn, [0.15, 0.15]))


def long(pool):
    wait([pool.submit(burn, 0.3) for _ in range(2)])


def main():
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            short(pool)
            long(pool)


main()
