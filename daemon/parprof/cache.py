"""Where parprof keeps what it may make again, and a directory there: bounded, and used only if nobody else can write
to it.

Files appear under their name at once and complete. When they become too many bytes, those go that were used least
recently: ``atime`` says when, which `DiskCache.open` sets itself, because file systems are often mounted without.
A file's name says all that its content depends on, so nothing is ever out of date.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from weakref import finalize

from parprof.newfile import UNFINISHED, NewFile
from parprof.untrusted import visible

_MAX_NAME = 200
_UNFINISHED_SECONDS = 6 * 3600.0
_MAX_FILES = 1 << 14
_LEAST_BYTES = 4096
"""A file takes that much of a disk at least, and as a rule a multiple of it."""
_UNSEEN_SHIFT = 3
"""An eighth of a cache may be written by one process without a look at what others wrote."""
_MAX_PROBLEMS = 8
_SETTLED_NS = 2_000_000_000
"""Far more than what file systems count time in."""
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


def cache_directory() -> Path:
    """The directory of all caches.

    Raises:
        RuntimeError: the user has no home directory.
    """
    if os.environ.get("PARPROF_CACHE"):
        return Path(os.environ["PARPROF_CACHE"])
    if os.geteuid() == 0:
        return Path("/var/cache/parprof")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parprof"


def own_alone(status: os.stat_result) -> bool:
    """Whether only root and we can change what ``status`` is of."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


class CacheFile(NewFile):
    """A cache file that is being written through ``fd``; gone unless `commit` is called."""

    def __init__(self, cache: DiskCache, directory: int, name: str) -> None:
        """Made by `DiskCache.new`. Takes over the directory's descriptor, unless it raises OSError."""
        super().__init__(directory, name)
        self._cache = cache

    def commit(self) -> bool:
        """Put the file in its place; whether that could be done. Then keep the cache within its limit."""
        try:
            size = os.fstat(self.fd).st_size
            self.put_in_place()
        except OSError as error:
            self._cache.note(error)
            return False
        self._cache.note_new(self.name, size)
        return True

    def close(self) -> None:
        """Close it, and remove it if it was not put in its place."""
        super().close()
        os.close(self._directory)


def content_name(build_id: str, size: int, owner: int) -> str:
    """What is known of a file's content is kept under this name; empty if it is not to be kept.

    ``size`` in bytes: stripping keeps the build id, but not ``.symtab`` or ``.debug_frame``. ``owner`` is a user id:
    nobody can pass off a file of theirs as that of another user.
    """
    return f"{build_id}-{size:x}-{owner}" if build_id else ""


def version_name(device: int, inode: int, size: int, owner: int, changed_ns: int, now_ns: int) -> str:
    """The same for a file without a build id, as many libraries in Python packages are: which version of which file.

    ``changed_ns`` is when it was changed last (ctime, which nobody can choose). Empty if that was only just: another
    change may have the same time still.
    """
    if now_ns - changed_ns < _SETTLED_NS:
        return ""
    return f"at-{device:x}-{inode:x}-{changed_ns:x}-{size:x}-{owner}"


_problems: dict[str, None] = {}


def problems() -> list[str]:
    """Why this process could not keep something, each reason once: it works, but takes longer at each start."""
    return list(_problems)


