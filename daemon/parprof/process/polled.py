"""What a thread waits for that sleeps in poll() or select(), from what ``/proc`` tells of it.

For time to pass, if it looks at no file; for an answer, if it looks at a connection that it has made itself, as clients
with a timeout do. All else, above all what a server looks at, may be a request. The rules are those of
``bpf/polls.bpf.c``, which sees threads that fall asleep while we look.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from parprof.model import AWAITS_ANSWER, AWAITS_TIME, AWAITS_UNKNOWN

_POLLS, _SELECTS = frozenset((7, 271)), frozenset((23, 270))
"""Numbers of system calls: poll and ppoll, select and pselect6."""
_MOST = 3
"""Files. Who looks at more serves somebody."""
_CLIENT_PORTS = 32768
"""The kernel gives those who connect a port from there on."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_LISTENS = "0A"
_MOST_BYTES = 1 << 22
"""That are read of a table of connections."""


def awaited(pid: int, words: list[str], read_memory: Callable[[int, int], bytes]) -> int:
    """``AWAITS_TIME``, ``AWAITS_ANSWER``, or ``AWAITS_UNKNOWN``. ``words``: of ``/proc/PID/task/TID/syscall``."""
    with suppress(OSError, ValueError, struct.error):
        call, first, second, third = int(words[0]), *(int(word, 16) for word in words[1:4])
        if call not in _POLLS | _SELECTS:
            return AWAITS_UNKNOWN
        if not (second if call in _POLLS else first):
            return AWAITS_TIME
        if call in _POLLS:
            return _of(pid, _polled(first, second, read_memory))
        return _of(pid, _selected(first, (second, third), read_memory))
    return AWAITS_UNKNOWN


def is_own_connection(port: int, far_port: int) -> bool:
    """Whether who has this port connected to that one, rather than the other way round.

    >>> is_own_connection(41234, 80), is_own_connection(80, 41234), is_own_connection(41234, 50051)
    (True, False, False)
    """
    return port >= _CLIENT_PORTS > far_port > 0


def _polled(at: int, count: int, read_memory: Callable[[int, int], bytes]) -> list[int]:
    """The files that poll() looks at; none where these are too many."""
    if count > _MOST:
        return []
    return [fd for fd in struct.unpack("<" + "iI" * count, read_memory(at, 8 * count))[::2] if fd >= 0]


def _selected(count: int, sets: Iterable[int], read_memory: Callable[[int, int], bytes]) -> list[int]:
    """The same of select()."""
    if count > 64:
        return []
    bits = 0
    for at in sets:
        bits |= struct.unpack("<Q", read_memory(at, 8))[0] if at else 0
    files = [fd for fd in range(count) if bits >> fd & 1]
    return files if len(files) <= _MOST else []


def _of(pid: int, files: Iterable[int]) -> int:
    sockets = set()
    for fd in files:
        where = f"/proc/{pid}/fd/{fd}"
        if stat.S_ISCHR(os.stat(where).st_mode):  # a terminal: keys
            return AWAITS_UNKNOWN
        if found := _SOCKET.fullmatch(os.readlink(where)):
            sockets.add(found[1])
    are_own = list(_are_own(pid, sockets))
    return AWAITS_ANSWER if are_own and all(are_own) else AWAITS_UNKNOWN


def _are_own(pid: int, sockets: set[str]) -> Iterable[bool]:
    """Of each of these that is one of the internet whether it is a connection that its program has made."""
    for table in _TABLES:
        with suppress(OSError), Path(f"/proc/{pid}/net/{table}").open() as lines:
            for line in lines.read(_MOST_BYTES).splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[9] in sockets:
                    near, far = (int(place.rpartition(":")[2], 16) for place in words[1:3])
                    yield words[3] != _LISTENS and is_own_connection(near, far)
