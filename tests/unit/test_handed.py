# SPDX-License-Identifier: Apache-2.0
"""Threads that are handed requests have nothing to do while there are none: parprof.causes.handed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parprof.causes.handed import tell_nothing_to_do
from parprof.metrics import OUTSIDE, STALL, WAIT, Metrics
from parprof.model import Frame, Origin, PathSample
from profiles import frame, library

CORES = 2
LISTENS = "main; epoll_wait; [waits: requests]"
SERVES = "worker; pthread_cond_wait; [waits: condition]"


def row(
    names: str, tid: int, *, wait: float = 0, stall: float = 0, pid: int = 7, runtime: str = "none"
) -> PathSample:
    """Times in ms, stall in core time. ``;`` parts frames."""
    path = tuple(
        Frame(name, module="[kernel]") if name[0] == "[" else library(name) if "_" in name else frame(name, 9)
        for name in names.split("; ")
    )
    metrics = Metrics.of({WAIT: wait * 1e6, STALL: stall * 1e6})
    return PathSample(path, metrics, Origin(pid, "x", f"t{tid}", runtime, tid=tid))


def told(*rows: PathSample) -> tuple[float, float]:
    """Stall and what is outside, in all, in ms."""
    tell_nothing_to_do(rows, CORES)
    stall, outside = (sum(one.metrics[metric] for one in rows) / 1e6 for metric in (STALL, OUTSIDE))
    return stall, outside


@pytest.mark.parametrize(
    "waits", [SERVES, "worker; sem_wait; [waits: condition]", "main; pthread_join; [waits: thread]"]
)
def test_who_is_handed_requests_waits_for_these(waits: str) -> None:
    rows = (
        row(LISTENS, 7, wait=950),
        row(waits, 8, wait=700, stall=800),
        row(waits, 9, wait=800, stall=1000),
        row("worker; read; [waits: file]", 8, wait=50, stall=100),
    )
    assert told(*rows) == (100, 1800)


@pytest.mark.parametrize(
    "waits",
    [
        "worker; pthread_mutex_lock; [waits: lock]",  # it may be a deadlock
        "worker; take_gil; [waits: GIL]",
        "worker; pthread_cond_timedwait; [waits: condition]",  # it looks again by itself
        "worker; sem_clockwait; [waits: condition]",
        "worker; [waits: pipe]",
    ],
)
def test_who_may_wait_for_something_else_does(waits: str) -> None:
    other = row(waits, 8, wait=850, stall=1800)
    other.metrics.work_ns = 50e6  # more than to look around
    assert told(row(LISTENS, 7, wait=950), other) == (1800, 0)


def test_the_c_librarys_wait_for_a_time_is_called_without_one_too() -> None:
    """A name that only its debug information has: of what pthread_cond_wait() calls."""
    waits = "worker; pthread_cond_wait; __futex_abstimed_wait_common; [waits: condition]"
    serves = row(waits, 8, wait=850, stall=1800)
    serves.metrics.work_ns = 50e6
    assert told(row(LISTENS, 7, wait=950), serves) == (0, 1800)


@pytest.mark.parametrize(
    ("names", "wait"),
    [
        ("ask; read; [waits: network]", 400),
        ("save; fsync; [waits: file]", 400),
        ("pace; usleep; [waits: sleep]", 900),
    ],
)
def test_nor_where_another_thread_waits_for_long(names: str, wait: float) -> None:
    rows = row(LISTENS, 7, wait=950), row(SERVES, 8, wait=900, stall=1800), row(names, 9, wait=wait)
    assert told(*rows) == (1800, 0)


@pytest.mark.parametrize("call", ["__GI___sigtimedwait", "sigwait", "sigsuspend", "__pause"])
def test_a_thread_for_signals_serves_nobody(call: str) -> None:
    """As that of a renderer has one (povray), whose others wait for each other."""
    signals = row(f"main; pthread_create; handles; {call}; [waits: requests]", 9, wait=950)
    assert told(signals, row(SERVES, 8, wait=900, stall=1800)) == (1800, 0)


def test_who_keeps_house_keeps_nobody_waiting() -> None:
    house = row("clone; runtime.sysmon; runtime.usleep; [waits: sleep]", 9, wait=950, stall=200)
    assert told(row(LISTENS, 7, wait=950), row(SERVES, 8, wait=900, stall=1600), house) == (0, 1800)


def test_one_that_goes_from_thread_to_thread_counts_as_one() -> None:
    """As Go's does, in whose threads routines wait by turns."""
    polls = "runtime.findRunnable; runtime.netpoll; runtime.epollwait; [waits: requests]"
    rows = (
        row(f"runtime.mcall; {polls}", 7, wait=500),
        row(f"runtime.goexit0; {polls}", 8, wait=450),
        row("runtime.sysmon; runtime.notetsleep; [waits: condition]", 9, wait=900, stall=1800),
    )
    assert told(*rows) == (0, 1800)


