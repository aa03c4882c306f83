# SPDX-License-Identifier: Apache-2.0
"""What a process pays is held to a budget by the programs themselves, and what is left is right."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget, Cost, Prices, TraceRecord
from parprof.kernel.uprobes import Site
from parprof.model import PathSample
from parprof.plans import Edge
from parprof.profile.assemble import violations
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import Target

HZ = 499
GOMP, OMP = "storms.gomp", "storms.omp"
PASSIVE = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "true"}


@dataclass
class Storm:
    """A program that ran under a session, and what it says of itself."""

    session: Session
    target: Target
    rows: list[PathSample]
    statistics: dict[str, int]
    wall_s: float
    cpu_s: float
    delay_s: float

    @property
    def idle_s(self) -> float:
        """Core time that was left, but for that in which a thread was ready and had no core."""
        return 2 * self.wall_s - self.cpu_s - self.delay_s

    def sum(self, name: str) -> float:
        return sum(getattr(row.metrics, name) for row in self.rows) / 1e9


@contextmanager
def session_of(budget: Budget | None = None, source: Source | None = None, hz: int = HZ) -> Iterator[Session]:
    with BpfKernel(["cpu-clock"], hz, budget=budget) as kernel:
        session = Session(kernel, wanted_source=source)
        try:
            yield session
        finally:
            session.close()


def run(
    program: str, *arguments: str, budget: Budget | None = None, source: Source | None = None, hz: int = HZ
) -> Storm:
    """Run to its end, recorded from the first instruction; the invariant must hold."""
    if not (profiling.BUILD / program).exists():
        pytest.skip("libomp-dev is not installed: no program for libomp was built")
    reading, writing = os.pipe()
    saved = os.dup(1)
    os.environ.update(PASSIVE)
    try:
        with session_of(budget, source, hz) as session:
            os.dup2(writing, 1)
            try:
                child = Child([str(profiling.BUILD / program), *arguments])
            finally:
                os.dup2(saved, 1)
                os.close(writing)
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            session.finish()
            assert child.poll() == 0
            target, rows, maker, measured = profiling.complete_rows(session, child.pid)
            assert not violations(measured, maker, rows)
            text = os.read(reading, 4096).decode()
            wall, cpu, delay = map(float, re.findall(r"(?:wall|cpu|delay) ([\d.]+)", text))
            return Storm(session, target, rows, session.kernel.statistics(), wall, cpu, delay)
    finally:
        for name in PASSIVE:
            os.environ.pop(name, None)
        os.close(saved)
        os.close(reading)


def names(row: PathSample) -> list[str]:
    return [frame.name for frame in row.path]


@contextmanager
def running(
    program: str, *arguments: str, prepare: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """``prepare`` is called in the new process."""
    with subprocess.Popen(
        [str(profiling.BUILD / program), *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **PASSIVE},
        preexec_fn=prepare,
    ) as process:
        try:
            time.sleep(0.2)
            yield process
        finally:
            process.kill()


@functools.cache
def offset_in(path: str, name: str) -> int:
    symbols = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in symbols.splitlines() if f" T {name}@" in line)


def code_of(pid: int, name: str) -> bytes:
    """The first bytes of a function of libgomp in a process, as they are now."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    library = next(line for line in lines if "libgomp" in line and line.split()[2] == "00000000")
    start, path = int(library.split("-")[0], 16), library.split()[-1]
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(start + offset_in(path, name))
        return memory.read(16)


@pytest.mark.parametrize("program", [GOMP, OMP])
def test_a_storm_of_tasks_is_cut_off_at_once(program: str) -> None:
    """GIVEN a million tasks a second THEN their probes do nothing after milliseconds, and are gone soon after."""
    storm = run(program, "tasks", "20", "1.5")
    assert storm.target.source is Source.SAMPLED
    assert any("budget" in text for text in storm.target.probing.switches), storm.target.probing.switches
    paid_s = storm.target.spent_ns[Cost.PROBE] / 1e9
    assert 0.001 < paid_s < 0.25 * storm.wall_s, "what it paid for probes, the whole run"
    assert storm.statistics["left_out_probe_hits"] > 0
    assert storm.sum("work_ns") + storm.sum("spin_ns") > 0.5 * storm.cpu_s


