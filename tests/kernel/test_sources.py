"""n_w from the runtime's memory, and from what threads run, against the programs' own log; and the way between."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import profiling
from compiled import compile_once
from parprof.attribution.idleness import attribute
from parprof.commands.spawn import Child
from parprof.metrics import Metrics
from parprof.model import ThreadState
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import Target

LIMIT = 0.04
"""On a quiet machine at most 1 % is wrong. On a busy one threads are preempted on their way between the work and
the barrier, which memory cannot tell from working."""
BARRIERS = "serial,balanced,skewed,barrier,dynamic"
"""Phases whose waits are all at team barriers."""


def step_for(session: Session, seconds: float) -> None:
    end = time.monotonic() + seconds
    profiling.run_until(session, lambda: time.monotonic() > end)


def best(runs: list[profiling.Run]) -> profiling.Agreement:
    """The best of some runs: on a busy machine threads are preempted between the runtime's call and the logged one."""
    found = [profiling.compare(run.session.trace, run.truth) for run in runs]
    return min(found, key=lambda agreement: agreement.wrong_share)


FROM_MEMORY = [
    (*policy, program, BARRIERS, "--repeat", "3")
    for policy in ((), ("OMP_WAIT_POLICY=active",))
    for program in ("omp_truth.gomp", "omp_truth.gomp.stripped", "omp_truth.gomp.static")
]


@pytest.fixture(scope="module")
def common_runs(tmp_path_factory: pytest.TempPathFactory) -> profiling.CommonRuns:
    return profiling.CommonRuns(FROM_MEMORY, lambda: tmp_path_factory.mktemp("runs"), source=Source.MEMORY)


@pytest.mark.parametrize("command", FROM_MEMORY, ids=" ".join)
def test_libgomp_from_memory(command: profiling.Command, common_runs: profiling.CommonRuns) -> None:
    runs = []
    for _ in range(3):
        run = common_runs.take(command)
        assert run.target.source is Source.MEMORY, run.target.memory.problem
        assert run.lost_meanwhile["memory"] <= 5, "a team that is being built or taken down, now and then"
        runs.append(run)
        if best(runs).wrong_share <= LIMIT:
            break
    agreement = best(runs)
    assert agreement.judged > 700
    assert agreement.wrong_share <= LIMIT, agreement.cases
    assert runs[-1].meanwhile["probe_hits"] < 100, "there are to be no probes on regions"


def test_memory_is_right_from_the_first_sample_of_a_running_program(tmp_path: Path) -> None:
    runs = []
    to = profiling.Attachment("omp_truth.gomp", (BARRIERS,), 0.3, 2.0)
    for attempt in range(3):
        runs.append(profiling.attach(to, tmp_path / f"log{attempt}", source=Source.MEMORY))
        if best(runs).wrong_share <= LIMIT:
            break
    agreement = best(runs)
    assert agreement.judged > 300
    assert agreement.wrong_share <= LIMIT, agreement.cases


STRIPPED = [(f"omp_truth.gomp.{form}.stripped", "all", "--repeat", "2") for form in ("inside", "static")]
TBB = [("tbb_truth",), ("tbb_truth.stripped",)]
TWO_RUNTIMES = {"team": ("tbb_truth.gomp", "team"), "all": ("tbb_truth.gomp",)}
_STUBS = """
/* As libpthread's own: a leaf function without a frame, in which a thread that yields is found. */
__asm__(".globl sched_yield\\n.type sched_yield, @function\\nsched_yield:\\n"
	"mov $20000, %ecx\\n1: pause\\ndec %ecx\\njnz 1b\\nxor %eax, %eax\\nret\\n.size sched_yield, .-sched_yield\\n");
"""
THREADS_LIBRARIES = ("libpthread-2.31.so", "ld-musl-x86_64.so.1")


@pytest.fixture(scope="module")
def with_library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, profiling.Command]:
    """A program that has a threads library of its own, by that one's name."""
    folder = tmp_path_factory.mktemp("libraries")
    for name in THREADS_LIBRARIES:
        compile_once(["gcc", "-shared", "-x", "c", "-", "-o", folder / name], text=_STUBS)
    return {name: (f"LD_PRELOAD={folder / name}", "tbb_truth") for name in THREADS_LIBRARIES}


@pytest.fixture(scope="module")
def by_samples(
    with_library: dict[str, profiling.Command], tmp_path_factory: pytest.TempPathFactory
) -> profiling.CommonRuns:
    """Programs with a runtime whose threads are judged by their samples."""
    of_tbb = (*TBB, *TWO_RUNTIMES.values(), *with_library.values())
    commands = (*STRIPPED, *(of_tbb if (profiling.BUILD / "tbb_truth").exists() else ()))
    return profiling.CommonRuns(commands, lambda: tmp_path_factory.mktemp("by_samples"), real_time=True)


