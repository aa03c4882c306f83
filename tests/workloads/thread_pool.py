# SPDX-License-Identifier: Apache-2.0
"""Two callers of one ThreadPool of multiprocessing, by turns: `short` has a third of the work done, `long` the rest.

Five times, each by another way to wait for it. Both have the same function run, which is in C code that gives up the
GIL for nearly all of its time, and seldom. Prints the CPU time that the work of each took, in seconds, as JSON.
"""

import json
from multiprocessing.pool import ThreadPool

from hashing import burn

WAYS = (
    lambda pool, work: pool.map(burn, work),
    lambda pool, work: [one.get() for one in [pool.apply_async(burn, (seconds,)) for seconds in work]],
    lambda pool, work: list(pool.imap(burn, work)),
    lambda pool, work: pool.starmap(burn, [(seconds,) for seconds in work]),
    lambda pool, work: list(pool.imap_unordered(burn, work)),
)


def short(pool, way):
    return sum(way(pool, [0.15, 0.15]))


def long(pool, way):
    return sum(way(pool, [0.3, 0.3]))


def main():
    took = {"short": 0.0, "long": 0.0}
    with ThreadPool(2) as pool:
        for way in WAYS:
            took["short"] += short(pool, way)
            took["long"] += long(pool, way)
    print(json.dumps(took))


main()