@pytest.mark.beside
def test_a_storm_costs_less_in_the_first_moments() -> None:
    """A program that is over in 50 ms has earned nothing yet: what others may pay at once would be a tenth of it."""
    budget = Budget()
    paid_ns = []
    # the breakpoints go after a grace period of the kernel, which lasts as long as others let it
    for _ in range(4):
        storm = run(GOMP, "tasks", "20", "0.05", budget=budget)
        assert storm.target.source is Source.SAMPLED
        before_cut = storm.statistics["probe_hits"] - storm.statistics["left_out_probe_hits"]
        assert 0 < before_cut * Prices().dear_ns < budget.burst_ns / 8
        paid_ns.append(storm.target.spent_ns[Cost.PROBE])
        if enough := 0 < paid_ns[-1] < budget.burst_ns / 4:
            break
    assert enough, paid_ns


@pytest.mark.beside
def test_the_probes_are_taken_out_of_the_code() -> None:
    with running(GOMP, "tasks", "20", "60") as process, session_of() as session:
        plain = code_of(process.pid, "GOMP_task")
        target = session.watch(process.pid)
        profiling.run_until(session, lambda: target.source is not Source.EXACT)
        end = time.monotonic() + 2
        while code_of(process.pid, "GOMP_task") != plain and time.monotonic() < end:
            session.step(0.02)
        assert code_of(process.pid, "GOMP_task") == plain
        before = session.kernel.process_state(process.pid)
        profiling.run_until(session, lambda: time.monotonic() > end + 0.5)
        after = session.kernel.process_state(process.pid)
        assert before and after and after.probe_hits == before.probe_hits


@pytest.mark.parametrize("program", [GOMP, OMP])
def test_idleness_is_right_through_the_change_of_source(program: str) -> None:
    """Serial for 0.3 s, then two threads share a tree of tiny tasks: probes pushed frames whose end nobody saw.

    The program says by the clock how long cores had nothing of it to do, the profile by the CPU time meanwhile: while
    the only thread that works waits for a core that others have, no idleness is its. Of that the serial part is known.
    """
    storms = []
    for _ in range(4):
        storm = run(program, "tree", "16", "8000")
        storms.append((storm.sum("idleness_ns"), storm.idle_s))
        least, most = sorted((0.3, storm.idle_s))
        margin = 0.15 * storm.cpu_s
        if is_right := least - margin <= storm.sum("idleness_ns") <= most + margin:
            break
    assert is_right, storms
    assert storm.target.source is Source.SAMPLED
    serial = sum(row.metrics.idleness_ns for row in storm.rows if "serial_part" in names(row)) / 1e9
    assert serial == pytest.approx(0.3, abs=0.06)


@pytest.mark.beside
def test_who_creates_a_thread_is_known_after_the_change() -> None:
    storm = run(GOMP, "late", "0.7")
    assert storm.target.source is Source.SAMPLED
    work = [row for row in storm.rows if "burn_alone" in names(row)]
    known = sum(row.metrics.work_ns for row in work if {"main", "make_pool"} <= set(names(row)))
    assert known >= 0.95 * sum(row.metrics.work_ns for row in work) > 2e8


@pytest.mark.beside
def test_quiet_and_stormy_ten_times() -> None:
    storm = run(GOMP, "bursts", "10")
    serial = sum(row.metrics.work_ns for row in storm.rows if "serial_part" in names(row)) / 1e9
    assert serial == pytest.approx(1.0, abs=0.1)
    assert sum(storm.target.spent_ns) - storm.target.spent_ns[Cost.TIMER] < 0.05e9 * storm.cpu_s + 60e6


@pytest.mark.beside
def test_a_thousand_threads_that_create_tasks() -> None:
    storm = run(GOMP, "many", "1000")
    work = sum(row.metrics.cpu_ns for row in storm.rows) / 1e9
    assert work == pytest.approx(storm.cpu_s, rel=0.25)
    state = storm.statistics
    assert state["samples"] > 0


