# SPDX-License-Identifier: Apache-2.0
"""Causes that are told by how threads wait, also where the machine is busy with other programs."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parprof.attribution import attribute
from parprof.causes.cause import Cause
from parprof.causes.diagnosis import Kind
from parprof.causes.ranking import causes_of, find_causes
from parprof.metrics import OUTSIDE, STALL, STOLEN, WAIT, Metrics
from parprof.model import NOBODY, Frame, Interval, Origin, PathSample, ProcessInfo, Profile, ThreadState
from profiles import frame, library

CORES = 2
_FOREIGN = re.compile(
    r"P?MPI_|__|fcntl|ompi_|_gfortran|JavaMain|pthread_|exec_blas|GOMP_|libgomp|__kmpc_|usleep|wait4|sem_|read|std::|sync\.|lock_Py"
)


def _frame(name: str) -> Frame:
    if name[0] == "[":
        return Frame(name, module="[kernel]")
    if name.startswith("loop at"):
        return replace(frame(name, 9), is_loop=True)
    return library(name) if _FOREIGN.match(name) else frame(name, 9)


def row(
    names: str,
    count: int = 0,
    n_working: float = 1,
    tid: int = 1,
    *,
    wait: float = 0,
    ready: float = 0,
    stall: float = 0,
    spin: float = 0,
    pid: int = 7,
) -> PathSample:
    """Samples of 1 ms; times in ms. ``;`` parts frames."""
    path = tuple(_frame(name.strip()) for name in names.split(";"))
    metrics = attribute(count, 1e6, n_working, CORES, ThreadState.WORKING)
    metrics[WAIT], metrics[STALL] = wait * 1e6, stall * 1e6
    metrics.ready_ns, metrics.spin_ns = ready * 1e6, spin * 1e6
    return PathSample(path, metrics, Origin(pid, "x", f"t{tid}", tid=tid))


def balanced(names: str = "main; solve", count: int = 400) -> list[PathSample]:
    return [row(names, count, CORES, tid) for tid in range(1, CORES + 1)]


def found(*rows: PathSample, runtime: str = "none") -> list[Cause]:
    return causes_of(rows, CORES, runtime)


def named(causes: Sequence[Cause]) -> set[tuple[str, Kind]]:
    return {(cause.function, cause.kind) for cause in causes}


def first(causes: Sequence[Cause]) -> tuple[Kind, str]:
    return causes[0].kind, causes[0].function


THREAD = "main; pthread_create; worker"
READS = "main; next_line; read; [waits: pipe]"


@pytest.mark.parametrize("samples", [0, 9])
def test_how_long_nobody_works_is_known_without_samples(samples: int) -> None:
    """A program that waits for a pipe nearly all the time."""
    works = [row("main; parse", samples, 1)] if samples else []
    (cause,) = found(row(READS, wait=2900, stall=5800), *works)
    assert (cause.kind, cause.function) == (Kind.STALL, "next_line")
    assert cause.interval_percent[0] > 90


def test_a_single_thread_that_mostly_waits_is_told_where() -> None:
    """That it is the only one is true as well, of the rest."""
    causes = found(row(READS, wait=2600, stall=5200), row("main; parse", 400, 1))
    assert [(one.kind, one.function) for one in causes] == [
        (Kind.STALL, "next_line"),
        (Kind.SERIAL_PROGRAM, ""),
    ]
    assert sum(one.lost_percent for one in causes) == pytest.approx(100 * 5600 / 6000)


def test_housekeeping_of_a_server_without_requests_is_no_loss() -> None:
    """A thread that looks around now and then was the last to fall asleep."""
    idle = row("main; serve; epoll_wait; [waits: requests]", wait=2900)
    tidies = row(
        f"{THREAD}; await_work; pthread_cond_timedwait; [waits: condition]", tid=2, wait=2900, stall=5000
    )
    assert found(idle, tidies, row(f"{THREAD}; tidy", 2, 1, 2)) == []
    assert first(found(tidies, row(f"{THREAD}; tidy", 2, 1, 2))) == (Kind.STALL, "await_work")


@pytest.mark.parametrize("outside", [12000, 200])
def test_what_a_server_imports_as_it_begins_is_no_loss_while_nobody_asks(outside: float) -> None:
    script = replace(frame("<module>", 3, "serve.py"), module="python")
    inside = replace(frame("_load", 1, "<frozen importlib._bootstrap>"), module="python")
    imports = replace(row("main", 150, 1), path=(script, inside))
    serves = row("main; serve; select; [waits: requests]", 5, 1, wait=outside / CORES, tid=2, pid=8)
    serves.metrics[OUTSIDE] = outside * 1e6
    assert len(found(imports, serves)) == (outside < 1000)


def test_few_samples_of_what_has_nothing_to_do_say_nothing() -> None:
    idle = row("main; serve; epoll_wait; [waits: requests]", wait=2900)
    idle.metrics[OUTSIDE] = 5600 * 1e6
    assert found(idle, row("[nobody works]", stall=300), row("main; answer", 3, 1)) == []


@pytest.mark.parametrize(
    ("works", "kind"),
    [
        ((600, 200), Kind.IMBALANCE),  # as much idleness as the first had more to do
        ((400, 400), Kind.BUSY_MACHINE),  # nothing that the program could divide better
        ((800, 100), Kind.BUSY_MACHINE),  # who had a core fetched more, and hardly any was idle
    ],
)
def test_unequal_shares_are_that_on_a_busy_machine_too(works: tuple[int, int], kind: Kind) -> None:
    idle = 400 if works != (800, 100) else 130
    rows = [row(f"{THREAD}; step", works[0] - idle, 2, 1, ready=900), row(f"{THREAD}; step", idle, 1, 1)]
    rows.append(row(f"{THREAD}; step", works[1], 2, 2, ready=700))
    if works[0] == works[1]:
        rows = [
            row(f"{THREAD}; step", count, n, tid, ready=500)
            for tid in (1, 2)
            for count, n in ((200, 1), (200, 2))
        ]
    assert first(found(*rows))[0] is kind


def test_threads_that_wait_for_each_other_at_a_barrier_are_too_many_and_hold_no_lock() -> None:
    rows = []
    for tid in range(1, 13):
        rows += [
            row(f"{THREAD}; step", 50, 1, tid, ready=80),
            row(f"{THREAD}; pthread_barrier_wait; [waits: barrier]", tid=tid, wait=90),
        ]
    (cause,) = found(*rows)
    assert cause.kind is Kind.OVERSUBSCRIBED
    assert cause.what.startswith("12 threads share 2 cores")


@pytest.mark.parametrize(
    "wait",
    [
        "pop; pthread_cond_wait; [waits: lock]",  # of profiles of before
        "pop; pthread_cond_wait; [waits: condition]",
        "pop; a_library+0x1230; [waits: condition]",
        "std::sync::mpsc::SyncSender::send; [waits: lock]",
        "read; [waits: file]",
    ],
)
def test_threads_that_wait_for_something_to_come_hold_no_lock(wait: str) -> None:
    """Consumers of a queue that is empty most of the time."""
    rows = [row(f"{THREAD}; consume", 150, 1, tid) for tid in (1, 2)]
    rows += [row(f"{THREAD}; {wait}", tid=tid, wait=500) for tid in (1, 2)]
    assert Kind.LOCK not in {cause.kind for cause in found(*balanced(), *rows)}


def test_a_lock_whose_function_is_not_known_has_no_name() -> None:
    """The stacks in which threads sleep for it are cut short."""
    rows = [row(f"{THREAD}; piece", 300, 1, tid) for tid in (1, 2)]
    rows += [row(f"{THREAD}; piece; std::outer; [waits: lock]", tid=tid, wait=300) for tid in (1, 2)]
    cut = row(f"{THREAD}; piece; std::outer; [waits: GIL]", tid=1, wait=20)
    rows.append(replace(cut, path=(*cut.path[:-2], Frame("[truncated]"), cut.path[-1])))
    (cause,) = found(*balanced(), *rows)
    assert cause.kind is Kind.LOCK and cause.what == "one works, the others wait in turn: 2 threads"


def test_the_interpreters_lock_on_a_busy_machine() -> None:
    """Whoever holds it has no core half of the time, and others' programs have what it leaves idle."""
    path = THREAD
    rows = [row(path, count, n, tid, ready=900) for tid in (1, 2) for count, n in ((150, 1), (150, 2))]
    rows += [row(f"{path}; std::interpreter; [waits: lock]", tid=tid, wait=300) for tid in (1, 2)]
    assert first(found(*rows)) == (Kind.LOCK, "worker")


def gil_rows(n_working: float, *, blame: float = 0, wait: float = 600) -> list[PathSample]:
    """One thread computes for 1000 ms, another sleeps for the interpreter's lock; at another time both compute."""
    hog = row("main; hog", 1000, n_working, 1)
    hog.metrics.blame_ns = blame * 1e6
    return [hog, *balanced(), row(f"{THREAD}; std::cond; [waits: GIL]", tid=2, wait=wait)]


@pytest.mark.parametrize("blame", [0, 600])
def test_others_wait_for_the_gil_that_the_one_who_works_has(blame: float) -> None:
    (cause, *_) = found(*gil_rows(1, blame=blame))
    assert (cause.kind, cause.function) == (Kind.LOCK, "hog")
    assert "the interpreter's lock (the GIL), which it has: 0.6 s" in cause.what
    assert "its own" not in cause.what


def test_what_is_waited_for_besides_the_gil_is_told() -> None:
    rows = gil_rows(1)
    rows.append(row(f"{THREAD}; lock_PyThread_acquire_lock; [waits: lock]", tid=3, wait=500))
    (cause, *_) = found(*rows)
    assert "0.6 s, and 0.5 s for locks of its own (who holds those is not told)" in cause.what


def test_a_short_wait_for_the_gil_is_no_reason() -> None:
    assert Kind.LOCK not in {cause.kind for cause in found(*gil_rows(1, wait=100))}


def test_who_has_the_gil_is_not_told_where_several_work_and_nobody_asked() -> None:
    """Four cores: one of the two that work may do it outside of the interpreter."""
    rows = [row("main; hog", 1000, 2, 1), row(f"{THREAD}; outside", 1000, 2, 2)]
    for one in rows:
        one.metrics.idleness_ns = one.metrics.work_ns
    rows += [row(f"{THREAD}; std::cond; [waits: GIL]", tid=tid, wait=1000) for tid in (3, 4)]
    causes = causes_of(rows, 4, "none")
    assert causes[0].kind is Kind.LOCK
    assert "which it, or what runs beside it, has" in causes[0].what


def test_who_runs_beside_the_holder_does_not_have_the_gil() -> None:
    """The same where samples showed who has it."""
    rows = [row("main; hog", 1000, 2, 1), row(f"{THREAD}; outside", 1000, 2, 2)]
    rows[0].metrics.blame_ns = 2000e6
    for one in rows:
        one.metrics.idleness_ns = one.metrics.work_ns
    rows += [row(f"{THREAD}; std::cond; [waits: GIL]", tid=tid, wait=1000) for tid in (3, 4)]
    told = {cause.function: cause.what for cause in causes_of(rows, 4, "none")}
    assert "(the GIL), which it has" in told["hog"]
    assert "GIL" not in told.get("outside", "")


def pool_rows() -> list[PathSample]:
    """What runs alone for 600 ms, then two threads of a pool that take turns, each asleep while the other runs."""
    rows = [row("main; prepare", 600, 1, 1)]
    for tid in (2, 3):
        rows += [row(THREAD, 300, 1, tid), row(f"{THREAD}; std::cond; [waits: GIL]", tid=tid, wait=300)]
    return rows


def parted(rows: Sequence[PathSample], *numbers: Sequence[int]) -> list[Interval]:
    """Rows by their numbers, one interval after the other."""
    return [
        Interval(at, at + 1, (), {one: rows[one].metrics for one in part}) for at, part in enumerate(numbers)
    ]


@pytest.mark.parametrize("is_known_when", [True, False])
def test_serial_code_is_not_the_gils_for_what_a_pool_waits_for_later(is_known_when: bool) -> None:
    """GIVEN a call of joblib's with threads THEN what the program does before it is serial code, and the call's work
    the GIL's: each other one of its threads sleeps for it."""
    rows = pool_rows()
    intervals = parted(rows, [0], [1, 2, 3, 4]) if is_known_when else []
    causes = causes_of(rows, CORES, "none", intervals=intervals)
    assert named(causes) == {("prepare", Kind.SERIAL), ("worker", Kind.LOCK)}


def test_of_two_that_never_give_the_gil_away_it_is_the_one_beside_which_others_wait() -> None:
    rows = [row("main; setup", 700, 1, 1), row("main; hog", 700, 1, 1)]
    rows.append(row(f"{THREAD}; std::cond; [waits: GIL]", tid=2, wait=700))
    causes = causes_of([*rows, *balanced()], CORES, "none", intervals=parted(rows, [0], [1, 2]))
    assert named(causes) == {("setup", Kind.SERIAL), ("hog", Kind.LOCK)}


def test_those_who_take_turns_do_so_too_where_nobody_looked_what_they_wait_for() -> None:
    """GIVEN switches that soon are too dear to follow THEN the idleness of threads that took turns is still the
    lock's."""
    rows = [*balanced(), *pool_rows()[1:], row(THREAD, 400, 1, 2), row(THREAD, 400, 1, 3)]
    rows.append(row(f"{THREAD}; [asleep, not looked where]", tid=3, wait=900))
    intervals = parted(rows, range(6), [6, 7, 8])
    causes = causes_of(rows, CORES, "none", intervals=intervals)
    assert first(causes) == (Kind.LOCK, "worker") and "0.6 s" in causes[0].what


