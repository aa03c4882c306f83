"""What all core time adds up to: parprof.profile.accounting."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.cct.tree import CallingContextTree
from parprof.exporters import pprof, pprof_reader
from parprof.exporters.summary import facts
from parprof.facts.scopes import ScopeTimes
from parprof.metrics import IDLENESS, READY, SPIN, STALL, STOLEN, WAIT, Metrics
from parprof.model import (
    Accounting,
    Count,
    Frame,
    Origin,
    PathSample,
    ProcessInfo,
    Profile,
    SampleKey,
    ThreadState,
)
from parprof.profile.accounting import NOBODY, JobTime, charge_ready, complete, disagreements, settle

SECOND = 1e9
MAIN = 3
SHELL = 2


def row(name: str, **metrics: float) -> PathSample:
    values = {key: value * SECOND for key, value in metrics.items()}
    return PathSample((Frame(name),), Metrics(**values), Origin(pid=1, image=MAIN))


def account(
    samples: list[PathSample],
    times: ScopeTimes,
    ready_s: float = 0.0,
    spun: Any = (),
    facts: Any = None,
    ticks: int = 0,
    glimpsed: Any = (),
    glimpses: int = 0,
    unglimpsed_s: float = 0,
    unfollowed_s: float | None = None,
) -> Accounting:
    image = SimpleNamespace(
        ready_ns=ready_s * SECOND, process=SimpleNamespace(pid=1, comm="x"), runtime="none"
    )
    drain = SimpleNamespace(facts=facts or {}, frequency_hz=100)
    counted = {"ticks": ticks, "glimpses": glimpses, "unglimpsed_us": round(unglimpsed_s * 1e6)}
    if unfollowed_s is not None:
        counted["unfollowed_us"] = round(unfollowed_s * 1e6)
    kernel = SimpleNamespace(statistics=lambda: counted)
    measured: Any = SimpleNamespace(
        images={MAIN: image}, main=MAIN, scopes=(times,), drain=drain, kernel=kernel
    )
    rows: Any = SimpleNamespace(
        mean_cores=lambda _: 2, spun_alone=lambda: list(spun), glimpsed=lambda: list(glimpsed)
    )
    found = complete(measured, rows, samples)
    assert found is not None
    return found


def times(*levels_s: float, exact: bool = True, **away: float) -> ScopeTimes:
    levels = tuple(int(one * SECOND) for one in levels_s)
    working = sum(n * took for n, took in enumerate(levels))
    return ScopeTimes(levels, working, exact, (MAIN,), **{key: int(s * SECOND) for key, s in away.items()})


def test_what_was_measured_adds_up() -> None:
    samples = [row("serial", work_ns=2, idleness_ns=2), row("parallel", work_ns=4), row("read", stall_ns=2)]
    found = account(samples, times(1, 2, 2))
    assert found.accounted == pytest.approx(1)
    assert (found.work_s, found.idleness_s, found.stall_s, found.counted_idleness_s) == (6, 2, 2, 2)


def test_stall_of_nobody_is_where_threads_spun_meanwhile() -> None:
    barrier = row("barrier", spin_ns=1)
    found = account([row("solve", work_ns=4), barrier], times(1, 0, 2), spun=[(barrier, 100)])
    assert barrier.metrics[STALL] == 2 * SECOND and barrier.metrics[SPIN] == SECOND
    assert found.accounted == pytest.approx(1)


@pytest.mark.parametrize(("waits", "theirs"), [(60, (2.0, 0.0)), (5, (0.1, 1.9)), (0, (0.0, 2.0))])
def test_a_worker_that_looks_for_work_does_not_keep_the_others(
    waits: int, theirs: tuple[float, float]
) -> None:
    """It spins beside a caller who waits for another one; or nobody is seen to wait for anything."""
    caller, worker = row("main", spin_ns=waits / 100), row("[OpenBLAS worker]", spin_ns=1)
    spun = [(caller, waits), (worker, 100 - waits)]
    account([row("solve", work_ns=4), caller, worker], times(1, 0, 2), spun=spun)
    assert [one.metrics[STALL] / SECOND for one in (caller, worker)] == pytest.approx(theirs)


def test_stall_that_belongs_to_no_path_is_shown() -> None:
    samples = [row("solve", work_ns=4)]
    account(samples, times(1, 0, 2))
    assert samples[-1].path == NOBODY and samples[-1].metrics[STALL] == 2 * SECOND


def test_one_sample_of_a_thread_that_spins_does_not_explain_seconds() -> None:
    """It stands for 10 ms of both cores."""
    barrier = row("barrier", spin_ns=0.01)
    samples = [row("solve", work_ns=4), barrier]
    found = account(samples, times(1, 0, 2), spun=[(barrier, 1)])
    assert barrier.metrics[STALL] == pytest.approx(0.04 * SECOND)
    assert samples[-1].path == NOBODY and samples[-1].metrics[STALL] == pytest.approx(1.96 * SECOND)
    assert found.accounted == pytest.approx(1)


def test_where_switches_were_not_followed_the_rest_is_time_in_which_nobody_worked() -> None:
    """A thread that went to sleep after that is said to work for all that time."""
    samples = [row("solve", work_ns=1, idleness_ns=1), row("wait", stall_ns=1)]
    found = account(samples, times(0, 4, exact=False), ticks=9)
    assert found.accounted == pytest.approx(1) and found.stall_s == pytest.approx(6)
    assert samples[-1].path == NOBODY and samples[-1].metrics[STALL] == pytest.approx(5 * SECOND)


def test_while_switches_were_followed_nobody_worked_for_no_longer_than_was_counted() -> None:
    """On a busy machine, with switches too dear for half a second only: the rest is of cores that others had."""
    samples = [row("solve", work_ns=2, idleness_ns=1), row("read", stall_ns=1)]
    followed = times(0.75, 4.25, exact=False)
    found = account(samples, followed, ready_s=3, ticks=9, unfollowed_s=0.5)
    assert found.accounted == pytest.approx(1)
    assert found.stall_s == pytest.approx(2 * (0.75 + 0.5))
    assert found.ready_s + found.stolen_s == pytest.approx(10 - 3 - 2.5)


def test_beyond_what_was_counted_others_had_cores_only_as_far_as_threads_waited_for_one() -> None:
    found = account([row("solve", work_ns=4)], times(0, 4, exact=False), ready_s=0.5, ticks=9, unfollowed_s=0)
    assert found.stall_s == 0 and found.stolen_s == pytest.approx(1)
    assert found.accounted == pytest.approx((4 + 0.5 + 1) / 8)


def test_glimpses_tell_where_nobody_worked_when_switches_were_not_followed() -> None:
    """Half a second was seen at `first` before; glimpses have thrice as much at `then` as at `first` after that."""
    first, then = row("first", stall_ns=1.0), row("then", stall_ns=1.5)
    glimpsed = [(first, Metrics(stall_ns=0.5 * SECOND)), (then, Metrics(stall_ns=1.5 * SECOND))]
    samples = [row("solve", work_ns=4.7), first, then]
    found = account(samples, times(0, 4, exact=False), ticks=9, glimpsed=glimpsed)
    assert found.accounted == pytest.approx(1) and len(samples) == 3
    assert first.metrics[STALL] == pytest.approx((0.5 + 0.7) * SECOND)
    assert then.metrics[STALL] == pytest.approx(2.1 * SECOND)
    assert sum(seen[STALL] for _, seen in glimpsed) == pytest.approx(2.8 * SECOND)


def test_by_glimpses_no_thread_waits_for_longer_than_it_was_there() -> None:
    """Of memcached's thread that tidies up, two glimpses made 6.8 s in a measurement of 5."""
    origin = Origin(pid=1, tid=4, image=MAIN)
    nap = replace(row("usleep"), metrics=Metrics.of({WAIT: 6.8 * SECOND}), origin=origin)
    seen_first = replace(row("read"), metrics=Metrics.of({WAIT: 0.5 * SECOND}), origin=origin)
    work = replace(row("tidy", work_ns=0.1), origin=origin)
    other = replace(nap, metrics=Metrics.of({WAIT: 2.0 * SECOND}), origin=origin._replace(tid=5))
    glimpsed = [(one, one.metrics.copy()) for one in (nap, other)]
    account([work, nap, seen_first, other], times(0, 5, exact=False), ticks=9, glimpsed=glimpsed)
    assert nap.metrics[WAIT] == pytest.approx(4.4 * SECOND) == glimpsed[0][1][WAIT]
    assert seen_first.metrics[WAIT] == 0.5 * SECOND and other.metrics[WAIT] == 2.0 * SECOND


