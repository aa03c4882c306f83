"""A queue of requests in a directory: bounded, oldest first, and what was put into it outlives any crash of ours.

A file appears complete under a number that says its turn. What is not
whole, after a power failure, is found by its checksum, dropped and counted. Nothing is synced to the medium: a
profile is not worth that. Every method is thread-safe.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from parprof.errors import UsageError
from parprof.newfile import UNFINISHED, NewFile
from parprof.patterns import regex
from parprof.resources import Closing
from parprof.service.push.backend import PushRequest
from parprof.values import dataclass

_MAGIC = b"parprof push 1"
_NAME = regex(r"[0-9]{20}")
_LOCK = ".lock"
_MAX_FILES = 1 << 16
_MAX_HEAD = 1 << 16
_BLOCK = 4096
"""A file counts as whole blocks of this size."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ATTEMPTS = 4
"""How often to try to write one to a full disk, each time with one more of the oldest ones gone."""
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class SpooledRequest:
    """A request whose turn it is."""

    name: str
    request: PushRequest


class Spool(Closing):
    """One directory, which belongs to one process at a time.

    ``count`` is told of each request that is dropped, by reason: ``dropped_full`` (the oldest went to make
    room), ``dropped_disk`` (it could not be written), ``dropped_damaged``, ``dropped_old``, ``dropped_large``.
    """

    def __init__(
        self, directory: Path, max_bytes: int, max_age_s: float, count: Callable[[str], None]
    ) -> None:
        """Keep at most ``max_bytes`` there, none older than ``max_age_s`` seconds.

        Raises:
            UsageError: the directory cannot be used.
        """
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._count = count
        self._mutex = threading.Lock()
        self._sizes: dict[str, int] = {}
        """By name, the oldest first."""
        self._bytes = 0
        self._sending = ""
        self._dir = _open_directory(directory)
        try:
            self._lock_fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=self._dir)
        except OSError as error:
            os.close(self._dir)
            raise _unusable(directory, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._scan()
        except OSError as error:
            self.close()
            reason = "another process uses it" if isinstance(error, BlockingIOError) else str(error.strerror)
            raise _unusable(directory, reason) from error

    def _scan(self) -> None:
        """Find what is there from before."""
        for name in sorted(os.listdir(self._dir)):
            if name.startswith(UNFINISHED):
                os.unlink(name, dir_fd=self._dir)
            elif _NAME.fullmatch(name):
                status = os.stat(name, dir_fd=self._dir, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_size <= self._max_bytes:
                    self._sizes[name] = _blocks(status.st_size)
                else:
                    os.unlink(name, dir_fd=self._dir)
                    self._count("dropped_damaged")
        self._bytes = sum(self._sizes.values())
        self._next = int(next(reversed(self._sizes), "0")) + 1
        while self._is_over(0) and self._drop_oldest():
            pass

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """How much there is on the disk."""
        return self._bytes

    def put(self, request: PushRequest) -> bool:
        """Put a request at the end, for which the oldest ones go if need be. Whether it is there now."""
        data = _pack(request, time.time())
        size = _blocks(len(data))
        with self._mutex:
            if size > self._max_bytes:
                self._count("dropped_large")
                return False
            while self._is_over(size):
                if not self._drop_oldest():
                    self._count("dropped_full")
                    return False
            for _ in range(_ATTEMPTS):
                failure = self._write(data)
                if not failure:
                    return True
                if failure not in _FULL or not self._drop_oldest():
                    break
            self._count("dropped_disk")
            return False

    def _write(self, data: bytes) -> int:
        """Write a file; the error number if that can't be done, else 0."""
        name = f"{self._next:020d}"
        try:
            with NewFile(self._dir, name) as new:
                new.write(data)
                new.put_in_place()
        except OSError as error:
            return error.errno or errno.EIO
        self._next += 1
        self._sizes[name] = _blocks(len(data))
        self._bytes += self._sizes[name]
        return 0

    def oldest(self) -> SpooledRequest | None:
        """The request whose turn it is; None if there is none. It is not dropped until `done` with it."""
        while True:
            with self._mutex:
                name = self._sending = next(iter(self._sizes), "")
            if not name:
                return None
            found = self._read(name)
            if isinstance(found, PushRequest):
                return SpooledRequest(name, found)
            self._count(found)
            self.done(name)

    def _read(self, name: str) -> PushRequest | str:
        """The request of a file, or why it is dropped."""
        try:
            fd = os.open(name, os.O_RDONLY | _OPEN, dir_fd=self._dir)
            with os.fdopen(fd, "rb") as file:
                size = os.fstat(fd).st_size
                data = file.read(size) if size <= self._max_bytes else b""
        except OSError:
            return "dropped_damaged"
        unpacked = _unpack(data)
        if unpacked is None:
            return "dropped_damaged"
        request, put_s = unpacked
        age_s = time.time() - put_s
        # One from the future was put before the clock was set back; how old it is can't be known.
        return "dropped_old" if age_s > self._max_age_s else request

    def done(self, name: str) -> None:
        """Remove a request that `oldest` gave: sent or given up."""
        with self._mutex:
            if self._sending == name:
                self._sending = ""
            self._remove(name)

    def release(self) -> None:
        """Let the request that `oldest` gave wait for another time; it may be dropped meanwhile."""
        with self._mutex:
            self._sending = ""

    def close(self) -> None:
        """Leave the directory to the next process."""
        with self._mutex:
            for fd in (self._lock_fd, self._dir):
                if fd >= 0:
                    os.close(fd)
            self._lock_fd = self._dir = -1

    def _is_over(self, size: int) -> bool:
        return self._bytes + size > self._max_bytes or len(self._sizes) + (size > 0) > _MAX_FILES

    def _drop_oldest(self) -> bool:
        """Drop the oldest request that is not being sent just now, if there is one."""
        name = next((name for name in self._sizes if name != self._sending), "")
        if not name:
            return False
        self._count("dropped_full")
        self._remove(name)
        return True

    def _remove(self, name: str) -> None:
        self._bytes -= self._sizes.pop(name, 0)
        with suppress(OSError):
            os.unlink(name, dir_fd=self._dir)


def _open_directory(directory: Path) -> int:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(fd)
        raise _unusable(directory, "others can write to it")
    return fd


def _unusable(directory: Path, reason: str) -> UsageError:
    return UsageError(
        f"cannot keep what is to be pushed in {directory}: {reason}; set push.spool to another directory"
    )


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _pack(request: PushRequest, put_s: float) -> bytes:
    head = json.dumps([put_s, request.path, request.content_type, request.encoding]).encode()
    data = head + b"\n" + request.body
    return b"%s %08x %d\n" % (_MAGIC, zlib.crc32(data), len(data)) + data


def _unpack(data: bytes) -> tuple[PushRequest, float] | None:
    """The request, and when it was put there (CLOCK_REALTIME); None if that is not all of it."""
    first, _, rest = data.partition(b"\n")
    if first != b"%s %08x %d" % (_MAGIC, zlib.crc32(rest), len(rest)):
        return None
    head, _, body = rest.partition(b"\n")
    if len(head) > _MAX_HEAD:
        return None
    try:
        put_s, path, content_type, encoding = json.loads(head)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(put_s, float) or not all(
        isinstance(one, str) for one in (path, content_type, encoding)
    ):
        return None
    return PushRequest(path, content_type, body, encoding), put_s
