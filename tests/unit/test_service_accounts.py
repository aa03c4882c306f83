"""What the daemon makes of an interval's samples."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.metrics import ACTIVATIONS, Metrics
from parprof.model import Count, Frame, PathSample, SampleKey, ThreadState
from parprof.service.accounts import mean_n_working
from parprof.service.model import Labels
from parprof.service.watching import ProcessAccount, Watching, _Watched


def test_mean_n_w_is_that_of_the_time() -> None:
    """Half of the time 1 thread works, half of it 16 do, each of which is sampled: 8.5 on an average, not 15.1."""
    facts = {
        SampleKey(1, 7, 0, ThreadState.WORKING, 1, 0, 0): Count(100),
        SampleKey(1, 8, 0, ThreadState.WORKING, 16, 0, 0): Count(1600),
        SampleKey(1, 9, 0, ThreadState.SPINNING, 1, 0, 0): Count(50),
        SampleKey(1, 7, 1, ThreadState.WORKING, 3, 0, 0): Count(1000),
    }
    assert mean_n_working(facts, {}) == {1: pytest.approx(8.5)}


def test_mean_n_w_of_short_phases() -> None:
    facts = {SampleKey(2, 7, 0, ThreadState.WORKING, 1, 0, 0, fine=4): Count(10)}
    assert mean_n_working(facts, {2: 3.5}) == {2: pytest.approx(3.5)}
    assert mean_n_working(facts, {}) == {2: pytest.approx(1)}
    assert mean_n_working({}, {}) == {}


def test_calls_that_were_told_apart_for_who_attaches_are_no_use_of_a_function() -> None:
    """GIVEN a caller that never was on top of a stack WHEN its calls are charged THEN it is none of the functions."""
    account = ProcessAccount(0.0)
    main, solve = Frame("main", "a.c", 3), Frame("solve", "a.c", 9)
    rows = [
        PathSample((main,), Metrics.of({ACTIVATIONS: 23})),
        PathSample((main, solve), Metrics(samples=7, work_ns=7e7)),
    ]
    interval = account.add(rows)
    assert [used.name for used in account.functions(5)] == ["solve"]
    assert interval == Metrics(samples=7, work_ns=7e7)


def test_threads_by_state_are_means_of_the_interval() -> None:
    """GIVEN three of four threads at work or waiting for a CPU, but none right now THEN three are working."""
    process = SimpleNamespace(comm="x", command="x", exe="/x")
    target: Any = SimpleNamespace(
        pid=os.getpid(), process=process, plan=SimpleNamespace(runtime="none"), n_w_source="scheduler",
        n_working=0, by_ticks=False, image=1, notes=list, threads_created=1,
    )  # fmt: skip
    session: Any = SimpleNamespace(kernel=SimpleNamespace(frequency_hz=99))
    watching = Watching(session)
    watched = _Watched(target, Labels(), ProcessAccount(0.0))
    watched.account.close_interval(0.0, 10.0, Metrics(work_ns=20e9, ready_ns=9e9, spin_ns=6e9), 3.0)
    ends = threading.Event()
    others = [threading.Thread(target=ends.wait) for _ in range(max(4 - threading.active_count(), 0))]
    for other in others:
        other.start()
    threads = watching._snapshot(watched, 4, 5).threads
    ends.set()
    assert (threads["working"], threads["spinning"]) == (3, 1)
    watched.account.close_interval(0.0, 10.0, Metrics(), 0.0)
    target.n_working = 4
    now = watching._snapshot(watched, 4, 5)
    assert (now.threads["working"], now.n_working) == (0, 4)
    target.by_ticks = True
    assert watching._snapshot(watched, 4, 5).n_working == 0, "that is of when switches were followed"


def test_what_a_function_calls_outside_the_program_counts_as_its_own() -> None:
    """GIVEN a program that burns its time in the kernel by way of a library THEN its own function is told."""
    account = ProcessAccount(0.0)
    main, burn = Frame("main", "a.c", 3, module="a"), Frame("burn", "a.c", 9, module="a")
    loop = Frame("loop at a.c:9", "a.c", 9, module="a", is_loop=True)
    library = Frame("cblas_dgemm", module="libopenblas.so.0")
    clock = Frame("clock_gettime", module="libc.so.6")
    kernel = Frame("__x64_sys_clock_gettime", module="[kernel]")
    for path in (
        (main, burn, loop, clock, kernel),
        (main, burn),
        (library, clock, kernel),
        (clock, kernel),
        (kernel,),
        (Frame("[unknown]"),),
    ):
        account.add([PathSample(path, Metrics(samples=1, work_ns=1e7))])
    assert {(used.name, used.metrics.samples) for used in account.functions(9)} == {
        ("burn", 2),
        ("cblas_dgemm", 1),
        ("clock_gettime", 1),
        ("__x64_sys_clock_gettime", 1),
        ("[unknown]", 1),
    }