@pytest.mark.beside
def test_a_hot_lock_whose_holder_is_asked_for() -> None:
    """The probes that tell who holds it go; those on the slow path of locks may stay."""
    os.environ.update(PASSIVE)
    with running(GOMP, "locks", "60") as process, BpfKernel(["cpu-clock"], HZ) as kernel:
        session = Session(kernel, blame_locks=True)
        try:
            target = session.watch(process.pid)
            profiling.run_until(
                session, lambda: bool(target.probing.cuts) or target.source is not Source.EXACT
            )
            plain = code_of(process.pid, "GOMP_critical_name_end")
            end = time.monotonic() + 1
            profiling.run_until(session, lambda: time.monotonic() > end)
            assert b"\xcc" not in plain[:1] or code_of(process.pid, "GOMP_critical_name_end") != plain
            before = kernel.statistics()["probe_hits"]
            end = time.monotonic() + 1
            profiling.run_until(session, lambda: time.monotonic() > end)
            assert kernel.statistics()["probe_hits"] - before < 20_000, "a second"
        finally:
            session.close()


@pytest.mark.beside
def test_killed_in_the_middle_of_a_change() -> None:
    """SIGKILL of parprof while it takes probes away: the program runs on, and its code is as it was."""
    with running(GOMP, "tasks", "20", "60") as process:
        plain = code_of(process.pid, "GOMP_task")
        command = [sys.executable, "-m", "parprof", "attach", str(process.pid), "-q", "-o", os.devnull]
        environment = {**os.environ, "PYTHONPATH": str(profiling.ROOT / "daemon")}
        for after_s in (0.0, 0.02, 0.1):
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as attacher:
                end = time.monotonic() + 20
                while code_of(process.pid, "GOMP_task") == plain and time.monotonic() < end:
                    time.sleep(0.001)
                time.sleep(after_s)
                attacher.send_signal(signal.SIGKILL)
            end = time.monotonic() + 10
            while code_of(process.pid, "GOMP_task") != plain and time.monotonic() < end:
                time.sleep(0.05)
            assert code_of(process.pid, "GOMP_task") == plain
            assert process.poll() is None


@pytest.mark.beside
def test_another_profiler_keeps_its_probes() -> None:
    """Ours go; those that somebody else has on the same functions stay and count."""
    with running(GOMP, "tasks", "20", "60") as process, session_of(profiling.UNLIMITED) as theirs:
        other = theirs.watch(process.pid)
        with session_of() as ours:
            target = ours.watch(process.pid)
            profiling.run_until(ours, lambda: target.source is not Source.EXACT)
            end = time.monotonic() + 1
            profiling.run_until(ours, lambda: time.monotonic() > end)
            mine = ours.kernel.process_state(process.pid)
            before = theirs.kernel.process_state(process.pid)
            time.sleep(0.3)
            after, still = theirs.kernel.process_state(process.pid), ours.kernel.process_state(process.pid)
            assert mine and still and mine.probe_hits == still.probe_hits
            assert before and after and after.probe_hits > before.probe_hits + 1_000
        assert other.source is Source.EXACT


def test_switches_that_are_too_dear_are_not_followed() -> None:
    """Two threads on one core: one of them runs at any time, and each is found there by its samples."""
    storm = run(GOMP, "pingpong", "1.5")
    assert storm.target.spent_ns[Cost.SWITCH] < 0.05e9 * storm.cpu_s, (
        "what it paid for switches, the whole run"
    )
    assert storm.statistics["ticks"] > 0.8 * storm.statistics["samples"]
    assert storm.sum("work_ns") == pytest.approx(storm.cpu_s, rel=0.15)
    worked = [
        key.n_working - key.away  # without the one that waits for a core which another program has
        for key, count in storm.session.facts.items()
        for _ in range(count.samples)
        if key.image == storm.target.image
    ]
    assert worked.count(1) > 0.95 * len(worked)


@pytest.mark.beside
def test_bystanders_are_spared() -> None:
    """A program that is not watched switches a million times a second: then switches are followed no more."""
    with (
        running(GOMP, "pingpong", "60", prepare=lambda: profiling.run_in_real_time(0)),
        session_of() as session,
    ):
        other = subprocess.Popen(["sleep", "60"])
        try:
            session.watch(other.pid)
            profiling.run_until(session, lambda: not session.kernel.breaker.follows_switches, limit_s=10)
        finally:
            other.kill()
            other.wait()


