"""Result files: checked before the measurement begins, replaced as a whole when it is done."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from parprof.errors import OutputError
from parprof.newfile import NewFile

_REASONS = {
    errno.ENOENT: "its directory does not exist; create that or name another file",
    errno.EISDIR: "it is a directory; name a file in it",
    errno.ENOTDIR: "a part of its path is not a directory; name another file",
    errno.EACCES: "permission denied; name a file in a directory that you may write to",
    errno.EPERM: "operation not permitted; name a file in a directory that you may write to",
    errno.EROFS: "the file system is read-only; name a file elsewhere",
    errno.ENOSPC: "no space is left there; free some or name a file elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or name a file elsewhere",
}


def check_writable(path: str) -> None:
    """See that `open_output` will be able to write ``path``, and leave everything as it was.

    Raises:
        OutputError: with the reason and the remedy.
    """
    if path == "-":
        return
    try:
        mode = _mode(path)
        if mode is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if mode is None or stat.S_ISREG(mode):
            with _new_file(os.path.realpath(path)):
                pass
    except OSError as error:
        raise _explained(path, error) from error


def keep_old(path: str) -> None:
    """Keep a file that is about to be written as ``FILE.old``, as perf does. Best effort: a result is worth more."""
    if path == "-":
        return
    real = os.path.realpath(path)
    with suppress(OSError):
        status = os.stat(real)
        if stat.S_ISREG(status.st_mode) and status.st_size:
            with suppress(FileNotFoundError):
                os.unlink(f"{real}.old")
            os.link(real, f"{real}.old")


@contextmanager
def open_output(path: str) -> Iterator[IO[bytes]]:
    """A binary file that becomes ``path`` when the block ends well and vanishes when it does not.

    ``-`` is standard output. Links are followed; devices, pipes and sockets are written to directly.

    Raises:
        OutputError: for any failure to open, write or rename.
        BrokenPipeError: whoever read the output has gone.
    """
    try:
        if path == "-":
            sys.stdout.flush()
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif (mode := _mode(path)) is None or stat.S_ISREG(mode):
            with _replacing(os.path.realpath(path), mode) as file:
                yield file
        else:
            with open(path, "wb") as file:
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _explained(path, error) from error


@contextmanager
def _replacing(path: str, mode: int | None) -> Iterator[IO[bytes]]:
    """A file beside ``path`` that is renamed to it, keeping the permissions of the one it replaces."""
    with _new_file(path) as new:
        with open(new.fd, "wb", closefd=False) as file:
            if mode is not None:
                os.fchmod(new.fd, stat.S_IMODE(mode))
            yield file
        new.put_in_place()


@contextmanager
def _new_file(path: str) -> Iterator[NewFile]:
    """A file that may become ``path``, with the permissions that the umask allows."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with NewFile(directory, os.path.basename(path), mode=0o666, prefix=".parprof-") as new:
            yield new
    finally:
        os.close(directory)


def _mode(path: str) -> int | None:
    """The file mode behind ``path``, None when nothing is there. A directory is an error."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if path.endswith("/") or (mode is not None and stat.S_ISDIR(mode)):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return mode


def _explained(path: str, error: OSError) -> OutputError:
    name = "standard output" if path == "-" else path
    reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}; name another file")
    return OutputError(f"cannot write {name}: {reason}")
