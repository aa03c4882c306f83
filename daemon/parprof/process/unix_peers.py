"""Whether a Unix socket is connected to a server, as the kernel tells who asks about sockets.

``/proc/net/unix`` does not say what a socket is connected to: the ends of a pair look as a client does.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

_SOCK_DIAG, _REQUEST, _BY_FAMILY = 4, 1, 20
"""The protocol of netlink; of its messages: flag and type."""
_SHOW_NAME, _SHOW_PEER = 1, 4
_NAME, _PEER = 0, 2
"""Attributes of an answer."""
_ANY = 0xFFFFFFFF
_HEADER, _ASKED, _TOLD, _ATTRIBUTE = "=IHHII", "=BBHIIIII", "=BBBBIII", "=HH"
_MOST_BYTES = 4096
_SOON_SECONDS = 0.2
_TELL_EVENTS = (b"/tmp/.X1", b"\0/tmp/.X", b"/run/use", b"/run/dbu")
"""How the names of servers begin that tell of events rather than answer: a desktop's, and the bus by which programs ask
each other."""


def asks_a_server(pid: int, inode: int) -> bool | None:
    """Whether this socket of a process, which has no name, is connected to one that answers, and not to one that tells
    of events. ``None``: to none that has a name, as the end of a pair; or it is not known, as in a network of its own.
    """
    name = _name_of_peer(pid, inode)
    return not name.startswith(_TELL_EVENTS) if name else None


def is_of_a_pair(pid: int, inode: int) -> bool:
    """Whether this socket of a process, which has no name, is known to be connected to another one without a name."""
    return _name_of_peer(pid, inode) == b""


def _name_of_peer(pid: int, inode: int) -> bytes | None:
    """The name of what a socket is connected to, which may be empty. ``None``: that is not known, or it is to none."""
    with suppress(OSError, struct.error):
        if not os.path.samefile("/proc/self/ns/net", f"/proc/{pid}/ns/net"):
            return None
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.settimeout(_SOON_SECONDS)
            peer = _told(kernel, inode).get(_PEER, b"")
            return _told(kernel, int.from_bytes(peer, "little")).get(_NAME, b"") if peer else None
    return None


def _told(kernel: socket.socket, inode: int) -> dict[int, bytes]:
    """What the kernel tells of a socket, by attribute."""
    asked = struct.pack(_ASKED, socket.AF_UNIX, 0, 0, _ANY, inode, _SHOW_NAME | _SHOW_PEER, _ANY, _ANY)
    kernel.send(
        struct.pack(_HEADER, struct.calcsize(_HEADER) + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked
    )
    told = kernel.recv(_MOST_BYTES)
    size, kind, *_ = struct.unpack_from(_HEADER, told)
    if kind != _BY_FAMILY:
        raise OSError("no such socket")
    out = {}
    at, end = struct.calcsize(_HEADER) + struct.calcsize(_TOLD), min(size, len(told))
    while at + struct.calcsize(_ATTRIBUTE) <= end:
        length, attribute = struct.unpack_from(_ATTRIBUTE, told, at)
        if length < struct.calcsize(_ATTRIBUTE):
            break
        out[attribute] = told[at + struct.calcsize(_ATTRIBUTE) : min(at + length, end)]
        at += (length + 3) & ~3
    return out