@pytest.fixture
def needs_tbb() -> None:
    if not (profiling.BUILD / "tbb_truth").exists():
        pytest.skip("libtbb-dev is not installed: no TBB program was built")


def check_by_samples(
    command: profiling.Command, runs: profiling.CommonRuns, minimum: int, limit: float
) -> profiling.Run:
    """Of three runs at most the best agrees with the program's log; the last one is returned."""
    had = []
    for _ in range(3):
        had.append(runs.take(command))
        assert had[-1].target.source is Source.SAMPLED
        if best(had).wrong_share <= limit:
            break
    agreement = best(had)
    assert agreement.judged > minimum
    assert agreement.wrong_share <= limit, agreement.cases
    return had[-1]


@pytest.mark.parametrize("command", STRIPPED, ids=" ".join)
def test_libgomp_without_a_symbol_to_tell_it_by(
    command: profiling.Command, by_samples: profiling.CommonRuns
) -> None:
    """All kinds of phase: nothing depends on what the program uses of the runtime."""
    run = check_by_samples(command, by_samples, 700, LIMIT)
    assert run.target.plan.runtime == "libgomp (linked in, stripped)"
    assert any("is stripped" in note for note in run.target.plan.notes)
    assert run.meanwhile["probe_hits"] < 100


def checked_run() -> tuple[Target, dict[str, int]]:
    command = [str(profiling.BUILD / "regions"), "--work-us", "3000", "--share", "3", "--seconds", "2"]
    with profiling.traced_session(999) as session:
        child = Child(command)
        profiling.run_in_real_time(child.pid)
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        target = [one for one in session.targets.values() if one.pid == child.pid][-1]
        return target, session.kernel.statistics()


def test_memory_and_probes_agree() -> None:
    """A thread that is about to begin its part has not reached the barrier: on a busy machine that takes long."""
    shares = []
    for _ in range(4):
        target, counted = checked_run()
        assert target.source is Source.EXACT
        assert target.memory.holds, target.memory
        assert counted["checked"] > 100
        shares.append(counted["disagreed"] / counted["checked"])
        if shares[-1] <= 0.1:
            break
    assert min(shares) <= 0.2, shares


@pytest.mark.beside
def test_what_memory_would_get_wrong_is_not_read_from_it(tmp_path: Path) -> None:
    run = profiling.record("omp_truth.gomp", ["critical"], tmp_path / "log")
    assert run.target.memory.plan is not None
    assert not run.target.memory.holds
    assert "GOMP_critical_start" in run.target.memory.spoilt_by


