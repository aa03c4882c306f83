"""The socket that the server listens on: made here, or handed over by systemd."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress

from parprof.errors import OutputError, UsageError

BACKLOG = 64
_FIRST_FD = 3
_CONNECT_SECONDS = 2.0


def listen(path: str) -> socket.socket:
    """A listening socket at ``path``; its directory is made if need be. A stale socket there is replaced.

    Everyone may connect (mode 0666): what they may see depends on who they are. `stop_listening` removes it.

    Raises:
        UsageError: another daemon listens there, or something else is in the way.
        OutputError: it cannot be made.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        # The lock keeps two daemons that start at once from taking each other's socket for a stale one.
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make_room(path)
            return _bound(path)
        finally:
            os.close(lock)
    except OSError as error:
        raise OutputError(
            f"cannot listen on {path}: {error.strerror or error}; set another control socket"
        ) from error


def _make_room(path: str) -> None:
    """Remove a socket that nobody listens on."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} is in the way and no socket; remove it or set another control socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except TimeoutError:
            pass  # somebody is there, and busy
    raise UsageError(f"another parprofd listens on {path}; stop it or set another control socket")


def _bound(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def stop_listening(listener: socket.socket, path: str, inode: int) -> None:
    """Close a listener, and remove its socket file unless another one has taken the place of ``inode``."""
    listener.close()
    with suppress(OSError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)


def inherited(name: str = "control", environment: Mapping[str, str] | None = None) -> socket.socket | None:
    """The listening Unix stream socket that systemd handed over (``FileDescriptorName=``), if any.

    Raises:
        UsageError: there is something by that name, but it is no such socket.
    """
    given = os.environ if environment is None else environment
    if given.get("LISTEN_PID") != str(os.getpid()) or not given.get("LISTEN_FDS", "").isdigit():
        return None
    names = given.get("LISTEN_FDNAMES", "").split(":")
    for offset in range(min(int(given["LISTEN_FDS"]), 64)):
        if offset < len(names) and names[offset] == name:
            return _checked(_FIRST_FD + offset, name)
    return None


def _checked(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        raise UsageError(f"the descriptor {name!r} from systemd is no socket; see parprofd.socket") from None
    listening = (
        listener.family == socket.AF_UNIX
        and listener.type == socket.SOCK_STREAM
        and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )
    if not listening:
        listener.close()
        raise UsageError(
            f"the socket {name!r} from systemd must be ListenStream=/a/path; see parprofd.socket"
        )
    return listener