def test_glimpses_explain_no_more_than_twice_what_they_have() -> None:
    then = row("then", stall_ns=0.5)
    samples = [row("solve", work_ns=1), then]
    account(samples, times(0, 4, exact=False), ticks=9, glimpsed=[(then, Metrics(stall_ns=0.5 * SECOND))])
    assert then.metrics[STALL] == pytest.approx(1 * SECOND)
    assert samples[-1].path == NOBODY and samples[-1].metrics[STALL] == pytest.approx(6 * SECOND)
    then = row("then", stall_ns=9)
    seen = Metrics(stall_ns=9 * SECOND)
    account([row("solve", work_ns=1), then], times(0, 4, exact=False), ticks=9, glimpsed=[(then, seen)])
    assert then.metrics[STALL] == pytest.approx(7 * SECOND), "nor more than there was"


def test_glimpses_do_not_explain_the_time_for_which_they_do_not_stand() -> None:
    """The program slept for 1.5 s while nobody looked; what is left beside that is a little more than they have."""
    then = row("then", stall_ns=3.8)
    seen = [(then, Metrics(stall_ns=3.8 * SECOND))]
    samples = [row("solve", work_ns=1), then]
    found = account(samples, times(0, 4, exact=False), ticks=9, glimpsed=seen, unglimpsed_s=1.5)
    assert then.metrics[STALL] == pytest.approx(4 * SECOND)
    assert samples[-1].path == NOBODY and samples[-1].metrics[STALL] == pytest.approx(3 * SECOND)
    assert found.accounted == pytest.approx(1)


