# SPDX-License-Identifier: Apache-2.0
"""Calls, counted exactly by real probes, against programs whose calls are known. Needs root."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import profiling
from parprof.calls.counting import CallCounting
from parprof.calls.finder import FunctionFinder
from parprof.calls.nop5 import nop5_is_cheap
from parprof.calls.wanted import parse_wanted
from parprof.commands.spawn import Child
from parprof.kernel.call_counts import Calls, map_sizes
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Budget, Cost
from parprof.kernel.stacks import STACK_ENDS
from parprof.probes.prices import machine_prices
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside

PROGRAM = profiling.BUILD / "calls_truth"
UNLIMITED = Budget(1.0, 10**12)


class Counted:
    """What was counted of a run."""

    def __init__(self, counting: CallCounting, session: Session, exit_code: int) -> None:
        self.exit_code = exit_code
        self.session = session
        self.kernel = counting.kernel
        self.counting = counting
        self.calls: Counter[str] = Counter()
        self.by_state: dict[str, Calls] = {}
        self.by_site = counting.kernel.calls.by_site()
        self.by_caller = counting.kernel.calls.by_caller()
        for number, by_cpu in self.by_site.items():
            name = counting.sites[number].routine.name
            for calls in by_cpu.values():
                self.by_state[name] = self.by_state.get(name, Calls()).plus(calls)
        self.lost_calls = {k: n for k, n in counting.kernel.lost().items() if k in ("calls", "callers")}
        statistics = counting.kernel.statistics()
        self.left_out = statistics["left_out_calls"]
        self.stacks = {end: statistics[f"stacks_{end}"] for end in STACK_ENDS}


@contextmanager
def counting_session(
    *functions: str, budget: Budget = UNLIMITED, source: Source | None = None
) -> Iterator[tuple[Session, CallCounting]]:
    with (
        Symbolizer() as symbolizer,
        BpfKernel(["cpu-clock"], 499, budget=budget, sizes=map_sizes()) as kernel,
        FunctionFinder([parse_wanted(one) for one in functions], symbolizer.resolve, lambda: False) as finder,
        CallCounting(kernel, finder) as counting,
    ):
        session = Session(kernel, wanted_source=source, one_job=True, on_planned=counting.follow)
        try:
            yield session, counting
        finally:
            session.close()


def run_for(session: Session, seconds: float) -> None:
    end = time.monotonic() + seconds
    profiling.run_until(session, lambda: time.monotonic() > end)


def count(command: list[str | Path], *functions: str, budget: Budget = UNLIMITED) -> Counted:
    with counting_session(*functions, budget=budget) as (session, counting):
        child = Child([str(one) for one in command])
        session.watch(child.pid, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        return Counted(counting, session, child.wait())


def test_calls_from_two_arcs_are_exact_by_state() -> None:
    """Sequential from one caller, concurrent from the other: its two threads meet before and after."""
    run = count([PROGRAM, "sequential", "concurrent"], "leaf")
    assert run.exit_code == 0 and not run.lost_calls
    assert run.by_state == {"leaf": Calls(1009, 1006)}
    sites = [run.counting.sites[number] for number in run.by_site]
    assert all(site.place.knows_caller and site.place.cheap for site in sites)
    assert sorted(sum(c.all for c in by_cpu.values()) for by_cpu in run.by_site.values()) == [1006, 1009]


def test_recursion_a_hundred_thousand_deep() -> None:
    run = count([PROGRAM, "deep"], "deep")
    assert run.exit_code == 0 and not run.lost_calls
    assert run.by_state == {"deep": Calls(100_001)}


def test_calls_through_a_pointer_and_directly() -> None:
    run = count([PROGRAM, "pointer"], "pointed")
    assert run.by_state == {"pointed": Calls(211 + 101)}
    assert sorted(calls.all for calls in run.by_caller.values()) == [101, 211], (
        "told by their return addresses"
    )


def test_compilers_copies_are_one_routine() -> None:
    run = count([PROGRAM, "clones"], "scaled")
    assert {site.copy.symbol for site in run.counting.sites.values()} >= {
        "scaled.constprop.0.isra.0", "scaled.isra.0",
    }  # fmt: skip
    assert run.by_state == {"scaled": Calls(307 + 401)}


def test_a_program_that_becomes_itself_anew() -> None:
    """Of a file that the next image maps, too, each call counts once, under the function that made it."""
    run = count([PROGRAM, "exec"], "exported")
    assert run.exit_code == 0 and not run.lost_calls
    assert run.by_state == {"exported": Calls(127 + 601)}
    by_image = Counter({caller.image: calls.all for caller, calls in run.by_caller.items()})
    assert sorted(by_image.values()) == [127, 601] and by_image.keys() <= run.session.targets.keys()
    assert not run.counting.notes


def test_stacks_are_whole_while_a_probed_instruction_is_executed_elsewhere() -> None:
    """Most samples meet the thread in the breakpoint, in the kernel's copy of the instruction, or between the two."""
    run = count([PROGRAM, "stepped"], "stepped")
    assert run.by_state == {"stepped": Calls(20_011)}
    assert not any(site.place.cheap for site in run.counting.sites.values())
    total = sum(run.stacks.values())
    assert total > 30, "what the test is about takes time"
    # the dynamic linker, before its first report, runs code that it has only just mapped
    assert total - run.stacks["complete"] <= 3, run.stacks