def test_who_has_the_gil_where_threads_are_not_told_apart() -> None:
    """Those who want it do next to nothing with it, so they do not have it either."""
    rows = [row("main; hog", 1000, 1, 0), row("main; asker", 10, 1, 0)]
    rows.append(row("main; asker; std::cond; [waits: GIL]", tid=0, wait=1800))
    assert (Kind.LOCK, "hog") == first(found(*balanced(), *rows))


def test_another_processs_gil_is_nobodys_here() -> None:
    rows = [row("main; prepare", 600, 1, 1), row("main; share", 600, 2, 1, pid=8)]
    rows.append(row("main; share; std::cond; [waits: GIL]", tid=2, wait=600, pid=8))
    assert Kind.LOCK not in {cause.kind for cause in found(*balanced(), *rows)}


@pytest.mark.parametrize(("works", "kind"), [(10, Kind.SERIAL), (200, Kind.LOCK)])
def test_a_thread_that_feeds_other_processes_does_not_keep_cores_idle(works: int, kind: Kind) -> None:
    """multiprocessing.Queue: each item goes through a thread that wants the GIL for a moment; it is the other processes
    that have nothing to do, for the producer is slow."""
    rows = [row("main; produce", 550, 1, 1), row("main; produce", 300, 2, 1)]
    rows += [row("main; consume", 150, 2, tid, pid=tid) for tid in (8, 9)]
    rows += [row(f"{THREAD}; std::cond; [waits: GIL]", tid=2, wait=400), row(f"{THREAD}; feed", works, 2, 2)]
    assert first(found(*rows)) == (kind, "produce")


def test_what_a_loop_of_events_did_before_makes_it_no_rival() -> None:
    """A worker process of dask's: its first thread imports for long, and then looks around a hundred times a second,
    for which it waits for the lock each time; another process has nothing to do meanwhile."""
    rows = [
        row("main; imports", 400, 2, 1),
        row("main; combine", 800, 1, 2),
        row("main; loop; std::cond; [waits: GIL]", tid=1, wait=600),
        row("main; other", 400, 2, 9, pid=9),
        row("main; loop", 10, 2, 1),
    ]
    intervals = parted(rows, [0, 3], [1, 2, 4])
    assert first(causes_of(rows, CORES, "none", intervals=intervals)) == (Kind.SERIAL, "combine")


def test_one_process_of_a_job_that_was_attached_to_has_threads_that_feed_others() -> None:
    """Whom they feed is not seen, whose threads they are is."""
    feeder = row("main; feed; std::cond; [waits: GIL]", tid=2, wait=800)
    rows = [row("main; produce", 800, 1, 1), row("main; feed", 10, 2, 2), row("main; write", 100, 2, 3)]
    assert first(found(*rows, feeder)) == (Kind.LOCK, "produce")
    feeds = Frame("Queue._feed", "/usr/lib/python3.11/multiprocessing/queues.py", 9, module="python")
    queues = replace(feeder, path=(feeder.path[0], feeds, *feeder.path[2:]))
    assert first(found(*rows, queues)) == (Kind.SERIAL, "produce")


@pytest.mark.parametrize("begin", ["main; pthread_create; ", ""])  # attached: who created them was not seen
def test_who_takes_a_lock_that_others_sleep_for_holds_it(begin: str) -> None:
    """A writer keeps readers out for as long as it works; each function has one thread."""
    rows = [
        row(f"{begin}refresher; tell", 200, 2, 1),
        row(f"{begin}refresher; rebuild", 200, 1, 1),
        row(f"{begin}refresher; rebuild", 30, 2, 1),
        row(f"{begin}refresher; rebuild; pthread_rwlock_wrlock", 5, 1, 1),
        row(f"{begin}reader; lookup", 300, 2, 2),
        row(f"{begin}reader; lookup; pthread_rwlock_rdlock; [waits: lock]", tid=2, wait=210),
    ]
    (cause,) = found(*balanced(), *rows)
    assert (cause.kind, cause.function) == (Kind.LOCK, "rebuild")
    assert "pthread_rwlock_rdlock" in cause.what


def test_a_lock_is_held_where_it_is_taken_not_in_all_that_its_thread_does() -> None:
    """Readers go on for a while, so its thread is not quite alone."""
    rows = [
        row(f"{THREAD}; write_table; burn", 200, 1, 1),
        row(f"{THREAD}; write_table; burn", 100, 2, 1),
        row(f"{THREAD}; write_table; pthread_rwlock_wrlock", 5, 1, 1),
        row(f"{THREAD}; write_table; pthread_rwlock_wrlock; [waits: lock]", tid=1, wait=80),
        row(f"{THREAD}; burn", 20, 2, 1),
        row("main; pthread_create; asker; look_up; burn", 120, 2, 2),
        row("main; pthread_create; asker; look_up; pthread_rwlock_rdlock; [waits: lock]", tid=2, wait=210),
    ]
    (cause,) = found(*balanced(), *rows)
    assert (cause.kind, cause.function) == (Kind.LOCK, "write_table")


def test_a_thread_does_not_wait_for_a_lock_that_it_holds_itself() -> None:
    """x264's first thread copies each frame, and then sleeps for the lock of a list before it hands that over."""
    rows = [
        row("main; encode", 200, 1, 1),
        row("main; encode; pthread_mutex_lock; [waits: lock]", tid=1, wait=180),
        row(f"{THREAD}; encode_rows", 600, 2, 2),
        row(f"{THREAD}; pthread_cond_wait; [waits: condition]", tid=2, wait=200),
        row(f"{THREAD}; encode_rows", 600, 2, 3),
        row(f"{THREAD}; pthread_cond_wait; [waits: condition]", tid=3, wait=200),
    ]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.STARVED, "encode"), cause.what


def test_the_function_that_takes_a_lock_is_named_not_what_runs_meanwhile() -> None:
    rows = []
    for tid in (1, 2):
        rows += [
            row(f"{THREAD}; simulate", 150, 1, tid),
            row(f"{THREAD}; append", 60, 1, tid),
            row(f"{THREAD}; append; pthread_mutex_lock", 20, 1, tid),
            row(f"{THREAD}; append; pthread_mutex_lock; [waits: lock]", tid=tid, wait=150),
        ]
    assert first(found(*balanced(), *rows)) == (Kind.LOCK, "append")


@pytest.mark.parametrize(("waits", "told"), [("GOMP_taskwait", True), ("GOMP_barrier", False)])
@pytest.mark.parametrize("works", [(600, 400), (1000, 0)])
def test_tasks_that_are_waited_for_one_by_one_are_who_waits(
    works: Sequence[int], waits: str, told: bool
) -> None:
    """GIVEN a taskwait in the loop that creates tasks THEN the loop's function is named; whoever comes first runs the
    task, in which nothing is wrong."""
    rows = [row("main; sweep; refine", work, 1, tid) for tid, work in enumerate(works, 1) if work]
    for one in rows:
        one.physical = one.path[-1:]
    rows += [row(f"main; sweep; {waits}", tid=tid, spin=300) for tid in (1, 2)]
    (cause,) = found(*rows, *balanced(), runtime="libgomp")
    assert ((cause.kind, cause.function) == (Kind.SERIAL, "sweep")) == told
    assert ("taskwait" in cause.remedy) == told


def test_processes_that_wait_for_a_lock_in_shared_memory() -> None:
    rows = []
    for pid in (7, 8, 9):
        rows += [row("main; solve", 100, 2, pid, pid=pid), row("main; log_result", 200, 1, pid, pid=pid)]
        rows.append(row("main; log_result; pthread_mutex_lock; [waits: lock]", tid=pid, pid=pid, wait=400))
    assert first(found(*rows)) == (Kind.LOCK, "log_result")


@pytest.mark.parametrize(("small", "kind"), [(50, Kind.IMBALANCE), (220, Kind.STARVED)])
def test_threads_that_are_started_for_unequal_pieces(small: int, kind: Kind) -> None:
    """std::async, twice in each round, and main waits for both: the largest pieces are as large as each other."""
    rows = []
    for tid in range(10, 16):
        rows += [row(f"{THREAD}; integrate", 250 - small, 1, tid), row(f"{THREAD}; integrate", small, 2, tid)]
        rows.append(row(f"{THREAD}; integrate", small, 2 if kind is Kind.IMBALANCE else 1, tid + 10))
    assert first(found(*rows))[0] is kind


@pytest.mark.parametrize(("alone", "kind"), [(250, Kind.IMBALANCE), (90, Kind.STARVED)])
def test_who_of_a_pool_has_the_longest_piece_is_chance(alone: int, kind: Kind) -> None:
    """Java's ForkJoinPool, in several rounds: by their sums both threads have equal shares, but whoever has none of the
    pieces that last sleeps for as long as the other one works alone."""
    rows = []
    for tid in (8, 9):
        rows += [row("compute", alone, 1, tid), row("compute", 400, 2, tid)]
        rows.append(row("std::ForkJoinPool.awaitWork; [waits: condition]", tid=tid, wait=alone))
    spare = row("std::tick; pthread_cond_timedwait; [waits: condition]", tid=3, wait=1000)
    (cause,) = found(*rows, spare)
    assert (cause.kind, cause.function) == (kind, "compute")
    assert ("38 % of the time one alone" in cause.what) == (kind is Kind.IMBALANCE)


@pytest.mark.parametrize("begin", ["std::main; pthread_create; JavaMain", "JavaMain"])  # recorded, attached
def test_javas_main_thread_is_no_producer_between_parallel_streams(begin: str) -> None:
    """It is not the process's first one; the pool's threads have nothing to do while it is alone at work, and it takes
    part when they have."""
    rows = [row(f"{begin}; Par.main; merge", 300, 1, 8)]
    for tid, path in (
        (8, f"{begin}; Par.main; std::toArray; heavy"),
        (9, f"{begin}; Par.main; pthread_create; heavy"),
    ):
        rows.append(row(path, 400, 2, tid))
    rows.append(row("std::ForkJoinPool.awaitWork; [waits: condition]", tid=9, wait=300))
    for one in rows:
        if begin != "JavaMain":
            one.physical = one.path[3 if one.path[-1].name == "heavy" and one.origin.tid == 9 else 2 :]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "merge"), cause.what


def test_a_thread_of_java_that_makes_what_others_take_is_a_producer() -> None:
    create = "std::main; pthread_create; JavaMain; Par.main; pthread_create"
    rows = [row(f"{create}; produce", 300, 1, 9), row(f"{create}; produce", 100, 2, 9)]
    rows += [row(f"{create}; consume", 100, 2, 10)]
    rows.append(row(f"{create}; consume; pthread_cond_wait; [waits: condition]", tid=10, wait=300))
    assert first(found(*rows)) == (Kind.STARVED, "produce")


def test_very_many_threads_that_wait_in_turn_are_counted() -> None:
    """A server with a thread for each request; nobody has done much of it."""
    rows = []
    for tid in range(100, 200):
        rows += [
            row(f"{THREAD}; render", 20, 1, tid),
            row(f"{THREAD}; pthread_mutex_lock; [waits: lock]", tid=tid, wait=60),
        ]
    (cause,) = found(*rows)
    assert cause.kind is Kind.LOCK and "100 threads" in cause.what


def test_unequal_shares_are_told_where_they_are_made() -> None:
    """GIVEN one of two threads with nearly all the work, which it does alone THEN the loop that is shared out is named,
    and no function that all threads call."""
    rows = [
        row("main; grid; cell", 700, 1, 1),
        row("main; grid; cell", 100, 2, 1),
        row("main; grid; cell", 100, 2, 2),
    ]
    for one in rows:
        one.physical = one.path[-2:]
    causes = found(*rows, *balanced(), runtime="libgomp")
    assert first(causes) == (Kind.IMBALANCE, "grid")


def test_shares_of_teams_that_have_new_threads_each_time() -> None:
    """``target`` on the host: the first thread has one share of each region, a new thread the other, three times as
    large. That is no 20:1."""
    rows = [row("main; sweep; cell", 100, 2, 1)]
    for tid in range(10, 20):
        rows += [row("main; sweep; cell", 10, 2, tid), row("main; sweep; cell", 20, 1, tid)]
    for one in rows:
        one.physical = one.path[-2:]
    waiting = row("main; sweep; GOMP_parallel", tid=1, spin=200)
    (cause, *_) = found(*rows, waiting, *balanced(), runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "sweep")
    assert cause.what == "threads have unequal shares of the work"


def _in_team(rows: Iterable[PathSample], region: str) -> None:
    """Let a team run these, whose stacks begin with the body of a region in that function."""
    for one in rows:
        at = next(at for at, frame in enumerate(one.path) if frame.name == region)
        body = replace(one.path[at], name=f"{region}._omp_fn.0")
        one.physical = (body, *one.path[at + 1 :])


def _overhead(names: str, count: int, tid: int, kind: str = "create") -> PathSample:
    one = row(names, count, CORES, tid)
    one.metrics.overhead_ns = one.metrics.work_ns
    return PathSample(one.path, one.metrics, Origin(7, "x", f"t{tid}", overhead=kind, tid=tid))