@pytest.mark.parametrize(
    "waited_s,unglimpsed_s,stolen_s,nobody_s", [(0.2, 0, 0.4, 4.4), (2.0, 0, 3.0, 0), (2.0, 1.0, 1.0, 2.0)]
)
def test_what_glimpses_do_not_have_is_of_cores_that_others_had(
    waited_s: float, unglimpsed_s: float, stolen_s: float, nobody_s: float
) -> None:
    """As far as threads waited for a CPU, and but for time for which glimpses do not stand."""
    then = row("then", stall_ns=0.5)
    samples = [row("solve", work_ns=2), then]
    seen = [(then, Metrics(stall_ns=0.5 * SECOND))]
    found = account(
        samples,
        times(0, 4, exact=False),
        ready_s=waited_s,
        ticks=9,
        glimpsed=seen,
        glimpses=3,
        unglimpsed_s=unglimpsed_s,
    )
    assert found.accounted == pytest.approx(1)
    assert found.stolen_s == pytest.approx(stolen_s)
    nobody = sum(one.metrics[STALL] for one in samples if one.path == NOBODY)
    assert nobody == pytest.approx(nobody_s * SECOND)


def test_where_switches_were_not_followed_samples_tell_how_many_worked_at_once() -> None:
    """What the programs count stands still then: here at two threads, while both sleep most of the time."""
    facts = dict([sampled(1, 50), sampled(2, 100)])
    found = account(
        [row("read", work_ns=1.5, idleness_ns=0.5)], times(0, 0, 4, exact=False), facts=facts, ticks=9
    )
    assert found.level_s == (3.0, 0.5, 0.5)
    many = dict([sampled(1, 500)])
    found = account([row("read", work_ns=4)], times(0, 4, exact=False), facts=many, ticks=9)
    assert found.level_s == (0.0, 4.0)  # samples are not exact: no more than there was


def test_what_others_had_is_neither_idleness_nor_stall() -> None:
    """Both threads lost their CPUs for a second each, one of them while it worked and the other waited for it."""
    solve = row("solve", work_ns=3, idleness_ns=1)
    found = account([solve], times(0.5, 2, 1), ready_s=1, spun=())
    assert solve.metrics[READY] == SECOND
    assert found.stolen_s == 1 and not solve.metrics[STOLEN]  # no sample was there to be charged with it
    assert solve.metrics[IDLENESS] == SECOND
    busy = row("solve", work_ns=4)
    found = account([busy], times(1, 0, 2, stall_away_ns=2))
    assert (found.stolen_s, found.stall_s) == (2, 0) and not busy.metrics[STOLEN]


