# SPDX-License-Identifier: Apache-2.0
"""Two callers that run one event loop by turns, which has threads work: a third of it for `short`, the rest for `long`.

Five times. Both have the same function run, which is in C code that gives up the GIL for nearly all of its time, and
seldom. Prints the CPU time that the work of each took, in seconds, as JSON.
"""

import asyncio
import json

from hashing import burn


async def hand_out(seconds):
    loop = asyncio.get_running_loop()
    both = [loop.run_in_executor(None, burn, seconds), asyncio.to_thread(burn, seconds)]
    return sum(await asyncio.gather(*both))


def short(loop):
    return loop.run_until_complete(hand_out(0.15))


def long(loop):
    return loop.run_until_complete(hand_out(0.3))


def main():
    took = {"short": 0.0, "long": 0.0}
    loop = asyncio.new_event_loop()
    for _ in range(5):
        took["short"] += short(loop)
        took["long"] += long(loop)
    print(json.dumps(took))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


main()
