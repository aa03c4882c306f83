# SPDX-License-Identifier: Apache-2.0
"""Where threads wait while context switches are too dear to be followed: glimpses of tests/workloads/naps.c."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget, Cost
from parprof.metrics import IDLENESS, OUTSIDE, PROFILING, STALL, WAIT, WORK
from parprof.model import NOBODY, PathSample
from parprof.session.pace import Pace
from parprof.session.session import Session

HZ = 999
BUDGET = Budget(0.01, 16_000_000)
"""Used up within a second by 10,000 naps a second; 1 ms for each glimpse, in which there are 500."""
NAPS_S = {"naps_first": 20e-6, "naps_then": 60e-6}


@dataclass
class Napped:
    """A run of the program, and what it says of itself."""

    rows: list[PathSample]
    told: dict[str, float]
    statistics: dict[str, int]
    switches_s: float
    """What was paid for switches and waits."""
    cpu_s: float

    def sum(self, metric: object, function: str) -> float:
        """Seconds; of stall: of elapsed time."""
        found = sum(row.metrics[metric] for row in self.rows if function in names(row))  # type: ignore[index]
        return found / 1e9 / (2 if metric is STALL else 1)

    @property
    def nobody_s(self) -> float:
        """Elapsed time of stall of which nobody knows where."""
        return sum(row.metrics[STALL] for row in self.rows if row.path == NOBODY) / 2e9


def names(row: PathSample) -> list[str]:
    return [frame.name for frame in row.path]


def nap(
    folder: Path, *arguments: str, budget: Budget = BUDGET, glimpses: bool = True, hz: int = HZ
) -> Napped:
    """Record it from its first instruction, with a core that no others take."""
    with BpfKernel(["cpu-clock"], hz, waits=True, budget=budget) as kernel:
        kernel.await_programs()
        session = Session(kernel, Pace(glimpses=glimpses), one_job=True)
        try:
            with profiling.output_in(folder / "output"):
                child = Child([str(profiling.BUILD / "naps"), *arguments])
            with suppress(PermissionError):
                os.sched_setscheduler(child.pid, os.SCHED_RR, os.sched_param(1))
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            session.finish()
            assert child.poll() == 0
            target, rows, _, _ = profiling.complete_rows(session, child.pid, cores=2)
            lines = (line.split() for line in (folder / "output").read_text().splitlines())
            told = {words[0]: float(words[1]) for words in lines if len(words) == 2}
            paid = (target.spent_ns[Cost.SWITCH] + target.spent_ns[Cost.WAIT]) / 1e9
            cpu_s = sum(row.metrics[WORK] + row.metrics[PROFILING] for row in rows) / 1e9
            return Napped(rows, told, kernel.statistics(), paid, cpu_s)
        finally:
            session.close()


def test_where_threads_sleep_is_seen_after_switches_were_cut_off(tmp_path: Path) -> None:
    """GIVEN one thread that naps 10,000 times a second in one place and then 7,000 times in another THEN each has its
    share of the time in which nobody works, though switches were followed for a part of the first alone.

    The program's clock has the way into the kernel, too, and until it runs again. The budget is one that buys some
    forty glimpses: what ten say of the shares may be a quarter beside them.
    """
    napped = nap(tmp_path, "1", "3", "3", "0", budget=Budget(0.02, BUDGET.burst_ns // 2))
    assert napped.statistics["ticks"] > 0.5 * napped.statistics["samples"], "switches were too dear"
    assert napped.statistics["glimpses"] >= 20
    least = {name: napped.told[f"{name}_times"] * nap_s for name, nap_s in NAPS_S.items()}
    for metric in (STALL, WAIT):
        seen = {name: napped.sum(metric, name) for name in NAPS_S}
        for name, seconds in seen.items():
            assert 0.75 * least[name] < seconds < 1.25 * napped.told[name], (seen, least, napped.told)
        shares = [one["naps_then"] / sum(one[name] for name in NAPS_S) for one in (seen, least, napped.told)]
        assert min(shares[1:]) - 0.05 < shares[0] < max(shares[1:]) + 0.05, shares
    assert napped.nobody_s < 0.05 * sum(napped.told[name] for name in NAPS_S)


def test_without_glimpses_it_is_not_known(tmp_path: Path) -> None:
    """Which is what the one above is to tell apart. Switches are to be cut off in the first 0.7 s, also on a fast
    machine: the bucket is half as large."""
    budget = Budget(BUDGET.ratio, BUDGET.burst_ns // 2)
    napped = nap(tmp_path, "1", "0.7", "0.7", "0", budget=budget, glimpses=False)
    assert napped.statistics["glimpses"] == 0
    assert napped.sum(STALL, "naps_then") == 0
    assert napped.nobody_s > napped.told["naps_then_times"] * NAPS_S["naps_then"]


def test_glimpses_stay_within_the_budget(tmp_path: Path) -> None:
    """Half of 1 % of the CPU time, and what the budget holds at once: at first, and where glimpses are longer."""
    napped = nap(tmp_path, "2", "2.5", "2.5", "0")
    assert napped.statistics["glimpses"] >= 5
    assert napped.switches_s < BUDGET.ratio / 2 * napped.cpu_s + 1.5 * BUDGET.burst_ns / 1e9


def test_n_working_is_right_in_glimpses(tmp_path: Path) -> None:
    """A thread that works alone leaves one core of two idle at each sample, glimpse or not.

    Glimpses are paid for with CPU time, of which a fast machine takes little for each nap: three or four in 2 s.
    """
    napped = nap(tmp_path, "1", "4", "0", "0", budget=Budget(0.02, BUDGET.burst_ns))
    assert napped.statistics["glimpses"] >= 5
    work_s = sum(row.metrics[WORK] for row in napped.rows) / 1e9
    idleness_s = sum(row.metrics[IDLENESS] for row in napped.rows) / 1e9
    assert 0.9 * work_s < idleness_s < 1.1 * work_s


def test_a_long_sleep_is_not_multiplied(tmp_path: Path) -> None:
    """The threads end with a second of sleep, which begins in a glimpse or in none, and is over when nobody looks."""
    napped = nap(tmp_path, "2", "1.2", "0", "1.0")
    assert napped.sum(WAIT, "rests") < 1.3 * 2 * napped.told["rests"]
    stall_s = sum(row.metrics[STALL] + row.metrics[OUTSIDE] for row in napped.rows) / 2e9
    assert stall_s > 0.9 * napped.told["rests"]


@pytest.mark.parametrize("phases", ["serial,balanced,skewed", "lock,cond,io"])
def test_n_working_is_the_truth_as_glimpses_come_and_go(tmp_path: Path, phases: str) -> None:
    """GIVEN two threads that work, wait for each other and sleep WHEN every 60 ms switches are followed for 30 ms."""
    os.environ.update(profiling.truth_environment(tmp_path / "log"))
    try:
        with profiling.traced_session(HZ) as session:
            kernel = session.kernel
            kernel.breaker.leave_switches()
            child = Child([str(profiling.BUILD / "pthread_truth"), phases, "--repeat", "15"])
            with suppress(PermissionError):  # others do not take its cores
                os.sched_setscheduler(child.pid, os.SCHED_RR, os.sched_param(1))
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            while child.poll() is None:
                kernel.glimpse()
                session.step(0.03)
                kernel.breaker.leave_switches()
                session.step(0.03)
            made = profiling._finish(session, child.pid, tmp_path / "log", 0)
    finally:
        os.environ.pop("PARPROF_TRUTH")
    agreement = profiling.compare(made.session.trace, made.truth)
    assert made.statistics["glimpses"] > 3
    assert 0.1 < made.statistics["ticks"] / made.statistics["samples"] < 0.9
    assert agreement.judged > 300
    assert agreement.wrong_share <= 0.03, agreement.cases
