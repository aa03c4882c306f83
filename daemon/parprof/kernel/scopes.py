"""The scopes over which n_w is summed up: how long it was how high, as the programs count it (bpf/scope.bpf.c)."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import count
from operator import mul
from typing import Any

from parprof.kernel import bpf
from parprof.kernel.objects import LoadedObject
from parprof.kernel.records import COMMAND_ALLOW
from parprof.model import NO_EVENT, Count, Facts, SampleKey, ThreadState
from parprof.values import dataclass

_N_BITS = 16
_UNIT_NS = 16
_MOST = 0xFC00
"""A number from there on is below none, for an instant: see working_in in bpf/scope.bpf.c."""


def wait_key(
    state: ThreadState,
    image: int,
    tid: int,
    user: int,
    kernel: int,
    context: int,
    epoch: int,
    glimpse: int = 0,
    awaits: int = 0,
) -> SampleKey:
    """What a wait or a stall of a thread is counted under."""
    where = (user, kernel, context) if user else (0, 0, 0)
    return SampleKey(
        image, tid, NO_EVENT, state, 0, where[0], where[1], epoch, where[2], glimpse=glimpse, awaits=awaits
    )


@dataclass(frozen=True, slots=True)
class ScopeState:
    """What the programs know of one scope. Times are nanoseconds."""

    n_working: int
    changed_ns: int
    """When that changed last, CLOCK_MONOTONIC less whole multiples of 52 days; 0: nobody has worked yet."""
    working_ns: int
    """The integral of n_w up to then: work, and time in which working threads had no CPU."""
    level_ns: tuple[int, ...]
    """For how long n_w was 0, 1, 2, ... up to then; the last is for as many and more."""
    idle_away_ns: int = 0
    """Cores that others had and threads waited for, times that time, while somebody worked."""
    stall_away_ns: int = 0
    """The same while nobody did."""
    begun_ns: int = 0
    """When its first thread was seen to work, if its time is counted from there on; else 0. CLOCK_MONOTONIC."""
    is_stopped: bool = False
    """Whether a signal, a debugger or we have stopped somebody of it: time in which nobody works is no stall then."""

    def until(self, now_ns: int) -> ScopeState:
        """With the time that has passed since the last change.

        >>> ScopeState(1, 1008, 0, (0, 0, 0)).until(4200).level_ns
        (0, 3184, 0)
        >>> ScopeState(0, 1008, 0, (0, 0, 0), is_stopped=True).until(4200).level_ns
        (0, 0, 0)
        """
        if not self.changed_ns:
            return self
        took = now_ns // _UNIT_NS * _UNIT_NS % (_UNIT_NS << 64 - _N_BITS) - self.changed_ns
        if took <= 0:
            return self
        levels = list(self.level_ns)
        if self.n_working or not self.is_stopped:
            levels[min(self.n_working, len(levels) - 1)] += took
        working_ns = self.working_ns + self.n_working * took
        return replace(self, changed_ns=self.changed_ns + took, working_ns=working_ns, level_ns=tuple(levels))


def _working_in(word: int) -> int:
    """n_w in a scope's word.

    >>> _working_in(7 << 16 | 2), _working_in(7 << 16 | 0xFFFF)
    (2, 0)
    """
    n_working = word & (1 << _N_BITS) - 1
    return n_working if n_working < _MOST else 0


class Scopes:
    """The table of scopes. Numbers are those of process images, which are never given out twice."""

    def __init__(self, loaded: LoadedObject) -> None:
        self._object = loaded

    def ensure(self, number: int, begun_ns: int = 0) -> None:
        """Let there be a scope of that number.

        ``begun_ns``: since when its time counts, CLOCK_MONOTONIC; 0: from its first thread that works.

        Raises:
            OSError: the table is full.
        """
        try:
            empty: Any = self._object.layouts["scope"]()
            empty.word = (begun_ns // _UNIT_NS << _N_BITS) & (1 << 64) - 1
            self._object.put("scopes", struct.pack("<I", number), empty, bpf.NOEXIST)
        except FileExistsError:
            pass

    def allow(self, number: int, cores: int) -> None:
        """Its processes may use so many from now on."""
        bpf.run_raw_tracepoint(self._object.program("on_command"), (COMMAND_ALLOW, number, cores))

    def state(self, number: int) -> ScopeState | None:
        """What is known of one; None: there is none."""
        raw: Any = self._object.get("scopes", struct.pack("<I", number), "scope")
        if raw is None:
            return None
        level_ns = tuple(raw.level_ns)
        return ScopeState(
            _working_in(raw.word),
            (raw.word >> _N_BITS) * _UNIT_NS,
            raw.beyond_ns + sum(map(mul, count(), level_ns)),
            level_ns,
            raw.idle_away_ns,
            raw.stall_away_ns,
            raw.begun_ns,
            bool(raw.stopped_tid),
        )

    def stall(self, number: int, now_ns: int) -> Facts:
        """The stall that lasts in it, if one does and it is known where whoever began it sleeps."""
        raw: Any = self._object.get("scopes", struct.pack("<I", number), "scope")
        if raw is None or not raw.word or _working_in(raw.word) or raw.stopped_tid or not raw.stall_user:
            return {}
        took = ScopeState(0, (raw.word >> _N_BITS) * _UNIT_NS, 0, (0,)).until(now_ns).level_ns[0]
        key = wait_key(
            ThreadState.STALLED,
            raw.stall_image,
            raw.stall_tid,
            raw.stall_user,
            raw.stall_kernel,
            raw.stall_context,
            raw.stall_epoch,
            awaits=raw.stall_awaits,
        )
        return {key: Count(1, took)}

    def forget(self, number: int) -> None:
        """It has no processes any more."""
        bpf.map_delete(self._object.maps["scopes"], struct.pack("<I", number))
