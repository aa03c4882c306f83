"""What a thread waits for that sleeps in poll(), select() or epoll_wait(), from what ``/proc`` tells of it.

For time to pass, if poll() or select() looks at no file, or for a time at nothing but counters (``eventfd``), by which
threads wake each other, and if all looks at nothing but timers; for an answer, if it looks at a connection that it has
made itself, as clients with a timeout do, and those that are written around a loop of events; for a pipe, if it looks
at nothing but pipes that lead to other processes, as who collects what its children write; and for the end of a child,
if it looks at nothing else from outside than that (``pidfd``, or SIGCHLD by ``signalfd``). All else, above all what a
server looks at, may be a request. And who reads from the end of a pair of sockets, which are a pipe both ways, waits
for a pipe. Who waits for the kernel's asynchronous I/O (``io_getevents``), however long it takes, waits for a file. The
rules are those of ``bpf/polls.bpf.c``, which sees threads that fall asleep while we look.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from parprof.model import (
    AWAITS_ANSWER,
    AWAITS_CHILD,
    AWAITS_FILE,
    AWAITS_PIPE,
    AWAITS_TIME,
    AWAITS_UNKNOWN,
)
from parprof.patterns import regex
from parprof.process.unix_peers import asks_a_server, is_of_a_pair

_POLL = 7
_POLLS, _SELECTS, _EPOLLS = frozenset((_POLL, 271)), frozenset((23, 270)), frozenset((232, 281, 441))
"""Numbers of system calls: poll and ppoll, select and pselect6, epoll_wait, epoll_pwait and epoll_pwait2."""
_READS = frozenset((0, 45, 47))
"""read, recvfrom and recvmsg."""
_ASKS_OF_FILES = frozenset((208, 333))
"""io_getevents and io_pgetevents."""
_MOST = 3
"""Files. Who looks at more serves somebody."""
_MOST_KEPT = 16
"""The same of a set that is kept, which has timers and the like in it."""
_KEPT = regex(r"^tfd: *(\d+) ", re.MULTILINE)
"""A file of such a set, in what /proc tells of it."""
_CLIENT_PORTS = 32768
"""The kernel gives those who connect a port from there on."""
_COUNTER, _TIMER = "anon_inode:[eventfd]", "anon_inode:[timerfd]"
_PROCESS, _SIGNALS = "anon_inode:[pidfd]", "anon_inode:[signalfd]"
_SIGNALS_OF = regex(r"^sigmask:\s*([0-9a-f]+)$", re.MULTILINE)
_CHILD_ENDS = 1 << signal.SIGCHLD - 1
_SELF_ENDS = sum(1 << one - 1 for one in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
"""Signals as bits. Who also waits to be told to end himself waits for the child none the less."""
_SOCKET = regex(r"socket:\[(\d+)\]")
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_NEAR, _FAR, _STATE, _INODE = 1, 2, 3, 9
"""Columns."""
_INODE_OF_UNIX = 6
"""The same of Unix sockets. Behind it is the name, if there is one: who was accepted has that of the socket that
listened, who connects has none as a rule."""
_LISTENS = "0A"
_MOST_BYTES = 1 << 22
"""That are read of a table of connections."""


def awaited(pid: int, words: list[str], read_memory: Callable[[int, int], bytes]) -> int:
    """``AWAITS_TIME``, ``AWAITS_ANSWER``, ``AWAITS_PIPE``, ``AWAITS_CHILD``, ``AWAITS_FILE``, or ``AWAITS_UNKNOWN``.
    ``words``: of ``/proc/PID/task/TID/syscall``."""
    with suppress(OSError, ValueError, struct.error):
        call, first, second, third = int(words[0]), *(int(word, 16) for word in words[1:4])
        if call in _READS:
            return AWAITS_PIPE if _reads_from_pair(pid, first) else AWAITS_UNKNOWN
        if call in _ASKS_OF_FILES:  # who looks again after a time may have asked for nothing
            return AWAITS_UNKNOWN if int(words[5], 16) else AWAITS_FILE
        if call in _EPOLLS:
            return _of(pid, _kept(pid, first))
        if call not in _POLLS | _SELECTS:
            return AWAITS_UNKNOWN
        if not (second if call in _POLLS else first):
            return AWAITS_TIME
        if call in _POLLS:
            return _of(pid, _polled(first, second, read_memory), is_timed=_is_timed(call, words))
        files = _selected(first, (second, third), read_memory)
        return _of(pid, files, is_timed=_is_timed(call, words))
    return AWAITS_UNKNOWN


def _is_timed(call: int, words: list[str]) -> bool:
    """Whether a call of poll() or select() ends after a time."""
    if call == _POLL:
        return 0 < int(words[3], 16) & 0xFFFFFFFF < 1 << 31
    at = 3 if call in _POLLS else 5
    return len(words) > at and int(words[at], 16) != 0


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


def _kept(pid: int, fd: int) -> list[int]:
    """The same of epoll_wait()."""
    files = [int(found) for found in _KEPT.findall(Path(f"/proc/{pid}/fdinfo/{fd}").read_text())]
    return files if len(files) <= _MOST_KEPT else []


def _of(pid: int, files: Sequence[int], *, is_timed: bool = False) -> int:
    if files and _is_for_time(pid, files, is_timed=is_timed):
        return AWAITS_TIME
    sockets: set[str] = set()
    pipes: list[bool] = []
    ends = others = False
    for fd in files:
        where = f"/proc/{pid}/fd/{fd}"
        kind = os.stat(where)
        if stat.S_ISCHR(kind.st_mode):  # a terminal: keys
            return AWAITS_UNKNOWN
        link = os.readlink(where)
        if found := _SOCKET.fullmatch(link):
            sockets.add(found[1])
        elif stat.S_ISFIFO(kind.st_mode):
            if not _is_own_pipe(pid, fd, kind):
                pipes.append(True)
        elif _is_of_child(pid, fd, link):
            ends = True
        else:
            pipes.append(False)
            others = others or link not in (_TIMER, _COUNTER)
    are_own = list(_are_own(pid, sockets))
    if are_own:
        return AWAITS_ANSWER if all(are_own) else AWAITS_UNKNOWN
    if pipes and all(pipes):
        return AWAITS_PIPE
    return AWAITS_CHILD if ends and not any(pipes) and not others else AWAITS_UNKNOWN


def _is_for_time(pid: int, files: Iterable[int], *, is_timed: bool) -> bool:
    """Whether nothing ends that but time, as a rule: timers do, or a limit where threads of its own may wake it up."""
    kinds = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in files}
    return kinds == {_TIMER} or (is_timed and kinds <= {_TIMER, _COUNTER})


def _reads_from_pair(pid: int, fd: int) -> bool:
    """Whether a file is the end of a pair of sockets."""
    found = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}"))
    rows = _rows(pid, "unix") if found else []
    has_name = [
        len(words) > _INODE_OF_UNIX + 1 for words in rows if found and found[1] in words[_INODE_OF_UNIX:]
    ]
    return found is not None and has_name == [False] and is_of_a_pair(pid, int(found[1]))


def _is_of_child(pid: int, fd: int, link: str) -> bool:
    """Whether a file tells of the end of a process; ``link``: what it is."""
    if link != _SIGNALS:
        return link == _PROCESS
    told = _SIGNALS_OF.search(Path(f"/proc/{pid}/fdinfo/{fd}").read_text())
    return told is not None and int(told[1], 16) & ~_SELF_ENDS == _CHILD_ENDS


def _is_own_pipe(pid: int, fd: int, kind: os.stat_result) -> bool:
    """Whether a process has both ends of a pipe, to wake itself up by; or it is what it was started with to read."""
    if not fd:
        return True
    for other in (fd - 1, fd + 1):
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{other}"), kind):
                return True
    return False


def _are_own(pid: int, sockets: set[str]) -> Iterable[bool]:
    """Of each of these, but for ends of pairs, whether it is a connection that its program has made."""
    for words in _rows(pid, "unix"):
        if len(words) > _INODE_OF_UNIX and words[_INODE_OF_UNIX] in sockets:
            is_own = False if words[_INODE_OF_UNIX + 1 :] else asks_a_server(pid, int(words[_INODE_OF_UNIX]))
            if is_own is not None:
                yield is_own
    for table in _TABLES:  # of the internet: from a port that the kernel gave it, at which nobody listens
        rows = [words for words in _rows(pid, table) if len(words) > _INODE]
        listens = {_port(words[_NEAR]) for words in rows if words[_STATE] == _LISTENS}
        for words in rows:
            if words[_INODE] in sockets:
                near = _port(words[_NEAR])
                yield near >= _CLIENT_PORTS and near not in listens and _port(words[_FAR]) > 0


def _rows(pid: int, table: str) -> list[list[str]]:
    """The rows of a table of connections, in words."""
    with suppress(OSError), Path(f"/proc/{pid}/net/{table}").open() as lines:
        return [line.split() for line in lines.read(_MOST_BYTES).splitlines()[1:]]
    return []


def _port(place: str) -> int:
    """That of an address and a port, as in ``0100007F:0050``."""
    return int(place.rpartition(":")[2], 16)