def test_regions_so_small_that_whole_teams_are_in_the_runtime_are_too_fine() -> None:
    """30,000 regions of 2 us: of what is lost at them little is overhead, as all of the team spins most of the time,
    and who spins less of it looks as if it had more to do."""
    rows = [
        row("main; tiny; cell", 30, CORES, 1),
        row("main; tiny; cell", 40, 1, 1),
        row("main; tiny; cell", 55, CORES, 2),
        row("main; tiny; cell", 5, 1, 2),
        _overhead("main; tiny; GOMP_parallel", 14, 1),
        _overhead("main; tiny; libgomp.so+0x1f5e0", 21, 1, "other"),
        row("main; tiny; GOMP_parallel", spin=40, stall=25, tid=1),
        row("main; tiny; GOMP_barrier", spin=40, stall=15, tid=2),
    ]
    _in_team(rows[:4], "tiny")
    (cause,) = found(*rows, *balanced(), runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.OVERHEAD, "tiny")
    assert "creating tasks, regions or threads, or spinning" in cause.what


@pytest.mark.parametrize(("by_itself", "kind"), [(75, Kind.SERIAL), (45, Kind.STARVED)])
def test_what_runs_between_regions_is_serial_though_the_team_still_seems_to_work(
    by_itself: int, kind: Kind
) -> None:
    """Regions of 0.2 ms: who spins behind one counts as at work until a sample finds it there."""
    rows = [row("main; residual", by_itself, 1, 1), row("main; residual", 100 - by_itself, CORES, 1)]
    rows.append(row("libgomp_worker; gomp_barrier", spin=80, tid=2))
    team = balanced("main; sweep", 100)
    for one in team:
        one.physical = one.path[-1:]
    causes = found(*rows, *team, runtime="libgomp")
    assert first(causes) == (kind, "residual")


def test_overhead_of_one_thread_is_no_share_of_the_work() -> None:
    """GIVEN a region whose threads have equal shares, of which the one that starts it also has the overhead THEN they
    are not called unequal."""
    rows = [
        *(row("main; tiny; cell", 50, n_working, tid) for n_working in (1, 2) for tid in (1, 2)),
        _overhead("main; tiny; GOMP_parallel", 80, 1),
    ]
    for one in rows[:4]:
        one.physical = one.path[-2:]
    causes = found(*rows, *balanced(), runtime="libgomp")
    assert causes
    assert not any("unequal shares" in cause.what for cause in causes)


def test_one_thread_of_a_team_at_a_time_is_serial_whichever_it_is() -> None:
    """A single construct, in a region that runs ten times: now one thread has it, now the other."""
    rows = [row("main; set_up; cell", 150, 1, 1), row("main; set_up; cell", 25, 1, 2)]
    for one in rows:
        one.physical = one.path[-2:]
    waits = [row("main; set_up; GOMP_barrier; [waits: barrier]", tid=tid, wait=80) for tid in (1, 2)]
    (cause,) = found(*rows, *waits, *balanced(), runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.SERIAL, "cell")
    assert "its team waits" in cause.what


@pytest.mark.parametrize("overhead", [0, 9])
def test_a_lock_that_threads_spin_for_is_that_though_nobody_is_seen_at_work(overhead: int) -> None:
    """A critical section of 50 us: on its way from one thread to the other nobody works for much of the time, and where
    one works, samples found the other one at work not long before. It is the function's that takes the lock, not that
    of what it calls meanwhile."""
    rows = [row("main; add; cell", 66, 1, tid) for tid in (1, 2)]
    rows += [row("main; add; cell", 100, CORES, tid) for tid in (1, 2)]
    rows += [row("main; add; GOMP_critical_start", tid=tid, spin=89, stall=33) for tid in (1, 2)]
    _in_team(rows[:4], "add")
    if overhead:
        rows.append(_overhead("main; add; GOMP_critical_start", overhead, 1, "sync"))
    (cause,) = found(*rows, *balanced("main; cell"), runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.LOCK, "add")


def test_an_ordered_loop_in_which_threads_spin_for_their_turn() -> None:
    """Half of each iteration is ordered; who waits for that spins, and one thread has more samples than the other."""
    rows = [row("main; emit", 95, 1, 1), row("main; emit", 25, 1, 2)]
    rows += [row("main; emit", 180, CORES, tid) for tid in (1, 2)]
    rows += [row("main; GOMP_ordered_start", tid=tid, spin=90) for tid in (1, 2)]
    for one in rows[:4]:
        one.physical = one.path
    (cause,) = found(*rows, *balanced("main; compute"), runtime="libgomp")
    assert cause.kind is Kind.LOCK
    assert cause.what == "threads wait for their turn in an ordered loop"


def test_unequal_pieces_of_threads_that_are_started_again_and_again() -> None:
    """20 threads, two at a time: one of each pair has five times as much to do."""
    rows: list[PathSample] = []
    for tid in range(10, 30, 2):
        rows += [
            row("main; pthread_create; uneven", 4, CORES, tid),
            row("main; pthread_create; uneven", 4, CORES, tid + 1),
        ]
        rows.append(row("main; pthread_create; uneven", 16, 1, tid + 1))
    rows.append(row("main; pthread_join; [waits: thread]", tid=7, wait=200))
    (cause,) = found(*rows, *balanced())
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "uneven")
    assert cause.what == "20 threads have pieces of unequal sizes, the largest 5.0 times the smallest"


def test_pieces_of_many_threads_differ_by_chance() -> None:
    """Of 20 threads with 1 to 7 samples nobody knows whether they have equal pieces; that they wait is seen."""
    rows = [row("main; pthread_create; even", 1 + (5 * tid) % 7, 1 + tid % 2, tid) for tid in range(10, 30)]
    assert not any("unequal sizes" in cause.what for cause in found(*rows, *balanced()))


@pytest.mark.parametrize(("times", "is_told"), [(1, False), (10, True)])
def test_unequal_shares_by_chance_are_not_told(times: int, is_told: bool) -> None:
    """36 and 24 samples differ by chance in one of eight runs; 360 and 240 do not."""
    rows = [row("main; sweep; cell", 24 * times, CORES, tid) for tid in (1, 2)]
    rows.append(row("main; sweep; cell", 12 * times, 1, 1))
    for one in rows:
        one.physical = one.path[-2:]
    more = balanced(count=100)
    causes = found(*rows, *more, runtime="libgomp")
    assert any("unequal shares" in cause.what for cause in causes) is is_told


def _at(line: int, one: PathSample) -> PathSample:
    """The same with the lines of the program's function, and of its loops."""
    one.path = tuple(replace(f, line=line) if f.is_loop or f.name == "main" else f for f in one.path)
    return one


def test_who_is_blocked_is_told_at_the_line_that_waits() -> None:
    """The same function calls at another line what works alone, for less of the time."""
    rows = [_at(3, row("main; loop at 2-9; step", 300, 1))]
    rows.append(_at(8, row("main; loop at 2-9; usleep; [waits: sleep]", wait=900, stall=1800)))
    assert [(one.kind, one.function, one.line) for one in found(*rows)][0] == (Kind.STALL, "main", 8)


def test_serial_code_beside_a_region_in_the_same_function() -> None:
    """GIVEN a loop of steps with a parallel loop, of unequal shares, and a serial one THEN the serial one is that, at
    its own line: no team waits for it, and it is not in the region that begins in the same function."""
    shared = [_at(10, row("main; loop at 8-12; loop at 9-10; cell", 600, 1, 1))]
    shared += [_at(10, row("main; loop at 8-12; loop at 9-10; cell", 300, 2, tid)) for tid in (1, 2)]
    for one in shared:
        one.physical = one.path[-2:]
    serial = _at(11, row("main; loop at 8-12; loop at 11-12; cell", 400, 1, 1))
    waiting = row("main; loop at 8-12; GOMP_parallel", tid=2, spin=600)
    causes = found(*shared, serial, waiting, runtime="libgomp")
    assert [(one.kind, one.function, one.line) for one in causes] == [
        (Kind.IMBALANCE, "main", 10),
        (Kind.SERIAL, "main", 11),
    ]
    assert "its team" not in causes[1].what
    assert causes[1].remedy.startswith("run the loop at 11-12 in parallel (parallel for)")


def test_a_small_callee_does_not_stand_for_its_callers_lock() -> None:
    """Of a pool's workers: the predicate that they wait with, and the tasks that they run."""
    rows = []
    for tid in (1, 2):
        rows += [row(f"{THREAD}; pthread_mutex_lock; [waits: lock]", tid=tid, wait=300)]
        rows += [row(f"{THREAD}; pthread_mutex_lock", 150, 1, tid), row(f"{THREAD}; task", 40, 1.4, tid)]
        rows += [row(f"{THREAD}; is_ready", 30, 1, tid)]
    causes = found(*balanced(), *rows)
    assert [(cause.kind, cause.function) for cause in causes] == [(Kind.LOCK, "worker")]


def test_turns_in_an_ordered_loop() -> None:
    """The others spin in the caller until it is their turn."""
    rows = [row("main; loop; update", 150, 1, tid) for tid in (1, 2)]
    waits = [row("main; loop; GOMP_ordered_start", tid=tid, spin=140) for tid in (1, 2)]
    (cause, *_) = found(*balanced(), *rows, *waits, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.LOCK, "update")
    assert "ordered" in cause.what
    assert "after the loop" in cause.remedy


def test_threads_of_nested_teams_wait_for_their_team() -> None:
    """GIVEN teams in a team, whose threads are new ones each time, and a stripped runtime, in which a thread that spins
    may want anything WHEN those that sleep do so for the end of their regions THEN there is no lock."""
    rows = [row("main; sweep; inner; cell", 20, 1, tid) for tid in range(10, 40)]
    rows += [row("main; sweep; inner; libgomp.so.1+0x1f5e0", 2, 1, tid, spin=2) for tid in range(10, 40)]
    rows += [
        row("main; sweep; inner; GOMP_parallel; [waits: barrier]", tid=tid, wait=20) for tid in range(10, 40)
    ]
    causes = found(*rows, *balanced(), runtime="libgomp")
    assert causes and all(cause.kind is not Kind.LOCK for cause in causes)


@pytest.mark.parametrize("call", ["GOMP_doacross_wait", "__kmpc_doacross_wait"])
def test_iterations_that_wait_for_those_that_they_depend_on(call: str) -> None:
    rows = [row("main; wavefront", 150, 1.2, tid) for tid in (1, 2)]
    waits = [row(f"main; wavefront; {call}", tid=tid, spin=110) for tid in (1, 2)]
    (cause, *_) = found(*balanced(), *rows, *waits, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.LOCK, "wavefront")
    assert "depend(sink)" in cause.what


@pytest.mark.parametrize(
    ("others", "function"),
    [
        ((), "poll"),
        ((row("main; watch; usleep; [waits: sleep]", tid=9, wait=2000),), "worker"),  # it may be either
        ((row("main; watch; usleep; [waits: sleep]", tid=9, wait=20),), "poll"),
    ],
)
def test_a_stall_is_of_who_sleeps_by_itself(others: tuple[PathSample, ...], function: str) -> None:
    """Workers wait on a condition for the coordinator, which looks every 50 ms whether they are done."""
    rows = [
        row(f"{THREAD}; pthread_cond_wait; [waits: {kind}]", tid=tid, wait=900, stall=400)
        for tid, kind in ((1, "condition"), (2, "lock"))
    ]
    asleep = row("main; poll; usleep; [waits: sleep]", tid=3, wait=1500)
    causes = found(*balanced(), *rows, asleep, *others)
    assert first(causes) == (Kind.STALL, function)
    assert causes[0].lost_ns == pytest.approx(800e6)


def _started_one_by_one(threads: int, wait: float) -> list[PathSample]:
    rows = [row("main; run_all; pthread_create; handle", 10, 1, tid) for tid in range(10, 10 + threads)]
    return [*balanced(), *rows, row("main; run_all; pthread_join; [waits: thread]", wait=wait)]


def test_threads_that_are_waited_for_one_by_one_are_serial_code_of_who_starts_them() -> None:
    (cause,) = found(*_started_one_by_one(30, 290))
    assert (cause.kind, cause.function) == (Kind.SERIAL, "run_all")
    assert cause.what.startswith("30 threads work one after the other, each is waited for")


def test_work_that_threads_hand_on_is_done_one_at_a_time() -> None:
    """They wait on a condition for their turn: for no lock, and for nobody who started them."""
    rows = [row(f"{THREAD}; resume; session", 150, 1, tid) for tid in (2, 3)]
    rows += [
        row(f"{THREAD}; pthread_cond_wait; [waits: condition]", tid=tid, wait=150, stall=1) for tid in (2, 3)
    ]
    (cause,) = found(*balanced(), *rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "session")
    assert cause.what == "one thread at a time works, 2 of them in turn: the other core is idle"


_GOEXIT = "runtime.goexit.abi0; main.main"
_SYSMON = "runtime.clone.abi0; runtime.mstart1; runtime.sysmon; runtime.usleep.abi0; [waits: sleep]"


def _go_program() -> list[PathSample]:
    """A routine waits for children one after the other, on whichever thread it is. What watches Go's threads looks
    after them by the clock, and is the last to fall asleep."""
    waits = f"{_GOEXIT}; main.runTool; [waits: child]"
    return [
        *balanced(f"{_GOEXIT}; main.solve"),
        row(waits, tid=11, wait=400, stall=30),
        row(waits, tid=12, wait=430, stall=10),
        row(_SYSMON, tid=13, wait=700, stall=1400),
        row(
            "runtime.mstart1; runtime.stopm; runtime.futex.abi0; [waits: condition]",
            tid=12,
            wait=400,
            stall=200,
        ),
    ]


