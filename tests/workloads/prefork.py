# SPDX-License-Identifier: Apache-2.0
"""A server of several processes, as gunicorn and others have them: the main process forks workers that wait for
connections at one socket, in select() and for a time at most, each of which touches a file of its own whenever it has
waited. Once in a while the main process looks whether they have done so, and waits in between: for what it is told of
signals (`queue`), on a condition (`event`), or for time to pass (`sleep`). Or it asks each whether it is alive, and a
thread of the worker answers, as uvicorn has it (`pings`); it waits on a condition in between.

usage: prefork.py queue|event|sleep|pings SECONDS. Answers connections with one byte. Prints the port when it serves,
and how long the main process looked after its workers, in seconds; ends by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

WORKERS = 2
LOOKS_S = 0.2
TIMEOUT_S = 0.5


def serve(listener: socket.socket, alive: int) -> None:
    """What a worker does until it is ended."""
    reader, _ = os.pipe()  # to be told something by
    parent = os.getppid()
    while os.getppid() == parent:
        os.utime(alive)
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            select.select([listener, reader], [], [], TIMEOUT_S)
            continue
        with connection:
            connection.sendall(b"x")


def answers(asked: Connection) -> None:
    """What a worker's other thread does."""
    while True:
        asked.recv_bytes()
        asked.send_bytes(b"pong")


def is_alive(worker: Connection) -> bool:
    """Ask that."""
    worker.send_bytes(b"ping")
    return worker.poll(20) and worker.recv_bytes() == b"pong"


def for_queue() -> Callable[[], object]:
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    signal.signal(signal.SIGCHLD, lambda number, _: told.put(number))

    def wait() -> None:
        try:
            told.get(timeout=LOOKS_S)
        except queue.Empty:
            pass

    return wait


def for_event() -> Callable[[], object]:
    event = threading.Event()
    signal.signal(signal.SIGCHLD, lambda *_: event.set())
    return lambda: event.wait(LOOKS_S)


def for_time() -> Callable[[], object]:
    return lambda: time.sleep(LOOKS_S)


def look_after(
    workers: dict[int, int], asked: list[Connection], wait: Callable[[], object], until: float
) -> None:
    """What the main process does: all workers must have touched their files lately, and those that are asked answer."""
    while time.monotonic() < until:
        wait()
        for alive in workers.values():
            if time.time() - os.fstat(alive).st_mtime > 20:
                raise SystemExit("a worker hangs")
        if not all(map(is_alive, asked)):
            raise SystemExit("a worker does not answer")


def main() -> None:
    """Serve for so long."""
    wait = {"queue": for_queue, "event": for_event, "sleep": for_time, "pings": for_event}[sys.argv[1]]()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    workers: dict[int, int] = {}
    asked: list[Connection] = []
    for _ in range(WORKERS):
        with tempfile.TemporaryFile() as file:
            alive = os.dup(file.fileno())
        ours, theirs = multiprocessing.Pipe()
        if not (pid := os.fork()):
            if sys.argv[1] == "pings":
                threading.Thread(target=answers, args=(theirs,), daemon=True).start()
            serve(listener, alive)
            os._exit(0)
        workers[pid] = alive
        if sys.argv[1] == "pings":
            asked.append(ours)
    print("port", listener.getsockname()[1], flush=True)
    begin = time.monotonic()
    look_after(workers, asked, wait, begin + float(sys.argv[2]))
    print("looked", time.monotonic() - begin, flush=True)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
