"""What children that read hostile input give up first."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress

from parprof.workers import permitted, seccomp

STILL_PRIVILEGED, UNFILTERED, UNBOUNDED = 77, 78, 79
"""Exit statuses of a child that could not give up its privileges, not have its system calls filtered where the
kernel can do that, or not bound what it uses. It reads nothing then."""

_NOBODY = 65534
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 4, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_OOM_SCORE_ADJ = 500
"""As if it took half of all memory that there is, beside what it takes."""


class Unbounded(OSError):
    """Something that this process uses cannot be bounded."""


def give_up_privileges(memory: int, file_size: int, files: int, *, network: bool = False) -> None:
    """`drop_privileges` and `filter_system_calls`, or end this process: hostile input must not be read then."""
    try:
        drop_privileges(memory, file_size, files)
    except Unbounded:
        sys.exit(UNBOUNDED)
    except OSError:
        sys.exit(STILL_PRIVILEGED)
    try:
        filter_system_calls(network)
    except OSError:
        sys.exit(UNFILTERED)


def filter_system_calls(network: bool) -> None:
    """Leave only what `parprof.workers.permitted` allows, for ever; nothing where there are no filters.

    Raises:
        OSError: the kernel has filters, and refuses this one.
    """
    if not seccomp.missing():
        policy = permitted.for_fetchers() if network else permitted.for_parsers()
        seccomp.install(seccomp.program(policy, permitted.OTHERWISE))


def drop_privileges(memory: int, file_size: int, files: int) -> None:
    """Become nobody where we are root, lose all capabilities, and bound what can be used, for ever.

    ``memory`` is of addresses and ``file_size`` of any file that is written, both in bytes; ``files`` is a
    number of descriptors. CPU time is not among the bounds: what a child has used cannot be taken back, so a
    limit would end one that has served many files. Those that parse set an alarm for each request instead.

    Raises:
        Unbounded: a bound cannot be set.
        OSError: we are root and cannot become nobody, or keep capabilities.
    """
    _go_first()
    libc = ctypes.CDLL(None, use_errno=True)
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_AS, memory),
    )
    for what, limit in limits:
        highest = resource.getrlimit(what)[1]
        at_most = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
        try:
            resource.setrlimit(what, (at_most, at_most))
        except (OSError, ValueError) as error:
            raise Unbounded(f"limit {what} cannot be {at_most}: {error}") from error
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    lost = (
        libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()),
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0),
    )
    if any(lost):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def _go_first() -> None:
    """Where memory runs out, in the cgroup or on the machine, the kernel is to end this process, which is started anew,
    rather than the one that watches the machine."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < _OOM_SCORE_ADJ:
            file.seek(0)
            file.write(str(_OOM_SCORE_ADJ))
