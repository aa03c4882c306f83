"""Runs a program of known truth under a real session and compares the two. Needs root."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Generic, TypeVar

from parprof.commands.spawn import Child
from parprof.errors import ProbeAttachError
from parprof.exporters import pprof
from parprof.facts.measurement import Measurement
from parprof.kernel import multilinks
from parprof.kernel.engine import BpfKernel
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.records import Budget, TraceRecord
from parprof.kernel.uprobes import Prober, Site
from parprof.model import PathSample, ThreadState
from parprof.probes.wait_functions import DEFAULT_RULES, SpinRules
from parprof.profile.accounting import complete
from parprof.profile.addresses import AddressBook
from parprof.profile.naming import FileNamer
from parprof.profile.rows import RowMaker
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import FilesUnknown, Target
from parprof.symbols.symbolizer import Symbolizer
from truth import Truth

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "tests/workloads/build"
UNLIMITED = Budget(1.0, 10**12)
"""For tests of what costs more than users would have it."""
EDGE_MARGIN_NS = 100_000
"""Samples this close to an edge of the log are not judged: the log's own clock calls take time."""


MECHANISMS = ("session", "multi", "traced", "single")
"""Ways to place probes, best first."""


@contextmanager
def prober(*mechanisms: str) -> Iterator[Prober]:
    """One with programs of its own. ``mechanisms``: those that it may use, by default all."""
    loaded = LoadedObject(get_object())
    prober = Prober(loaded)
    if mechanisms:
        prober._mechanisms = list(mechanisms)
    try:
        yield prober
    finally:
        prober.close()
        loaded.close()


def by_function(profile: Path) -> dict[str, tuple[float, float]]:
    """(work, idleness) of each function of a profile, inclusive, in nanoseconds."""
    found: dict[str, tuple[float, float]] = {}
    for sample in pprof.read(str(profile)).samples:
        for name in {frame.name for frame in sample.path}:
            work, idle = found.get(name, (0.0, 0.0))
            found[name] = work + sample.metrics.work_ns, idle + sample.metrics.idleness_ns
    return found


@functools.cache
def mechanisms() -> tuple[str, ...]:
    """Those that this kernel has: found by trying, as the product does."""
    found = []
    nowhere = Site("/proc/self/exe", 0, 4, returns=True)  # the ELF header: mapped, never executed
    for mechanism in MECHANISMS:
        with prober(mechanism) as one, suppress(ProbeAttachError):
            if mechanism != "multi" or multilinks.serve_all_threads():
                one.attach([nowhere], os.getpid()).close()
                found.append(mechanism)
    return tuple(found)


@dataclass
class Agreement:
    """How often the kernel's n_w was the truth's, over samples of threads inside work functions."""

    judged: int = 0
    wrong: int = 0
    cases: Counter[tuple[str, int, int, str]] = field(default_factory=Counter)
    """(function, true W, n_w, thread state) of the wrong ones."""

    @property
    def wrong_share(self) -> float:
        return self.wrong / self.judged if self.judged else 1.0


def compare(
    trace: list[TraceRecord],
    truth: Truth,
    cores: int = 2,
    since_ns: int = 0,
    functions: Collection[str] | None = None,
) -> Agreement:
    """Judge every traced sample of the clock event. ``functions``: of threads in these alone."""
    out = Agreement()
    for record in trace:
        if record.time_ns < since_ns or truth.near_edge(record.time_ns, EDGE_MARGIN_NS):
            continue
        function = truth.function_at(record.tid, record.time_ns)
        if function is None or (functions is not None and function not in functions):
            continue
        out.judged += 1
        working = truth.working_at(record.time_ns)
        same = min(record.n_working, cores) == min(working, cores)
        if not same or record.state is not ThreadState.WORKING:
            out.wrong += 1
            out.cases[function, working, record.n_working, record.state.name] += 1
    return out


@dataclass
class Run:
    """A finished session and the truth about it."""

    session: Session
    target: Target
    truth: Truth
    lost: dict[str, int]
    statistics: dict[str, int]
    n_working_at_end: int
    begun_ns: int
    """Since when the program was watched, after all that was prepared for that; CLOCK_MONOTONIC."""
    meanwhile: Counter[str] = field(default_factory=Counter)
    lost_meanwhile: Counter[str] = field(default_factory=Counter)
    """Of a session of several programs: what the kernel counted, and lost, while this one ran."""
    output: str = ""
    """What the program wrote, if that was kept."""