class _Kept:
    """A directory that is kept open for as long as this exists."""

    def __init__(self, fd: int) -> None:
        """Take over a directory's descriptor."""
        self.fd = fd
        self._was = os.fstat(fd)
        finalize(self, os.close, fd)

    def is_in(self, base: str, name: str) -> bool:
        """Whether that is the directory there, and still nobody else's."""
        try:
            above, here = os.stat(base), os.stat(os.path.join(base, name), follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(here, self._was) and own_alone(here) and own_alone(above)


class DiskCache:
    """One subdirectory of the cache directory. What cannot be cached is not an error: see ``problem``."""

    def __init__(self, subdirectory: str, max_bytes: int, base: Path | None = None) -> None:
        """Keep at most ``max_bytes`` on disk. The base is that of all of parprof's caches."""
        self._subdirectory = subdirectory
        self._base = base
        self._max_bytes = max_bytes
        self._kept: _Kept | None = None
        self._spare_bytes = self._spare_files = 0
        """What may be written until the directory has to be looked through again: to do that for each of the hundreds
        of files that a first look at a large program leaves takes longer than to write them."""
        self.problem = ""
        """Why nothing is cached; empty if it is, or was not tried."""

    def _path(self) -> str:
        try:
            return os.fspath(self._base or cache_directory())
        except RuntimeError as error:  # Path.home() of a user without one
            raise OSError(0, str(error)) from error

    def _to_read_from(self) -> int:
        """The directory's descriptor, which stays open: a program of 250 libraries has 500 files looked for there.

        Raises:
            OSError: there is none, or others can write to it.
        """
        if self._kept is None or not self._kept.is_in(self._path(), self._subdirectory):
            self._kept = None
            self._kept = _Kept(self._directory(create=False))
        return self._kept.fd

    def _directory(self, create: bool) -> int:
        """A descriptor of the directory, which is the caller's.

        Raises:
            OSError: there is none, or others can write to it.
        """
        path = self._path()
        if create:
            os.makedirs(path, mode=0o755, exist_ok=True)
        above = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not own_alone(os.fstat(above)):
                raise PermissionError(0, f"others than root and we can write to {path}")
            if create:
                with suppress(FileExistsError):
                    os.mkdir(self._subdirectory, 0o700, dir_fd=above)
            found = os.open(self._subdirectory, os.O_DIRECTORY | os.O_RDONLY | _OPEN, dir_fd=above)
        finally:
            os.close(above)
        if own_alone(os.fstat(found)):
            return found
        os.close(found)
        raise PermissionError(0, f"others than root and we can write to {path}/{self._subdirectory}")

    def note(self, error: OSError) -> None:
        """Something could not be kept, or not be looked for."""
        if not isinstance(error, FileNotFoundError):
            self.problem = visible(f"no cache on disk: {error.strerror or error}", 500)
            if len(_problems) < _MAX_PROBLEMS:
                _problems[self.problem] = None

    def open(self, name: str) -> int | None:
        """A descriptor to read a file, which the caller closes; None if it is not there."""
        try:
            directory = self._to_read_from()
        except OSError as error:
            self.note(error)
            return None
        try:
            fd = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
        except OSError:
            return None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not own_alone(status):
            os.close(fd)
            return None
        with suppress(OSError):
            os.utime(fd, ns=(time.time_ns(), status.st_mtime_ns))
        return fd

    def new(self, name: str) -> CacheFile | None:
        """A file to be written, to become ``name``; None if that is not possible."""
        if not name or "/" in name or name.startswith(".") or len(name) > _MAX_NAME:
            return None
        try:
            directory = self._directory(create=True)
        except OSError as error:
            self.note(error)
            return None
        try:
            return CacheFile(self, directory, name)
        except OSError as error:
            self.note(error)
            os.close(directory)
            return None

    def read(self, name: str) -> bytes | None:
        """All of a file; None if it is not there or cannot be read."""
        fd = self.open(name)
        if fd is None:
            return None
        with suppress(OSError), open(fd, "rb") as file:
            return file.read()
        return None

    def write(self, name: str, data: bytes) -> bool:
        """Keep a file; whether that could be done."""
        new = self.new(name)
        if new is None:
            return False
        with new:
            try:
                new.write(data)
                return new.commit()
            except OSError as error:
                self.note(error)
        return False

    def remove(self, name: str) -> None:
        """Remove a file, if it is there and can be removed."""
        with suppress(OSError):
            directory = self._directory(create=False)
            try:
                os.unlink(name, dir_fd=directory)
            finally:
                os.close(directory)

    def note_new(self, name: str, size: int) -> None:
        """There is a new file of so many bytes: prune the cache if it may be too large by now.

        By as much as one process may write without looking, it is where several write at once.
        """
        self._spare_bytes -= max(-(-size // _LEAST_BYTES), 1) * _LEAST_BYTES
        self._spare_files -= 1
        if self._spare_bytes < 0 or self._spare_files < 0:
            self.prune(keep=name)

    def prune(self, keep: str = "") -> None:
        """Remove the least recently used files beyond the limit, and what writers that died left behind."""
        with suppress(OSError):
            directory = self._directory(create=False)
            try:
                self._prune(directory, keep)
            finally:
                os.close(directory)

    def _prune(self, directory: int, keep: str) -> None:
        files: list[tuple[float, int, str]] = []
        total = 0
        now = time.time()
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    size = max(_LEAST_BYTES, status.st_blocks * 512)
                    if entry.name.startswith(UNFINISHED) and now - status.st_mtime < _UNFINISHED_SECONDS:
                        continue
                    files.append((0.0 if entry.name.startswith(".") else status.st_atime, size, entry.name))
                    total += size
        number = len(files)
        most_bytes, most_files = self._max_bytes, _MAX_FILES
        if total > most_bytes or number > most_files:  # make room for more than the next
            most_bytes -= (most_bytes >> _UNSEEN_SHIFT) // _LEAST_BYTES * _LEAST_BYTES
            most_files -= most_files >> _UNSEEN_SHIFT
        for used, size, name in sorted(files):
            if used and total <= most_bytes and number <= most_files:
                break
            if name != keep:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
                    total -= size
                    number -= 1
        self._spare_bytes = min(self._max_bytes - total, self._max_bytes >> _UNSEEN_SHIFT)
        self._spare_files = min(_MAX_FILES - number, _MAX_FILES >> _UNSEEN_SHIFT)
