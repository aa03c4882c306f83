"""The life of a target, from the first look at a process to the last of its samples. All of it is here.

::

    NEW -----> SETTLED ----------------> ENDED -> FORGOTTEN
     |            ^                        ^
     |-> YOUNG ---+---> LINGERING ---------|        YOUNG, LINGERING, SETTLED: the process lives
     |     |              | ^  (and to SETTLED)     GONE: it does not, and we have yet to clear away after it
     `---> GONE <---------' ------------->-'        ENDED: its samples stay; FORGOTTEN: nothing does

There is one way to end: `Lives.end`, with a reason. What each reason asks for is in `ENDINGS`, which steps there are
in `STEPS`. A step that is not there is a mistake of ours: tests make it an error, see `Life.strict`.
"""

from __future__ import annotations

import logging
import math
import select
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar

from parprof.errors import ParprofError
from parprof.values import dataclass

_LOG = logging.getLogger(__name__)


class State(Enum):
    """How far a target has come."""

    NEW = "new"
    """We look at its process; the session does not know it yet."""
    YOUNG = "young"
    """It may end soon: what is dear to find out waits, and only the kernel's record tells of its end."""
    LINGERING = "lingering"
    """Young; its first thread has ended, others live (or it is just about to end): its descriptor tells of the end."""
    SETTLED = "settled"
    """Known in full; its descriptor tells of its end."""
    GONE = "gone"
    """The process has ended; the programs may still have its entry, and it may have become another image since."""
    ENDED = "ended"
    """Nothing is counted for it any more. Its samples, which need its load map, are still to be dealt with."""
    FORGOTTEN = "forgotten"
    """The session does not know it any more."""


UNSETTLED = frozenset((State.YOUNG, State.LINGERING))
LIVING = UNSETTLED | {State.SETTLED}
STEPS: Mapping[State, frozenset[State]] = {
    State.NEW: frozenset((State.YOUNG, State.SETTLED, State.GONE, State.ENDED)),
    State.YOUNG: frozenset((State.LINGERING, State.SETTLED, State.GONE, State.ENDED)),
    State.LINGERING: frozenset((State.SETTLED, State.GONE, State.ENDED)),
    State.SETTLED: frozenset((State.GONE, State.ENDED)),
    State.GONE: frozenset((State.ENDED,)),
    State.ENDED: frozenset((State.FORGOTTEN,)),
    State.FORGOTTEN: frozenset(),
}
"""From each state, those that may follow."""


class End(Enum):
    """Why a target ends."""

    EXITED = "exited"
    """All threads of the process have."""
    REPLACED = "replaced"
    """The process lives as another image, as a rule by exec: its PID, and the programs' entry of it, are that one's."""
    LEFT = "left"
    """The process runs on without us: nobody wants it any more, or the session is over."""
    FAILED = "failed"
    """We could not begin."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is done about an end, beside closing what the target holds."""

    tell_programs: bool
    """They are to count the process no more."""
    has_threads: bool
    """Of which the programs have to forget threads, too; those that ended were forgotten as they did."""
    whole_life: bool
    """It was seen to its end, which tells what its executable does."""


ENDINGS: Mapping[End, Ending] = {
    End.EXITED: Ending(tell_programs=True, has_threads=False, whole_life=True),
    End.REPLACED: Ending(tell_programs=False, has_threads=False, whole_life=True),
    End.LEFT: Ending(tell_programs=True, has_threads=True, whole_life=False),
    End.FAILED: Ending(tell_programs=True, has_threads=True, whole_life=False),
}


class IllegalStep(Exception):
    """A target was to go from one state to another that cannot follow."""


class Life:
    """The state of one target."""

    strict: ClassVar[bool] = False
    """Raise at an illegal step. Else it is logged and not taken: no mistake about one target stops the others."""

    def __init__(self, name: str) -> None:
        """``name``: of the target, for messages."""
        self._name = name
        self.state = State.NEW
        self.reason: End | None = None
        """Why it ended, once it has."""

    @property
    def is_over(self) -> bool:
        """Whether there is no process any more, or none of ours."""
        return self.state in (State.GONE, State.ENDED, State.FORGOTTEN)

    def enter(self, state: State) -> bool:
        """Go on to a state; False if that cannot follow.

        Raises:
            IllegalStep: it cannot, and that is to be an error.
        """
        if state not in STEPS[self.state]:
            text = f"{self._name}: {self.state.value} is not followed by {state.value}"
            if self.strict:
                raise IllegalStep(text)
            _LOG.error("%s", text)
            return False
        self.state = state
        return True


class Living(Protocol):
    """What has a life: a target."""

    image: int
    pidfd: int
    """A descriptor of the process, readable when it has ended; below 0: it had ended before we came."""
    life: Life

    @property
    def pid(self) -> int:
        """Process id."""

    def is_gone(self) -> bool:
        """Whether the process has ended."""

    def observe(self) -> bool:
        """Remember what the programs know of it; False if their entry is another's by now."""

    def close(self) -> None:
        """Give back what is only needed while the process is watched."""

    def forget(self) -> None:
        """Give back what was kept for its samples."""


class Programs(Protocol):
    """The kernel, as far as ends concern it."""

    def unwatch(self, pid: int, has_threads: bool = True) -> None:
        """Count a process no more."""