def test_cores_that_others_had_are_known_where_threads_that_spin_are_known_by_samples() -> None:
    """One thread works for 4 s, 1.5 s of them without a core: no sample is there to be charged with the other core."""
    alone = row("solve", work_ns=2.5, idleness_ns=2.5)
    found = account([alone], times(0, 4, exact=False), ready_s=1.5)
    assert (found.stolen_s, found.ready_s) == (1.5, 1.5) and found.accounted == pytest.approx(1)
    busy = [row("solve", work_ns=2.5, idleness_ns=2.5), row("wait", stall_ns=1)]
    found = account(busy, times(0.5, 3.5, exact=False), ready_s=1.5)
    assert found.stolen_s == 0.5 and found.accounted == pytest.approx(1)  # no more than there is room for
    ticked = [row("solve", work_ns=2.5, idleness_ns=2.5)]
    found = account(ticked, times(0, 4, exact=False), ready_s=1.5, ticks=9)
    assert found.stolen_s == 0  # what n_w was then nobody counted


def test_guessed_stall_takes_no_more_room_than_there_is() -> None:
    found = account([row("solve", work_ns=5), row("wait", stall_ns=2)], times(1, 0, 2, exact=False))
    assert found.accounted == pytest.approx(1) and found.stall_s == pytest.approx(1)


def test_cores_that_others_had_while_nobody_seemed_to_work_take_no_more_room_than_there_is() -> None:
    """A team that spins on a busy machine: at samples one of it works, by its leaves nobody for most of the time."""
    found = account([row("solve", work_ns=5)], times(3, 1, 1, exact=False, stall_away_ns=7), ready_s=1)
    assert found.accounted == pytest.approx(1)
    assert (found.work_s, found.ready_s, found.stolen_s) == (5, 1, 4)


def test_what_others_had_is_known_by_how_long_threads_had_no_cpu_where_n_w_is_sampled() -> None:
    """A team of two: one spins at the barrier while the other one, which is late, has no CPU: nobody is sampled."""
    samples = [row("solve", work_ns=5, idleness_ns=1)]
    found = account(samples, times(0, 0, 4, exact=False), ready_s=1)
    assert (found.work_s, found.idleness_s, found.ready_s, found.stolen_s) == (5, 1, 1, 1)
    assert found.accounted == pytest.approx(1)
    assert samples[-1].metrics[STOLEN] == SECOND
    found = account([row("solve", work_ns=5, idleness_ns=1)], times(0, 0, 4, exact=False), ready_s=0.1)
    assert found.stolen_s == pytest.approx(0.1)  # no more than for so long: what is missing then is missing


def test_more_threads_than_cores_are_not_counted_twice() -> None:
    """Four threads on two cores for a second."""
    found = account([row("solve", work_ns=2)], times(0, 0, 0, 0, 1), ready_s=2)
    assert found.accounted == pytest.approx(1) and found.ready_s == 0
    assert found.level_s == (0, 0, 0, 0, 1)


def sampled(n_working: int, samples: int) -> tuple[SampleKey, Count]:
    key = SampleKey(MAIN, 1, 0, ThreadState.WORKING, n_working, 0, 0)
    return key, Count(samples)


def test_what_waits_for_a_core_is_known_by_samples_where_switches_are_not_followed() -> None:
    """On two cores one thread waits for a second of the first two; in the third second there are four threads."""
    solve = row("solve", work_ns=5)
    facts = dict([sampled(2, 300), sampled(4, 200)])  # at 100 Hz, by each of those that run
    found = account([solve], times(0, 0, 0, 0, 3, exact=False), ready_s=1 + 2, facts=facts)
    assert found.ready_s == pytest.approx(1) and found.accounted == pytest.approx(1)


def test_the_time_of_intervals_adds_up_to_that_of_the_whole() -> None:
    """As the daemon knows it: the second of them has another n, and more threads than cores."""
    first = JobTime.of(times(1, 0, 2, idle_away_ns=0.1), 2, 0.5 * SECOND, {}, 100, ticked=False)
    later = JobTime.of(times(0, 1, 0, 0, 2), 3, 2 * SECOND, {}, 100, ticked=False)
    both = first.joined(later)
    assert both.times == times(1, 1, 2, 0, 2, idle_away_ns=0.1)
    assert (both.cores, both.ready_ns) == (2.5, 2.5 * SECOND)
    assert both.excess_ns == 2 * SECOND, "four threads had three cores for two seconds"
    assert both.level_ns == both.times.level_ns
    same = first.joined(first)
    assert same.cores == 2 and not same.ticked
    nothing = JobTime.of(times(), 2, 0, {}, 100, ticked=False)
    assert nothing.joined(nothing).cores == 2 and first.joined(nothing) == first == nothing.joined(first)


