"""Who runs while other threads of a process sleep for its interpreter's lock (the GIL): how much of that waiting was
beside each row of samples.

The kernel sees who sleeps for the lock, but without ``--blame locks`` not who has it. Sums over a program are no
answer: what runs alone before a pool of threads begins has nothing to do with what these wait for. So it is asked
interval by interval; and in each of them, whose own code is made to give the lock away (its threads sleep for it there,
too) is beside the waiting before code of which no thread ever did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from parprof.causes.ownership import SCRIPT
from parprof.metrics import IDLENESS, WAIT, WORK, Metrics
from parprof.model import NOT_LOOKED_AT, SEVERAL_THREADS, Frame, Interval, Origin, PathSample
from parprof.patterns import regex
from parprof.values import dataclass

_FEEDS = 0.1
"""Of the time that a thread waits for the lock: one that works for less feeds others."""
_OF_QUEUES = regex(r".*/(?:multiprocessing/\w+|concurrent/futures/process)\.py\Z")
_GIL = regex(r".*\[waits: GIL\]")
_SCRIPT_LOCK = regex(
    r"(?:(?:lib)?python[\d.]+(?:so[\d.]*)?\+0x|r?lock_|acquire_|_?PyThread_acquire).*\[waits: lock\]"
)
"""Of a script's own locks: it calls the interpreter for them, which may have no names."""
_CONTENDED = 0.2
"""Of its work: a function whose own threads sleep for the lock for so long is one that takes turns with others. And of
its idleness at some time, for all of that to be the lock's."""


@dataclass(slots=True)
class Beside:
    """Waiting of other threads that was beside something. Nanoseconds."""

    gil_ns: float = 0.0
    """For the interpreter's lock."""
    idle_ns: float = 0.0
    """How much core time was idle meanwhile."""
    locks_ns: float = 0.0
    """For locks that scripts made, at the same time."""

    def add(self, other: Beside) -> None:
        """Add ``other`` in place."""
        self.gil_ns += other.gil_ns
        self.idle_ns += other.idle_ns
        self.locks_ns += other.locks_ns


_UNKNOWN_WAITERS = 1000
"""Threads are not told apart: those who take turns may be very many, if they do more than take the lock."""
NOTHING = Beside()
"""Of most rows. Never added to."""

_Code = tuple[int, str, str]
"""A process, and a function by name and file."""
_Rows = Iterable[tuple[int, Metrics]]
"""By number, rows with what they have."""


def is_for_gil(function: str) -> bool:
    """Whether a thread that sleeps in a function of that name wants the interpreter's lock."""
    return bool(_GIL.match(function))


def is_script_lock(function: str) -> bool:
    """Whether it wants a lock that a script made."""
    return bool(_SCRIPT_LOCK.match(function))


def beside(
    samples: Sequence[PathSample], waits: Sequence[str], intervals: Sequence[Interval] = ()
) -> dict[int, Beside]:
    """By number of the row: what others waited for while it ran; without those beside which nobody waited.

    ``waits``: for each row the foreign function that it is in, with the kind of its wait. ``intervals``: what of each
    row was when; empty: not known.
    """
    of_gil = {number for number, wait in enumerate(waits) if is_for_gil(wait)}
    if not of_gil:
        return {}
    whole = list(enumerate(sample.metrics for sample in samples))
    by_time: list[_Rows] = [one.rows.items() for one in intervals] if intervals else [whole]
    of_gil = _without_feeders(samples, of_gil, by_time)
    of_locks = {number for number, wait in enumerate(waits) if is_script_lock(wait)}
    codes = [_code(sample) for sample in samples]
    contended = _contended(samples, codes, of_gil)
    out: dict[int, Beside] = defaultdict(Beside)
    unseen: list[_Turns] = []
    idle: dict[_Code, float] = defaultdict(float)
    covered: dict[_Code, float] = defaultdict(float)
    for rows in by_time:
        for turns in _by_process(samples, rows, of_gil, of_locks):
            if turns.is_unseen:
                unseen.append(turns)
                continue
            for number, metrics in turns.running:
                idle[codes[number]] += metrics[IDLENESS]
            for number, found in turns.shares(codes, contended):
                covered[codes[number]] += found.idle_ns
                out[number].add(found)
    for turns in unseen:
        for number, metrics in turns.running:
            if of_code := covered[codes[number]]:
                share = of_code / idle[codes[number]]
                out[number].add(Beside(idle_ns=share * metrics[IDLENESS]))
    return out


