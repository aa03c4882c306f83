"""How long calls took, as the programs at entries and exits add it up (bpf/call_times.bpf.c)."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from parprof.kernel.objects import LoadedObject
from parprof.kernel.sampling import Tracepoints
from parprof.values import dataclass

MAX_ROUTINES = 1 << 12
"""Routines that can be timed at once; that of another process image is another."""
_MAX_OPEN = 1 << 17
"""Calls that have begun and not ended; recursion of 100,000 levels finds room."""
_MAX_THREADS, _MAX_OPEN_ROUTINES, _MAX_ARCS = 1 << 14, 1 << 15, 1 << 13
_TIME_SHIFT, _NUMBER_BITS = 4, 16
"""OPEN_TIME_SHIFT of bpf/wire_calls.h, OPEN_BITS of bpf/call_times.bpf.c."""
_FOLLOWED = (("sched_switch", "on_timed_switch"),)


def time_sizes() -> dict[str, int]:
    """Sizes of the maps, in entries, where calls are to be timed: 21 MB in all."""
    return {
        "routine_times": MAX_ROUTINES,
        "open_calls": _MAX_OPEN,
        "open_by_thread": _MAX_OPEN_ROUTINES,
        "call_threads": _MAX_THREADS,
        "arc_times": _MAX_ARCS,
    }


class CallTime(NamedTuple):
    """Calls that ended, and what they took, less what timing them took. Nanoseconds; elapsed is wall-clock time."""

    ended: int = 0
    elapsed_ns: int = 0
    """Of all, recursive ones too, with all that they call."""
    direct_ns: int = 0
    """The same less that of timed routines which they called."""
    cpu_ns: int = 0
    direct_cpu_ns: int = 0
    outermost_ns: int = 0
    """Elapsed time of those that were no recursion: malony-1987 sec. 4.4.1."""
    first_ns: int = 0
    """Elapsed time of those that were no recursion of their own thread."""
    first_cpu_ns: int = 0
    """CPU time of the same."""
    first_gross_ns: int = 0
    """``first_ns`` with what timing took meanwhile; so is the next."""
    direct_gross_ns: int = 0
    longest_ns: int = 0

    def plus(self, other: CallTime) -> CallTime:
        """Of both kinds of calls.

        >>> CallTime(1, 10, longest_ns=10).plus(CallTime(2, 30, longest_ns=20))[:2]
        (3, 40)
        """
        sums = CallTime(*(mine + others for mine, others in zip(self, other, strict=True)))
        return sums._replace(longest_ns=max(self.longest_ns, other.longest_ns))


@dataclass(frozen=True, slots=True)
class RoutineTime:
    """What the calls of a routine took."""

    sequential: CallTime = CallTime()
    """Of those that began while no other thread worked."""
    concurrent: CallTime = CallTime()
    inside_ns: int = 0
    """Wall-clock time during which at least one thread was in the routine, or in what it calls; as it was, with what
    timing took."""
    directly_ns: int = 0
    """The same for the routine itself: not in another timed routine that it called."""
    open: int = 0
    """Threads that are in it still."""
    unseen: int = 0
    """Calls that ended nobody knows when; their times are missing."""
    unwound: int = 0
    """Calls that an exception or longjmp ended."""
    unseen_within: int = 0
    """Timed calls that it made and that ended nobody knows when: what they took is in its direct CPU time, and in the
    direct time of the calls."""

    @property
    def all(self) -> CallTime:
        """Of both states."""
        return self.sequential.plus(self.concurrent)

    @property
    def elapsed_ns(self) -> float:
        """As ``inside_ns``, less what timing took: as much less as the calls that ended show.

        >>> RoutineTime(CallTime(1, first_ns=60, first_gross_ns=80), inside_ns=40).elapsed_ns
        30.0
        """
        return _net(self.inside_ns, self.all.first_ns, self.all.first_gross_ns)

    @property
    def direct_ns(self) -> float:
        """As ``directly_ns``, less what timing took."""
        return _net(self.directly_ns, self.all.direct_ns, self.all.direct_gross_ns)

    def plus(self, other: RoutineTime) -> RoutineTime:
        """With what another image of the process took, which ran before or after."""
        return RoutineTime(
            self.sequential.plus(other.sequential),
            self.concurrent.plus(other.concurrent),
            self.inside_ns + other.inside_ns,
            self.directly_ns + other.directly_ns,
            self.open + other.open,
            self.unseen + other.unseen,
            self.unwound + other.unwound,
            self.unseen_within + other.unseen_within,
        )


def _net(ns: int, net_ns: int, gross_ns: int) -> float:
    return ns * net_ns / gross_ns if gross_ns else float(ns)


class ArcTime(NamedTuple):
    """What calls from one place took that ended, in one state of the program at their beginning."""

    ended: int = 0
    elapsed_ns: int = 0
    cpu_ns: int = 0

    def plus(self, other: ArcTime) -> ArcTime:
        """Of both."""
        return ArcTime(*(mine + others for mine, others in zip(self, other, strict=True)))


class CallTimer:
    """What follows threads that are in timed calls, and the times."""

    def __init__(self, loaded: LoadedObject) -> None:
        self._object = loaded
        self._switches = Tracepoints(loaded, _FOLLOWED)

    def begin(self) -> None:
        """Follow the CPU time of threads. Before the first probe.

        Raises:
            KernelUnsupported: that cannot be done here.
        """
        if not self._switches.attached:
            self._switches.attach()

    def by_routine(self, until_ns: int | None = None) -> dict[int, RoutineTime]:
        """What calls took, by number of the routine. ``until_ns``: those that are open count up to then; else now."""
        until = time.monotonic_ns() if until_ns is None else until_ns
        entries = self._object.entries("routine_times", "routine_time")
        return {routine: _routine(one, until) for routine, one in entries if any(bytes(one))}

    def by_caller(self) -> dict[tuple[int, ...], tuple[ArcTime, ArcTime]]:
        """What calls took, sequential ones and concurrent ones, by who called: `parprof.kernel.call_counts.Caller`."""
        out: dict[tuple[int, ...], tuple[ArcTime, ArcTime]] = {}
        for arc, one in self._object.entries("arc_times", "arc_time", "call_arc"):
            sequential, concurrent = (
                ArcTime(one.ended[state], one.elapsed_ns[state], one.cpu_ns[state]) for state in (0, 1)
            )
            out[arc.site, arc.caller, arc.epoch, arc.image] = sequential, concurrent
        return out

    def close(self) -> None:
        """Follow no more."""
        self._switches.detach()


def _call_time(raw: Any) -> CallTime:
    return CallTime(*(getattr(raw, name) for name in CallTime._fields))


def _routine(raw: Any, until_ns: int) -> RoutineTime:
    inside_ns, number = _open_time(raw.inside, until_ns)
    return RoutineTime(
        _call_time(raw.sequential),
        _call_time(raw.concurrent),
        inside_ns,
        _open_time(raw.directly, until_ns)[0],
        number,
        raw.unseen,
        raw.unwound,
        raw.unseen_within,
    )


def _open_time(raw: Any, until_ns: int) -> tuple[int, int]:
    """How long at least one thread was there, and how many are."""
    number = raw.word & (1 << _NUMBER_BITS) - 1
    since_ns = raw.word >> _NUMBER_BITS << _TIME_SHIFT
    return raw.any_ns + (max(until_ns - since_ns, 0) if number else 0), number