@contextmanager
def traced_session(
    frequency_hz: int = 999,
    mechanism: str = "",
    source: Source | None = None,
    budget: Budget | None = None,
    by_interval: bool = False,
    spin_rules: SpinRules = DEFAULT_RULES,
    edges_ahead: bool = True,
) -> Iterator[Session]:
    """A session that keeps every sample with its instant.

    ``mechanism``: how to place uprobes, and no other; ``source``: where n_w comes from; ``budget``: by default what
    users have, but with the exact source, which is asked for where its truth is to be judged. ``edges_ahead``: whether
    the program for work edges is loaded before any are found.
    """
    budget = budget or (UNLIMITED if source is Source.EXACT else Budget())
    with BpfKernel(
        ["cpu-clock"], frequency_hz, trace=True, budget=budget, edges_wanted=lambda: edges_ahead
    ) as kernel:
        if mechanism:
            kernel.prober._mechanisms = [mechanism]
        session = Session(kernel, wanted_source=source, by_interval=by_interval, spin_rules=spin_rules)
        try:
            yield session
        finally:
            session.close()


def truth_environment(log: Path, **extra: str) -> dict[str, str]:
    return {**os.environ, "PARPROF_TRUTH": str(log), **extra}


def run_in_real_time(pid: int) -> None:
    """Others do not take the cores of this thread, and of what it starts from then on; where that is allowed.

    For programs whose threads are judged by where they are at an instant, or that give their core away while they wait:
    on a busy machine they are preempted on their way. 0: this thread.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))


def record(
    program: str | Path,
    arguments: list[str],
    log: Path,
    frequency_hz: int = 999,
    mechanism: str = "",
    source: Source | None = None,
    budget: Budget | None = None,
    spin_rules: SpinRules = DEFAULT_RULES,
    edges_ahead: bool = True,
    real_time: bool = False,
    **environment: str,
) -> Run:
    """What `parprof record` does, on a program of tests/workloads. ``real_time``: others do not take its cores."""
    os.environ.update(truth_environment(log, **environment))
    try:
        with traced_session(
            frequency_hz, mechanism, source, budget, spin_rules=spin_rules, edges_ahead=edges_ahead
        ) as session:
            child = Child([str(BUILD / program), *arguments])
            if real_time:
                run_in_real_time(child.pid)
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            n_working = run_until(session, lambda: child.poll() is not None)
            return _finish(session, child.pid, log, n_working)
    finally:
        for name in ("PARPROF_TRUTH", *environment):
            os.environ.pop(name, None)


def rows_of_program(program: Path, limit_s: float = 90) -> list[PathSample]:
    """All rows of a program from its begin to its end, where its threads wait and who creates them included."""
    with BpfKernel(["cpu-clock"], 997, waits=True) as kernel:
        kernel.await_programs()
        session = Session(kernel)
        try:
            child = Child([str(program)])
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            run_until(session, lambda: child.poll() is not None, limit_s)
            session.finish()
            return rows_of(session)[0]
        finally:
            session.close()


Command = tuple[str, ...]
"""Variables of the environment (NAME=value), a program of tests/workloads, and its arguments."""


def record_each(
    commands: Iterable[Command],
    logs: Path,
    mechanism: str = "",
    source: Source | None = None,
    real_time: bool = False,
) -> dict[Command, Run]:
    """`record` of several programs, one after the other under one session, as the daemon sees them.

    To make a session takes longer than most of these programs. What is lost and counted is that of all of them.
    """
    runs: dict[Command, Run] = {}
    with traced_session(mechanism=mechanism, source=source) as session:
        for number, command in enumerate(commands):
            log, output = logs / f"log{number}", logs / f"output{number}"
            variables = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, command))
            program, *arguments = command[len(variables) :]
            before = Counter(session.kernel.statistics()), Counter(session.kernel.lost())
            with output_in(output):
                child = Child([str(BUILD / program), *arguments], {**variables, "PARPROF_TRUTH": str(log)})
            if real_time:
                run_in_real_time(child.pid)
            session.watch(child.pid, follow=True, stop=True)
            begun_ns = time.monotonic_ns()
            child.release()
            n_working = run_until(session, lambda child=child: child.poll() is not None)  # type: ignore[misc]
            session.drain()
            runs[command] = run = _run_of(session, child.pid, log, n_working, begun_ns)
            run.meanwhile, run.lost_meanwhile = (
                Counter(run.statistics) - before[0],
                Counter(run.lost) - before[1],
            )
            run.output = output.read_text()
        _finish_all(session, runs.values())
        return runs


Wanted = TypeVar("Wanted")


class Common(Generic[Wanted]):
    """Runs of a common session, each judged once; whoever wants another has one of its own."""

    def __init__(
        self,
        wanted: Iterable[Wanted],
        run_each: Callable[[Iterable[Wanted], Path], dict[Wanted, Run]],
        make_folder: Callable[[], Path],
        is_usable: Callable[[Run], object] = lambda run: True,
    ) -> None:
        """``run_each``: with a folder for logs. ``is_usable``: whether a run of the common session says something, as
        one of its own must."""
        self._run_each = run_each
        self._make_folder = make_folder
        self._is_usable = is_usable
        self._first = run_each(wanted, make_folder())

    def take(self, wanted: Wanted) -> Run:
        """A run that nobody has judged yet."""
        first = self._first.pop(wanted, None)
        if first is not None and self._is_usable(first):
            return first
        return self._run_each([wanted], self._make_folder())[wanted]


class CommonRuns(Common[Command]):
    """Those of `record_each`."""

    def __init__(
        self,
        commands: Iterable[Command],
        make_folder: Callable[[], Path],
        *,
        source: Source | None = None,
        real_time: bool = False,
        is_usable: Callable[[Run], object] = lambda run: True,
    ) -> None:
        run_each = functools.partial(record_each, source=source, real_time=real_time)
        super().__init__(commands, run_each, make_folder, is_usable)


@contextmanager
def output_in(file: Path) -> Iterator[None]:
    """What is started meanwhile writes there."""
    saved = [(number, os.dup(number)) for number in (1, 2)]
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for number, _ in saved:
            os.dup2(target, number)
        yield
    finally:
        os.close(target)
        for number, copy in saved:
            os.dup2(copy, number)
            os.close(copy)


@dataclass(frozen=True)
class Attachment:
    """To a program of tests/workloads, which is to run for ever until SIGTERM ends it."""

    program: str
    arguments: tuple[str, ...]
    after_s: float
    """For how long it has run by then."""
    seconds: float
    """For how long it is watched."""


def attach(to: Attachment, log: Path, frequency_hz: int = 999, source: Source | None = None) -> Run:
    """What `parprof attach` does."""
    with traced_session(frequency_hz, source=source) as session:
        run = _attach(session, to, log)
        _finish_all(session, [run])
        return run


def attach_each(attachments: Iterable[Attachment], logs: Path) -> dict[Attachment, Run]:
    """The same with several programs, one after the other under one session, as the daemon sees them.

    What is lost and counted is that of all of them.
    """
    with traced_session() as session:
        runs = {one: _attach(session, one, logs / f"log{at}") for at, one in enumerate(attachments)}
        _finish_all(session, runs.values())
        return runs


class CommonAttachments(Common[Attachment]):
    """Those of `attach_each`."""

    def __init__(
        self,
        attachments: Iterable[Attachment],
        make_folder: Callable[[], Path],
        is_usable: Callable[[Run], object] = lambda run: True,
    ) -> None:
        super().__init__(attachments, attach_each, make_folder, is_usable)


def _finish_all(session: Session, runs: Iterable[Run]) -> None:
    session.finish()
    for run in runs:
        run.lost, run.statistics = session.kernel.lost(), session.kernel.statistics()


def _attach(session: Session, to: Attachment, log: Path) -> Run:
    process = subprocess.Popen(
        [BUILD / to.program, *to.arguments, "--forever"], stdout=subprocess.PIPE, env=truth_environment(log)
    )
    try:
        assert process.stdout and process.stdout.readline().startswith(b"ready")
        time.sleep(to.after_s)
        target = session.watch(process.pid)
        begun_ns = time.monotonic_ns()
        end = time.monotonic() + to.seconds
        n_working = run_until(session, lambda: time.monotonic() > end)
        session.drain()
        session.unwatch(target)  # as at the end of a session: it runs on
        process.terminate()
        assert process.wait(20) == 0, "the target did not survive"
        return _run_of(session, process.pid, log, n_working, begun_ns)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def watch_in_time(session: Session, pid: int, limit_s: float = 60.0) -> Target:
    """As the daemon does it: step on until it is known what the files are."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            return session.watch(pid, wait=False)
        except FilesUnknown:
            session.step(0.02)
    raise AssertionError("its files were not looked into in time")


