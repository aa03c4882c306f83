"""Burns CPU at the end of known chains of Python calls, for ever; see tests/kernel/test_cpython.py.

Each ``#: name`` comment names its line for the test. Runs on CPython 3.9 and later.
"""

import functools
import os
import sys
import threading
import time
import zlib

SLICE = 0.03
DATA = bytes(1 << 24)


def spin(seconds):
    end = time.perf_counter() + seconds
    n = 0
    while time.perf_counter() < end:  #: spin
        for _ in range(1000):  #: spin
            n += 1  #: spin
    return n


def recurse(depth):
    if depth:
        return recurse(depth - 1)  #: recurse
    return spin(SLICE)  #: bottom


def generate():
    yield spin(SLICE)  #: generate


def delegate():
    yield from generate()  #: delegate


class Worker:
    def __init__(self):
        spin(SLICE)  #: init

    def run(self):
        return [spin(SLICE) for _ in range(1)]  #: comprehension

    @property
    def value(self):
        return functools.reduce(lambda a, b: spin(b), [0, SLICE])  #: reduce

    def __enter__(self):
        return self

    def __exit__(self, *_):
        spin(SLICE)  #: exit
        return True


def key(seconds):
    spin(seconds)  #: key
    return seconds


def without_gil():
    end = time.perf_counter() + SLICE
    while time.perf_counter() < end:
        zlib.crc32(DATA)  #: crc


def background():
    while True:
        spin(SLICE)  #: background


def deep(depth):
    if depth:
        return deep(depth - 1)  #: deep
    return spin(20 * SLICE)  #: deepest


def main():
    recurse(5)  #: main_recurse
    for _ in delegate():  #: main_generate
        pass
    worker = Worker()  #: main_init
    worker.run()  #: main_run
    _ = worker.value  #: main_value
    sorted([SLICE], key=key)  #: main_sort
    with Worker.__new__(Worker):  #: main_exit
        raise ValueError  #: main_raise
    without_gil()  #: main_crc


def start(mode):
    if mode == "threads":
        threading.Thread(target=background, name="burner", daemon=True).start()
        threading.Thread(target=time.sleep, args=(1000,), name="sleeper", daemon=True).start()
    if mode == "fork" and os.fork():
        os.wait()
        return
    if mode == "deep":
        sys.setrecursionlimit(2000)
    print("ready", flush=True)
    while True:
        if mode == "deep":
            deep(400)  #: start_deep
        else:
            main()  #: start


if __name__ == "__main__":
    start(sys.argv[1])  #: module