def test_what_a_language_does_by_the_clock_is_not_waited_for() -> None:
    (cause,) = found(*_go_program())
    assert (cause.kind, cause.function) == (Kind.STALL, "main.runTool")
    assert cause.lost_ns == pytest.approx(1640e6)


@pytest.mark.parametrize(("waited", "lost"), [(1900, 2020), (300, 0)])
def test_who_waits_for_a_lock_for_ever_hangs_whatever_a_language_does_meanwhile(
    waited: float, lost: float
) -> None:
    """Two of Java's threads wait for each other, and look again now and then; HotSpot's own wake up by the clock."""
    housekeeping = PathSample(
        (Frame("thread_native_entry(Thread*)", module="libjvm.so"), _frame("[waits: condition]")),
        row("main", wait=900, stall=2000).metrics,
        Origin(7, "x", "VM Thread", tid=9),
    )
    takes = "lambda; takeBoth; pthread_mutex_lock; [waits: lock]"
    rows = [row(takes, tid=3, wait=waited, stall=20), row(takes.replace("lambda", "other"), tid=4, wait=200)]
    causes = found(*balanced(), housekeeping, *rows)
    stalls = {cause.function: cause.lost_ns for cause in causes if cause.kind is Kind.STALL}
    assert stalls.get("takeBoth", 0) == pytest.approx(lost * 1e6)


@pytest.mark.parametrize(
    ("child", "function"),
    [
        ("sleep+0x5f20; usleep; [waits: sleep]", "main.runTool"),  # nothing there that one could change
        ("main; back_up; usleep; [waits: sleep]", "back_up"),
    ],
)
def test_of_a_child_that_sleeps_and_who_waits_for_it_that_is_named_which_has_a_name(
    child: str, function: str
) -> None:
    cause, *_ = found(*_go_program(), row(child, tid=99, pid=99, wait=800))
    assert (cause.kind, cause.function) == (Kind.STALL, function)
    assert cause.lost_ns >= 1600e6


def test_an_interpreter_whose_functions_are_not_known_is_told_what_it_waits_for() -> None:
    """HotSpot's own threads are the last to fall asleep, those by the clock, too."""
    rows = [
        row("main; JavaMain; pthread_create; [anon]; usleep; [waits: sleep]", tid=8, wait=800, stall=10),
        row("main; JavaMain; pthread_create; [anon]", 400, CORES, tid=8),
        row("main; JavaMain; pthread_create; usleep; [waits: sleep]", tid=9, wait=900, stall=900),
        row(
            "main; JavaMain; pthread_create; pthread_cond_wait; [waits: condition]",
            tid=10,
            wait=900,
            stall=500,
        ),
    ]
    rows = [replace(one, path=tuple(replace(each, module="libjvm.so") for each in one.path)) for one in rows]
    (cause,) = causes_of(rows, CORES, "none", 2.0, "/usr/bin/java")
    assert (cause.kind, cause.function) == (Kind.STALL, "")
    assert cause.lost_ns == pytest.approx(1410e6)
    assert cause.what.startswith(
        "nobody works for 0.70 s (of 2.00) while a thread waits for time to pass (sleep), in code of java itself"
    )


@pytest.mark.parametrize(
    ("parent", "function"),
    [
        ("main; convert", "convert"),  # who waits for it can start several, or do something else meanwhile
        ("dash+0x5f20", ""),  # nor can the reader change that, or anything in the child
    ],
)
def test_a_child_of_which_nothing_has_a_name_is_told_at_who_waits_for_it(parent: str, function: str) -> None:
    waits = row(f"{parent}; wait4; [waits: child]", tid=1, wait=860, stall=90)
    child = row("sleep+0x5f20; usleep; [waits: sleep]", tid=99, pid=99, wait=780, stall=1500)
    causes = found(*balanced(), waits, child)
    assert first(causes) == (Kind.STALL, function)
    assert causes[0].lost_ns == pytest.approx(1590e6 if function == "convert" else 1500e6)


@pytest.mark.parametrize("kind", ["child", "pipe"])
def test_of_programs_without_names_that_wait_for_each_other_who_began_them_is_named(kind: str) -> None:
    """`subprocess.run(["sh", "-c", ...], capture_output=True)`: a shell waits for its children, and the script for what
    they write."""
    script = row(f"main; convert; read; [waits: {kind}]", tid=1, wait=860, stall=90)
    shell = row("dash+0x5f20; wait4; [waits: child]", tid=98, pid=98, wait=800, stall=300)
    child = row("sleep+0x5f20; usleep; [waits: sleep]", tid=99, pid=99, wait=700, stall=1300)
    causes = found(*balanced(), script, shell, child)
    assert first(causes) == (Kind.STALL, "convert")
    assert causes[0].lost_ns == pytest.approx(1690e6)


@pytest.mark.parametrize("kind", ["child", "pipe"])
def test_who_waits_in_several_places_waited_where_it_did_while_the_child_slept(kind: str) -> None:
    """GIVEN a script that reads what a command writes, and later waits much longer for children that work THEN it is
    the reading that nobody worked for."""
    script = row(f"main; convert; read; [waits: {kind}]", tid=1, pid=1, wait=760)
    child = row("sleep+0x5f20; usleep; [waits: sleep]", tid=99, pid=99, wait=700, stall=1400)
    rows = [*balanced(), script, child, row("main; join; wait4; [waits: child]", tid=1, pid=1, wait=3800)]
    intervals = parted(rows, [2, 3], [0, 1, 4])
    assert first(causes_of(rows, CORES, "none", intervals=intervals)) == (Kind.STALL, "convert")


def test_who_reads_from_the_pipe_of_another_that_has_a_name_is_not_to_blame_for_a_third() -> None:
    """Two with names wait for what they read: which of them waits for the one without?"""
    readers = [row(f"main; {name}; read; [waits: pipe]", tid=at, pid=at, wait=860)
               for at, name in enumerate(("merge", "split"), 1)]  # fmt: skip
    child = row("sleep+0x5f20; usleep; [waits: sleep]", tid=99, pid=99, wait=780, stall=1500)
    cause = found(*balanced(), *readers, child)[0]
    assert (cause.kind, cause.function) == (Kind.STALL, "")
    assert "while pid 99 waits" in cause.what or "(pid 99) waits" in cause.what


@pytest.mark.parametrize(
    ("calls", "what"),
    [
        ("pthread_cond_timedwait", ", or for time to pass (pthread_cond_timedwait)"),
        (
            "std::condition_variable::wait_for<long, std::ratio<1l> >(std::unique_lock<std::mutex>&)",
            ", or for time",
        ),
        (
            "std::condition_variable::wait_until<std::chrono::time_point<int> >(int); std::cv",
            ", or for time to pass",
        ),
        ("std::sync::condvar::Condvar::wait_timeout", ", or for time to pass"),
        ("std::condition_variable::wait(std::unique_lock<std::mutex>&)", ";"),
        ("__new_sem_wait_slow64", " (sem_wait)"),
    ],
)
def test_calls_that_wait_for_a_time_at_most_are_told_in_all_languages(calls: str, what: str) -> None:
    """GIVEN the only thread of a program THEN it is not said to wait for another one alone."""
    waits = row(f"main; look; {calls}; [waits: condition]", wait=700, stall=1400)
    cause = found(*balanced(), waits)[0]
    assert f"while this waits for another thread{what}" in f"{cause.what};", cause.what


def test_routines_that_sleep_beside_the_child_may_as_well_have_been_waited_for() -> None:
    other = row(f"{_GOEXIT}; main.poll; usleep; [waits: sleep]", tid=14, wait=500)
    lost = {one.function: one.lost_ns for one in found(*_go_program(), other)}
    assert lost["main.runTool"] == pytest.approx(40e6)


def test_a_thread_cannot_sleep_elsewhere_while_it_waits_for_others() -> None:
    rows = [row(f"{THREAD}; pthread_cond_wait; [waits: lock]", tid=1, wait=900, stall=800)]
    rows.append(row("main; pause; usleep; [waits: sleep]", tid=1, wait=900))
    assert first(found(*balanced(), *rows)) == (Kind.STALL, "worker")


@pytest.mark.parametrize("kind", ["network", "file", "child"])
def test_who_only_looks_around_by_the_clock_is_not_waited_for(kind: str) -> None:
    """A progress bar is the last to fall asleep: the program waits for what another one of its threads does."""
    loads = row(f"{THREAD}; load_page; read; [waits: {kind}]", tid=2, wait=880, stall=160)
    bar = row("main; pthread_create; show_progress; usleep; [waits: sleep]", tid=3, wait=890, stall=1500)
    joins = row("main; pthread_join; [waits: thread]", wait=890, stall=100)
    causes = found(*balanced(), loads, bar, joins)
    assert first(causes) == (Kind.STALL, "load_page")
    assert causes[0].lost_ns == pytest.approx(1760e6)


def test_who_keeps_a_thread_asleep_is_of_its_own_process() -> None:
    """Another process of the job waited, too, at its beginning."""
    rows = [
        row(f"{THREAD}; write_rows; usleep; [waits: sleep]", tid=tid, wait=450, stall=50) for tid in (2, 3)
    ]
    joins = row("main; run_all; pthread_join; [waits: thread]", wait=900, stall=1000)
    shell = row("main; find_program; read; [waits: pipe]", tid=98, pid=98, wait=400)
    causes = found(*balanced(), *rows, joins, shell)
    assert first(causes) == (Kind.STALL, "write_rows")
    assert causes[0].lost_ns == pytest.approx(1100e6)


def test_who_sleeps_while_others_wait_for_threads_is_waited_for() -> None:
    bar = row("main; pthread_create; look_again; usleep; [waits: sleep]", tid=3, wait=890, stall=1500)
    joins = row("main; pthread_join; [waits: thread]", wait=890, stall=100)
    assert first(found(*balanced(), bar, joins)) == (Kind.STALL, "look_again")


def _takes_file_lock(call: str, *, ready: float = 0) -> list[PathSample]:
    """Two processes of a pool that take turns at a file."""
    rows = [row("main; worker; update_index", 400, 1, pid, pid=pid, ready=ready) for pid in (8, 9)]
    rows += [row("main; worker; prepare", 60, 2, pid, pid=pid) for pid in (8, 9)]
    waits = f"main; worker; update_index; {call}; [waits: lock]"
    return rows + [row(waits, tid=pid, pid=pid, wait=380) for pid in (8, 9)]


def test_the_interpreters_lock_is_not_the_one_of_a_file() -> None:
    """What is done while the file is locked lies below the call; that a script takes locks of its interpreter, too."""
    rows = _takes_file_lock("fcntl_flock")
    works = [
        replace(one, path=(*one.path, frame("count_words", 9, "/home/u/job.py", "python")))
        for one in rows[:2]
    ]
    (cause, *_) = found(*works, *rows[2:])
    assert "(fcntl_flock)" in cause.what and "GIL" not in cause.what


@pytest.mark.parametrize("call", ["__GI___flock", "__libc_fcntl64", "pthread_lockf", "__semtimedop"])
@pytest.mark.parametrize("ready", [0, 900])  # on a busy machine, too
def test_processes_that_take_turns_at_a_file_wait_for_its_lock(call: str, ready: float) -> None:
    (cause,) = found(*_takes_file_lock(call, ready=ready))
    assert (cause.kind, cause.function) == (Kind.LOCK, "update_index")
    assert (
        cause.what.startswith("one works, the others wait in turn: 2 processes (") and "[" not in cause.what
    )


def test_what_a_comprehension_calls_is_no_detail_of_it() -> None:
    """``[each.start() for each in processes]``: from Python 3.12 on it is no function at all."""
    rows = [row("main; <listcomp>; worker; update_index", 400, 1, pid, pid=pid) for pid in (8, 9)]
    assert first(found(*rows)) == (Kind.SERIAL, "update_index")
    alone = [row("main; summarize; summarize.<locals>.<listcomp>", 400, 1)]
    assert first(found(*balanced(), *alone)) == (Kind.SERIAL, "summarize")


def test_a_program_that_a_lock_of_a_file_is_held_for_is_told_so() -> None:
    """``flock FILE PROGRAM`` takes the lock, and another one sleeps for it meanwhile."""
    works = [row("main; compute", 200, 1, pid, pid=pid) for pid in range(10, 14)]
    waits = row("main; wait_turn; pthread_flock; [waits: lock]", tid=20, pid=20, wait=700)
    (cause,) = found(*works, waits)
    assert (cause.kind, cause.function) == (Kind.LOCK, "compute")
    assert cause.what == "other processes wait meanwhile for a lock of a file (pthread_flock): 0.7 s"
    waits.metrics[WAIT] = 100e6
    assert Kind.LOCK not in {one.kind for one in found(*works, waits)}


def test_threads_without_end_are_too_many() -> None:
    rows = [row("main; inner", 2, 1.5, tid) for tid in range(10, 150)]
    (cause,) = found(*balanced(), *rows, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.OVERSUBSCRIBED, "inner")
    assert cause.what == "at least 140 threads had a part in it, 2.0 ms of work each"


