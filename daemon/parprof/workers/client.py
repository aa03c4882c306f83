"""The daemon's end of a worker process: starts it, talks to it, and ends it when it crashes or hangs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from parprof.resources import Closing
from parprof.workers import protocol
from parprof.workers.privileges import STILL_PRIVILEGED, UNBOUNDED, UNFILTERED

_LOG = logging.getLogger(__name__)
_DEATH_SECONDS = 2.0


_EXIT_SECONDS = 0.5
_REASONS = {
    STILL_PRIVILEGED: "the child cannot become nobody, and reads nothing as root: give parprof CAP_SETUID and "
    "CAP_SETGID, or run it as another user than root",
    UNFILTERED: "the child is refused a filter of its system calls, and reads nothing without: please report",
    UNBOUNDED: "the child cannot bound its memory, and reads nothing without: allow setrlimit (prlimit64)",
    -signal.SIGSYS: "the child was ended because it made a system call that reading never needs: the file may be "
    "an attack on parprof; please report",
    -signal.SIGKILL: "the child was killed, as the kernel does where memory runs out (`dmesg`): give parprof more "
    "(parprofd: MemoryMax, or the container's limit)",
}
"""What the exit status of a child tells."""
_abandoned: list[subprocess.Popen[bytes]] = []
"""Children that were killed and have yet to die."""


class WorkerFailed(Exception):
    """The worker crashed, hung or talked nonsense over one request; it has been ended."""


def start_child(module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Run a module of ours in a child process; the socket is our end of the conversation.

    Raises:
        OSError: it cannot be started.
    """
    _abandoned[:] = [child for child in _abandoned if child.poll() is None]
    ours, theirs = socket.socketpair()
    with theirs:
        environment = dict(os.environ, PYTHONPATH=_import_path())
        command = [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments]
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            ours.close()
            raise
    return child, ours


def _import_path() -> str:
    """Where a child imports from: our own folder, then what we were told, for runtimes that other packages bring."""
    told = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([ours, *(path for path in told if os.path.isabs(path) and path != ours)])


def end_child(child: subprocess.Popen[bytes]) -> None:
    """End a child now."""
    with suppress(OSError):
        child.kill()
    try:
        child.wait(timeout=_DEATH_SECONDS)
    except subprocess.TimeoutExpired:  # a file system that hangs keeps it from dying
        _abandoned.append(child)


def abandon_child(child: subprocess.Popen[bytes]) -> None:
    """End a child that hangs in a system call: it dies when that returns, and is not waited for."""
    with suppress(OSError):
        child.kill()
    _abandoned.append(child)


class WorkerClient(Closing):
    """One worker process, started when it is first needed and again after each failure.

    Subclasses say which ``module`` it runs and what it is ``doing``, for messages.
    """

    module = ""
    doing = ""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._used = 0.0
        self.starts = 0
        """How often a worker was started."""

    @property
    def pid(self) -> int:
        """Process id of the worker, 0 if there is none."""
        return self._child.pid if self._child is not None else 0

    def _start(self) -> None:
        try:
            self._child, self._socket = start_child(self.module)
        except OSError as error:
            raise WorkerFailed(f"{self.doing}: no process can be started: {error.strerror}") from error
        self.starts += 1

    def prepare(self) -> None:
        """Start the worker if there is none, so that it is ready when it is asked; a failure shows then."""
        if self._socket is None:
            with suppress(WorkerFailed):
                self._start()
            self._used = time.monotonic()

    def ask(self, request: dict[str, Any], fds: Sequence[int], deadline: float) -> dict[str, Any]:
        """Send a request with descriptors and wait for its answer until ``deadline`` (``time.monotonic``).

        Raises:
            WorkerFailed: there was no proper answer in time.
        """
        if self._child is not None and self._child.poll() is not None:
            self.close()  # killed between requests: not this file's fault
        if self._socket is None:
            self._start()
        assert self._socket is not None
        self._used = time.monotonic()
        try:
            self._socket.settimeout(max(0.05, deadline - self._used))
            protocol.send(self._socket, request, fds)
            received = protocol.receive(self._socket)
        except TimeoutError as error:
            self.close()
            raise WorkerFailed(f"{self.doing} takes too long") from error
        except ValueError as error:
            self.close()
            raise WorkerFailed(f"{self.doing} failed: {error}") from error
        except OSError as error:
            raise WorkerFailed(self._end(f"failed: {error}")) from error
        if received is None:
            raise WorkerFailed(self._end("crashed"))
        answer, unexpected = received
        protocol.close_all(unexpected)
        self._used = time.monotonic()
        return answer

    def _end(self, what: str) -> str:
        """End the worker, which closed its socket; says why if it knows, else ``what`` happened."""
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = self._child.wait(_EXIT_SECONDS) if self._child is not None else None
        self.close()
        reason = _REASONS.get(status) if status is not None else None
        if reason is None:
            return f"{self.doing} {what}"
        if status == -signal.SIGSYS:  # whoever asked may do without the answer: the administrator should know
            _LOG.error("%s: %s", self.doing, reason)
        return f"{self.doing}: {reason}"

    def stop_if_idle(self, seconds: float) -> bool:
        """End the worker, and give back its memory, if it had nothing to do for so long."""
        if self._child is None or time.monotonic() - self._used < seconds:
            return False
        self.close()
        return True

    def interrupt(self) -> None:
        """Make an `ask` that is under way in another thread fail at once."""
        child, connection = self._child, self._socket
        if child is not None:
            with suppress(OSError):
                child.kill()
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the worker now."""
        child, connection = self._child, self._socket
        self._child = self._socket = None
        if connection is not None:
            connection.close()
        if child is not None:
            end_child(child)
