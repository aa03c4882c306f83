"""When a server has nothing to do: of its threads one waits for requests and hands them to others, who wait for it.

The last of these to fall asleep has the time in which nobody works, and that waits for a thread. But nothing can wake
it up before there is a request: that time is the outside's. And so it is of threads that only look around by the clock,
also where those that wait for requests are other processes (a server's main process looks after these), and of a
process that collects what others write, which wait for requests (a supervisor).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from parprof.attribution.waiting import WaitKind
from parprof.causes.ownership import Ownership
from parprof.causes.sleepers import BY_ITSELF, ENOUGH, RIVAL, KeepsHouse, place_of
from parprof.causes.tickers import is_for_requests, is_timed, thread_of, tickers
from parprof.metrics import OUTSIDE, STALL, WAIT
from parprof.model import PathSample

_FOR_MORE = frozenset(kind.frame_name for kind in (WaitKind.CONDITION, WaitKind.THREAD, WaitKind.BARRIER))
"""Who waits so waits for something to come from a thread. A lock is held by one that may never let it go."""
_FOR_PIPE = WaitKind.PIPE.frame_name
_BY_THEMSELVES = BY_ITSELF - {_FOR_PIPE, WaitKind.CHILD.frame_name}
"""Of other processes: these wait for each other."""
_WORTH_A_LOOK = 0.01
"""Of all stall: of less it is not asked, for there may be thousands of processes."""
_FOR_REQUESTS = WaitKind.REQUESTS.frame_name


def tell_nothing_to_do(rows: Iterable[PathSample], cores: float) -> None:
    """Let stall of threads that wait for one which waits for requests be outside. ``cores``: n."""
    rows = list(rows)
    house = tickers(rows)
    stalled: dict[int, list[PathSample]] = defaultdict(list)
    waiting: dict[int, list[PathSample]] = defaultdict(list)
    collecting: dict[int, list[PathSample]] = defaultdict(list)
    looking: dict[int, list[PathSample]] = defaultdict(list)
    keeps_house = KeepsHouse(Ownership())
    for row in rows:
        if not row.path:
            continue
        is_house = thread_of(row.origin) in house
        if row.metrics[WAIT] and not is_house:
            waiting[row.origin.pid].append(row)
        if row.metrics[STALL] and row.path[-1].name == _FOR_PIPE:
            collecting[row.origin.pid].append(row)
        if row.metrics[STALL] and (is_house or _waits_for_more(row) or keeps_house(row)):
            stalled[row.origin.pid].append(row)
        if row.metrics[STALL] and is_house:
            looking[row.origin.pid].append(row)
    for pid, those in stalled.items():
        _tell_if_outside(those, _longest_by_kind(waiting[pid], keeps_house), BY_ITSELF, cores)
    if not (collecting or looking):
        return
    longest = {pid: _longest_by_kind(theirs, keeps_house) for pid, theirs in waiting.items()}
    least_ns = _WORTH_A_LOOK * sum(row.metrics[STALL] for row in rows)
    for pid in collecting.keys() | looking.keys():
        for those in (collecting[pid], looking[pid]):
            if sum(row.metrics[STALL] for row in those) >= least_ns:
                _tell_if_outside(those, _of_others(longest, pid), _BY_THEMSELVES, cores)


def _tell_if_outside(
    stalled: Iterable[PathSample], slept: Mapping[str, float], by_itself: Set[str], cores: float
) -> None:
    """Let stall be outside where somebody waited for requests meanwhile, and nobody for long ``by_itself``. ``slept``:
    for how long, by kind."""
    took_ns = sum(row.metrics[STALL] for row in stalled) / cores
    others_ns = sum(slept[kind] for kind in slept.keys() & by_itself)
    if slept.get(_FOR_REQUESTS, 0.0) < ENOUGH * took_ns or others_ns >= RIVAL * took_ns:
        return
    for row in stalled:
        row.metrics[OUTSIDE] += row.metrics[STALL]
        row.metrics[STALL] = 0


def _of_others(longest: Mapping[int, Mapping[str, float]], pid: int) -> dict[str, float]:
    """The same of all processes but one."""
    out: dict[str, float] = {}
    for other, slept in longest.items():
        if other != pid:
            for kind, slept_ns in slept.items():
                out[kind] = max(out.get(kind, 0.0), slept_ns)
    return out


def _waits_for_more(row: PathSample) -> bool:
    """Whether a thread waits for what another one hands it. Ranks wait for each other's messages by such means, too."""
    if row.path[-1].name not in _FOR_MORE or "mpi" in row.origin.runtime:
        return False
    return not is_timed(row)


def _longest_by_kind(rows: Iterable[PathSample], keeps_house: KeepsHouse) -> dict[str, float]:
    """For how long one thread slept, or several in one place, by what it waited for."""
    by_thread: dict[tuple[str, object], float] = defaultdict(float)
    for row in rows:
        kind = row.path[-1].name
        signals = kind == _FOR_REQUESTS and not is_for_requests(row)
        if not (signals or keeps_house(row)):
            by_thread[kind, row.origin.tid] += row.metrics[WAIT]
            by_thread[kind, place_of(row.path)] += row.metrics[WAIT]
    longest: dict[str, float] = defaultdict(float)
    for (kind, _), wait_ns in by_thread.items():
        longest[kind] = max(longest[kind], wait_ns)
    return longest