def test_a_serial_part_in_a_loop_beside_a_region_is_named_itself() -> None:
    """Both leave cores idle, one more than the other: they are two things."""
    region = [row("main; step; scan; pthread_create; scan_part", 100, 1.5, tid) for tid in (2, 3)]
    causes = found(row("main; step; load", 300, 1), *region)
    assert first(causes) == (Kind.SERIAL, "load")


SCRIPT = "/home/u/job.py"
LOOP = "/usr/lib/python3.11/asyncio/base_events.py"


@pytest.mark.parametrize(
    ("between", "function"),
    [
        ((Frame("BaseEventLoop.run_forever", LOOP, 3, 1, "python"),), "reply"),
        ((Frame("Command.main", "/v/lib/python3.11/site-packages/click/core.py", 3, 1, "python"),), "reply"),
        ((Frame("main", "/usr/lib/python3.11/unittest/main.py", 3, 1, "python"), library("call")), "reply"),
        ((library("event_base_loop"),), "reply"),
        ((library("uv_run"), library("uv__io_poll")), "reply"),
        ((library("QCoreApplication::exec()"),), "reply"),
        ((library("list_sort"),), "<module>"),
    ],
)
def test_what_an_event_loop_runs_is_no_detail_of_who_started_it(
    between: tuple[Frame, ...], function: str
) -> None:
    path = (Frame("<module>", SCRIPT, 3, 1, "python"), *between, Frame("reply", SCRIPT, 9, 1, "python"))
    metrics = attribute(300, 1e6, 1, CORES, ThreadState.WORKING)
    serial = PathSample(path, metrics, Origin(7, "x", "t1", tid=1))
    assert first(found(*balanced(), serial)) == (Kind.SERIAL, function)


@pytest.mark.parametrize(("works", "kind"), [(0, Kind.SERIAL), (150, Kind.STARVED)])
def test_threads_that_never_have_anything_to_do_are_no_consumers(works: int, kind: Kind) -> None:
    """A thread of Erlang's emulator sleeps on a condition all the time; a consumer works now and then."""
    rows = [row(f"{THREAD}; produce", 400, 1, 1)]
    rows += [row("main; pthread_create; spare; pthread_cond_wait; [waits: condition]", tid=9, wait=1500)]
    if works:
        rows += [row("main; pthread_create; spare; consume", works, CORES, 9)]
    assert first(found(*balanced(), *rows)) == (kind, "produce")


@pytest.mark.parametrize(("tid", "kind"), [(3, Kind.STARVED), (7, Kind.SERIAL)])
def test_a_producer_is_that_where_nobody_saw_its_thread_begin(tid: int, kind: Kind) -> None:
    """Attached later; 7 is the main thread."""
    rows = [row("produce", 900, 1, tid), row("produce", 100, 2, tid), row("consume", 200, 2, 9)]
    rows.append(row("consume; pthread_cond_wait; [waits: condition]", tid=9, wait=850))
    assert first(found(*balanced(), *rows)) == (kind, "produce")


@pytest.mark.parametrize(("module", "kind"), [("libjvm.so", Kind.SERIAL), ("libpool.so", Kind.STARVED)])
def test_what_collects_garbage_takes_nothing_that_a_program_makes(module: str, kind: Kind) -> None:
    """Java's collectors and compilers work beside the one thread of a program, and else wait to be needed."""
    machine = Frame("run", module=f"/usr/lib/jvm/lib/server/{module}")
    rows = [
        row("std::main; JavaMain; Sort.main", 850, 1, 8),
        row("std::main; JavaMain; Sort.main", 150, 2, 8),
    ]
    rows += [row("std::thread; std::collect", 150, 2, tid=9)]
    rows += [row("std::thread; pthread_cond_wait; [waits: condition]", tid=9, wait=850)]
    for one in rows[2:]:
        one.path = (one.path[0], machine, *one.path[1:])
    assert first(found(*rows)) == (kind, "Sort.main")


def test_who_waited_itself_before_it_worked_makes_nothing_for_others() -> None:
    """The others sleep for a time."""
    rows = [row("main; pthread_create; produce", 400, 1, 9)]
    rows += [row("main; pthread_create; produce; pthread_cond_wait; [waits: condition]", tid=9, wait=600)]
    rows += [row("main; rest", 100, 2, 7), row("main; nap; nanosleep; [waits: sleep]", tid=7, wait=900)]
    assert first(found(*balanced(), *rows)) == (Kind.SERIAL, "produce")


def test_what_a_loop_makes_is_told_at_what_makes_it() -> None:
    """A condition variable's wait that was inlined has the name of a template; its kind says what it is."""
    rows = [
        row("main; loop at pool.c:14; decode", 400, 1, 7),
        row("main; loop at pool.c:14; decode", 600, 2, 7),
    ]
    rows += [
        row("work; filter", 600, 2, 9),
        row("work; __wait<work()::{lambda()}>; [waits: condition]", tid=9, wait=400),
    ]
    (cause,) = found(*rows, *balanced())
    assert (cause.kind, cause.function) == (Kind.STARVED, "decode")
    assert cause.what == "other threads wait for what it makes"


@pytest.mark.parametrize("by_itself", [700, 850])
def test_main_makes_what_the_threads_wait_for_that_work_beside_it(by_itself: int) -> None:
    beside = 1000 - by_itself
    rows = [row("produce", by_itself, 1, 7), row("produce", beside, 2, 7), row("consume", beside, 2, 9)]
    rows.append(row("consume; pthread_cond_wait; [waits: condition]", tid=9, wait=by_itself))
    assert first(found(*balanced(), *rows)) == (Kind.STARVED, "produce")


@pytest.mark.parametrize(("together", "kind"), [(True, Kind.STARVED), (False, Kind.SERIAL)])
def test_a_pool_that_works_at_another_time_takes_nothing_that_is_made_now(together: bool, kind: Kind) -> None:
    """main sorts, while a compiler of functions works at times, and before that had a pool do something else."""
    rows = [row("sort", 780, 1, 7), row("sort", 220, 2, 7), row("std::compile", 220, 2, 9)]
    rows.append(row("consume; pthread_cond_wait; [waits: condition]", tid=8, wait=780))
    rows += [row("consume", 300, 2, 8), *balanced()]
    phases = [[0, 1, 2, 3, 4], [5, 6]] if together else [[0, 1, 2, 3], [4, 5, 6]]
    intervals = [
        Interval(at, at + 1.0, rows={number: rows[number].metrics for number in those})
        for at, those in enumerate(phases)
    ]
    (cause,) = causes_of(rows, CORES, "none", intervals=intervals)
    assert first([cause]) == (kind, "sort"), cause.what


def test_serial_code_that_others_run_beside_at_times_keeps_nobody_waiting() -> None:
    """main merges what threads of std::async made while the next of them work; nobody waits for it."""
    rows = [row("main; merge", 200, 1, 1), row("main; merge", 100, 2, 1)]
    rows += [row("main; pthread_create; count", 300, 2, tid) for tid in (2, 3)]
    rows += [row("main; merge; pthread_join; [waits: thread]", tid=1, wait=200)]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "merge")
    assert cause.what == "one thread works here, 67 % of that time alone"


@pytest.mark.parametrize(("elapsed_s", "kind"), [(0.8, Kind.OVERSUBSCRIBED), (1.6, Kind.BUSY_MACHINE)])
def test_threads_that_a_routine_goes_through_are_not_too_many(elapsed_s: float, kind: Kind) -> None:
    """Go: four threads, of which two want a core at a time, on a machine that others use."""
    rows = [
        row("main; parse", count, n, tid, ready=225)
        for tid in range(1, 5)
        for count, n in ((50, 1), (100, 2))
    ]
    (cause,) = causes_of(rows, CORES, "none", elapsed_s)
    assert cause.kind is kind


@pytest.mark.parametrize(("takes", "kind"), [(0, Kind.SERIAL), (6, Kind.LOCK)])
@pytest.mark.parametrize("unequal", [1, 5])
def test_routines_that_work_one_at_a_time_do_so_on_a_busy_machine_too(
    takes: int, kind: Kind, unequal: int
) -> None:
    """Go: no thread sleeps for a mutex, nor for a routine that goes from one thread to the next; those without a
    routine sleep in the scheduler. A third of the time the collector of garbage runs beside it."""
    rows = []
    for tid, work in ((1, 100 * unequal), (2, 100), (3, 100)):
        rows += [row("main; add", 2 * work, 1, tid, ready=5 * work), row("main; add", work, 2, tid)]
        rows.append(row("main; add; sync.(*Mutex).Lock", takes, 1, tid))
        rows.append(row("std::scheduler; [waits: condition]", tid=tid, wait=900))
    causes = found(*rows)
    assert first(causes) == (kind, "add")
    assert ("sync.(*Mutex).Lock" in causes[0].what) == (kind is Kind.LOCK)


@pytest.mark.parametrize(
    ("call", "kind"), [("pthread_mutex_lock", Kind.LOCK), ("pthread_join", Kind.STARVED)]
)
def test_more_threads_than_cores_that_wait_for_a_lock_do_so_though_two_are_awake(
    call: str, kind: Kind
) -> None:
    """Mono: of four threads that fight for a monitor one looks again before it sleeps, beside who has it."""
    place = f"{THREAD}; insert"
    rows = [row(place, count, n, tid) for tid in range(1, 5) for count, n in ((100, 1), (110, 2))]
    rows += [row(f"{place}; {call}; [waits: lock]", tid=tid, wait=400) for tid in range(1, 5)]
    (cause,) = found(*balanced("main; solve", 100), *rows)
    assert cause.kind is kind