def run_until(session: Session, done: Callable[[], bool], limit_s: float = 60) -> int:
    """Step until ``done``; returns the last n_w seen."""
    end = time.monotonic() + limit_s
    last = 0
    while not done():
        assert time.monotonic() < end, "the program did not end in time"
        session.step(0.05)
        for target in session.targets.values():
            state = None if target.ended else session.kernel.process_state(target.pid)
            last = state.n_working if state else last
    return last


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_while_it_works(session: Session, pid: int, seconds: float) -> None:
    """Until a process has used so much more CPU time, and has as many samples, however long that takes."""
    end_s = cpu_seconds(pid) + seconds
    run_until(session, lambda: cpu_seconds(pid) >= end_s)


def rows_of(session: Session, *, loops: bool = False) -> tuple[list[PathSample], RowMaker]:
    """What a session has drained so far as rows, and who made them."""
    with Symbolizer() as symbolizer, FileNamer(symbolizer, loops=loops) as namer:
        maker = RowMaker(AddressBook(namer))
        return maker.rows(session.drained()), maker


def complete_rows(
    session: Session, pid: int, cores: int | None = None
) -> tuple[Target, list[PathSample], RowMaker, Measurement]:
    """Of a process that has ended: its target, and its rows with all that a profile adds to them.

    ``cores``: n; the machine's unless said.
    """
    target = [one for one in session.targets.values() if one.pid == pid][-1]
    rows, maker = rows_of(session)
    measured = session.measurement(target, cores=cores)
    complete(measured, maker, rows)
    return target, rows, maker, measured