def test_switches_are_followed_again_when_a_bystanders_storm_is_over() -> None:
    """Though the one that is watched uses no CPU time that would pay for looks."""
    with session_of() as session:
        other = subprocess.Popen(["sleep", "60"])

        def wait(seconds: float) -> None:
            end = time.monotonic() + seconds
            profiling.run_until(session, lambda: time.monotonic() > end)

        def follows() -> bool:
            return session.kernel.breaker.follows_switches

        try:
            session.watch(other.pid)
            with running(GOMP, "pingpong", "60", prepare=lambda: profiling.run_in_real_time(0)):
                profiling.run_until(session, lambda: not follows(), limit_s=10)
                wait(1.5)
            profiling.run_until(session, follows, limit_s=10)
            wait(1.5)
            assert follows(), "for good"
        finally:
            other.kill()
            other.wait()


def with_a_core_each(made: profiling.Run) -> list[TraceRecord]:
    """The samples at whose time all threads that worked had a core: they were sampled just before and just after."""
    period_ns = 1.3e9 / 999
    times: dict[int, list[int]] = {}
    for record in made.session.trace:
        times.setdefault(record.tid, []).append(record.time_ns)

    def ran(thread: int, t_ns: int) -> bool:
        of_thread = times.get(thread, [])
        after = bisect_left(of_thread, t_ns)
        near = [abs(one - t_ns) < period_ns for one in of_thread[max(after - 1, 0) : after + 1]]
        return len(near) == 2 and all(near)

    def all_ran(t_ns: int) -> bool:
        return all(ran(thread, t_ns) for thread in made.truth.threads if made.truth.function_at(thread, t_ns))

    return [record for record in made.session.trace if all_ran(record.time_ns)]


def test_n_working_where_switches_are_not_followed(tmp_path: Path) -> None:
    """n_w is what runs on the CPUs: right wherever every thread has a core, and right again afterwards."""
    os.environ.update(profiling.truth_environment(tmp_path / "log"))
    try:
        with profiling.traced_session(999) as session:
            session.kernel.breaker.leave_switches()
            child = Child([str(profiling.BUILD / "pthread_truth"), "serial,balanced,skewed", "--repeat", "6"])
            profiling.run_in_real_time(child.pid)
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            made = profiling._finish(session, child.pid, tmp_path / "log", 0)
    finally:
        os.environ.pop("PARPROF_TRUTH")
    agreement = profiling.compare(with_a_core_each(made), made.truth)
    assert agreement.judged > 500
    assert agreement.wrong_share <= 0.03, agreement.cases
    assert made.statistics["ticks"] >= made.statistics["samples"] - 5