def test_intervals_are_settled_together() -> None:
    """One in which somebody was about to sleep, and the next, with which that wait came: none of it is nobody's."""
    parts = [times(1, 0, 2), times(3, 0, 0)]
    one, other = (JobTime.of(part, 2, 0, {}, 100, ticked=False) for part in parts)
    read = row("read", stall_ns=8)
    found, more = settle(one.joined(other), [row("solve", work_ns=4), read], [], Origin())
    assert read.metrics[STALL] == 8 * SECOND and not more
    assert found.accounted == pytest.approx(1)
    assert (found.elapsed_s, found.stall_s, found.level_s) == (6, 8, (4, 0, 2))


def test_an_interval_in_which_switches_were_not_followed_makes_all_of_it_a_guess() -> None:
    exact = JobTime.of(times(1, 0, 2), 2, 0, {}, 100, ticked=False)
    guessed = JobTime.of(times(0, 3, exact=False), 2, 0, dict([sampled(1, 100)]), 100, ticked=True)
    both = exact.joined(guessed)
    assert both.level_ns == (3 * SECOND, SECOND, 2 * SECOND)
    found, more = settle(both, [row("solve", work_ns=5, idleness_ns=1)], [], Origin())
    assert found.counted_idleness_s is None and found.accounted == pytest.approx(1)
    assert sum(one.metrics[STALL] for one in more) == 6 * SECOND, "all there is room for"


def test_the_file_has_it() -> None:
    accounting = Accounting(2, 5.0, 6.0, 0.25, 0.25, 2.5, 1.0, None, (0.5, 4.5))
    processes = [ProcessInfo(7, "a: b", 'x \\ "y"\n', "libgomp", 2, "exact"), ProcessInfo(8)]
    profile = Profile(ProcessInfo(), 5.0, 99, [], accounting=accounting, processes=processes)
    again = pprof_reader.decode(pprof.encode(profile).SerializeToString())
    assert (again.accounting, again.processes) == (accounting, processes)


def test_guessed_idleness_takes_no_more_room_than_there_is() -> None:
    """Where context switches are not followed n_w comes out too low."""
    solve = row("solve", work_ns=2.5, idleness_ns=2)
    found = account([solve], times(0, 1, 1, exact=False))
    assert found.accounted == pytest.approx(1) and solve.metrics[IDLENESS] == 1.5 * SECOND
    counted = row("solve", work_ns=2.5, idleness_ns=2)
    account([counted], times(0, 1, 1))
    assert counted.metrics[IDLENESS] == 2 * SECOND  # counted at each change: too much is a bug, and is told


@pytest.mark.parametrize(
    "counted_s, missing_s, told",
    [
        (0.5, 0.3, "bursts"),
        (0.5, 0.1, ""),  # the error of sampling
        (None, 0.3, ""),  # not every change of n_w was seen: nobody knows
    ],
)
def test_what_no_sample_saw_is_said(counted_s: float | None, missing_s: float, told: str) -> None:
    accounting = Accounting(2, 4.0, 6.0, 0, 0, 0.5, 1.5 - missing_s, counted_s)
    profile = Profile(ProcessInfo(), 5.0, 99, [], accounting=accounting)
    line = next(
        fact.text
        for fact in facts(profile, CallingContextTree([row("solve", work_ns=6)]))
        if fact.label == "accounted"
    )
    assert told in line and ("0.30 s passed in bursts of work" in line) == bool(told)


