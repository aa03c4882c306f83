"""Who sleeps by itself in a process that may write what another one waits for: ``producer | consumer``.

The consumer is the last to fall asleep, so it has the time in which nobody works, but why it waits tells the producer.
Which process writes to which pipe is not known. Where only one thread of all others slept by itself for as long (for a
time, a file, the network), it is told beside the wait, however little work it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from parprof.attribution.waiting import WaitKind
from parprof.causes.routes import Route
from parprof.causes.tickers import ThreadLabel
from parprof.metrics import WAIT, Metrics
from parprof.patterns import regex
from parprof.values import dataclass

_BY_ITSELF = tuple(
    kind.frame_name for kind in (WaitKind.SLEEP, WaitKind.FILE, WaitKind.FAULT, WaitKind.NETWORK)
)
_ENOUGH = 0.7
"""Of the time in which nobody worked: who kept the others waiting slept for so long; it works between two sleeps, and
may sleep beside others' work."""
_RIVAL = 0.3
"""Another one that slept for so much of it may as well have been the one."""
_NAMELESS = regex(r".*\+0x|\[|_?main\Z|\Z")


@dataclass(frozen=True, slots=True)
class Sleep:
    """One thread's sleeping by itself. Nanoseconds."""

    thread: ThreadLabel
    wait_ns: float
    """All of it."""
    function: str
    """The program's, where it slept most; empty: it has no name that tells something."""
    wait: str
    """The foreign function there, with what it waits for."""

    @property
    def who(self) -> str:
        """Its process, by name and number."""
        pid, _, name = self.thread
        return f"{name} (pid {pid})" if name and not name.startswith("tid ") else f"pid {pid}"


def sleeps_of(rows: Iterable[tuple[Metrics, ThreadLabel, str, Route]]) -> tuple[Sleep, ...]:
    """Of each thread that slept by itself. ``rows``: samples with thread, foreign function and way."""
    found: dict[ThreadLabel, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    for metrics, thread, wait, route in rows:
        if metrics[WAIT] and wait.endswith(_BY_ITSELF):
            found[thread][_function(route), wait] += metrics[WAIT]
    out = []
    for thread, places in found.items():
        function, wait = max(places, key=lambda place: places[place])
        out.append(Sleep(thread, sum(places.values()), function, wait))
    return tuple(out)


def writer(sleeps: Iterable[Sleep], pids: Collection[int], took_ns: float) -> Sleep | None:
    """Who slept by itself while these processes waited for a pipe, if that is one thread of another one.

    ``took_ns``: for how long nobody worked.
    """
    rivals = [one for one in sleeps if one.thread[0] not in pids and one.wait_ns >= _RIVAL * took_ns]
    return rivals[0] if len(rivals) == 1 and rivals[0].wait_ns >= _ENOUGH * took_ns else None


def _function(route: Route) -> str:
    names = (route.procedure(at) for at in reversed(range(route.length)))
    innermost = next((one.name for one in names if not one.is_loop), "")
    return "" if _NAMELESS.match(innermost) else innermost