@pytest.mark.parametrize(("work", "function"), [(300, "fetch"), (4, "next_item")])
@pytest.mark.parametrize("pids", [(8,), (8, 9)])
def test_who_reads_for_others_in_another_process_is_waited_for(
    pids: Sequence[int], work: int, function: str
) -> None:
    """A loader's processes sleep, or read, for each item, and who takes the items waits for a pipe; not so for a
    process that does nothing else."""
    rows = [row("main; step", 300, 1, 7, pid=7)]
    rows.append(row("main; next_item; read; [waits: pipe]", tid=7, pid=7, wait=900, stall=800))
    for pid in pids:
        rows.append(row("main; worker; augment", work // len(pids), 1, pid, pid=pid))
        rows.append(row("main; worker; fetch; usleep; [waits: sleep]", tid=pid, pid=pid, wait=420))
    stalls = [cause for cause in found(*rows) if cause.kind is Kind.STALL]
    assert [cause.function for cause in stalls] == [function]


@pytest.mark.parametrize(
    ("kind", "slept", "waits", "function"),
    [
        ("sleep", 900, 3600, "load_step"),
        ("file", 900, 3600, "load_step"),
        ("sleep", 4500, 1000, "worker"),  # it looks again and again whether they are done
        ("sleep", 900, 0, "worker"),  # it has nothing to do with them
    ],
)
def test_who_hands_out_work_to_processes_and_sleeps_in_between_is_waited_for(
    kind: str, slept: float, waits: float, function: str
) -> None:
    """A pool of processes has nothing to do while its master sleeps, or reads: its processes wait in turn for the next
    piece, one for the pipe that it comes through, the other for that one's lock, and are the last to fall asleep."""
    rows = [
        row(f"main; load_step; read; [waits: {kind}]", tid=7, wait=slept, stall=600),
        row("main; map_all; pthread_cond_wait; [waits: condition]", tid=7, wait=waits),
        row("main; pthread_create; take_results; read; [waits: pipe]", tid=70, wait=4600),
    ]
    for pid in (8, 9):
        rows.append(row("main; start; worker; score", 1000, 1.5, pid, pid=pid))
        rows.append(row("main; start; worker; read; [waits: pipe]", tid=pid, pid=pid, wait=900))
        asleep = "main; start; worker; sem_wait; [waits: condition]"
        rows.append(row(asleep, tid=pid, pid=pid, wait=600, stall=600))
    causes = [cause for cause in found(*rows) if cause.kind is Kind.STALL]
    assert causes[0].function == function
    if function == "load_step":
        assert [cause.lost_ns for cause in causes] == pytest.approx([1800e6])


@pytest.mark.parametrize(
    ("program", "alone", "function"),
    [
        ("/usr/bin/make", ("expand", "instantiate", "analyze"), ""),
        ("make", ("cc1plus+0x10", "cc1plus+0x90"), ""),
        ("make", ("expand",), "expand"),  # one function stands out: the reader's own program may have it
        ("/usr/libexec/cc1plus", ("expand", "instantiate", "analyze"), "analyze"),  # it is what was run
    ],
)
def test_a_compiler_that_a_build_waits_for_is_told_with_the_file_not_by_its_functions(
    program: str, alone: Sequence[str], function: str
) -> None:
    """A build's last and longest file: its reader can change no function of the compiler's."""

    def compiles(name: str, count: int, n_working: int, pid: int) -> PathSample:
        one = row(f"main; {name}", count, n_working, pid, pid=pid)
        one.path = tuple(Frame(f.name, module="cc1plus") for f in one.path)
        return replace(one, origin=Origin(pid, "cc1plus", "cc1plus", tid=pid))

    rows = [compiles("parse", 200, 2, pid) for pid in (21, 22)]
    rows += [compiles(name, 300, 1, 23) for name in alone]
    called = ProcessInfo(23, "cc1plus", "cc1plus -quiet -D_GNU_SOURCE src/long.cc -o c.s")
    causes = causes_of(rows, CORES, "none", program=program, processes=[called])
    assert first(causes) == (Kind.SERIAL, function)
    assert ("cc1plus (pid 23) on long.cc, works" in causes[0].what) is (function == "")
    assert sum(one.lost_ns for one in causes) == pytest.approx(300e6 * len(alone))
    assert len(causes) == (len(alone) if function else 1)


@pytest.mark.parametrize(
    ("alone", "beside", "kind", "what"),
    [
        (400, 0, Kind.SERIAL, "processes run one after the other, cc1plus most of that time"),
        (200, 400, Kind.IMBALANCE, "24 processes run it, 33 % of that time one alone"),
    ],
)
def test_many_short_processes_that_are_told_as_one_are_no_thread(
    alone: int, beside: int, kind: Kind, what: str
) -> None:
    """A build: without -j, and one whose last files are the longest."""
    rows = [row(f"main; {name}", alone, 1, 30, pid=30) for name in ("expand", "parse")]
    rows += [row(f"main; {name}", beside, 2, 30, pid=30) for name in ("expand", "parse") if beside]
    for one in rows:
        one.path = tuple(Frame(f.name, module="cc1plus") for f in one.path)
    rows = [replace(one, origin=Origin(30, "cc1plus", "cc1plus", tid=30)) for one in rows]
    many = ProcessInfo(30, "cc1plus", "cc1plus f17.cc", others=23)
    (cause,) = causes_of(rows, CORES, "none", program="make", processes=[many])
    assert (cause.kind, cause.what) == (kind, what)


def test_a_function_that_loses_in_two_ways_has_two_causes() -> None:
    """Threads are started and joined one by one; later two have unequal shares of the same work."""
    rows = [row("main; one_by_one; pthread_create; score", 12, 1, tid) for tid in range(101, 141)]
    rows.append(row("main; one_by_one; pthread_join; [waits: thread]", tid=7, wait=480))
    rows += [row("main; share; pthread_create; score", 100, 2, tid) for tid in (2, 3)]
    rows += [row("main; share; pthread_create; score", 400, 1, 3)]
    rows.append(row("main; share; pthread_join; [waits: thread]", tid=7, wait=500))
    assert named(found(*rows)) == {("one_by_one", Kind.SERIAL), ("score", Kind.IMBALANCE)}


def routine(names: str, alone: int, beside: int) -> list[PathSample]:
    """What routines of Go's do, on whichever of two threads: ms of work alone, and beside others."""
    rows = [row(f"runtime.goexit.abi0; {names}", alone // 2, 1, tid) for tid in (1, 2)]
    return rows + [row(f"runtime.goexit.abi0; {names}", beside // 2, 2, tid) for tid in (1, 2)]


SPARE = row("runtime.mcall; runtime.futex.abi0; [waits: condition]", tid=2, wait=500)
"""A thread without a routine."""


@pytest.mark.parametrize(("alone", "beside"), [(600, 400), (880, 120)])
def test_a_routine_that_others_send_to_is_in_their_way(alone: int, beside: int) -> None:
    """Go: producers make their next piece beside it, then wait to send it; no thread sleeps for that."""
    (cause,) = found(*routine("consume", alone, beside), *routine("produce", 0, beside), SPARE)
    assert first([cause]) == (Kind.SERIAL, "consume")
    told = f"one routine at a time works here, {alone // 10} % of that time alone"
    assert cause.what.startswith(told)


def test_threads_that_run_processes_of_erlangs_are_in_no_process() -> None:
    """Its schedulers' creation is seen: what they run is as a rule what somebody created for it."""
    rows = [row(f"{THREAD}; server", works, n, tid) for tid in (1, 2) for works, n in ((300, 1), (150, 2))]
    rows += [row(f"{THREAD}; client", 150, 2, tid) for tid in (1, 2)]
    rows += [row(f"{THREAD}; erts_schedule; [waits: condition]", tid=tid, wait=300) for tid in (1, 2)]
    (cause,) = found(*rows)
    assert first([cause]) == (Kind.SERIAL, "server")
    assert cause.what.startswith("one routine at a time works here, 67 % of that time alone")


@pytest.mark.parametrize(("runtime", "kind"), [("onetbb", Kind.SERIAL), ("none", Kind.IMBALANCE)])
def test_a_serial_stage_of_a_flow_graph_is_no_imbalance(runtime: str, kind: Kind) -> None:
    """oneTBB: whichever thread is free has the stage that lets one in; it is beside the other stage for some time.
    Threads that a program starts itself have their shares of a function for good."""
    rows = [row("main; std::task; write_out", works, n, 1) for works, n in ((300, 1), (100, 2))]
    rows += [row("main; std::task; write_out", works, n, 2) for works, n in ((100, 1), (120, 2))]
    rows += [row("main; std::task; decode", 110, 2, tid) for tid in (1, 2)]
    (cause,) = found(*rows, runtime=runtime)
    assert first([cause]) == (kind, "write_out")


def test_a_program_of_gos_in_the_same_job_hides_no_other_ones_threads() -> None:
    """A script that runs a tool of Go's, then a program whose two threads have unequal shares."""
    rows = [*routine("fetch", 100, 200), SPARE]
    rows += [
        row("main; pthread_create; part", works, n, tid, pid=9)
        for tid, works, n in ((1, 150, 2), (2, 150, 2), (2, 400, 1))
    ]
    causes = [cause for cause in found(*rows) if cause.function == "part"]
    assert [cause.kind for cause in causes] == [Kind.IMBALANCE]
    assert "3.7:1" in causes[0].what


def test_what_routines_do_one_at_a_time_is_told_below_what_all_of_them_do() -> None:
    """Go: a pool's routines take a mutex in one function, for most of the time; a helper does the work there, and a
    little of what they do without it."""
    (cause,) = found(*routine("worker; add; sum", 600, 100), *routine("worker; sum", 0, 100), SPARE)
    assert first([cause]) == (Kind.SERIAL, "add")


def test_unequal_routines_are_in_nobodys_way() -> None:
    """Go: both do the same, one of them five times as much; the threads have equal shares."""
    rows = [*routine("part", 800, 400), SPARE]
    (cause,) = found(*rows)
    assert first([cause]) == (Kind.IMBALANCE, "part")
    assert ":1" not in cause.what


def test_what_ran_at_another_time_was_no_routines_company() -> None:
    """The same behind a phase in which all cores are busy: at that time nothing else ran beside the unequal ones."""
    before, after = routine("solve", 0, 1200), [*routine("part", 800, 400), SPARE]
    rows = [*before, *after]
    numbers = range(len(before)), range(len(before), len(rows))
    intervals = [
        Interval(at, at + 1.0, rows={number: rows[number].metrics for number in those})
        for at, those in enumerate(numbers)
    ]
    (cause,) = causes_of(rows, CORES, "none", intervals=intervals)
    assert first([cause]) == (Kind.IMBALANCE, "part")


def test_pools_processes_are_not_told_to_be_processes() -> None:
    """multiprocessing.Pool: the parent makes and pickles what the others work on. Its own idle threads want the GIL."""
    rows = [row("main; score", 600, 1, 1, pid=7), row("main; score", 200, 2, 1, pid=7)]
    rows += [row("main; score", 300, 2, tid, pid=tid) for tid in (8, 9)]
    rows += [row("main; score; std::cond; [waits: GIL]", tid=2, wait=700, pid=7)]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "score")
    assert cause.what == "one of 3 processes, t1 (pid 7), does 57 % of the work here, and 75 % of that alone"


@pytest.mark.parametrize(("withheld_s", "kind"), [(0.1, Kind.IMBALANCE), (0.4, Kind.BUSY_MACHINE)])
def test_a_machine_that_gave_its_cores_was_not_busy(withheld_s: float, kind: Kind) -> None:
    """A compressor's two workers, the last piece of one of them, and a thread that does a little now and then: with it
    there are more threads than cores at times."""
    rows = [row(f"{THREAD}; pack", 300, 2, tid, ready=500) for tid in (1, 2)]
    rows.append(row(f"{THREAD}; pack", 400, 1, 1, ready=100))
    rows[1].metrics.add(row("pack", 250, 2, 2).metrics)
    (cause,) = causes_of(rows, CORES, "none", 1.0, withheld_s=withheld_s)
    assert cause.kind is kind


@pytest.mark.parametrize(
    ("works", "ready", "kind"),
    [
        ((900, 900), (400, 10), Kind.IMBALANCE),
        (
            (600, 900),
            (400, 10),
            Kind.BUSY_MACHINE,
        ),  # equal shares: it is who lacked a core before that is alone later
        ((900, 900), (10, 400), Kind.BUSY_MACHINE),
        ((900, 900), (200, 200), Kind.BUSY_MACHINE),
    ],
)
def test_a_machine_that_was_busy_before_did_not_bring_about_the_longer_piece_at_the_end(
    works: tuple[int, int], ready: tuple[int, int], kind: Kind
) -> None:
    """Two workers of a compressor, one of which has the last block alone; ``ready``: how long each lacked a core while
    both worked, and at the end."""
    rows = [row(f"{THREAD}; pack", count, 2, tid, ready=ready[0]) for tid, count in enumerate(works, 1)]
    rows.append(row(f"{THREAD}; pack", 300, 1, 1, ready=2 * ready[1]))
    intervals = parted(rows, [0, 1], [2])
    (cause,) = causes_of(rows, CORES, "none", 1.5, withheld_s=0.8, intervals=intervals)
    assert cause.kind is kind


@pytest.mark.parametrize(("wait", "told"), [("page fault", True), ("file", True), ("lock", False)])
def test_a_program_that_is_read_in_from_disk_before_it_runs(wait: str, told: bool) -> None:
    """The loader's stacks have no function of the program's."""
    loading = row(f"std::memset; [waits: {wait}]", stall=500)
    causes = found(*balanced(), loading)
    assert bool(causes) == told
    for cause in causes:
        assert (cause.kind, cause.function, cause.lost_ns) == (Kind.STALL, "", pytest.approx(500e6))
        assert cause.what.startswith("nobody works for 0.25 s while files are read in")


@pytest.mark.parametrize(
    ("withheld_s", "of"),
    [(math.inf, "(of 2.00)"), (0.4, "(of 2.00)"), (1.5, "(of 1.25 that it was given)"), (3.8, "(of 2.00)")],
)
def test_how_long_nobody_works_is_of_the_time_that_shares_are_of(withheld_s: float, of: str) -> None:
    """What others had of two cores counts in neither; where an account says that they had nearly all, it is none."""
    rows = [*balanced(), row("main; read; [waits: file]", stall=1000)]
    (cause,) = causes_of(rows, CORES, "none", 2.0, withheld_s=withheld_s)
    assert cause.what.startswith(f"nobody works for {1 / CORES:.2f} s {of} while")


@pytest.mark.parametrize(
    ("ready", "spun", "kind"),
    [(900, 300, Kind.BUSY_MACHINE), (900, 0, Kind.STALL), (20, 300, Kind.STALL)],
)
def test_who_looks_in_by_the_clock_does_not_hold_up_threads_that_spin_for_one_without_a_core(
    ready: float, spun: float, kind: Kind
) -> None:
    """joblib's threads below OpenBLAS's pool, on a busy machine: whose worker has something to do has no core."""
    naps = row("main; collect; usleep; [waits: sleep]", stall=400)
    spins = row(f"{THREAD}; piece; exec_blas", tid=2, spin=spun, stall=spun)
    causes = found(*balanced(f"{THREAD}; piece"), row(f"{THREAD}; piece", ready=ready), naps, spins)
    assert next(one.kind for one in causes if one.function == "collect") is kind


@pytest.mark.parametrize("name", ["PMPI_Init", "ompi_mpi_finalize", "_gfortran_caf_init", "MPI_Init_thread"])
@pytest.mark.parametrize("stall", [400, 40])
def test_mpi_takes_its_time_to_start(name: str, stall: float) -> None:
    """Its ranks nap until all are there: nothing that the program could do better, and little of a run of seconds."""
    causes = causes_of([*balanced(), row(f"main; {name}; [waits: sleep]", stall=stall)], CORES, "mpi", 1.0)
    assert len(causes) == (stall == 400)
    for cause in causes:
        assert (cause.kind, cause.what) == (
            Kind.STALL, "nobody works for 0.20 s (of 1.00) while MPI is started or ended"
        )  # fmt: skip
        assert cause.remedy.endswith("measure a longer one")


@pytest.mark.parametrize("name", ["ar+0x58b0", "scan"])
def test_tools_that_are_read_in_from_disk_are_told_as_such(name: str) -> None:
    """make starts programs that nobody has symbols of, for the first time; a program that scans a file it maps is
    another thing."""
    (cause,) = found(*balanced(), row(f"main; {name}; read; [waits: page fault]", stall=400))
    assert (cause.kind, cause.lost_ns) == (Kind.STALL, pytest.approx(400e6))
    assert cause.function == ("scan" if name == "scan" else "")
    assert ("measure again" in cause.remedy) == (name != "scan")


def _unseen(ms: float) -> PathSample:
    return replace(row("main", stall=ms), path=NOBODY)


@pytest.mark.parametrize("outside", [True, False])
def test_what_nobody_saw_comes_after_what_is_lost_where_the_rest_had_nothing_to_do(outside: bool) -> None:
    """A web server under load: in most of the stacks that could be afforded it waits for requests."""
    waits = row("main; epoll_wait; [waits: requests]", wait=200)
    waits.metrics[OUTSIDE if outside else STALL] = 400e6
    rows = [*balanced(), row("main; prepare", 250, 1), _unseen(400), waits]
    causes = found(*rows)
    told = [one for one in causes if "not seen" in one.what]
    assert len(told) == 1 and (causes[0].function == "prepare") == outside
    assert ("there was nothing to do" in told[0].what) == outside


def test_what_was_not_left_out_needs_no_budget() -> None:
    """Sessions of a database that slept when we attached to it."""
    rows = [*balanced(), _unseen(400)]
    (dear,) = causes_of(rows, CORES, "none", 1.0)
    assert "--budget 20" in dear.remedy
    (seen,) = causes_of(rows, CORES, "none", 1.0, left_out=False)
    assert "budget" not in seen.remedy and "measure for longer" in seen.remedy
    profile = Profile(
        ProcessInfo(7, cores=CORES), 1.0, 1000, rows, extra={"ticks": "0", "placeless_waits": "0"}
    )
    assert [one.remedy for one in find_causes(profile)] == [seen.remedy]
    profile = replace(profile, extra={"ticks": "9", "placeless_waits": "0"})
    assert [one.remedy for one in find_causes(profile)] == [dear.remedy]


@pytest.mark.parametrize(("kind", "told"), [("requests", True), ("network", False)])
def test_a_server_that_was_seen_to_wait_for_requests_may_have_had_nothing_to_do(
    kind: str, told: bool
) -> None:
    """memcached, of which it was too dear to see all waits."""
    waiting = [row(f"main; event_base_loop; [waits: {kind}]", tid=tid, wait=200) for tid in (1, 2)]
    spare = row("main; maintain; [waits: condition]", tid=9, wait=4000)
    (cause,) = causes_of([*balanced(), *waiting, spare, _unseen(400)], CORES, "none", 1.0)
    assert ("waited for requests" in cause.what) is told and "--budget 20" in cause.remedy


@pytest.mark.parametrize(("outside", "told"), [(300, True), (50, False)])
def test_where_most_of_what_was_seen_was_outside_the_rest_may_have_been_too(
    outside: float, told: bool
) -> None:
    """RabbitMQ without clients: its schedulers wait for each other, one of them for requests."""
    idle = row("beam; erts_poll_wait; [waits: requests]")
    idle.metrics[OUTSIDE] = outside * 1e6
    waits = row("beam; ethr_event_twait; [waits: condition]", tid=2, stall=60, wait=4000)
    (cause,) = (one for one in found(*balanced(), idle, waits, _unseen(400)) if not one.function)
    assert ("for 83 % of that time there was nothing to do" in cause.what) is told
    assert (
        "if that is all, there was nothing to do" in cause.remedy
    ) is told and "--budget 20" in cause.remedy


@pytest.mark.parametrize(("without_core", "kind"), [(1600, Kind.BUSY_MACHINE), (700, Kind.STARVED)])
def test_threads_that_spin_in_several_places_lacked_cores_in_all_of_them(
    without_core: float, kind: Kind
) -> None:
    """IQ-TREE, two threads, regions of some 10 us: four fifths of its CPU time is spun, more than others' programs
    explain."""
    spinning = [
        row(f"main; {name}; GOMP_parallel", stall=1300, spin=700, tid=tid)
        for tid, name in ((1, "optimize"), (1, "search"))
    ]
    lacking = row("main; solve", 0, ready=without_core)
    for one in spinning:
        one.metrics.add(Metrics(700))
    causes = found(*balanced(), *spinning, lacking, runtime="libgomp")
    assert {cause.kind for cause in causes if cause.function != "solve"} == {kind}


def test_a_thread_whose_creation_was_not_seen_is_one_all_the_same() -> None:
    """Attached later: the lock is named where it is held, as in a run that was recorded."""
    rows = [
        row("worker_loop; loop at pool.cpp:12; operator(); cached_price; crunch", 150, 1, tid)
        for tid in (2, 3)
    ]
    rows += [row("worker_loop; loop at pool.cpp:12; operator(); crunch", 40, CORES, tid) for tid in (2, 3)]
    waits = [
        row(
            "worker_loop; loop at pool.cpp:12; operator(); cached_price; pthread_mutex_lock; [waits: lock]",
            tid=tid,
            wait=140,
        )
        for tid in (2, 3)
    ]
    waits += [
        row("worker_loop; loop at pool.cpp:12; pthread_cond_wait; [waits: condition]", tid=tid, wait=30)
        for tid in (2, 3)
    ]
    (cause,) = found(*rows, *waits)
    assert (cause.kind, cause.function) == (Kind.LOCK, "cached_price")


def test_who_takes_from_a_queue_is_known_in_a_program_that_was_attached_to() -> None:
    works = row("main::{{closure}}; loop at x.rs:5; compress_row", 400, 1.1, tid=2)
    waits = row("produce; crossbeam_channel::channel::Sender<T>::send; [waits: condition]", tid=3, wait=390)
    (cause,) = found(works, row("produce; make_row", 100, CORES, tid=3), waits)
    assert (cause.kind, cause.function) == (Kind.STARVED, "compress_row")


@pytest.mark.parametrize("render", [0, 30])
def test_a_function_that_all_threads_call_in_the_same_way_is_no_helper(render: int) -> None:
    """uWSGI: the main thread serves requests as the others do, by a call path of its own, and runs a script by a
    library for that."""
    script = "/home/u/app/app.py"
    runs = library("python_call"), Frame("application", script, 3, 1, "python")
    rows = []
    for tid, begins in ((7, "main; run; serve"), (2, "serve"), (3, "serve")):
        rows.append(row(f"{begins}; accept; __epoll; [waits: lock]", tid=tid, wait=90, stall=60))
        for one, name in (
            (row(f"{begins}; handle", 8, 1, tid), "cached"),
            (row(f"{begins}; handle", render, CORES, tid), "render"),
        ):
            rows.append(replace(one, path=(*one.path, *runs, Frame(name, script, 7, 1, "python"))))
        lock = row("pthread_mutex_lock; [waits: lock]", tid=tid, wait=400, stall=400)
        rows.append(replace(lock, path=(*rows[-2].path, *lock.path)))
    assert first(found(*rows)) == (Kind.STALL, "cached")


def test_threads_that_sleep_in_turn_with_a_lock_in_one_function_kept_each_other_waiting() -> None:
    """Whatever they began with: of each it is a third, but together they slept all of the time."""
    rows = []
    for tid, begins in ((7, "main; run; serve"), (2, "serve"), (3, "serve")):
        cached = f"{begins}; application; cached"
        rows += [
            row(cached, 20, 1, tid),
            row(f"{cached}; pthread_mutex_lock; [waits: lock]", tid=tid, wait=600, stall=570),
            row(f"{cached}; usleep; [waits: sleep]", tid=tid, wait=300, stall=30),
        ]
    causes = found(*rows)
    assert first(causes) == (Kind.STALL, "cached") and "for time to pass (usleep)" in causes[0].what


@pytest.mark.parametrize(("server", "told"), [(1, True), (2, False)])
def test_who_serves_requests_and_sleeps_for_each_does_not_only_tidy_up(server: int, told: bool) -> None:
    """A few samples only: who waits for requests is blocked by its own sleep, but not by that of a thread that tidies
    up."""
    rows = [
        row("main; handle", 5, 1, 1),
        row("main; handle; look_up; usleep; [waits: sleep]", tid=1, wait=600, stall=1100),
        row("main; serve; __poll; [waits: requests]", tid=server, wait=300),
    ]
    assert [first([one]) for one in found(*rows)] == [(Kind.STALL, "look_up")] * told


@pytest.mark.parametrize(
    ("sleep", "beside", "told"),
    [
        ("main; fetch; usleep; [waits: sleep]", [], "t9 (pid 9) for time to pass in fetch (usleep)"),
        ("slow+0x10; usleep; [waits: sleep]", [], "t9 (pid 9) for time to pass (usleep)"),
        ("main; fetch; read; [waits: network]", [], "t9 (pid 9) for the network in fetch (read)"),
        ("main; fetch; read; [waits: pipe]", [], ""),
        ("main; fetch; usleep; [waits: sleep]", ["main; log; usleep; [waits: sleep]"], ""),
    ],
)
def test_what_the_writer_of_a_pipe_waits_for_is_told_with_who_reads_it(
    sleep: str, beside: Sequence[str], told: str
) -> None:
    """``slow | use``: the writer does next to none of the work, so it is not named itself, but it alone slept."""
    rows = [row("main; digest", 200, 1, 8, pid=8), row(sleep.rpartition("; ")[0], 2, 1, 9, pid=9)]
    rows.append(row("main; read; [waits: pipe]", tid=8, pid=8, wait=800, stall=1600))
    rows += [row(name, tid=pid, pid=pid, wait=700) for pid, name in enumerate([sleep, *beside], 9)]
    (cause,) = [one for one in found(*rows) if one.kind is Kind.STALL]
    assert cause.function == "main" and "for a pipe (read)" in cause.what
    assert (f"(read), and {told}" if told else "waits for a pipe (read)") in cause.what
    assert ("if that one writes" in cause.remedy) == ("meanwhile" in cause.what) == bool(told)


GO = "clone; runtime.mstart"
CGO = "_cgo_sys_thread_start; threadentry; runtime/cgo(.text); runtime.mstart1"
NETPOLL = "runtime.findRunnable; runtime.netpoll; runtime.epollwait.abi0; [waits: network]"


@pytest.mark.parametrize("monitor", [GO, CGO])
def test_a_go_program_that_waits_for_an_answer_is_told_so(monitor: str) -> None:
    """Its own thread, which looks after the others by the clock, is the last to sleep; what waits for the network goes
    from thread to thread, and none of its routines is on a stack."""
    (cause,) = found(
        *balanced(count=300),
        row(
            f"{monitor}; runtime.sysmon; runtime.notetsleep; [waits: condition]", tid=2, wait=900, stall=1800
        ),
        row(f"{GO}; runtime.mcall; runtime.park_m; {NETPOLL}", tid=3, wait=500),
        row(f"runtime.goexit0; {NETPOLL}", tid=4, wait=350),
    )
    assert (cause.kind, cause.function) == (Kind.STALL, "")
    assert "waits for the network, below no function of the program's (as schedulers" in cause.what


def test_a_library_that_naps_below_nothing_of_the_programs_is_no_cause() -> None:
    """Open MPI while it starts, in a process of its own."""
    assert (
        found(*balanced(count=300), row("std::progress; usleep; [waits: sleep]", tid=2, wait=300, stall=600))
        == []
    )


def test_who_waits_for_the_thread_that_asks_waits_for_the_network() -> None:
    causes = found(
        *balanced(count=300),
        row("main; result; pthread_cond_wait; [waits: condition]", wait=900, stall=1800),
        row("main; pthread_create; fetch; read; [waits: network]", tid=2, wait=890),
    )
    assert first(causes) == (Kind.STALL, "fetch") and "for the network" in causes[0].what


def test_a_build_that_runs_one_process_after_the_other_does_so_on_a_busy_machine_too() -> None:
    """``make`` without ``-j``: nobody worked beside any of them, nor wanted to."""
    rows = [row("main; compile", 100, 1, pid, ready=150, pid=pid) for pid in range(10, 20)]
    for one in rows:
        one.metrics[STOLEN] = 150e6
    (cause,) = causes_of(rows, CORES, "none", 2.5, withheld_s=3)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "compile")
    assert cause.what == "10 processes run it one after the other"


@pytest.mark.parametrize(("elapsed_s", "kind"), [(1.215, Kind.BUSY_MACHINE), (0.9, Kind.OVERSUBSCRIBED)])
def test_processes_of_which_two_run_at_a_time_are_not_too_many(elapsed_s: float, kind: Kind) -> None:
    """``xargs -P2`` on two cores, of which others had three quarters; and three at a time."""
    rows = [row("main; compress", 70, 2, pid, ready=300, pid=pid) for pid in range(10, 16)]
    rows += [row("main; compress", 30, 1, pid, ready=5, pid=pid) for pid in range(10, 16)]
    (cause,) = causes_of(rows, CORES, "none", elapsed_s, withheld_s=1.5)
    assert cause.kind is kind
    assert ("6 processes share 2 cores" in cause.what) == (kind is Kind.OVERSUBSCRIBED)


def test_processes_that_run_one_after_the_other_are_one_cause_whatever_they_do() -> None:
    """A compiler: its reader can change none of its functions."""
    rows = [row(f"main; {what}", 100, 1, pid, pid=pid) for pid in range(10, 20) for what in ("parse", "emit")]
    rows += balanced(count=3000)
    rows = [replace(one, origin=one.origin._replace(thread="cc1")) for one in rows]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function, cause.lost_ns) == (Kind.SERIAL, "", pytest.approx(2000e6))
    assert cause.what == "processes run one after the other, cc1 most of that time"
    assert "make -j" in cause.remedy


def test_regions_that_are_next_to_empty_are_too_fine_where_hardly_any_work_is_in_them() -> None:
    """Most of what is lost is neither overhead nor idleness: all spin, on their way into a region or out of it."""
    place = "main; axpy"
    rows = [_overhead(f"{place}; GOMP_parallel", 140, 2, "create"), row(place, 80, 1)]
    rows += [row(f"{place}; libgomp_barrier", spin=200, stall=370, tid=tid) for tid in (1, 2)]
    (cause,) = found(*balanced(), *rows, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.OVERHEAD, "axpy")


@pytest.mark.parametrize(("wait", "kind"), [("barrier", Kind.IMBALANCE), ("lock", Kind.STARVED)])
@pytest.mark.parametrize("ready", [0, 75])
def test_long_pieces_by_turns_are_an_imbalance_though_all_have_as_much_in_the_end(
    wait: str, kind: Kind, ready: int
) -> None:
    """But on a busy machine who is late may have had no core."""
    rows = [
        row(f"{THREAD}; step", count, n, tid, ready=ready)
        for tid in (1, 2)
        for count, n in ((250, 1), (250, 2))
    ]
    call = "pthread_barrier_wait" if wait == "barrier" else "pthread_join"
    rows += [row(f"{THREAD}; {call}; [waits: {wait}]", tid=tid, wait=250) for tid in (1, 2)]
    (cause,) = found(*balanced(count=100), *rows)
    assert cause.kind is (Kind.STARVED if ready else kind)


@pytest.mark.parametrize(
    ("call", "kind"), [("libgomp_barrier_wait_end", Kind.IMBALANCE), ("solve", Kind.STARVED)]
)
def test_the_same_of_a_team_that_spins(call: str, kind: Kind) -> None:
    """What its workers spin is in no function of the program's."""
    place = "main; sweep"
    rows = [
        row(f"{place}; GOMP_parallel; sweep", count, n, tid)
        for tid in (1, 2)
        for count, n in ((250, 1), (250, 2))
    ]
    rows += [row(f"{place}; {call}", spin=250), row("[libgomp worker]", spin=250, tid=2)]
    (cause,) = found(*balanced(count=100), *rows, runtime="libgomp")
    assert cause.kind is kind


@pytest.mark.parametrize(("spins", "kind"), [((200, 200), Kind.LOCK), ((400, 0), Kind.IMBALANCE)])
def test_who_spins_in_turn_in_the_programs_own_code_waits_for_a_lock(
    spins: Sequence[float], kind: Kind
) -> None:
    """One that always spins for the other has less to do."""
    rows = [
        row(f"{THREAD}; update", count - 100 * (kind is Kind.IMBALANCE) * (tid == 1), n, tid)
        for tid in (1, 2)
        for count, n in ((200, 1), (200, 2))
    ]
    rows += [row(f"{THREAD}; update; enter", spin=spin, tid=tid) for tid, spin in enumerate(spins, 1) if spin]
    (cause,) = found(*balanced(count=100), *rows)
    assert (cause.kind, cause.function) == (kind, "update" if kind is Kind.LOCK else "worker")
    assert ("spin meanwhile in enter" in cause.what) is (kind is Kind.LOCK)


@pytest.mark.parametrize("places", [1, 3])
def test_too_many_processes_are_told_once_for_all_places_where_they_lack_cores(places: int) -> None:
    """Sessions of a database: no function of theirs is why."""
    rows = []
    for place in range(places):
        for pid in range(8, 12):
            rows += [
                row(f"main; step{place}; answer{place}", count, n, pid, pid=pid)
                for count, n in ((60, 1), (90, 2))
            ]
            rows.append(row(f"main; step{place}; answer{place}", tid=pid, pid=pid, ready=300))
    causes = found(*rows)
    assert [cause.kind for cause in causes] == [Kind.OVERSUBSCRIBED]
    assert "4 processes share 2 cores" in causes[0].what
    assert bool(causes[0].function) is (places == 1)
    assert causes[0].lost_percent == pytest.approx(28.6, abs=0.1)


_SERVE = f"{THREAD}; serve"
_ASKED = f"{_SERVE}; __epoll_wait; [waits: requests]"


def _server(*works: int, waits: Sequence[int]) -> list[PathSample]:
    """Threads with a loop of events each, of which one at a time has a request."""
    rows = [row(f"{_SERVE}; answer", work, 1, tid) for tid, work in enumerate(works, 2) if work]
    return rows + [row(_ASKED, tid=tid, wait=wait) for tid, wait in enumerate(waits, 2)]


@pytest.mark.parametrize("works", [(800, 10, 0, 0), (600, 200, 100, 100)])
def test_a_server_that_is_asked_for_less_than_it_could_do_loses_nothing_by_that(works: Sequence[int]) -> None:
    """memcached, asked by one client on one connection, or on a few."""
    (cause,) = found(*_server(*works, waits=[1000 - work for work in works]))
    assert cause.kind is Kind.STARVED and "asked for less at a time" in cause.what, cause.what
    other = row("main; rebuild", 200, 1, 9)
    causes = found(*_server(*works, waits=[1000 - work for work in works]), other)
    assert first(causes) == (Kind.SERIAL, "rebuild")
    assert len(causes) == 2


@pytest.mark.parametrize(("wait", "kind"), [(700, Kind.STARVED), (20, Kind.IMBALANCE)])
def test_the_same_of_a_servers_processes(wait: float, kind: Kind) -> None:
    """nginx with two workers: which of them has a request is chance, unless one has all that it can do."""
    rows = [row(f"{_SERVE}; answer", 300, 2, pid, pid=pid) for pid in (8, 9)]
    rows += [row(f"{_SERVE}; answer", count, 1, pid, pid=pid) for pid, count in ((8, 500), (9, 200))]
    rows += [row(_ASKED, tid=pid, pid=pid, wait=ms) for pid, ms in ((8, wait), (9, 700))]
    (cause,) = found(*rows)
    assert cause.kind is kind, cause.what


def test_a_thread_that_has_all_the_requests_that_it_can_serve_has_too_many() -> None:
    """All connections are one thread's."""
    both = [row(f"{_SERVE}; answer", 200, 2, tid) for tid in (2, 3)]
    (cause,) = found(*both, *_server(700, 0, waits=[10, 700]))
    assert cause.kind is Kind.IMBALANCE, cause.what


def test_who_computes_beside_a_thread_that_serves_requests_is_serial_code() -> None:
    """Metrics are asked for now and then."""
    metrics = [row("main; pthread_create; export; answer", 10, 1, 3)]
    metrics.append(row("main; pthread_create; export; __epoll_wait; [waits: requests]", tid=3, wait=950))
    assert first(found(row("main; compute", 900, 1, 1), *metrics)) == (Kind.SERIAL, "compute")


def _channel(end: str) -> list[PathSample]:
    """Threads whose functions were inlined into each other: they have a helper in common. One does most of the work,
    and the others sleep meanwhile at an ``end`` of a channel."""
    helper = "main; pthread_create; grind"
    rows = [row(helper, 700, 1, 4), row(helper, 100, 2, 4)]
    rows += [row(helper, 50, 2, tid) for tid in (2, 3)]
    begins = "main; pthread_create; std::sys::backtrace::__rust_begin_short_backtrace"
    waits = f"{begins}; std::sync::mpmc::Channel::{end}; [waits: condition]"
    return rows + [row(waits, tid=tid, wait=700) for tid in (2, 3)]


def test_who_takes_too_slowly_from_a_full_channel_has_no_unequal_share() -> None:
    (cause,) = found(*_channel("send"))
    assert (cause.kind, cause.function) == (Kind.STARVED, "grind")
    assert "to take what they make" in cause.what


def test_who_has_the_longest_piece_while_others_wait_for_one_has_an_unequal_share() -> None:
    (cause,) = found(*_channel("recv"))
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "grind")


def test_lambdas_of_two_functions_are_two_things() -> None:
    """C++ calls each of them ``operator()``."""
    skewed, locked = (f"main; {who}; pthread_create; operator()" for who in ("skewed", "locked"))
    rows = [row(skewed, 600, 1, 11), row(skewed, 60, 2, 11), row(skewed, 60, 2, 12)]
    for tid in (13, 14):
        rows += [row(f"{locked}; bump", 250, 1, tid), row(locked, 300, 2, tid)]
        rows += [
            row(f"{locked}; __lock_mutex", 60, 1, tid),
            row(f"{locked}; bump; pthread_mutex_lock", 20, 1, tid),
        ]
        rows.append(row(f"{locked}; bump; pthread_mutex_lock; [waits: lock]", tid=tid, wait=300))
    causes = found(*rows)
    assert (Kind.IMBALANCE, ("main", "skewed", "operator()")) in {(one.kind, one.path) for one in causes}
    assert [one.function for one in causes].count("bump") == 1


@pytest.mark.parametrize("stub", ["[_complete_monitor_locking_Java]", "[monitorenter Runtime1 stub]"])
def test_the_method_that_takes_a_javas_monitor_is_named(stub: str) -> None:
    """A lambda of ``main`` that threads run; they sleep below stubs of HotSpot's, after its compilers."""
    rows = []
    for tid in (11, 12):
        rows += [
            row("main; lambda; post; grind", 250, 1, tid),
            row("main; lambda; validate; grind", 200, 2, tid),
        ]
        rows.append(row(f"main; lambda; post; {stub}; [waits: lock]", tid=tid, wait=250))
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.LOCK, "post")


def _of_tool(
    name: str, module: str, pid: int, count: int, n_working: float = 1, stall: float = 0
) -> PathSample:
    """Samples of another program, which has no names."""
    frames = (Frame("main", module=module), Frame(name, module=module))
    waits = (Frame("nanosleep", module="libc.so.6"), Frame("[waits: sleep]", module="[kernel]"))
    metrics = attribute(count, 1e6, n_working, CORES, ThreadState.WORKING)
    metrics[STALL] = metrics[WAIT] = stall * 1e6
    return PathSample(
        frames + waits * bool(stall), metrics, Origin(pid, "x", module.rpartition("/")[2], tid=pid)
    )


def test_the_slow_stage_of_a_pipeline_of_programs_is_named_by_its_process() -> None:
    """``awk | sort`` below a shell: of neither there are functions, and awk's are an interpreter's."""
    rows = [_of_tool("mawk+0x40", "/usr/bin/mawk", 23, 600)]
    rows += [
        _of_tool("mawk+0x50", "/usr/bin/mawk", 23, 200, 2),
        _of_tool("sort+0x88", "/usr/bin/sort", 24, 200, 2),
    ]
    rows.append(_of_tool("sort+0x99", "/usr/bin/sort", 24, 100))
    awk = ProcessInfo(23, "mawk", "awk {print}")
    cause = causes_of(rows, CORES, "none", program="sh", processes=[awk])[0]
    assert (cause.kind, cause.function) == (Kind.SERIAL, "")
    assert "mawk (pid 23)" in cause.what


def test_a_program_that_another_runs_and_that_sleeps_is_named_by_its_process() -> None:
    """``sleep`` of a script: where in it is no word to anybody."""
    rows = [*balanced(), _of_tool("sleep+0x64", "/usr/bin/sleep", 31, 0, stall=800)]
    (cause,) = causes_of(rows, CORES, "none", program="sh")
    assert (cause.kind, cause.function) == (Kind.STALL, "")
    assert "while sleep (pid 31) waits for time to pass" in cause.what


@pytest.mark.parametrize(("runs", "beside"), [("main; lambda", 200), ("main; __run; lambda", 40)])
def test_who_waits_for_threads_hides_no_lock_that_they_take_in_a_lambda(runs: str, beside: int) -> None:
    """Java's ``main`` joins the threads that it starts, and nothing on their stacks shows where they begin."""
    rows = [row("main; __join; [waits: condition]", tid=10, wait=1300)]
    for tid in (11, 12):
        rows += [row(f"{runs}; post; grind", 250, 1, tid), row(f"{runs}; validate; grind", beside, 2, tid)]
        rows.append(row(f"{runs}; post; __monitorenter; [waits: lock]", tid=tid, wait=140))
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.LOCK, "post")


