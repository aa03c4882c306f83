# SPDX-License-Identifier: Apache-2.0
"""Hangs for ever, as hangs.c does: usage: hangs.py deadlock | pipe. Prints "ready" when all sleep."""

import queue
import sys
import threading
import time


def take_both(mine, other):
    with mine:
        time.sleep(0.2)
        begun.append(mine)
        with other:
            pass


def deadlock():
    locks = threading.Lock(), threading.Lock()
    threads = [threading.Thread(target=take_both, args=pair) for pair in (locks, locks[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def consume(items):
    begun.append(items)
    items.get()


def read_forever():
    sys.stdin.readline()


def hang_in_read():
    items = queue.Queue()
    threading.Thread(target=consume, args=(items,)).start()
    begun.append(sys.stdin)
    read_forever()


def ready():
    while len(begun) < 2:
        time.sleep(0.05)
    time.sleep(0.5)
    print("ready", flush=True)


begun = []
threading.Thread(target=ready).start()
{"deadlock": deadlock, "pipe": hang_in_read}[sys.argv[1]]()
