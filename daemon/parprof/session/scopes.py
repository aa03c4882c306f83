"""Jobs: processes whose working threads are counted together, and held against the cores that they share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from parprof.facts.scopes import ScopeTimes, levels_that_were
from parprof.kernel.scopes import ScopeState
from parprof.session.sources import Source

_LEAST_SHARE = 0.02
"""Of a job's samples: a process with fewer, such as the shell that waits for the others, says nothing of its width."""
_LEAST_TIME_SHARE = 0.01
"""So much of its time a job has to be so wide for that to count."""
_EXACT = (str(Source.EXACT), str(Source.SCHEDULER))


class Member(Protocol):
    """A process image of a scope: `parprof.session.target.Target`."""

    image: int
    clock_samples: int
    """How often it was sampled so far."""

    @property
    def pid(self) -> int:
        """Of the process."""

    @property
    def ended(self) -> bool:
        """Whether there is no process any more."""

    @property
    def n_w_source(self) -> str:
        """Where n_w comes from."""

    @property
    def spins_by_samples(self) -> bool:
        """Whether threads of it wait in loops, which is known as of their last sample."""

    @property
    def pool(self) -> int:
        """How many threads its parallel runtime runs; 0: it has none, or nobody knows."""

    @property
    def cores(self) -> int:
        """How many it is allowed, as of the last look."""

    @property
    def cpus(self) -> Collection[int]:
        """Those that it may run on, as of the last look."""


def _together(members: Sequence[Member], cpus: Collection[int] = ()) -> int:
    """How many cores processes may use that run beside each other: a quota is for all of them, CPUs add up."""
    most = max((member.cores for member in members), default=0)
    if any(member.cores < len(member.cpus) for member in members):
        return most
    return max(most, len(frozenset(cpus).union(*(member.cpus for member in members))))


class States(Protocol):
    """The programs' table of scopes."""

    def allow(self, number: int, cores: int) -> None:
        """Its processes may use so many from now on."""

    def state(self, number: int) -> ScopeState | None:
        """What is known of one; None: there is none."""


class Scope:
    """What n_w is summed up over (DESIGN.md sec. 2): one process, or all of a job, which shares its cores."""

    def __init__(self, states: States, number: int) -> None:
        """``number``: under which the programs know it."""
        self._states = states
        self.number = number
        self.members: dict[int, Member] = {}
        """By image."""
        self._allowed = 0
        self._cpus: frozenset[int] = frozenset()
        self._workers: list[Member] | None = None
        """None: to be found anew."""
        self._pool = 0
        """How many threads they could have had working together, if each of them has a pool; else 0.

        Threads of a program that are in no pool work, too, perhaps before there is one.
        """
        self.final: ScopeState | None = None
        """As it was in the end."""

    def add(self, member: Member) -> None:
        """A process image comes."""
        self.members[member.image] = member
        self._workers = None
        self._tell(max(self._allowed, _together([member], self._cpus)))
        self._cpus = self._cpus.union(member.cpus)

    def remove(self, image: int) -> None:
        """A process image has been dealt with."""
        del self.members[image]
        self._workers = None

    def changed(self) -> None:
        """There are new samples of its processes."""
        self._workers = None

    def workers(self) -> list[Member]:
        """Those that do the work; of the images of one process, which come one after the other, the one with most."""
        if self._workers is None:
            least = _LEAST_SHARE * sum(member.clock_samples for member in self.members.values())
            most: dict[int, Member] = {}
            for member in sorted(self.members.values(), key=lambda one: one.clock_samples):
                if member.clock_samples > least:
                    most[member.pid] = member
            self._workers = [member for member in self.members.values() if most.get(member.pid) is member]
            pools = [worker.pool for worker in self._workers]
            self._pool = max(*pools, self._width()) if pools and all(pools) else 0
            if len(pools) == 1 and self._pool == 1:
                # one thread that never had another beside it is a pool of nothing: cores stood idle
                self._pool = 0
        return self._workers

    def parallel_cores(self, member: Member, allowed: int) -> int:
        """n at samples of a process that was allowed so many cores.

        One process of its own could use as many as its pool of threads has, or as ever worked at once; so could those
        that only wait for it, such as the shell that started it. Processes that work beside each other share those
        that any of them may use; where each has a pool, they could use as many as they kept busy together.
        """
        workers = self.workers()
        if len(workers) < 2:
            return max(1, min(allowed, self._pool)) if self._pool else allowed
        allowed = max(allowed, _together(workers))
        return max(1, min(allowed, self._pool)) if self._pool else allowed

    def look_at(self, member: Member) -> None:
        """It is known anew how many cores one of its processes may use."""
        if member.cores != self._allowed:
            self.note_cores()

    def note_cores(self) -> None:
        """Tell the programs how many cores its processes may use, if that has changed."""
        living = [member for member in self.members.values() if not member.ended]
        self._workers = None
        self._cpus = frozenset[int]().union(*(member.cpus for member in living))
        self._tell(_together(living))

    def _tell(self, allowed: int) -> None:
        if allowed and allowed != self._allowed:
            self._allowed = allowed
            self._states.allow(self.number, allowed)

    def _width(self) -> int:
        """How many threads have worked at once, for longer than an instant."""
        state = self.state()
        least = _LEAST_TIME_SHARE * sum(state.level_ns) if state else 0.0
        width = beyond = 0
        for level, took_ns in reversed(list(enumerate(state.level_ns if state else ()))):
            beyond += took_ns
            if beyond > least:
                width = level
                break
        return width

    def state(self) -> ScopeState | None:
        """What the programs know of it; in the end, what they knew then."""
        return self.final or self._states.state(self.number)

    def counted_until(self, now_ns: int, state: ScopeState) -> ScopeState:
        """Its state with the time since anything changed, which is none of it once all its processes have ended.

        ``now_ns``: CLOCK_MONOTONIC; not before ``state`` was read.
        """
        if all(member.ended for member in self.members.values()):
            return state
        return state.until(now_ns)

    def finish(self, now_ns: int) -> None:
        """Remember what the programs know, before they forget it.

        ``now_ns``: the end of the measurement, CLOCK_MONOTONIC.
        """
        state = self._states.state(self.number)
        self.final = state and self.counted_until(now_ns, state)
        self._workers = None

    def times(self, ticked: bool) -> ScopeTimes:
        """What a report says of it. ``ticked``: context switches were not followed all the time."""
        state = self.state() or ScopeState(0, 0, 0, ())
        exact = not ticked and all(
            member.n_w_source in _EXACT and not member.spins_by_samples for member in self.workers()
        )
        return ScopeTimes(
            levels_that_were(state.level_ns),
            state.working_ns,
            exact,
            tuple(self.members),
            state.idle_away_ns,
            state.stall_away_ns,
        )