class Poller(Protocol):
    """Wakes the session; `select.epoll` is one."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Wake it by this descriptor, too."""

    def unregister(self, fd: int, /) -> None:
        """Do so no more."""


LivingT = TypeVar("LivingT", bound=Living)


class Lives(Generic[LivingT]):
    """All targets of a session, each taken from state to state."""

    def __init__(
        self, programs: Programs, poller: Poller, settle_seconds: float, learn: Callable[[LivingT], None]
    ) -> None:
        """Targets are young for ``settle_seconds``. ``learn`` is told each that was seen to its end."""
        self._programs = programs
        self._poller = poller
        self._settle_seconds = settle_seconds
        self._learn = learn
        self.by_image: dict[int, LivingT] = {}
        """All that are not forgotten: samples of ended ones need their load map."""
        self._by_pid: dict[int, LivingT] = {}
        """Of each process the newest image, until it ends."""
        self._by_pidfd: dict[int, LivingT] = {}
        self._young: deque[tuple[float, LivingT]] = deque()
        """When each is to settle, the next one first."""

    # who there is

    def newest(self, pid: int) -> LivingT | None:
        """The newest image of a process, also if that is gone."""
        return self._by_pid.get(pid)

    def live(self, pid: int) -> LivingT | None:
        """The newest image of a process that lives."""
        found = self._by_pid.get(pid)
        return None if found is None or found.life.is_over else found

    def living(self) -> list[LivingT]:
        """The targets whose processes live."""
        return [target for target in self._by_pid.values() if not target.life.is_over]

    def unended(self) -> list[LivingT]:
        """The targets that are yet to be ended, gone ones too."""
        return list(self._by_pid.values())

    def unheard(self) -> list[LivingT]:
        """The targets of whose end only a record tells, or would have told."""
        return [target for target in self._by_pid.values() if target.pidfd not in self._by_pidfd]

    def told_by(self, descriptors: Iterable[int]) -> list[LivingT]:
        """The targets whose descriptors are among these."""
        return [self._by_pidfd[fd] for fd in descriptors if fd in self._by_pidfd]

    # from state to state

    def make_room(self, pid: int) -> None:
        """A PID is one image's: whoever had it before one that comes has ended, though nobody told us."""
        before = self._by_pid.get(pid)
        if before is not None:
            self.end(before, End.EXITED if before.is_gone() else End.REPLACED)

    def begin(self, target: LivingT, state: State, now_s: float) -> None:
        """A target comes: it is YOUNG, SETTLED, or GONE already."""
        if not target.life.enter(state):
            return
        self.by_image[target.image] = self._by_pid[target.pid] = target
        if state is State.SETTLED:
            self._listen(target)
        elif state is State.YOUNG:
            self._young.append((now_s + self._settle_seconds, target))

    def remember(self, target: LivingT, reason: End) -> None:
        """A target comes that was over before: only its samples need it."""
        if target.life.enter(State.GONE) and target.life.enter(State.ENDED):
            target.life.reason = reason
            self.by_image[target.image] = target
            target.close()

    def linger(self, target: LivingT) -> None:
        """The first thread of a young process has ended, and it has others."""
        if target.life.enter(State.LINGERING):
            self._listen(target)

    def settle_due_s(self) -> float:
        """When `settle_due` has something next, CLOCK_MONOTONIC; infinite: nobody is young."""
        while self._young and self._young[0][1].life.state not in UNSETTLED:
            self._young.popleft()
        return self._young[0][0] if self._young else math.inf

    def settle_due(self, now_s: float) -> list[LivingT]:
        """Those that have been young for long enough: they are settled from now on."""
        due = []
        while self.settle_due_s() <= now_s:
            target = self._young.popleft()[1]
            if target.life.enter(State.SETTLED):
                self._listen(target)
                due.append(target)
        return due

    def note_gone(self, target: LivingT) -> None:
        """Its process has ended."""
        target.life.enter(State.GONE)

    def end(self, target: LivingT, reason: End) -> None:
        """The one way to end, from any state that is not over (but GONE)."""
        was_known = target.life.state is not State.NEW
        if not target.life.enter(State.ENDED):
            return
        target.life.reason, ending = reason, ENDINGS[reason]
        if ending.tell_programs and was_known:
            with suppress(OSError, ParprofError):
                if target.observe() or reason is not End.EXITED:  # else the entry is of who has the PID now
                    self._programs.unwatch(target.pid, has_threads=ending.has_threads)
        if self._by_pidfd.pop(target.pidfd, None) is not None:
            self._poller.unregister(target.pidfd)
        if self._by_pid.get(target.pid) is target:
            del self._by_pid[target.pid]
        if ending.whole_life:
            self._learn(target)
        target.close()

    def forget(self, target: LivingT) -> None:
        """All of its samples have been dealt with, or there are none."""
        if target.life.enter(State.FORGOTTEN):
            self.by_image.pop(target.image, None)
            target.forget()

    def forget_ended(self) -> list[LivingT]:
        """Forget all that have ended; which they were."""
        ended = [target for target in self.by_image.values() if target.life.state is State.ENDED]
        for target in ended:
            self.forget(target)
        return ended

    def _listen(self, target: LivingT) -> None:
        """Be woken when its process ends."""
        if target.pidfd not in self._by_pidfd:
            self._by_pidfd[target.pidfd] = target
            self._poller.register(target.pidfd, select.EPOLLIN)