def test_it_is_a_thread_of_the_same_process_that_waits_for_requests_all_the_time() -> None:
    serves = row(SERVES, 8, wait=900, stall=1800)
    assert told(row(LISTENS, 7, wait=950, pid=6), serves) == (1800, 0)
    assert told(row(LISTENS, 7, wait=300), serves) == (1800, 0)


def test_ranks_wait_for_each_other() -> None:
    """Open MPI has a thread that looks after its messages: in epoll_wait()."""
    rows = row(LISTENS, 9, wait=950, runtime="mpi"), row(SERVES, 7, wait=900, stall=1800, runtime="mpi")
    assert told(*rows) == (1800, 0)


TICKS = "worker; nanosleep; [waits: sleep]"


def test_who_only_looks_around_by_the_clock_keeps_nobody_waiting() -> None:
    """A server with a ticker: that is the last to fall asleep nearly always, and whom a request has woken at times."""
    ticker = row(TICKS, 9, wait=930, stall=1500)
    serves = row(SERVES, 8, wait=900, stall=300)
    begun_before = row("[asleep, not looked where]", 9, wait=9)
    gil = row("take_gil; pthread_cond_timedwait; [waits: GIL]", 9, wait=40)
    assert told(row(LISTENS, 7, wait=950), ticker, serves, begun_before, gil) == (0, 1800)


@pytest.mark.parametrize(
    "rows",
    [
        (
            row(TICKS, 9, wait=930, stall=1500),
            row("ask; recv; [waits: network]", 9, wait=5),
        ),  # it serves somebody
        (
            row(TICKS, 9, wait=500, stall=1000),
            row(TICKS, 10, wait=500, stall=800),
        ),  # threads for one request each
        (
            row(TICKS, 9, wait=930),
            row(SERVES, 8, wait=900, stall=1800),
        ),  # it wakes others up, who are the last
        (row(TICKS, 9, wait=500, stall=900), row("pace; usleep; [waits: sleep]", 9, wait=400, stall=900)),
    ],
)
def test_who_sleeps_and_does_more_may_keep_others_waiting(rows: tuple[PathSample, ...]) -> None:
    stall, outside = told(row(LISTENS, 7, wait=950), *rows)
    assert stall >= 1500 and outside == 0


def test_nor_does_one_only_look_around_that_works_now_and_then() -> None:
    paced = row(TICKS, 9, wait=800, stall=1600)
    paced.metrics.work_ns = 100e6
    assert told(row(LISTENS, 7, wait=950), paced) == (1600, 0)


def test_a_supervisor_that_collects_what_servers_write_waits_for_requests_too() -> None:
    """It wakes up once a second (PHP-FPM's master), and is the last to fall asleep then."""
    master = row("main; loop; epoll_wait; [waits: pipe]", 7, wait=950, stall=1800)
    serves = row("main; accept; [waits: requests]", 8, wait=940, pid=8)
    assert told(master, serves) == (0, 1800)