def rows_on_a_busy_machine(
    program: str, phase: str, times: int, *, followed: bool
) -> tuple[list[PathSample], float]:
    """The rows of a phase that is run so many times while others want both CPUs, and for how long, in nanoseconds, its
    threads had none. ``followed``: context switches are."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=on_cpu)
        for on_cpu in (lambda: os.sched_setaffinity(0, {0}), lambda: os.sched_setaffinity(0, {1}))
    ]
    try:
        with session_of() as session:
            if not followed:
                session.kernel.breaker.leave_switches()
            child = Child([str(profiling.BUILD / program), phase, "--repeat", str(times)])
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            session.finish()
            rows, _ = profiling.rows_of(session)
            return rows, sum(target.ready_ns for target in session.targets.values())
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize("phase,idle", [("balanced", False), ("serial", True)])
def test_cores_that_others_have_are_no_idleness(phase: str, idle: bool) -> None:
    """GIVEN switches that are not followed, on a busy machine, WHEN two threads work THEN no core of theirs is idle."""
    rows, ready = rows_on_a_busy_machine("pthread_truth", phase, 5, followed=False)
    work = sum(row.metrics.work_ns for row in rows)
    idleness = sum(row.metrics.idleness_ns for row in rows)
    assert idleness > 0.9 * work if idle else idleness < 0.15 * work
    assert ready > 0.5 * work  # each thread shares its core


@pytest.mark.parametrize("followed", [True, False])
def test_who_gives_up_its_cpu_does_not_want_one(followed: bool) -> None:
    """GIVEN a busy machine WHEN a thread waits with sched_yield, in a loop of which nobody knows that it only waits, as
    std::barrier does, THEN the core that others have meanwhile is idle as far as its program goes."""
    rows, _ = rows_on_a_busy_machine("spins_truth", "polite", 3, followed=followed)
    serial = [row for row in rows if "serial" in names(row)]
    work = sum(row.metrics.work_ns for row in serial)
    idleness = sum(row.metrics.idleness_ns for row in serial)
    assert work > 0.5e9
    assert idleness > 0.8 * work


@pytest.mark.beside
def test_switches_are_followed_again() -> None:
    """GIVEN a program whose threads all sleep or wake meanwhile THEN n_w is what it is afterwards, not before."""
    program = profiling.BUILD / "pthread_truth"
    with (
        subprocess.Popen([str(program), "io", "--forever"], stdout=subprocess.DEVNULL) as process,
        profiling.traced_session(999) as session,
    ):
        try:
            time.sleep(0.2)
            session.watch(process.pid)
            for _ in range(5):
                end = time.monotonic() + 0.3
                profiling.run_until(session, lambda end=end: time.monotonic() > end)  # type: ignore[misc]
                session.kernel.breaker.leave_switches()
                end = time.monotonic() + 0.3
                profiling.run_until(session, lambda end=end: time.monotonic() > end)  # type: ignore[misc]
                session.kernel.breaker.follow_switches(session.kernel.images())
            process.send_signal(signal.SIGSTOP)  # all sleep
            end = time.monotonic() + 0.5
            profiling.run_until(session, lambda: time.monotonic() > end)
            state = session.kernel.process_state(process.pid)
            assert state is not None and not state.ticks
            assert state.n_working == 0, "nobody works"
        finally:
            process.kill()


@pytest.mark.beside
def test_samples_beyond_the_budget_are_thinned_out_and_weighed() -> None:
    storm = run(GOMP, "tasks", "60", "1.0", budget=Budget(0.001, 200_000), hz=999)
    assert storm.statistics["left_out_samples"] > 0.3 * storm.statistics["samples"]
    charged = storm.sum("work_ns") + storm.sum("spin_ns") + storm.sum("profiling_ns")
    assert charged == pytest.approx(storm.cpu_s, rel=0.2), "what is taken stands for what is not"


def test_creations_are_walked_once() -> None:
    storm = run(GOMP, "shares", "1.5", budget=profiling.UNLIMITED, source=Source.EXACT, hz=1999)
    counted = storm.statistics
    assert counted["known_creations"] > 10 * (counted["contexts"] - counted["known_creations"])
    work = {"often": 0.0, "seldom": 0.0}
    for row in storm.rows:
        for name in work:
            if "leaf" in names(row) and name in names(row):
                work[name] += row.metrics.work_ns
    share = work["often"] / sum(work.values())
    assert sum(work.values()) > 0.6e9, (
        "1,200 samples: a share of three quarters of so many is right within 1.3 %"
    )
    assert share == pytest.approx(0.75, abs=0.05), "three of four tasks"
    known = sum(work.values()) / sum(row.metrics.work_ns for row in storm.rows if "leaf" in names(row))
    assert known > 0.98


def test_costs_are_charged_by_kind() -> None:
    """Probes of a function of ours that is called 20,000 times: what they take is what is charged, within a half."""
    import ctypes

    from parprof.files.elf import ElfFile
    from parprof.probes.cheap_sites import cheap_probe_site
    from parprof.probes.prices import machine_prices

    with session_of(profiling.UNLIMITED) as session:
        session.kernel.breaker.set_prices(machine_prices(session.kernel))
        path = next(
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "/libc.so" in line
        )
        with ElfFile.open(path) as elf:
            symbol = elf.lookup(["setlogmask"])["setlogmask"][0]
            offset = elf.file_offset(cheap_probe_site(elf, symbol.value, symbol.size).vaddr)
        assert offset is not None
        function = ctypes.CDLL(None).setlogmask
        session.watch(os.getpid())

        def seconds() -> float:
            begun = time.thread_time()
            for _ in range(20_000):
                function(0)
            return time.thread_time() - begun

        bare = min(seconds() for _ in range(5))
        probes = session.kernel.attach_probes(os.getpid(), [Site(path, offset, int(Edge.WAIT), returns=True)])
        try:
            before = session.kernel.process_state(os.getpid())
            taken = min(seconds() for _ in range(5)) - bare
            after = session.kernel.process_state(os.getpid())
        finally:
            probes.close()
        assert before and after
        charged = (after.spent_ns[Cost.PROBE] - before.spent_ns[Cost.PROBE]) / 5e9
        assert taken / 1.6 <= charged <= taken * 1.6, (taken, charged)
