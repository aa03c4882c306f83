"""Which user is at the other end of a loopback connection: the kernel knows, for each of its sockets."""

from __future__ import annotations

import ipaddress
import os
import pwd
import socket
import struct
import sys
from contextlib import suppress
from typing import NamedTuple

from parprof.process.cgroup_ids import CgroupIds
from parprof.service.control.access import Peer, may_see
from parprof.service.labels import is_contained
from parprof.values import dataclass

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_ESTABLISHED = 1
"""Only such a socket has its owner for certain: one that was closed is said to be root's (``sock_i_uid``)."""
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PLACE = struct.Struct("!HH16s16s")
_ANSWER = struct.Struct("=BBBB48sIIIII")
_NO_COOKIE = b"\0" * 4 + b"\xff" * 8
_ANSWER_SECONDS = 1.0
_MAPPED = "::ffff:"
_LOOPBACK = "127.0.0.0/8"
_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}

_CGROUP_ID = 21
"""The attribute ``INET_DIAG_CGROUP_ID``, Linux 5.8."""
_ATTRIBUTE = struct.Struct("=HH")
_cgroups = CgroupIds()

SocketAddress = tuple[str, int]


class SocketOwner(NamedTuple):
    """Whose a socket is."""

    uid: int
    """In our user namespace."""
    cgroup: int = 0
    """Number of the cgroup (version 2) in which it was made; 0: the kernel does not say."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who has connected over TCP."""

    address: str = ""
    """Where it is from where its user is not known: an IPv4 address, or a network of IPv6 (whose hosts have 2**64)."""
    uid: int | None = None
    """Its user, in our user namespace, where it is on this machine; None if that is not known."""
    is_certified: bool = False
    """Whether it has shown a certificate of the CA that is trusted for that."""

    @property
    def sees_all(self) -> bool:
        """Whether it may see everything, without a token: root, and the daemon's own user."""
        return self.uid is not None and self.uid in (0, os.geteuid())

    def may_see(self, pid: int, owner: int) -> bool:
        """Whether it may see a process of user ``owner``: as on the control socket.

        A connection does not tell the group, so the user's own one stands for it.
        """
        if self.sees_all:
            return True
        if self.uid is None:
            return False
        try:
            group = pwd.getpwuid(self.uid).pw_gid
        except KeyError:
            return False
        return may_see(Peer(self.uid, group, True), pid, owner)


def client_of(connection: socket.socket) -> Visitor:
    """Who is at the other end of a TCP connection.

    Raises:
        OSError: it is gone already.
    """
    family, theirs, ours = connection.family, connection.getpeername()[:2], connection.getsockname()[:2]
    if theirs[0].startswith(_MAPPED):  # a socket of IPv4 is at the other end
        family = socket.AF_INET
        theirs, ours = (theirs[0].removeprefix(_MAPPED), theirs[1]), (ours[0].removeprefix(_MAPPED), ours[1])
    if not _is_loopback(theirs[0]):
        return Visitor(_network(theirs[0]))
    uid = None
    try:
        uid = _known_user(by_diagnosis(family, theirs, ours))
    except OSError:  # the kernel, or a seccomp filter, has none
        with suppress(OSError, ValueError):
            uid = by_table(family, theirs, ours)
    # Whoever is here has all of 127.0.0.0/8: a user is one client wherever it comes from.
    return Visitor(_network(theirs[0])) if uid is None else Visitor(uid=uid)


def _known_user(owner: SocketOwner | None) -> int | None:
    """The user; None for root in a container, which has the host's network but not the host, and is uid 0 to sockets.

    The daemon's own container is no stranger: its cgroup is the root of all that can be seen from there.
    """
    if owner is None or owner.uid != 0 or not owner.cgroup:
        return None if owner is None else owner.uid
    path = _cgroups.path_of(owner.cgroup)
    return None if path is None or is_contained(path) else 0


def by_diagnosis(family: int, theirs: SocketAddress, ours: SocketAddress) -> SocketOwner | None:
    """The owner of the established socket at ``theirs`` that is connected to ``ours``, by ``sock_diag(7)``.

    Raises:
        OSError: the kernel cannot be asked.
    """
    place = _PLACE.pack(theirs[1], ours[1], _packed(family, theirs[0]), _packed(family, ours[0]))
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED) + place + _NO_COOKIE
    head = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asked:
        asked.settimeout(_ANSWER_SECONDS)
        asked.send(head + body)
        answer = asked.recv(4096)
    if len(answer) < _HEADER.size + 4:
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        error = -int(struct.unpack_from("=i", answer, _HEADER.size)[0])
        raise OSError(error, os.strerror(error))
    if len(answer) < _HEADER.size + _ANSWER.size:
        return None
    _, state, _, _, where, _, _, _, uid, _ = _ANSWER.unpack_from(answer, _HEADER.size)
    if state != _ESTABLISHED or where[: _PLACE.size] != place:
        return None
    return SocketOwner(int(uid), _cgroup_in(answer[_HEADER.size + _ANSWER.size :]))


def _cgroup_in(attributes: bytes) -> int:
    """The cgroup among the attributes of a socket; 0 without one, and where they are malformed from there on."""
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if not _ATTRIBUTE.size <= length <= len(attributes):
            return 0
        if kind == _CGROUP_ID and length == _ATTRIBUTE.size + 8:
            return int.from_bytes(attributes[_ATTRIBUTE.size : length], sys.byteorder)
        attributes = attributes[(length + 3) & ~3 :]
    return 0


def by_table(family: int, theirs: SocketAddress, ours: SocketAddress) -> int | None:
    """The same by the table of all sockets.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    wanted = [_hex(family, theirs), _hex(family, ours), b"%02X" % _ESTABLISHED]
    with open(_TABLES[socket.AddressFamily(family)], "rb") as table:
        for line in table:
            fields = line.split()
            if fields[1:4] == wanted:
                return int(fields[7])
    return None


def _packed(family: int, host: str) -> bytes:
    return socket.inet_pton(family, host.partition("%")[0]).ljust(16, b"\0")


def _hex(family: int, address: SocketAddress) -> bytes:
    """As the table writes it: words of the machine's byte order."""
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return b"".join(b"%08X" % word for word in words) + b":%04X" % address[1]


def _network(host: str) -> str:
    """What one client can be expected to have.

    >>> _network("192.0.2.7"), _network("::ffff:192.0.2.7"), _network("127.0.0.9"), _network("fe80::1%eth0")
    ('192.0.2.7', '192.0.2.7', '127.0.0.0/8', 'fe80::/64')
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return (
                _LOOPBACK if address.is_loopback else str(ipaddress.ip_network((address, 64), strict=False))
            )
        address = address.ipv4_mapped
    return _LOOPBACK if address.is_loopback else str(address)


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")