@pytest.mark.parametrize(
    "other",
    [
        row("main; fetch; recv; [waits: network]", 9, wait=600, pid=9),
        row("main; pace; usleep; [waits: sleep]", 9, wait=600, pid=9),
    ],
)
def test_who_collects_what_another_writes_that_waits_by_itself_does_not(other: PathSample) -> None:
    master = row("main; loop; epoll_wait; [waits: pipe]", 7, wait=950, stall=1800)
    serves = row("main; accept; [waits: requests]", 8, wait=940, pid=8)
    assert told(master, serves, other) == (1800, 0)
    alone = row("main; loop; epoll_wait; [waits: pipe]", 7, wait=950, stall=1800)
    assert told(alone) == (1800, 0)


LOOKS_AFTER = "run; get; PyThread_acquire_lock_timed; __new_sem_wait_slow64; [waits: condition]"
"""Until a signal comes, for a second at most."""


def before(pid: int) -> tuple[PathSample, ...]:
    """What a main thread does once, as it begins."""
    work = row("run; load", pid, pid=pid)
    imports = row("run; load", pid, pid=pid)
    imports = replace(
        imports, path=(*imports.path, Frame("_load", module="python", file="<frozen importlib._bootstrap>"))
    )
    work.metrics.work_ns, imports.metrics.work_ns = 20e6, 200e6
    waits = (
        "run; read; [waits: file]",
        "run; start; wait; sem_wait; [waits: condition]",
        "run; nap; [waits: sleep]",
    )
    return work, imports, *(row(names, pid, wait=10, stall=20, pid=pid) for names in waits)


@pytest.mark.parametrize("waits", [LOOKS_AFTER, TICKS, "run; pthread_cond_clockwait; [waits: condition]"])
def test_who_looks_after_processes_that_wait_for_requests_has_nothing_to_do(waits: str) -> None:
    """A server whose main process forks others that serve, and looks after them once a second (gunicorn's)."""
    serving = [row("serve; select; [waits: requests]", pid, wait=930, stall=10, pid=pid) for pid in (8, 9)]
    assert told(row(waits, 7, wait=900, stall=1700), *before(7), *serving) == (20, 1760)


def test_so_has_one_that_asks_them_whether_they_are_alive() -> None:
    """And a thread of each answers, which reads from a pair of sockets; at first they take long (uvicorn's)."""
    serving = [row("serve; select; [waits: requests]", pid, wait=930, stall=10, pid=pid) for pid in (8, 9)]
    answers = [row("pong; recv; [waits: pipe]", pid + 20, wait=930, stall=300, pid=pid) for pid in (8, 9)]
    asks = row("ping; poll; [waits: requests]", 7, wait=120)
    assert told(row(LOOKS_AFTER, 7, wait=800, stall=1100), asks, *serving, *answers) == (20, 1700)


@pytest.mark.parametrize(
    "rows",
    [
        (row("serve; select; [waits: requests]", 8, wait=300, pid=8),),  # that is not all the time
        (
            row("main; sigsuspend; [waits: requests]", 8, wait=930, pid=8),
        ),  # as timeout(1), which serves nobody
        (
            row("serve; select; [waits: requests]", 8, wait=930, pid=8),
            row("ask; recv; [waits: network]", 7, wait=1),  # it asks that one, now and then
        ),
        (
            row("serve; select; [waits: requests]", 8, wait=930, pid=8),
            row("fetch; recv; [waits: network]", 9, wait=600, pid=9),  # whom it may wait for
        ),
        (
            row("serve; select; [waits: requests]", 8, wait=930, pid=8),
            row("run; settle; nanosleep; [waits: sleep]", 7, wait=200),  # it sleeps for this and that
        ),
    ],
)
def test_who_sleeps_beside_such_processes_may_be_waited_for(rows: tuple[PathSample, ...]) -> None:
    assert told(row(TICKS, 7, wait=900, stall=1700), *rows) == (1700, 0)