def _without_feeders(samples: Sequence[PathSample], of_gil: set[int], by_time: Iterable[_Rows]) -> set[int]:
    """Without threads that do next to nothing once they have the lock: those by which processes of a job send each
    other what they work on, or that look around now and then. That cores are idle is for the other processes, not for
    these. Where one process alone was looked at, these are `multiprocessing`'s own.

    ``by_time``: what of each row was when: what a thread did before it waited tells nothing.
    """
    is_job = len({sample.origin.pid for sample in samples if sample.metrics[WORK]}) > 1
    did: dict[tuple[int, int], float] = defaultdict(float)
    slept: dict[tuple[int, int], float] = defaultdict(float)
    for rows in by_time:
        work: dict[tuple[int, int], float] = defaultdict(float)
        wait: dict[tuple[int, int], float] = defaultdict(float)
        for number, metrics in rows:
            thread = _thread(samples[number])
            work[thread] += metrics[WORK]
            if number in of_gil and (is_job or any(map(_is_of_queue, samples[number].path))):
                wait[thread] += metrics[WAIT]
        for thread, wait_ns in wait.items():
            did[thread] += min(work[thread], wait_ns)
            slept[thread] += wait_ns
    feeders = {thread for thread, wait_ns in slept.items() if did[thread] < _FEEDS * wait_ns}
    return {number for number in of_gil if _thread(samples[number]) not in feeders}


def _is_of_queue(frame: Frame) -> bool:
    return frame.module == SCRIPT and bool(_OF_QUEUES.match(frame.file))


def _thread(sample: PathSample) -> tuple[int, int]:
    return sample.origin.pid, sample.origin.tid


def _code(sample: PathSample) -> _Code:
    """The innermost function of a script, or else of the path."""
    innermost = next((frame for frame in reversed(sample.path) if frame.module == SCRIPT), None)
    if innermost is None:
        own = (frame for frame in reversed(sample.path) if frame.file and not frame.is_loop)
        innermost = next(own, None)
    if innermost is None:
        return sample.origin.pid, "", ""
    return sample.origin.pid, innermost.name, innermost.file


def _contended(samples: Sequence[PathSample], codes: Sequence[_Code], of_gil: set[int]) -> set[_Code]:
    """The functions in which threads sleep for the lock as a rule."""
    work: dict[_Code, float] = defaultdict(float)
    wait: dict[_Code, float] = defaultdict(float)
    for number, sample in enumerate(samples):
        work[codes[number]] += sample.metrics[WORK]
        if number in of_gil:
            wait[codes[number]] += sample.metrics[WAIT]
    return {code for code, slept in wait.items() if slept >= _CONTENDED * work[code]}


@dataclass(slots=True)
class _Turns:
    """What was in one process in one interval."""

    gil_ns: float = 0.0
    locks_ns: float = 0.0
    waiters: set[int] = field(default_factory=set)
    """Threads that slept for the lock."""
    unseen_ns: float = 0.0
    """For how long threads slept of which nobody looked what for: there is no time to follow all of a hot lock."""
    running: list[tuple[int, Metrics]] = field(default_factory=list)
    """Rows beside which cores were idle."""

    @property
    def is_unseen(self) -> bool:
        """Whether nobody looked what threads sleep for: code that others waited beside is taken to do so there, too."""
        return not self.gil_ns and self.unseen_ns > 0

    def shares(self, codes: Sequence[_Code], contended: set[_Code]) -> Iterable[tuple[int, Beside]]:
        """What of the waiting was beside each row."""
        first = [row for row in self.running if codes[row[0]] in contended]
        rest = [row for row in self.running if codes[row[0]] not in contended]
        # one of those who take turns runs, and the others wait meanwhile
        working, beyond = (sum(metrics[WORK] for _, metrics in rows) for rows in (first, rest))
        others = max(len(self.waiters) - 1, 1)
        if SEVERAL_THREADS in self.waiters and working >= _CONTENDED * beyond:
            others = _UNKNOWN_WAITERS
        taken = min(self.gil_ns, working * others)
        for rows, amount in ((first, taken), (rest, self.gil_ns - taken)):
            idle = sum(metrics[IDLENESS] for _, metrics in rows)
            if not idle or not amount:
                continue
            # waits are known exactly, idleness by samples: of those who take turns it is all for the lock, or none
            is_all = rows is first and amount >= _CONTENDED * idle
            for number, metrics in rows:
                share = amount * metrics[IDLENESS] / idle
                covered = metrics[IDLENESS] if is_all else min(share, metrics[IDLENESS])
                yield number, Beside(share, covered, self.locks_ns * share / self.gil_ns)


def _by_process(
    samples: Sequence[PathSample], rows: _Rows, of_gil: set[int], of_locks: set[int]
) -> Iterable[_Turns]:
    """The processes, those in which threads slept for the lock among them."""
    found: Mapping[int, _Turns] = defaultdict(_Turns)
    for number, metrics in rows:
        origin: Origin = samples[number].origin
        turns = found[origin.pid]
        if number in of_gil:
            turns.gil_ns += metrics[WAIT]
            turns.waiters.add(origin.tid)
        elif number in of_locks:
            turns.locks_ns += metrics[WAIT]
        elif metrics[WAIT] and samples[number].path[-1:] == NOT_LOOKED_AT:
            turns.unseen_ns += metrics[WAIT]
        if metrics[IDLENESS] > 0:
            turns.running.append((number, metrics))
    return found.values()
