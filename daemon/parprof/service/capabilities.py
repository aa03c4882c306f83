"""What the daemon may do as root, and gives up before its first thread starts.

CAP_SYS_ADMIN is half of root. What the daemon does has had smaller capabilities of its own since Linux 5.9 (BPF,
PERFMON, CHECKPOINT_RESTORE), so it goes, with all others that are of no use here. Some kernels want it all the same:
Debian's, for perf events while kernel.perf_event_paranoid is above 2. That is found by trying, and then it stays.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from parprof.kernel import perf_events
from parprof.kernel.refusals import CAPABILITIES, PARANOID

_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _KILL, _SETGID, _SETUID = 0, 1, 2, 5, 6, 7
_NET_BIND_SERVICE, _SYS_PTRACE, _SYS_ADMIN, _SYS_RESOURCE, _SYSLOG = 10, 19, 21, 24, 34
_PERFMON, _BPF, _CHECKPOINT_RESTORE = 38, 39, 40
INSTEAD = (_BPF, _PERFMON, _CHECKPOINT_RESTORE)
"""What does for CAP_SYS_ADMIN here."""
NEEDED = (*INSTEAD, _SYS_PTRACE, _DAC_READ_SEARCH, _SYSLOG, _SETUID, _SETGID, _KILL)
"""The unit file says what each is for."""
HANDY = (_CHOWN, _DAC_OVERRIDE, _NET_BIND_SERVICE, _SYS_RESOURCE)
"""Only where the daemon has them, outside of its unit: files and sockets in places of an administrator's choice."""
_LAST = 63
_VERSION_3 = 0x20080522
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_libc = ctypes.CDLL(None, use_errno=True)


class Held(NamedTuple):
    """The capabilities of this thread, a bit for each."""

    effective: int
    permitted: int
    inheritable: int


def held() -> Held:
    """What we have."""
    header, raw = struct.pack("<Ii", _VERSION_3, 0), ctypes.create_string_buffer(24)
    if _libc.capget(ctypes.create_string_buffer(header, 8), raw):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    low, high = struct.unpack_from("<3I", raw.raw), struct.unpack_from("<3I", raw.raw, 12)
    return Held(*(a | b << 32 for a, b in zip(low, high, strict=True)))


def _hold(wanted: Held) -> None:
    header = ctypes.create_string_buffer(struct.pack("<Ii", _VERSION_3, 0), 8)
    words = [value >> shift & 0xFFFFFFFF for shift in (0, 32) for value in wanted]
    if _libc.capset(header, ctypes.create_string_buffer(struct.pack("<6I", *words), 24)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _bits(capabilities: tuple[int, ...]) -> int:
    return sum(1 << one for one in capabilities)


def _perf_events_are_refused() -> bool:
    error = perf_events.is_available("cpu-clock")
    return error is not None and error.errno in (errno.EACCES, errno.EPERM)


def give_up(is_refused: Callable[[], bool] = _perf_events_are_refused, paranoid: Path = PARANOID) -> str:
    """Keep what is needed, for ever, in this process and in all that it starts; says what became of CAP_SYS_ADMIN.

    Call it while there is one thread: others would keep what they have. ``is_refused``: whether the kernel refuses
    what is needed with the capabilities of that moment.
    """
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    had = held()
    reason = _why_kept(had, is_refused, paranoid)
    kept = _bits(NEEDED + HANDY) | (1 << _SYS_ADMIN if reason else 0)
    for one in range(_LAST + 1):  # what a child that root starts could get back; without CAP_SETPCAP it stays
        if not kept >> one & 1 and _libc.prctl(_PR_CAPBSET_READ, one, 0, 0, 0) == 1:
            _libc.prctl(_PR_CAPBSET_DROP, one, 0, 0, 0)
    _hold(Held(had.effective & kept, had.permitted & kept, had.inheritable & kept))
    if reason:
        return f"CAP_SYS_ADMIN is kept: {reason}"
    if had.permitted >> _SYS_ADMIN & 1:
        return "CAP_SYS_ADMIN is given up, and all else that is not needed"
    return "CAP_SYS_ADMIN is not held"


def _why_kept(had: Held, is_refused: Callable[[], bool], paranoid: Path) -> str:
    """Why CAP_SYS_ADMIN cannot go; empty if it can, or is not there."""
    if not had.permitted >> _SYS_ADMIN & 1:
        return ""
    missing = [CAPABILITIES[one] for one in INSTEAD if not had.permitted >> one & 1]
    if missing:
        return f"{', '.join(missing)} missing, which would do instead"
    without = had._replace(effective=had.effective & ~(1 << _SYS_ADMIN))
    try:
        _hold(without)
        works_without = not is_refused()
    finally:
        _hold(had)
    if works_without or is_refused():  # or refused in any case: who asks for it will say so
        return ""
    level = ""
    with suppress(OSError):
        level = paranoid.read_text().strip()
    return (
        f"this kernel wants it for perf events (kernel.perf_event_paranoid is {level or 'unknown'}); "
        "sysctl kernel.perf_event_paranoid=2 and a restart let it go"
    )
