# SPDX-License-Identifier: Apache-2.0
"""A server of several processes, as gunicorn and others have them: the main process forks workers that wait for
connections at one socket, in select() and for a time at most, each of which touches a file of its own whenever it has
waited. Once in a while the main process looks whether they have done so, and waits in between: for what it is told of
signals (`queue`), on a condition (`event`), or for time to pass (`sleep`).

usage: prefork.py queue|event|sleep SECONDS. Answers connections with one byte. Prints the port when it serves, and how
long the main process looked after its workers, in seconds; ends by itself.
"""

from __future__ import annotations

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


def look_after(workers: dict[int, int], wait: Callable[[], object], until: float) -> None:
    """What the main process does: all workers must have touched their files lately."""
    while time.monotonic() < until:
        wait()
        for alive in workers.values():
            if time.time() - os.fstat(alive).st_mtime > 20:
                raise SystemExit("a worker hangs")


def main() -> None:
    """Serve for so long."""
    wait = {"queue": for_queue, "event": for_event, "sleep": for_time}[sys.argv[1]]()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    workers: dict[int, int] = {}
    for _ in range(WORKERS):
        with tempfile.TemporaryFile() as file:
            alive = os.dup(file.fileno())
        if not (pid := os.fork()):
            serve(listener, alive)
            os._exit(0)
        workers[pid] = alive
    print("port", listener.getsockname()[1], flush=True)
    begin = time.monotonic()
    look_after(workers, wait, begin + float(sys.argv[2]))
    print("looked", time.monotonic() - begin, flush=True)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
