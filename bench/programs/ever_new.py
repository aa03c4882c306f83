# SPDX-License-Identifier: Apache-2.0
"""A service whose requests take ever other ways through 400 functions: nearly each sample has a stack of its own.

    python3 ever_new.py SHARE SECONDS

It works for SHARE of the time, for so many seconds of CPU time.
"""

import random
import sys
import time
from collections.abc import Callable

FUNCTIONS = 400
DEPTH = 12

SOURCE = """
def handle_{number}(depth):
    found = sum(turn * {number} for turn in range(100))
    if depth == 0:
        return found
    if CHANCE.random() < 0.5:
        return HANDLERS[CHANCE.randrange({count})](depth - 1) + found
    return HANDLERS[CHANCE.randrange({count})](depth - 1) - found
"""

CHANCE = random.Random(1)
HANDLERS: list[Callable[[int], int]] = []
for number in range(FUNCTIONS):
    names = {"CHANCE": CHANCE, "HANDLERS": HANDLERS}
    exec(compile(SOURCE.format(number=number, count=FUNCTIONS), f"handler_{number}.py", "exec"), names)
    HANDLERS.append(names[f"handle_{number}"])  # type: ignore[arg-type]

share, seconds = map(float, sys.argv[1:])
while time.process_time() < seconds:
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.02:
        HANDLERS[CHANCE.randrange(FUNCTIONS)](DEPTH)
    time.sleep((time.perf_counter() - begun) * (1 / share - 1))