def test_one_function_that_cannot_be_probed_spoils_no_other() -> None:
    """The kernel refuses all places of a request if it refuses one."""
    run = count([PROGRAM, "locked", "exported", "sequential"], "locked", "exported", "leaf")
    assert run.exit_code == 0
    assert run.by_state == {"exported": Calls(601), "leaf": Calls(601 + 1009)}
    (note,) = run.counting.notes
    assert note.startswith("locked cannot be counted: the kernel refuses a probe") and "/proc" not in note


def test_a_nop_of_five_bytes() -> None:
    """Probed there where this kernel makes that cheap, else at its call: exact in both cases."""
    with counting_session("nopped") as (session, counting):
        prices = machine_prices(counting.kernel)
        is_cheap = nop5_is_cheap(counting.kernel, prices)
        assert nop5_is_cheap(counting.kernel, prices) == is_cheap, "a second look says the same"
        counting.finder._nop5_is_cheap = lambda: is_cheap
        child = Child([str(PROGRAM), "nop"])
        session.watch(child.pid, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        run = Counted(counting, session, child.wait())
    assert run.by_state == {"nopped": Calls(223)}
    assert all(site.place.knows_caller != is_cheap for site in run.counting.sites.values())


def test_two_routines_at_one_instruction() -> None:
    """The first instruction of one is the call of the other."""
    run = count([PROGRAM, "exported"], "exported", "leaf")
    assert run.by_state == {"exported": Calls(601), "leaf": Calls(601)}


def test_a_program_that_throws_through_it_ends_as_without_us() -> None:
    run = count([profiling.BUILD / "calls_throw"], "risky")
    assert run.exit_code == 0
    assert run.by_state == {"thrower::Thrower::risky(int)": Calls(1999)}


def test_a_program_that_exits_in_the_middle_of_a_call() -> None:
    run = count([PROGRAM, "sequential", "exit"], "run", "leaf", "main")
    assert run.exit_code == 3
    assert run.by_state["leaf"] == Calls(1009)


@pytest.mark.parametrize("ended_by", ["exit", "kill"])
def test_attaching_in_the_middle_of_a_call(ended_by: str) -> None:
    process = subprocess.Popen([PROGRAM, "endless"])
    try:
        time.sleep(0.2)
        with counting_session("endless", "sweep") as (session, counting):
            session.watch(process.pid)
            if ended_by == "kill":
                process.kill()
                process.wait()
            run_for(session, 0.5)
            session.finish()
            assert not counting.kernel.calls.by_site(), "it was entered before"
        assert (process.poll() is None) == (ended_by == "exit")
    finally:
        process.kill()
        process.wait()


@pytest.mark.alone
def test_the_breaker_ends_a_storm_of_calls() -> None:
    budget = Budget(0.05, 20_000_000)
    with subprocess.Popen(
        [PROGRAM, "wait", "storm=2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == b"ready\n"
        with counting_session("leaf", budget=budget) as (session, counting):
            target = session.watch(process.pid)
            process.stdin.write(b"\n")
            process.stdin.flush()
            profiling.run_until(session, lambda: Cost.CALL in target.probing.cuts, 20)
            begun = counting.kernel.calls.by_site()
            run_for(session, 0.3)
            assert counting.kernel.calls.by_site() == begun, "nothing is counted any more"
            spent_s = counting.kernel.process_state(process.pid).spent_ns[Cost.CALL] / 1e9  # type: ignore[union-attr]
            assert 0.015 < spent_s < 0.1
            session.finish()
        assert float(process.stdout.read()) > 2e5, "the program ran on at its own pace"


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("regions") / "calls_regions"
    source = profiling.ROOT / "tests/workloads/calls_regions.c"
    subprocess.run(["gcc", "-O2", "-g", "-fopenmp", source, "-o", program], check=True)
    return program


@pytest.mark.parametrize("source", [Source.EXACT, Source.MEMORY, Source.SAMPLED])
def test_states_by_each_source(regions: Path, source: Source) -> None:
    """Calls outside of regions are sequential, those of a region's two threads at once are concurrent."""
    with counting_session("leaf", source=source) as (session, counting):
        child = Child([str(regions)])
        session.watch(child.pid, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        program = [target for target in session.targets.values() if target.pid == child.pid][-1]
        assert program.source is source
        run = Counted(counting, session, child.wait())
    assert run.exit_code == 0 and not run.lost_calls
    by_line = sorted(
        (sum(one.sequential for one in by_cpu.values()), sum(one.concurrent for one in by_cpu.values()))
        for by_cpu in run.by_site.values()
    )
    assert by_line == [(0, 3 * 2 * 307), (3 * 211, 0)]


@pytest.mark.alone  # another's may be beside ours
def test_no_probe_is_left() -> None:
    """The program's code is as it was once counting is over."""
    process = subprocess.Popen([PROGRAM, "endless"])
    try:
        time.sleep(0.1)
        with counting_session("leaf", "sweep", "deep") as (session, counting):
            session.watch(process.pid)
            assert counting.sites and _code(process.pid) != _text(PROGRAM)
        end = time.monotonic() + 20
        while _code(process.pid) != _text(PROGRAM):
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def _text(path: Path) -> bytes:
    from parprof.files.elf import ElfFile

    with ElfFile.open(str(path)) as elf:
        (segment,) = elf.code
        return elf.read_at(segment.offset, segment.file_size)


def _code(pid: int) -> bytes:
    """The program's code as it is in memory."""
    line = next(one for one in Path(f"/proc/{pid}/maps").read_text().splitlines() if "r-xp" in one)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), len(_text(PROGRAM)), int(line.split("-")[0], 16))


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A program, and two versions of a library that it loads."""
    folder = tmp_path_factory.mktemp("replaced")
    source = profiling.ROOT / "tests/workloads/calls_replaced.c"
    program, *libraries = folder / "calls_replaced", folder / "first.so", folder / "second.so"
    subprocess.run(["gcc", "-O2", "-g", source, "-ldl", "-o", program], check=True)
    for version, library in enumerate(libraries, 1):
        subprocess.run(["gcc", "-shared", "-fPIC", f"-DPLUGIN={version}", source, "-o", library], check=True)
    return program, *libraries


@pytest.mark.parametrize("how", ["another file", "written over", "the same"])
def test_a_library_that_is_unloaded_and_replaced(
    replaced: tuple[Path, Path, Path], tmp_path: Path, how: str
) -> None:
    """What was counted of the first stays, its probes go with it, and the second is counted from its probes on."""
    program, first, second = replaced
    plug = tmp_path / "plug.so"
    shutil.copy(first, plug)
    with subprocess.Popen(
        [program, plug], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout

        def write(line: str) -> None:
            assert process.stdin
            process.stdin.write(line + "\n")
            process.stdin.flush()

        def read(session: Session) -> str:
            assert process.stdout
            profiling.run_until(session, lambda: bool(select.select([process.stdout], [], [], 0)[0]), 20)
            return process.stdout.readline()

        def noted(words: str) -> Callable[[], bool]:
            return lambda: any(words in note for note in counting.notes)

        with counting_session("plugged") as (session, counting):
            session.watch(process.pid)
            for calls, returned in (
                (313, "7\n"),
                (127, "7\n" if how == "the same" else "1122334455667788\n"),
            ):
                write(str(calls))
                assert read(session) == "loaded\n"
                probed = (lambda: bool(counting.sites)) if calls == 313 else noted("from their new probes on")
                profiling.run_until(session, probed, 20)
                write("")
                assert read(session) == returned
                if calls == 313:
                    profiling.run_until(session, noted("plug.so was unloaded"), 20)
                    if how == "another file":
                        plug.unlink()
                    if how != "the same":
                        shutil.copy(second, plug)
            process.stdin.close()
            assert process.wait(20) == 0, "it lives"
            session.finish()
            run = Counted(counting, session, 0)
    counts = [sum(calls.all for calls in run.by_site[n].values()) for n in sorted(run.by_site)]
    assert counts == ([313 + 127] if how == "the same" else [313, 127])
    assert not run.lost_calls
    assert noted("its probes went with it")() and noted("plug.so was loaded later")()
    assert noted("loaded again" if how == "the same" else "replaced by another file")()
