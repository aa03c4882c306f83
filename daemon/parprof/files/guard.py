"""Files on network and FUSE file systems: read through a child process, which may hang instead of us.

A system call on such a file may never return, and then nothing ends the process that made it; neither does it end
before such a file of its own is closed. So this process holds no descriptor of them that could be read from. Each
file system has a child of its own. One that does not answer in time is left alone with its question: all others
that concern the same file system fail at once, until the answer has come.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import time
import weakref
from contextlib import suppress
from typing import Any

from parprof.files.open_file import FileStatus, OpenFile
from parprof.resources import Closing
from parprof.workers import protocol
from parprof.workers.client import abandon_child, end_child, start_child

ANSWER_SECONDS = 2.0
"""How long a file system may take for one answer."""
_START_SECONDS = 5.0
_MESSAGE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 1.0, 600.0
_MAX_LANES = 32
_MAX_READ = 1 << 24


class FileNotAnswering(OSError):
    """The file system does not answer now. That may change."""

    def __init__(self, text: str = "its file system does not answer") -> None:
        super().__init__(errno.ETIMEDOUT, text)


class _Lane:
    """The child for one file system."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owing = ""
        """What the child was asked and has not answered yet."""
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._next_start = 0.0
        self.generation = 0
        """Counts the children that have ended: their files are gone with them."""
        self.files = 0
        """How many files are open."""

    @property
    def is_waiting(self) -> bool:
        """Whether a question was not answered in time."""
        return bool(self._owing)

    def _start(self) -> socket.socket:
        now = time.monotonic()
        if now < self._next_start:
            raise FileNotAnswering
        self._next_start = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LAST_PAUSE_SECONDS)
        self._child, self._socket = start_child("parprof.files.guard_worker")
        self._owing = "start"
        if not _is_readable(self._socket, _START_SECONDS):
            raise FileNotAnswering("the process that is to read it does not start")
        self._receive(self._socket)
        return self._socket

    def ask(
        self, request: dict[str, Any], fds: tuple[int, ...] = ()
    ) -> tuple[dict[str, Any], list[int], bytes]:
        """An answer, with its descriptors and the bytes that follow it.

        Raises:
            NoAnswer: there is none in time; OSError: it is an error.
        """
        if self._owing and not self.take_late_answer():
            raise FileNotAnswering
        try:
            connection = self._socket or self._start()
            connection.settimeout(_MESSAGE_SECONDS)
            self._owing = request["do"]
            protocol.send(connection, request, fds)
            if not _is_readable(connection, self._seconds):
                raise FileNotAnswering
            return self._receive(connection)
        except FileNotAnswering:
            raise
        except (OSError, ValueError) as error:
            if not self._owing:
                raise  # that was the answer
            self.end()
            raise FileNotAnswering("the process that reads it has ended") from error

    def _receive(self, connection: socket.socket) -> tuple[dict[str, Any], list[int], bytes]:
        received = protocol.receive(connection)
        if received is None:
            raise ConnectionResetError(errno.ECONNRESET, "the process that reads it has ended")
        answer, fds = received
        what, parts = self._owing, []
        left = answer.get("size", 0) if what == "read" else 0
        while 0 < left <= _MAX_READ:
            part = connection.recv(min(left, 1 << 20))
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "the process that reads it has ended")
            parts.append(part)
            left -= len(part)
        self._owing = ""
        self._pause_seconds, self._next_start = _FIRST_PAUSE_SECONDS, 0.0
        if "error" in answer:
            protocol.close_all(fds)
            raise OSError(answer["error"], answer.get("text") or "it cannot be read")
        return answer, fds, b"".join(parts)

    def take_late_answer(self) -> bool:
        """Whether the child has answered at last what it owed; nobody waits for that answer any more."""
        if not self._owing or self._socket is None or not _is_readable(self._socket, 0):
            return False
        self._socket.settimeout(_MESSAGE_SECONDS)
        try:
            answer, fds, _ = self._receive(self._socket)
        except (OSError, ValueError):
            if self._owing:
                self.end()
            return True
        protocol.close_all(fds)
        if "file" in answer:
            self.tell({"do": "close", "file": answer["file"]})
        return True

    def tell(self, request: dict[str, Any]) -> None:
        """Send what is not answered; it waits for its turn."""
        if self._socket is not None:
            self._socket.settimeout(0)
            with suppress(OSError):
                protocol.send(self._socket, request)

    def end(self) -> None:
        """End the child; one that hangs is not waited for."""
        child, connection, hangs = self._child, self._socket, bool(self._owing)
        self._child = self._socket = None
        self._owing = ""
        self.generation += 1
        if connection is not None:
            connection.close()
        if child is not None:
            abandon_child(child) if hangs else end_child(child)