def test_many_regions_a_second_go_over_to_memory() -> None:
    with profiling.traced_session(499) as session:
        process = subprocess.Popen(
            [profiling.BUILD / "regions", "--work-us", "20", "--seconds", "60"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(0.2)
            target = session.watch(process.pid)
            assert target.source is Source.EXACT
            end = time.monotonic() + 20
            while target.source is Source.EXACT and time.monotonic() < end:
                session.step(0.05)
            assert target.source is Source.MEMORY
            assert target.probing.switches and "budget" in target.probing.switches[0]
            step_for(session, 0.5)
            before = session.kernel.process_state(process.pid)
            step_for(session, 1.0)
            after = session.kernel.process_state(process.pid)
            assert before is not None and after is not None
            assert after.probe_hits == before.probe_hits, "the probes are gone"
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


def told_of_regions(session: Session, arguments: Sequence[str], output: Path) -> dict[str, float]:
    """What the program of parallel regions says of itself at its end; it is watched from its begin on."""
    with profiling.output_in(output):
        child = Child([str(profiling.BUILD / "regions"), *arguments])
    profiling.run_in_real_time(child.pid)
    session.watch(child.pid, follow=True, stop=True)
    child.release()
    profiling.run_until(session, lambda: child.poll() is not None)
    session.finish()
    told: dict[str, float] = json.loads(output.read_text().splitlines()[-1])
    return told


def idleness_error(output: Path) -> float:
    """Idleness / work of regions of a millisecond from memory, less what the program says itself."""
    arguments = ["--work-us", "1000", "--share", "3", "--seconds", "2"]
    with profiling.traced_session(999, source=Source.MEMORY) as session:
        truth = told_of_regions(session, arguments, output)
    total = Metrics()
    for key, count in session.facts.items():
        total.add(attribute(count.samples, 1e6, key.n_working, 2, key.state))
    assert total.work_ns > 1e8
    return abs(total.idleness_ns / total.work_ns - float(truth["ratio"]))


def test_regions_of_a_millisecond_have_their_true_idleness(tmp_path: Path) -> None:
    """GIVEN regions whose second thread works three times as long THEN idleness is as the program says."""
    errors = []
    for _ in range(4):
        errors.append(idleness_error(tmp_path / f"output{len(errors)}"))
        if errors[-1] < 0.1:
            break
    assert min(errors) < 0.25, errors


def idleness_of_fine_phases(output: Path, *arguments: str) -> tuple[float, float]:
    """Idleness in percent of effort, in regions of some 10 us: as reported, and as the program says itself."""
    with profiling.traced_session(499, source=Source.MEMORY) as session:
        truth = told_of_regions(session, [*arguments, "--seconds", "2"], output)
        rows, maker = profiling.rows_of(session)
    assert truth["regions_per_s"] < 20_000 or maker.fine > 0.5 * maker.samples
    total = Metrics()
    for row in rows:
        total.add(row.metrics)
    reported = 100 * total.idleness_ns / (total.work_ns + total.idleness_ns)
    return reported, 100 * truth["ratio"] / (1 + truth["ratio"])


@pytest.mark.parametrize("share", ["1", "3"])
def test_regions_of_ten_microseconds(share: str, tmp_path: Path) -> None:
    """Read at each sample, n_w would give some 25 % to threads that have the same to do, who idle for 3 %."""
    found = []
    for _ in range(4):
        found.append(
            idleness_of_fine_phases(tmp_path / f"output{len(found)}", "--work-us", "10", "--share", share)
        )
        if abs(found[-1][0] - found[-1][1]) <= 8:
            return
    raise AssertionError(found)


def test_a_thread_that_asks_for_the_time_as_it_waits_works_no_more_for_that(tmp_path: Path) -> None:
    """libomp's loops call functions of a few instructions, with no ``pause`` in them: one sample in five hits these."""
    if not (profiling.BUILD / "omp_truth.omp").exists():
        pytest.skip("clang has no libomp here: its programs were not built")
    arguments = ["balanced,serial,skewed", "--repeat", "10"]
    run = profiling.record(
        "omp_truth.omp",
        arguments,
        tmp_path / "log",
        source=Source.SAMPLED,
        real_time=True,
        KMP_BLOCKTIME="infinite",
    )
    assert run.target.source is Source.SAMPLED
    states = Counter(
        record.state
        for record in run.session.trace
        if run.truth.working_at(record.time_ns)
        and not run.truth.function_at(record.tid, record.time_ns)
        and not run.truth.near_edge(record.time_ns, profiling.EDGE_MARGIN_NS)
    )
    assert states.total() > 100
    assert states[ThreadState.WORKING] <= 0.05 * states.total(), states


@pytest.mark.usefixtures("needs_tbb")
@pytest.mark.parametrize("command", TBB, ids=" ".join)
def test_tbb_sampled(command: profiling.Command, by_samples: profiling.CommonRuns) -> None:
    check_by_samples(command, by_samples, 300, 0.05)


@pytest.mark.usefixtures("needs_tbb")
def test_each_thread_is_judged_by_its_own_runtime(by_samples: profiling.CommonRuns) -> None:
    """Of two runtimes, one with probes and one without: those of OpenMP's team by the edges, TBB's by what they run."""
    runs: dict[str, list[profiling.Run]] = {phases: [] for phases in TWO_RUNTIMES}
    for _ in range(3):
        for phases, had in runs.items():
            had.append(by_samples.take(TWO_RUNTIMES[phases]))
            assert had[-1].target.source is Source.EXACT
        if best(runs["team"]).wrong_share <= 0.002 and best(runs["all"]).wrong_share <= 0.05:
            break
    assert best(runs["team"]).judged > 20 and best(runs["all"]).judged > 300
    assert best(runs["team"]).wrong_share <= 0.002, best(runs["team"]).cases
    assert best(runs["all"]).wrong_share <= 0.05, best(runs["all"]).cases
    assert not runs["all"][-1].target.probing.switches


@pytest.mark.usefixtures("needs_tbb")
@pytest.mark.parametrize("name", THREADS_LIBRARIES)
def test_a_thread_that_the_runtime_has_sent_into_the_threads_library_waits(
    name: str, with_library: dict[str, profiling.Command], by_samples: profiling.CommonRuns
) -> None:
    """Before glibc 2.34 threads are in a library of their own, and musl has one file for all of the C library."""
    check_by_samples(with_library[name], by_samples, 300, 0.05)