def test_a_note_says_if_samples_and_changes_of_n_w_part() -> None:
    """Not where changes were missed, nor where nobody could be sampled since all waited for a CPU."""

    def notes(
        sampled_s: float,
        ready_s: float = 0.0,
        exact: bool = True,
        cores: float = 2,
        shell_cores: int = 2,
        ours_s: float = 0.0,
    ) -> list[str]:
        image = SimpleNamespace(ready_ns=ready_s * SECOND, process=SimpleNamespace(pid=1), image=MAIN)
        shell = SimpleNamespace(ready_ns=0, process=SimpleNamespace(pid=1), image=SHELL)
        measured: Any = SimpleNamespace(
            images={SHELL: shell, MAIN: image}, main=MAIN,
            scopes=(replace(times(1, 20, exact=exact), images=(SHELL, MAIN)),),
            drain=SimpleNamespace(frequency_hz=100),
        )  # fmt: skip
        rows: Any = SimpleNamespace(
            usual_cores=lambda _: 2, mean_cores=lambda one: shell_cores if one is shell else cores
        )
        before = PathSample((Frame("sh"),), Metrics(work_ns=SECOND / 10), Origin(pid=1, image=SHELL))
        work = row("serial", work_ns=20, idleness_ns=sampled_s, stolen_ns=1, profiling_ns=ours_s)
        return disagreements(measured, rows, [before, work])

    assert notes(18.0) == notes(14.0, exact=False) == notes(14.0, ready_s=5.0) == []
    assert notes(14.0, ours_s=5.0) == [], "idle beside our own programs, of which samples say nothing"
    assert len(notes(14.0)) == len(notes(24.0, ready_s=5.0)) == 1
    assert "15.00 s by samples, 20.00 s from each change" in notes(14.0)[0]
    assert notes(14.0, cores=1.5) == []  # n changed: the mean is none to integrate with
    assert notes(14.0, shell_cores=3) == []  # as it did when the shell became the program


@pytest.mark.parametrize(("counted_s", "fitted"), [(2.5, False), (None, True)])
def test_a_sum_that_was_made_to_fit_says_so(counted_s: float | None, fitted: bool) -> None:
    """Where changes of n_w are known at samples only, or switches were not followed."""
    accounting = Accounting(2, 5.0, 6.0, 0, 0.5, 2.5, 1.0, counted_s)
    profile = Profile(ProcessInfo(cores=2), 5.0, 99, [row("f", work_ns=6)], accounting=accounting)
    (line,) = [
        fact.text for fact in facts(profile, CallingContextTree(profile.samples)) if fact.label == "accounted"
    ]
    assert line.startswith("100.0 % of 2 cores x 5.00 s: work 6.00 s, ")
    assert line.endswith(" (by samples: fitted, so the sum is no check)") == fitted


@pytest.mark.parametrize("program", ["x", "y"])
def test_the_wait_for_a_core_of_processes_that_no_sample_met_is_charged(program: str) -> None:
    """To those of the same program that were, else to all: totals are those of the account."""
    path = (Frame("solve"),)
    mine = PathSample(path, Metrics(work_ns=2 * SECOND), Origin(pid=1, comm="x", image=MAIN))
    other = PathSample(path, Metrics(work_ns=2 * SECOND), Origin(pid=2, comm="z", image=SHELL))
    images = {
        number: SimpleNamespace(ready_ns=seconds * SECOND, process=SimpleNamespace(comm=comm))
        for number, comm, seconds in ((MAIN, "x", 1), (SHELL, "z", 0), (4, program, 3))
    }
    scope = replace(times(0, 4), images=(MAIN, SHELL, 4))
    charge_ready(SimpleNamespace(images=images, scopes=(scope,)), [mine, other])  # type: ignore[arg-type]
    told = (mine.metrics.ready_ns / SECOND, other.metrics.ready_ns / SECOND)
    assert told == pytest.approx((4, 0) if program == "x" else (2.5, 1.5))


@pytest.mark.parametrize("ready_s", [0, 14])
def test_levels_by_samples_have_the_time_in_which_threads_waited_for_cores(ready_s: int) -> None:
    """GIVEN switches that are not followed, and two threads that work for 1 s each of ten THEN somebody worked for a
    second, if others did not have the cores; who waits for a core is at work, though no sample tells of it."""
    facts = {SampleKey(MAIN, 1, 0, ThreadState.WORKING, 2, 0, 0): Count(200)}
    known = JobTime.of(times(10, exact=False), 2, ready_s * SECOND, facts, 100, ticked=True)
    assert known.level_ns == pytest.approx(((9 - ready_s / 2) * SECOND, 0, (1 + ready_s / 2) * SECOND))