def was_busy(run: Run) -> bool:
    """Whether the program's threads had to wait for a core while they worked."""
    cpu = sum(interval.cpu_ns for interval in run.truth.intervals)
    return cpu < 0.9 * sum(interval.wall_ns for interval in run.truth.intervals)


def agree(
    make: Callable[[], Run],
    minimum: int,
    limit: float,
    busy_limit: float,
    functions: Collection[str] | None = None,
) -> Run:
    """Run until n_w agrees with the program's log, three times at most; nothing may be lost.

    ``functions``: those whose samples are judged; all that work, by default.

    A thread that another program preempts between the runtime's call and the logged function works for the
    kernel and not for the log. So a busy machine shows as error, and is given ``busy_limit``.
    """
    for attempt in range(3):
        run = make()
        agreement = compare(run.session.trace, run.truth, functions=functions)
        assert agreement.judged >= minimum, f"only {agreement.judged} samples could be judged"
        if agreement.wrong_share <= (busy_limit if attempt == 2 and was_busy(run) else limit):
            break
        assert attempt < 2, f"{agreement.wrong} of {agreement.judged} wrong: {agreement.cases}"
    # an exec or exit has no user stack
    assert run.lost.pop("user_stack", 0) <= max(5, run.statistics["samples"] // 100)
    assert not run.lost, run.lost
    return run


def _finish(session: Session, pid: int, log: Path, n_working: int) -> Run:
    session.finish()
    return _run_of(session, pid, log, n_working, session.started_ns)


def _run_of(session: Session, pid: int, log: Path, n_working: int, begun_ns: int) -> Run:
    target = [t for t in session.targets.values() if t.pid == pid][-1]
    kernel = session.kernel
    return Run(session, target, Truth.read(log), kernel.lost(), kernel.statistics(), n_working, begun_ns)


@contextmanager
def recorded(
    command: list[str], frequency_hz: int = 997, source: Source | None = None
) -> Iterator[tuple[Session, Target]]:
    """Run a command to its end under a session."""
    with traced_session(frequency_hz, source=source) as session:
        child = Child(command)
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        run_until(session, lambda: child.poll() is not None, 90)
        session.finish()
        assert child.wait() == 0
        yield session, [t for t in session.targets.values() if t.pid == child.pid][-1]