def test_libraries_that_a_library_loads_are_read_in() -> None:
    """As oneTBB's allocator is, with the first call."""
    (cause,) = found(*balanced(), row("main; std::filter; __dlopen; read; [waits: file]", stall=400))
    assert (cause.kind, cause.function) == (Kind.STALL, "")
    assert "while files are read in" in cause.what


@pytest.mark.parametrize("tid", [7, 12])
@pytest.mark.parametrize("beside", [0, 80])
def test_a_routine_that_is_alone_is_serial_code_whichever_thread_has_it(tid: int, beside: int) -> None:
    """Go's ``main`` before it starts others: threads without a routine sleep meanwhile, and work later."""
    rows = [row("runtime.main; main.main; main.parse", 400, 1, tid)]
    rows.append(row("runtime.main; main.main; main.parse", beside, 2, tid))
    for other in (13, 14):
        rows.append(row("runtime.goexit; main.work", 300, 2, other))
        rows.append(
            row("runtime.mcall; runtime.park_m; runtime.futexsleep; [waits: condition]", tid=other, wait=400)
        )
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "main.parse")


def test_what_a_lambda_of_java_leads_to_is_called_by_the_program() -> None:
    """GIVEN a method that is handed over as a lambda, does next to nothing and waits THEN it is told, and not its
    caller, as if a library had called it back: between the two is only what the JVM made of the lambda."""

    def through_lambda(one: PathSample) -> PathSample:
        glue = Frame("J$$Lambda.f", module="[anon]")
        return replace(one, path=(*one.path[:2], glue, *one.path[2:]))

    waits = row("main; timed; convert; wait4; [waits: child]", wait=700, stall=1400)
    rows = [through_lambda(one) for one in (waits, row("main; timed; convert", 3))]
    assert first(found(*balanced(), *rows)) == (Kind.STALL, "convert")
