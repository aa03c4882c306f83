"""Who may see what: a user sees the processes that this user could ptrace, root sees all.

The rules are those of the kernel (``ptrace(2)``, "Ptrace access mode checking", PTRACE_MODE_READ), for a
caller without capabilities. Where they leave room, the answer is no.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from contextlib import suppress

from parprof.values import dataclass

_CREDENTIALS = struct.Struct("iII")
_SO_PEERPIDFD = 77
"""Linux 6.5; Python has no name for it yet."""
_MAX_STATUS = 1 << 16


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, as the kernel knew it at that moment: effective ids."""

    uid: int
    gid: int
    same_user_namespace: bool
    """Whether it lives in our user namespace: ids of another one do not mean the same users."""

    @property
    def is_root(self) -> bool:
        """Whether it may see everything: not in a user namespace of its own, where root has no powers over ours."""
        return self.uid == 0 and self.same_user_namespace


def peer_of(sock: socket.socket) -> Peer:
    """Who is at the other end of a Unix socket.

    Raises:
        OSError: that cannot be found out.
    """
    pid, uid, gid = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    same = False
    with suppress(OSError):
        same = os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
    return Peer(uid, gid, same and _still_lives(sock))


def _still_lives(sock: socket.socket) -> bool:
    """Whether the peer's PID was still its own when we looked; true where the kernel cannot tell."""
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return error.errno == errno.ENOPROTOOPT  # else it has gone
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return not poller.poll(0)
    finally:
        os.close(pidfd)


def may_see(peer: Peer, pid: int, owner: int) -> bool:
    """Whether this peer may see what was measured of a process that was user ``owner``'s then."""
    return peer.is_root or (peer.uid == owner and may_profile(peer, pid))


def may_profile(peer: Peer, pid: int) -> bool:
    """Whether this peer may see and profile a process. False, too, where there is no such process."""
    if peer.is_root:
        return os.path.exists(f"/proc/{pid}")
    if not peer.same_user_namespace:
        return False
    try:
        # One handle for all reads: should the process end, they fail, and never show its PID's next owner.
        handle = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _may_read(peer, handle)
    except (OSError, ValueError, KeyError):
        return False
    finally:
        os.close(handle)


def _may_read(peer: Peer, handle: int) -> bool:
    status = _status(handle)
    uids, gids = (set(map(int, status[key].split()[:3])) for key in ("Uid", "Gid"))
    if uids != {peer.uid} or gids != {peer.gid}:
        return False
    if int(status["CapPrm"], 16):
        return False  # it can do more than the caller
    if os.readlink("ns/user", dir_fd=handle) != os.readlink("/proc/self/ns/user"):
        return False
    # The kernel gives the files of a process that is not dumpable to root (proc(5)), be it that it changed
    # its ids, that its program cannot be read, or that it asked for it.
    owner = os.stat("environ", dir_fd=handle)
    return owner.st_uid == peer.uid and owner.st_gid == peer.gid


def _status(handle: int) -> dict[str, str]:
    file = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=handle)
    try:
        raw = os.read(file, _MAX_STATUS)
    finally:
        os.close(file)
    pairs = (line.partition(b":") for line in raw.split(b"\n"))
    return {key.decode("latin-1"): value.decode("latin-1") for key, _, value in pairs}
