"""Closing probes where nobody waits for it: in a child process that outlives us, see `detach_worker`.

Descriptors are handed over, and our copies closed: from then on they are none of ours. Where there is no child, as
none can be started or it was killed, threads of our own close them: the breakpoints go as fast, but our end may
have to wait for the kernel.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from parprof.kernel.detach_worker import MOST_BYTES, MOST_DESCRIPTORS, WRITE, Closers

DETACH_WORKER = Path(__file__).with_name("detach_worker.py")
"""The child's program."""
_MOST_THREADS = 16
_PATIENCE_SECONDS = 1.0
_GO = b"\0"
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN)


class _Process(subprocess.Popen[bytes]):
    """A process that may outlive us."""

    def __del__(self) -> None:
        """Without the warning that it is running."""


class _Child:
    """One child process and what it was given. Methods are called with the detacher's lock held."""

    def __init__(self) -> None:
        """Start it, without waiting until it listens: messages wait for it.

        Raises:
            OSError: it cannot be started.
        """
        self._given = self._closed = 0
        self._owes_go = False
        self.is_broken = False
        """Whether it takes nothing more."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._counter = -1
        with theirs:
            try:
                self._socket.setblocking(False)
                self._counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                numbers = [theirs.fileno(), self._counter]
                self._process = _Process(
                    [sys.executable, "-I", "-S", str(DETACH_WORKER), *map(str, numbers)],
                    pass_fds=numbers,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                self.disconnect()
                raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it has ended, and all that it held is closed."""
        return self._process.poll() is not None

    def hand_over(self, descriptors: Sequence[int]) -> None:
        """Give it up to ``MOST_DESCRIPTORS``; ours are closed then.

        Raises:
            OSError: it has none of them, and ours are open.
        """
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._socket.sendmsg([bytes([len(descriptors)])], [rights], socket.MSG_NOSIGNAL)
        except OSError as error:
            self.is_broken = self.is_broken or error.errno in _GONE
            raise
        self._given += len(descriptors)
        for fd in descriptors:
            with suppress(OSError):
                os.close(fd)  # not the last copy, as the child waits for _GO
        self._owes_go = True
        self._send_go()

    def write_when_closed(self, descriptor: int, lines: bytes) -> None:
        """Have it write these lines, at most ``MOST_BYTES`` - 1 of them, when it has closed what it was given.

        Raises:
            OSError: it will not.
        """
        self._send_go()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
        self._socket.sendmsg([bytes([WRITE]), lines], [rights], socket.MSG_NOSIGNAL)

    def _send_go(self) -> None:
        if self._owes_go:
            with suppress(OSError):  # full: later; gone: it closes all the same
                self._socket.send(_GO, socket.MSG_NOSIGNAL)
                self._owes_go = False

    def outstanding(self) -> int:
        """How many descriptors it was given and has not closed yet."""
        self._send_go()
        with suppress(BlockingIOError):
            self._closed += os.eventfd_read(self._counter)
        return self._given - self._closed

    def stop(self) -> None:
        """Have it end once it has closed what it was given."""
        self.is_broken = True
        self._socket.close()

    def disconnect(self) -> None:
        """Give back our ends."""
        self._socket.close()
        if self._counter >= 0:
            os.close(self._counter)
            self._counter = -1

    def forget(self) -> None:
        """After a fork it is the child of another process."""
        self._process.returncode = 0
        self.disconnect()


class Detacher:
    """Closes descriptors without waiting; for any thread."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._start_anew()

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._leaving: list[_Child] = []
        """Children that take nothing more and have not ended."""
        self._threads = Closers(_MOST_THREADS)

    @property
    def pid(self) -> int:
        """Process id of the child, 0 if there is none."""
        child = self._child
        return child.pid if child is not None else 0

    @property
    def pending(self) -> int:
        """How many descriptors are not closed yet: a few system calls, no waiting."""
        with self._lock:
            self._tidy()
            children = [*self._leaving, *([self._child] if self._child is not None else [])]
            return sum(child.outstanding() for child in children) + self._threads.left

    def start(self) -> None:
        """Start the child if there is none, so that it is there when it is needed. Failures show in `pid` alone."""
        with self._lock:
            self._usable_child()

    def close(self, descriptors: Sequence[int]) -> None:
        """Close them, dearest first. They must not be used any more; those that are not open do no harm."""
        if not descriptors:
            return
        rest = list(descriptors)
        # A start that hangs, in the file system of the interpreter, must not make others hang.
        if self._lock.acquire(timeout=_PATIENCE_SECONDS):
            try:
                rest = self._hand_over(rest)
            finally:
                self._lock.release()
        if rest or self._threads.left:
            self._threads.add(rest)

    def write_when_closed(self, descriptor: int, lines: str) -> None:
        """Write lines to a descriptor when all that was given to `close` is closed; each has less than 1,000 bytes.

        The descriptor stays the caller's. Nobody may do it: if there is no child, or it is killed.
        """
        with self._lock:
            child = self._usable_child()
            if child is None:
                return
            some = b""
            for line in lines.encode().splitlines(keepends=True):
                if len(some) + len(line) >= MOST_BYTES:
                    with suppress(OSError):
                        child.write_when_closed(descriptor, some)
                    some = b""
                some += line
            with suppress(OSError):
                child.write_when_closed(descriptor, some)

    def _hand_over(self, descriptors: list[int]) -> list[int]:
        """Returns what the child did not take."""
        child = self._usable_child()
        if child is None:
            return descriptors
        rest: list[int] = []
        for start in range(0, len(descriptors), MOST_DESCRIPTORS):
            some = descriptors[start : start + MOST_DESCRIPTORS]
            try:
                child.hand_over(some)
            except OSError:  # gone; or as many as may be are under way; or one of them is not open
                rest += some
        return rest

    def _usable_child(self) -> _Child | None:
        self._tidy()
        if self._child is None:
            with suppress(OSError, RuntimeError):  # RuntimeError: the interpreter is ending
                self._child = _Child()
        return self._child

    def _tidy(self) -> None:
        """Notice children that have ended."""
        if self._child is not None and (self._child.is_broken or self._child.has_ended()):
            self._leaving.append(self._child)
            self._child = None
        for child in [child for child in self._leaving if child.has_ended()]:
            child.disconnect()
            self._leaving.remove(child)

    def stop(self) -> None:
        """Have the child end after its work; the next use starts another. Not needed at the end of the process."""
        with self._lock:
            if self._child is not None:
                self._child.stop()
            self._tidy()

    def forget(self) -> None:
        """Have nothing to do with the child and the descriptors: for a forked process, which does not own them."""
        for child in [*self._leaving, *([self._child] if self._child is not None else [])]:
            child.forget()
        self._start_anew()


detacher = Detacher()
"""The one of this process."""
os.register_at_fork(after_in_child=detacher.forget)
