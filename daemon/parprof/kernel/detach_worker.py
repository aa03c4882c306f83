"""The child process that closes the descriptors of probes: ``python -I -S detach_worker.py SOCKET COUNTER``.

Closing a probe takes its breakpoints out at once, and then waits in the kernel, uninterruptibly, for a grace
period: milliseconds, sometimes seconds, sometimes for ever. No process ends before such a thread of its own
does, so the thread is not one of the profiler; and as each descriptor has a thread of its own, none waits behind
another with its breakpoints in place.

Messages come over a socket of type SOCK_SEQPACKET. One is a byte: the number of descriptors that come with it,
which are held; or 0: close what is held. So the sender closes its own copies before ours can be the last but
one, that is before closing one could take long. After the last message all is closed, and the process ends. Each
descriptor that is closed adds 1 to the eventfd COUNTER. A message that begins with the byte ``WRITE`` comes with one
descriptor: the lines behind that byte are to be written to it, one by one, once nothing is left to close. One that is
refused as busy is tried again for some seconds.

The imports are few, and ``_socket`` is half as dear as ``socket``: this process is there for as long as the
profiler. It is urgent: it has little to do, and the target pays for each breakpoint until that is done. It becomes
nobody where it is root: closing what one holds needs no privilege. Capabilities of an ordinary user (ambient ones)
stay: taking them away needs ctypes, more than all else here.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence

MOST_DESCRIPTORS = 100
"""In one message; the kernel allows 253."""
WRITE = 255
MOST_BYTES = 1 << 15
"""Of a message."""
MOST_THREADS = 64
_BUSY_SECONDS, _BUSY_STEP_SECONDS = 10.0, 0.05
_NOBODY = 65534
_INT_BYTES = 4
_STACK_BYTES = 128 << 10
_URGENT_NICE = -10
_LEAST_REAL_TIME = 1


class Closers:
    """Threads that close descriptors in the order given; they do not keep the interpreter from ending."""

    def __init__(self, most: int, closed: Callable[[], object] | None = None) -> None:
        """At most so many threads; ``closed`` is called, in one of them, after each descriptor."""
        self._most = most
        self._closed = closed
        self._lock = _thread.allocate_lock()
        self._queue: list[int] = []
        self._running = 0
        self._idle = _thread.allocate_lock()
        """Held while there is a thread."""
        self.left = 0
        """How many descriptors are not closed yet."""

    def add(self, descriptors: Sequence[int]) -> bool:
        """Close them soon. False if nobody does, as no thread can be started: call again, or `work`."""
        with self._lock:
            self._queue += descriptors
            self.left += len(descriptors)
        while self._enter():
            try:
                _thread.start_new_thread(self._close_queued, ())
            except RuntimeError:  # too many tasks, or the interpreter is ending
                return self._leave()
        return True

    def work(self) -> None:
        """Close what is queued in this thread too, and wait until all is closed."""
        with self._lock:
            self._start_one()
        self._close_queued()
        with self._idle:
            return

    def _enter(self) -> bool:
        """Whether there is work for one more thread, which is counted then."""
        with self._lock:
            if self._running >= self._most or self._running >= self.left or not self._queue:
                return False
            self._start_one()
            return True

    def _start_one(self) -> None:
        if not self._running:
            self._idle.acquire()
        self._running += 1

    def _leave(self) -> bool:
        """Count one thread less; whether there are others."""
        with self._lock:
            return self._end_one()

    def _end_one(self) -> bool:
        self._running -= 1
        if not self._running:
            self._idle.release()
        return bool(self._running)

    def _close_queued(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._end_one()
                    return
                descriptor = self._queue.pop(0)
            try:
                os.close(descriptor)
            except OSError:
                pass  # nothing can be done about it; it is not ours any more
            with self._lock:
                self.left -= 1
            if self._closed is not None:
                self._closed()


class Lines:
    """What is to be written when nothing is left to close; for any thread."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = _thread.allocate_lock()
        self._left: list[tuple[int, bytes]] = []

    def add(self, descriptor: int, text: bytes) -> None:
        """Write these lines to a descriptor, which is ours then."""
        with self._lock:
            self._left += [(descriptor, line + b"\n") for line in text.splitlines()]

    def write(self) -> None:
        """Try it until it is done, for some seconds."""
        end = time.monotonic() + _BUSY_SECONDS
        with self._lock:
            while not self._try() and time.monotonic() < end:
                time.sleep(_BUSY_STEP_SECONDS)

    def _try(self) -> bool:
        busy = []
        for descriptor, line in self._left:
            try:
                os.write(descriptor, line)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    busy.append((descriptor, line))
        for descriptor in {done for done, _ in self._left} - {still for still, _ in busy}:
            os.close(descriptor)
        self._left = busy
        return not busy


def serve(connection: _socket.socket, closers: Closers, counter: int, lines: Lines) -> None:
    """Close what comes, until the other end is gone and all is closed. ``counter``: an eventfd."""
    held: list[int] = []
    while message := _receive(connection):
        data, descriptors = message
        if data[0] == WRITE:
            for descriptor in descriptors:
                lines.add(descriptor, data[1:])
            if not closers.left and not held:
                lines.write()
            continue
        if len(descriptors) < data[0]:  # our table is full: the kernel has closed the others
            os.eventfd_write(counter, data[0] - len(descriptors))
        if not closers.add(held):
            closers.work()
        held = descriptors
    closers.add(held)
    closers.work()
    lines.write()


def _receive(connection: _socket.socket) -> tuple[bytes, list[int]] | None:
    """What was sent: the bytes, and the descriptors that came with them; None at the end."""
    try:
        data, controls, _, _ = connection.recvmsg(
            MOST_BYTES, _socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT_BYTES)
        )
    except OSError:
        return None
    if not data:
        return None
    raw = b"".join(
        c for level, kind, c in controls if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
    )
    starts = range(0, len(raw) - _INT_BYTES + 1, _INT_BYTES)
    return data, [int.from_bytes(raw[at : at + _INT_BYTES], sys.byteorder) for at in starts]


def be_urgent() -> None:
    """Have this thread, and those that it starts, run before others: they have little to do, and that soon.

    In real time: on a busy machine a thread that is merely nicer than others still waits for the end of their time
    slices: 2 ms in the median, up to 60 (docs/cost.md).
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _URGENT_NICE)  # where real time is refused
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LEAST_REAL_TIME))
    except OSError:
        pass  # not root: as urgent as any other


def _become_nobody() -> None:
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        except OSError:
            pass  # not in this user namespace


def main() -> None:
    """Entry point of the child process; does not return."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    be_urgent()
    _become_nobody()
    _thread.stack_size(_STACK_BYTES)
    counter = int(sys.argv[2])
    lines = Lines()

    def closed() -> None:
        os.eventfd_write(counter, 1)
        if not closers.left:
            lines.write()

    closers = Closers(MOST_THREADS, closed)
    serve(_socket.socket(fileno=int(sys.argv[1])), closers, counter, lines)
    os._exit(0)


if __name__ == "__main__":
    main()