def _is_readable(connection: socket.socket, seconds: float) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


class GuardedFile(OpenFile):
    """A file that a child holds for us."""

    def __init__(self, lane: _Lane, number: int, status: FileStatus, name: int) -> None:
        """Made by `FileGuard.open` alone; takes over the descriptor ``name``, which has ``O_PATH``."""
        self._lane = lane
        self._generation = lane.generation
        self._number = number
        self._status = status
        self._name = name
        lane.files += 1

    @property
    def is_open(self) -> bool:
        """Whether the child still holds it."""
        return self._name >= 0 and self._generation == self._lane.generation

    def fileno(self) -> int:
        """A descriptor that names the file and cannot be read from."""
        return self._name

    def status(self) -> FileStatus:
        """What the file system said when the file was opened."""
        return self._status

    def _request(self, what: str, **more: int) -> dict[str, Any]:
        if not self.is_open:
            raise FileNotAnswering("the process that read it has ended")
        return {"do": what, "file": self._number, **more}

    def pread(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes, if they come in time."""
        return self._lane.ask(self._request("read", offset=offset, size=size))[2]

    def lend(self) -> int:
        """A socket that has the file's descriptor in it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._lane.ask(self._request("lend"), (theirs.fileno(),))
            except BaseException:
                ours.close()
                raise
        return ours.detach()

    def close(self) -> None:
        """Have the child close it; nothing waits for that."""
        if self._name >= 0:
            if self.is_open:
                self._lane.tell({"do": "close", "file": self._number})
            os.close(self._name)
            self._name = -1
            self._lane.files -= 1


def _end_all(lanes: dict[int, _Lane]) -> None:
    for lane in lanes.values():
        lane.end()
    lanes.clear()


class FileGuard(Closing):
    """Opens files of file systems that may hang; for one thread. A file may be opened anew after `close`: its child
    ends with the guard itself.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for each answer for so long, once; no process is started yet."""
        self._seconds = seconds
        self._lanes: dict[int, _Lane] = {}
        weakref.finalize(self, _end_all, self._lanes)  # __del__ may come after the sockets' own

    def open(self, way: bytes, file_system: int, device: int = 0, inode: int = 0) -> OpenFile:
        """The regular file at a path that leads to a file system (a device number).

        With ``inode`` only if it is mapped as that ``device`` and ``inode``.

        Raises:
            NoAnswer: there is none in time; OSError: it cannot be opened, or is another file.
        """
        lane = self._lane(file_system)
        request = {"do": "open", "way": way.decode("latin-1"), "device": device, "inode": inode}
        answer, fds, _ = lane.ask(request)
        return GuardedFile(lane, answer["file"], FileStatus(*answer["status"]), fds[0])

    def _lane(self, file_system: int) -> _Lane:
        lane = self._lanes.pop(file_system, None)
        if lane is None:
            while len(self._lanes) >= _MAX_LANES:
                idle = next((at for at, known in self._lanes.items() if not known.is_waiting), None)
                if idle is None:
                    raise FileNotAnswering("too many file systems do not answer")
                self._lanes.pop(idle).end()
            lane = _Lane(self._seconds)
        self._lanes[file_system] = lane
        return lane

    def answers_again(self) -> bool:
        """Whether a file system that did not answer has done so since the last call. Costs next to nothing."""
        return any([lane.take_late_answer() for lane in self._lanes.values() if lane.is_waiting])

    def trim(self) -> None:
        """End the children that hold no file."""
        for lane in self._lanes.values():
            if not lane.files and not lane.is_waiting:
                lane.end()

    def close(self) -> None:
        """End the children."""
        _end_all(self._lanes)
