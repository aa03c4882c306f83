# SPDX-License-Identifier: Apache-2.0
"""Two callers of one pool of threads, by turns: `short` has a third of the work done, `long` the rest; five times.

Both have the same function run, which is in C code that gives up the GIL for nearly all of its time, and seldom. Prints
the CPU time that the work of each took, in seconds, as JSON.
"""

import json
from concurrent.futures import ThreadPoolExecutor, wait

from hashing import burn


def short(pool):
    return sum(pool.map(burn, [0.15, 0.15]))


def long(pool):
    done, _ = wait([pool.submit(burn, 0.3) for _ in range(2)])
    return sum(one.result() for one in done)


def main():
    took = {"short": 0.0, "long": 0.0}
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            took["short"] += short(pool)
            took["long"] += long(pool)
    print(json.dumps(took))


main()
