# SPDX-License-Identifier: Apache-2.0
"""Which causes are named, what kind they are of, and how sure they are. Real programs: test_planted.py."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from parprof.attribution import attribute
from parprof.attribution.gain import gain_bound, gain_text, row_gain
from parprof.causes import routes
from parprof.causes.cause import Cause, interval_percent
from parprof.causes.diagnosis import Kind
from parprof.causes.evidence import Evidence
from parprof.causes.ownership import Owner, Ownership
from parprof.causes.ranking import causes_of, find_causes
from parprof.causes.routes import RouteFinder
from parprof.exporters.answer import headline, sentence
from parprof.files.dso import ANONYMOUS
from parprof.metrics import IDLENESS, STALL, STOLEN, WAIT, Metrics
from parprof.model import NOBODY, OTHERS, Frame, Origin, PathSample, ProcessInfo, Profile, ThreadState
from profiles import any_profile, few_samples, frame, heat, library

CORES = 4


def row(
    names: str, count: int, n_working: float, tid: int = 1, *, overhead: str = "", pid: int = 7
) -> PathSample:
    """Samples of 1 ms. A name in capitals is of the C library, one in brackets stands for itself."""
    path = tuple(
        Frame(name) if name[0] == "[" else library(name) if name.isupper() else frame(name, 9)
        for name in names.split()
    )
    metrics = attribute(count, 1e6, n_working, CORES, ThreadState.WORKING, overhead=bool(overhead))
    return PathSample(path, metrics, Origin(pid, "x", f"t{tid}", overhead=overhead, tid=tid))


def balanced(names: str, count: int = 400) -> list[PathSample]:
    return [row(names, count, CORES, tid) for tid in range(1, CORES + 1)]


def found(*rows: PathSample, runtime: str = "none") -> list[Cause]:
    return causes_of(rows, CORES, runtime)


def named(causes: Sequence[Cause]) -> list[tuple[str, str]]:
    return [(cause.kind.value, cause.function) for cause in causes]


def test_serial_code_between_parallel_code() -> None:
    (cause,) = found(*balanced("main solve"), row("main setup", 300, 1))
    assert (cause.kind, cause.path, cause.line) == (Kind.SERIAL, ("main", "setup"), 9)
    assert cause.lost_ns == pytest.approx(900e6)
    assert cause.lost_percent == pytest.approx(100 * 900 / 2800)
    assert cause.gain_bound == pytest.approx(2800 / 1900)


def test_more_than_three_problems_are_all_named_worst_first() -> None:
    rows = [row(f"main part{number}", 100 * number, 1) for number in range(1, 7)]
    causes = found(*balanced("main solve"), *rows)
    assert named(causes) == [("serial", f"part{number}") for number in (6, 5, 4, 3, 2)]


def test_a_single_threaded_program_is_called_just_that() -> None:
    (cause,) = found(row("main a", 300, 1), row("main b", 200, 1))
    assert (cause.kind, cause.path, cause.function) == (Kind.SERIAL_PROGRAM, (), "")


@pytest.mark.parametrize("below", ["PRINTF", "PRINTF WRITE", "[truncated]", "[unknown]"])
def test_what_is_not_the_programs_is_its_callers(below: str) -> None:
    causes = found(*balanced("main solve"), row(f"START main setup {below}", 300, 1))
    assert named(causes) == [("serial", "setup")]


def test_code_of_nobody_is_not_named() -> None:
    assert found(*balanced("main solve"), row("[truncated]", 300, 1), row("START INIT", 300, 1)) == []


def test_a_callback_is_a_detail_of_who_asked_for_it() -> None:
    assert named(found(*balanced("main solve"), row("main sort_all QSORT compare", 300, 1))) == [
        ("serial", "sort_all")
    ]


def test_a_lost_beginning_is_found_again() -> None:
    (cause,) = found(
        *balanced("main solve"), row("main setup parse", 300, 1), row("[truncated] setup parse", 200, 1)
    )
    assert cause.path[:2] == ("main", "setup")
    assert cause.lost_ns == pytest.approx(1500e6)


def test_a_helper_that_others_use_is_not_to_blame() -> None:
    causes = found(*balanced("main solve dot"), row("main setup dot", 300, 1))
    assert named(causes) == [("serial", "setup")]


@pytest.mark.parametrize(("elsewhere", "function"), [(2, "step"), (60, "parse")])
def test_a_routine_that_others_use_a_little_is_its_callers(elsewhere: int, function: str) -> None:
    """``step`` under ``parse`` is what runs alone; others call it rarely, or now and then."""
    causes = found(
        *balanced("main solve"), row("main parse step", 300, 1), row("main solve step", elsewhere, 2)
    )
    assert named(causes) == [("serial", function)]


def test_threads_that_take_turns_wait_for_a_lock() -> None:
    rows = [row("main worker update", 150, 1, tid) for tid in range(1, 5)]
    (cause,) = found(*balanced("main solve"), *rows)
    assert (cause.kind, cause.function) == (Kind.LOCK, "update")


def test_where_the_runtime_takes_half_the_time_pieces_are_too_fine_however_idle_others_are() -> None:
    """Regions of some microseconds: the team goes to sleep between them, and the first thread does most of it."""
    creates = [
        row("main relax GOMP_PARALLEL", count, 1.6, tid, overhead="create")
        for tid, count in ((1, 300), (2, 60))
    ]
    works = [row("main relax", count, 1.6, tid) for tid, count in ((1, 140), (2, 90))]
    (cause,) = found(*creates, *works, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.OVERHEAD, "relax")


def asleep(names: str, wait_ns: float, tid: int) -> PathSample:
    """A thread that waits for this, whatever the others do."""
    one = row(names, 0, 1, tid)
    one.metrics[WAIT] = wait_ns
    return one


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("main worker LOCK", Kind.LOCK),
        ("main worker update LOCK", Kind.LOCK),
        ("SCHEDULER PARK", Kind.SERIAL),
    ],
)
def test_work_that_goes_from_thread_to_thread_waits_for_no_lock(place: str, kind: Kind) -> None:
    """A routine of a language with a scheduler of its own: the other threads sleep elsewhere, for want of work."""
    rows = [row("main worker update", 150, 1, tid) for tid in range(1, 5)]
    waits = [asleep(place, 450e6, tid) for tid in range(1, 5)]
    (cause,) = found(*balanced("main solve"), *rows, *waits)
    assert (cause.kind, cause.function) == (kind, "update")
    if kind is Kind.SERIAL:
        assert cause.what == "one thread at a time works, 4 of them in turn: 3 of 4 cores are idle"


def test_processes_one_after_the_other_are_serial_code() -> None:
    rows = [row("main compile", 150, 1, tid, pid=tid) for tid in range(1, 5)]
    (cause,) = found(*balanced("main solve"), *rows)
    assert cause.kind is Kind.SERIAL
    assert "make -j" in cause.remedy


def test_unequal_shares() -> None:
    rows = [row("main worker", 100, 4, tid) for tid in range(1, 5)] + [row("main worker", 300, 1)]
    (cause,) = found(*balanced("main solve"), *rows)
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "worker")
    assert "4.0:1" in cause.what


@pytest.mark.parametrize("depth", ["work", "work part"])
@pytest.mark.parametrize("started", [(), (library("CLONE"), library("START_THREAD"))])
def test_a_function_that_threads_run_is_another_thing_where_it_is_called(
    started: Sequence[Frame], depth: str
) -> None:
    """`work(0)`, and then `pthread_create(..., work, ...)` in the same function: the former alone is serial."""
    threads = [replace(one, physical=(*started, *one.path[1:])) for one in balanced(f"main {depth}")]
    longer = replace(row(f"main {depth}", 150, 1, 1), physical=threads[0].physical)
    causes = found(*threads, longer, row(f"main {depth}", 300, 1, 7))
    assert [(cause.kind, cause.path[:2]) for cause in causes] == [
        (Kind.SERIAL, ("main", "work")), (Kind.IMBALANCE, ("main", "work")),
    ]  # fmt: skip
    assert [cause.lost_ns for cause in causes] == pytest.approx([900e6, 450e6])


def test_serial_code_whose_library_starts_threads_that_are_busy_for_a_moment() -> None:
    """Imports of NumPy: the threads of its BLAS library look for work before they go to sleep."""
    rows = [row("main load", 300, 1), row("main load SERVER", 40, 2, 2), row("main load SERVER", 5, 2, 3)]
    (cause,) = found(*balanced("main solve"), *rows, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.SERIAL, "load")
    assert cause.what == "one thread does 87 % of the work, most of it alone: 3 of 4 cores are idle"
    assert "schedule" not in cause.remedy


@pytest.mark.parametrize(("spin_ns", "kind"), [(300e6, Kind.SERIAL), (0.0, Kind.STARVED)])
def test_serial_code_beside_threads_that_spin_for_a_moment(spin_ns: float, kind: Kind) -> None:
    """A thread of OpenBLAS's pool counts as working until a sample finds it spinning."""
    spinning = row("main multiply GEMM", 0, 1, 2)
    spinning.metrics.add(Metrics(round(spin_ns / 1e6), spin_ns=spin_ns))
    rows = [row("main prepare", 240, 1), row("main prepare", 80, 2)]
    (cause, *_) = found(*balanced("main multiply GEMM"), *rows, spinning)
    assert (cause.kind, cause.function) == (kind, "prepare")


def script(name: str, file: str) -> Frame:
    return Frame(name, file, 3, 1, "python")


def statement(line: int, count: int, n_working: float, tid: int = 1, *below: Frame) -> PathSample:
    """A line of a script, which calls a library."""
    one = row("QUERY", count, n_working, tid)
    return replace(one, path=(Frame("<module>", "/home/me/job.py", line, 1, "python"), *below, *one.path))


def test_a_script_that_calls_libraries_has_its_serial_lines_named() -> None:
    """A query of DuckDB's runs on all cores, to make its table on one: both are calls of one function's."""
    query = [statement(9, 2000, CORES, tid) for tid in range(1, CORES + 1)]
    imports = statement(
        1, 120, 1, 1, Frame("_find_and_load", "<frozen importlib._bootstrap>", 1, 1, "python")
    )
    causes = found(*query, statement(9, 300, 2), statement(4, 500, 1), statement(6, 100, 1), imports)
    assert [(cause.kind, cause.function, cause.line) for cause in causes[:2]] == [
        (Kind.SERIAL, "<module>", 4),
        (Kind.SERIAL, "<module>", 1),
    ]
    assert causes[0].lost_ns == pytest.approx(600e6 * (CORES - 1))
    assert causes[0].what == "one thread works, 3 of 4 cores are idle"
    assert causes[1].what.startswith("one thread imports")


def test_functions_that_a_script_calls_one_after_the_other_are_named_themselves() -> None:
    """Its imports take as long as each of them."""
    own = [Frame(name, "/home/me/job.py", 3, 1, "python") for name in ("load", "summarize")]
    imports = statement(
        1, 300, 1, 1, Frame("_find_and_load", "<frozen importlib._bootstrap>", 1, 1, "python")
    )
    rows = [statement(9 + at, 400 - 50 * at, 1, 1, one) for at, one in enumerate(own)]
    causes = found(*balanced("main solve"), imports, *rows)
    assert named(causes) == [("serial", "load"), ("serial", "summarize"), ("serial", "<module>")]
    assert causes[2].what.startswith("one thread imports")


def test_what_a_script_does_beside_functions_that_are_named_themselves_has_its_own_lines() -> None:
    """A script that imports xgboost, has it fit on all cores, unevenly, and calls a function of its own for longest:
    both of the others were told as one imbalance in the line of that call."""
    own = Frame("serial_feature", "/home/me/job.py", 20, 18, "python")
    imports = statement(
        1, 300, 1, 1, Frame("_find_and_load", "<frozen importlib._bootstrap>", 1, 1, "python")
    )
    uneven = [statement(6, 700 if tid == 1 else 200, 2, tid) for tid in range(1, CORES + 1)]
    causes = found(imports, *uneven, statement(13, 900, 1, 1, own))
    assert [(cause.kind, cause.function, cause.line) for cause in causes] == [
        (Kind.SERIAL, "serial_feature", 20),
        (Kind.IMBALANCE, "<module>", 6),
        (Kind.SERIAL, "<module>", 1),
    ]
    assert causes[2].what.startswith("one thread imports")


def test_a_function_that_numba_compiles_is_its_callers() -> None:
    """GIVEN a wheel whose library has sources, somewhere where its makers had them, and Python code of its own THEN the
    line of the script that called is named, and that it is compiled."""
    numba = "/home/me/venv/lib/python3.11/site-packages/numba/core/dispatcher.py"
    call = Frame(
        "compile_and_invoke", "/io/numba/_dispatcher.cpp", 1215, 1, "_dispatcher.cpython-311-x86_64.so"
    )
    below = call, Frame("Dispatcher.compile", numba, 3, 1, "python")
    rows = [statement(9, 300, CORES, tid, call) for tid in range(1, CORES + 1)]
    (cause,) = found(*rows, statement(7, 300, 1, 1, *below))
    assert (cause.kind, cause.function, cause.line) == (Kind.SERIAL, "<module>", 7)
    assert (
        cause.what.startswith("one thread has functions compiled by numba") and "cache=True" in cause.remedy
    )


def test_threads_that_began_as_a_function_was_compiled_run_what_was_made() -> None:
    compiling = Frame(
        "compile", "/opt/venv/lib/python3.11/site-packages/numba/core/compiler.py", 3, 1, "python"
    )
    made = Frame("gufunc", module="[anon]", address=0x7F0000001000)
    (cause,) = found(*balanced("main solve"), statement(7, 300, 1, 2, compiling, made))
    assert "compiled" not in cause.what and cause.function == "gufunc"


def test_what_a_library_imports_when_it_is_called_is_an_import() -> None:
    """torch.optim's first optimizer imports a compiler."""
    below = [
        Frame("Adam.__init__", "/opt/venv/lib/python3.11/site-packages/torch/optim/adam.py", 1, 1, "python"),
        Frame("_find_and_load", "<frozen importlib._bootstrap>", 1, 1, "python"),
        Frame("<module>", "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/__init__.py", 1, 1, "python"),
    ]
    (cause,) = found(*balanced("main solve"), statement(7, 300, 1, 1, *below))
    assert cause.what.startswith("one thread imports torch._dynamo most of that time")


def test_modules_that_are_read_in_from_disk_are_told_as_such() -> None:
    """The first run after an installation; what of an import is no waiting is told by itself."""
    imports = statement(
        1, 100, 1, 1, Frame("_find_and_load", "<frozen importlib._bootstrap>", 1, 1, "python")
    )
    wait = replace(
        imports, path=(*imports.path, Frame("[waits: page fault]")), metrics=Metrics(stall_ns=900e6)
    )
    cause, rest = found(*balanced("main solve"), imports, wait)
    assert (cause.kind, cause.function) == (Kind.STALL, "") and "measure again" in cause.remedy
    assert cause.lost_ns == 900e6, "what is no more than that when all is in memory"
    assert rest.kind is Kind.SERIAL and rest.what.startswith("one thread imports")
    assert rest.lost_ns == pytest.approx(300e6)


def test_text_that_a_library_has_run_is_no_program() -> None:
    made = Frame("__create_fn__", "<string>", 1, 1, "python")
    assert Ownership(["/home/me"]).of(made) is Owner.LIBRARY
    assert Ownership([]).of(made) is Owner.PROGRAM  # python -c


@pytest.mark.parametrize("file", ["<dynamic-code>", "<ipython-input-3-0f1e>"])
def test_functions_that_were_sent_to_another_process_are_the_programs(file: str) -> None:
    """What cloudpickle sends by value (dask, ray, joblib, Spark), and cells."""
    assert Ownership(["/home/me"]).of(Frame("merge_all", file, 8, 1, "python")) is Owner.PROGRAM


@pytest.mark.parametrize(
    ("folders", "owner"),
    [
        (None, Owner.PROGRAM),
        (["/home/me/p/bin"], Owner.PROGRAM),
        (["/srv"], Owner.PROGRAM),
        (["/home"], Owner.PROGRAM),
        (["/srv/p"], Owner.LIBRARY),
        ([], Owner.LIBRARY),
    ],
)
def test_whose_a_library_of_a_script_is(folders: list[str] | None, owner: Owner) -> None:
    file = "/srv/p/fast.c" if folders == ["/srv"] else "/home/me/p/src/fast.c"
    fast = Frame("fast", file, module="fast.cpython-311-x86_64-linux-gnu.so")
    assert Ownership(folders).of(fast) is owner


def test_a_script_that_is_all_of_one_kind_is_one_place() -> None:
    (cause,) = found(*balanced("main solve"), *(statement(line, 200, 1) for line in (3, 4, 5)))
    assert (cause.kind, cause.function, cause.lost_ns) == (Kind.SERIAL, "<module>", pytest.approx(1800e6))


@pytest.mark.parametrize(("without_core", "kind"), [(900e6, Kind.BUSY_MACHINE), (100e6, Kind.STALL)])
@pytest.mark.parametrize("wait", [(), (Frame("[waits: lock]"),)])
def test_a_team_that_waits_for_one_of_them_which_has_no_core(
    without_core: float, kind: Kind, wait: tuple[Frame, ...]
) -> None:
    """The region is a library's: the program's innermost frame is far from the barrier."""
    late = row("main fit SPLIT GOMP_parallel [libgomp]", 0, 1)
    late = replace(late, path=late.path + wait)
    late.metrics[STALL] = 1500e6
    waiting = row("main solve", 0, 1, tid=2)
    waiting.metrics[STOLEN] = without_core
    (cause, *_) = found(*balanced("main solve"), late, waiting, runtime="libgomp")
    assert (cause.kind, cause.function) == (kind, "fit")


@pytest.mark.parametrize(("without_core", "kind"), [(900e6, Kind.BUSY_MACHINE), (100e6, Kind.STARVED)])
def test_threads_that_spin_for_each_other_do_not_sleep(without_core: float, kind: Kind) -> None:
    """Nobody was found working at a sample, and nobody slept."""
    spinning = row("main multiply GEMM", 0, 1)
    spinning.metrics.add(Metrics(600, spin_ns=600e6, stall_ns=1500e6))
    waiting = row("main solve", 0, 1, tid=2)
    waiting.metrics[STOLEN] = without_core
    (cause, *_) = found(*balanced("main solve"), spinning, waiting)
    assert (cause.kind, cause.function) == (kind, "multiply")


def test_imports_are_told_as_such() -> None:
    begin = script("<module>", "/home/u/job.py")
    imports = [
        script("_find_and_load", "<frozen importlib._bootstrap>"),
        script("<module>", "/usr/lib/python3/dist-packages/numpy/__init__.py"),
        script("_find_and_load", "<frozen importlib._bootstrap>"),
        script("<module>", "/usr/lib/python3/dist-packages/numpy/core/__init__.py"),
    ]

    def alone_in(*path: Frame, count: int) -> PathSample:
        metrics = attribute(count, 1e6, 1, CORES, ThreadState.WORKING)
        return PathSample(path, metrics, Origin(7, "x", "t1", tid=1))

    rows = [
        alone_in(begin, *imports, count=200),
        alone_in(begin, *imports[:2], count=50),
        alone_in(begin, count=50),
    ]
    (cause,) = found(*balanced("main solve"), *rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "<module>")
    assert cause.what == "one thread imports numpy most of that time, 3 of 4 cores are idle"
    assert "-X importtime" in cause.remedy


def test_remedies_are_in_the_runtimes_own_words() -> None:
    rows = [row("main worker", 100, 4, tid) for tid in range(1, 5)] + [row("main worker", 300, 1)]
    begun = row("main GOMP_parallel worker", 1, 4)
    (cause,) = found(*balanced("main solve"), *rows, begun, runtime="libgomp")
    assert "schedule(dynamic)" in cause.remedy
    (cause,) = found(*balanced("main solve"), *rows, runtime="libgomp")
    assert "schedule" not in cause.remedy, "threads of another kind: a library has merely loaded the runtime"


@pytest.mark.parametrize("name", ["GOMP_parallel_loop_dynamic", "__GI_fdatasync_to_disk"])
def test_a_wait_is_named_by_its_call(name: str) -> None:
    """The underscores before a name go, those in it stay."""
    path = (frame("main", 9), frame("load", 9), library(name))
    waits = PathSample(path, Metrics(1, stall_ns=9e8), Origin(7, "x", "t1", tid=1))
    (cause,) = found(*balanced("main work"), waits)
    assert cause.kind is Kind.STALL
    assert cause.what.endswith(f" in {name.removeprefix('__GI_')}")


def test_what_loses_by_overhead_is_no_serial_code_though_that_is_not_much() -> None:
    """One thread of several, hardly ever alone, spends a tenth of its time on locks that nobody else wants."""
    query = [
        row("main query", 405, 4),
        row("main query", 10, 2),
        row("main query LOCK", 45, 4, overhead="sync"),
    ]
    waits = row("main query READ [kernel]", 0, 4)
    waits.metrics[WAIT] = 1e8
    (cause,) = found(*balanced("main solve"), *query, waits)
    assert (cause.kind, cause.function) == (Kind.OVERHEAD, "query")
    assert cause.what.startswith("10 % of its CPU time is spent on synchronization")


def test_overhead_is_a_share_of_all_that_the_function_does() -> None:
    """Also where what it calls loses for a reason of its own, and is told apart."""
    rows = [row("main align CREATE", 80, 4, tid, overhead="create") for tid in range(1, 5)]
    rows += [row("main align", 20, 4, tid) for tid in range(1, 5)]
    rows.append(row("main align score", 400, 1))
    causes = found(*balanced("main solve"), *rows)
    (fine,) = (cause for cause in causes if cause.kind is Kind.OVERHEAD)
    assert {cause.function for cause in causes} == {"align", "score"}
    assert fine.function == "align" and fine.what.startswith("40 % of its CPU time is spent on creating")


def test_what_is_too_fine() -> None:
    rows = [row("main many CREATE", 200, 4, tid, overhead="create") for tid in range(1, 5)]
    (cause,) = found(*balanced("main solve"), *rows)
    assert (cause.kind, cause.function) == (Kind.OVERHEAD, "many")


def test_nothing_is_said_on_few_samples_or_little_loss() -> None:
    assert found(row("main setup", 49, 1), *balanced("main solve", 1)) == []
    assert found(row("main setup", 49, 1), *balanced("main solve")) == []
    assert found(row("main setup", 51, 1), *balanced("main solve")) != []
    assert found(row("main setup", 51, 1), *balanced("main solve", 10_000)) == []
    assert causes_of([row("main setup", 500, 1)], 1, "none") == []


def test_without_numbers_of_threads() -> None:
    """Profiles of the daemon, and of older versions."""
    rows = [
        replace(one, origin=Origin(7, "x", "x"))
        for one in (*balanced("main solve"), row("main setup", 300, 1))
    ]
    assert named(causes_of(rows, CORES, "none")) == [("serial", "setup")]
    assert named(find_causes(heat()))[0] == ("serial", "write_boundary")


@pytest.mark.parametrize(
    ("name", "module", "file", "owner"),
    [
        ("solve", "/home/u/x", "", Owner.PROGRAM),
        ("solve", "/home/u/libx.so", "", Owner.PROGRAM),
        ("solve", "/usr/bin/pigz", "", Owner.PROGRAM),
        ("solve", "libx.so", "/home/u/x.c", Owner.PROGRAM),
        ("deflate", "libz.so.1.2.13", "", Owner.LIBRARY),
        ("inflate", "libz.so.1.2.13", "/build/zlib-1/inflate.c", Owner.LIBRARY),
        ("f", "", "", Owner.PROGRAM),
        ("deflate", "/usr/lib/x86_64-linux-gnu/libz.so.1", "", Owner.LIBRARY),
        ("matmul", "/home/u/.venv/lib/python3.11/site-packages/numpy/_core.so", "", Owner.LIBRARY),
        ("f", "python", "/home/u/.venv/lib/python3.11/site-packages/numpy/a.py", Owner.LIBRARY),
        ("f", "python", "/home/u/run.py", Owner.PROGRAM),
        ("run", "python", "/usr/lib/python3.11/threading.py", Owner.SYSTEM),
        ("_find", "python", "<frozen importlib._bootstrap>", Owner.SYSTEM),
        ("[unknown Python function]", "python", "", Owner.SYSTEM),
        ("PyObject_Free", "/usr/bin/python3.11", "", Owner.SYSTEM),
        ("random", "/usr/lib/x86_64-linux-gnu/libc.so.6", "random.c", Owner.SYSTEM),
        ("libstdc++.so.6.0.30+0xd44a3", "/usr/lib/libstdc++.so.6.0.30", "", Owner.SYSTEM),
        ("std::thread::_M_run()", "/home/u/x", "", Owner.SYSTEM),
        ("_RNvNtCsjrHSEGnQ3l9_3std2rt19lang_start_internal", "/home/u/x", "", Owner.SYSTEM),
        ("_RNvCsjrHSEGnQ3l9_6scoped5merge", "/home/u/x", "", Owner.PROGRAM),
        ("rayon_core::unwind::halt_unwinding", "/home/u/x", "", Owner.LIBRARY),
        ("<rayon::vec::IntoIter<T> as rayon::iter::ParallelIterator>::drive", "/home/u/x", "", Owner.LIBRARY),
        ("rayon_demo::main", "/home/u/x", "", Owner.PROGRAM),
        ("fold", "/home/u/x", "/home/u/x/vendor/itertools/src/lib.rs", Owner.LIBRARY),
        ("lock_api::rwlock::RwLock<R,T>::write", "/home/u/x", "", Owner.LIBRARY),
        ("write", "/home/u/x", "/usr/share/cargo/registry/spin-0.9.5/src/rwlock.rs", Owner.LIBRARY),
        ("strings.Split", "/home/u/x", "/usr/lib/go-1.19/src/strings/strings.go", Owner.LIBRARY),
        ("encoding/json.Marshal", "/home/u/x", "/usr/local/go/src/encoding/json/encode.go", Owner.LIBRARY),
        ("main.main", "/home/u/x", "/home/u/go/src/parser/main.go", Owner.PROGRAM),
        ("_asyncio+0x7e22", "_asyncio.cpython-311-x86_64-linux-gnu.so", "", Owner.SYSTEM),
        ("dot", "_multiarray_umath.cpython-311-x86_64-linux-gnu.so", "", Owner.LIBRARY),
        ("do_syscall_64", "[kernel]", "", Owner.SYSTEM),
        ("loadAll", "[anon]", "/srv/app.js", Owner.PROGRAM),
        ("pick", "[anon]", "/srv/node_modules/x/y.js", Owner.LIBRARY),
        ("requireBuiltin", "[anon]", "node:internal/bootstrap/realm", Owner.SYSTEM),
        ("Builtin:ArrayMap", "[anon]", "", Owner.SYSTEM),
        ("long M.parse(int)", "[anon]", "", Owner.PROGRAM),
        ("java.lang.String App.report(long)", "[anon]", "", Owner.PROGRAM),
        ("java.lang.Object java.util.HashMap.get(java.lang.Object)", "[anon]", "", Owner.SYSTEM),
        ("ImageFileReader::get_resource(unsigned int)", "libjimage.so", "", Owner.SYSTEM),
        ("Lorg/x/App;::run", "[anon]", "", Owner.PROGRAM),
        ("void java.util.ArrayList.add(java.lang.Object)", "[anon]", "", Owner.SYSTEM),
        ("Ljava/util/ArrayList;::add", "[anon]", "", Owner.SYSTEM),
        ("Interpreter", "[anon]", "", Owner.SYSTEM),
        ("StubRoutines (1)", "[anon]", "", Owner.SYSTEM),
        ("py::load:/srv/app.py", "[anon]", "", Owner.SYSTEM),
        ("$lists:rmergel/2", "[anon]", "", Owner.SYSTEM),
        ("$pl:main/0", "[anon]", "", Owner.PROGRAM),
        ("erts_schedule", "/usr/lib/erlang/erts-13/bin/beam.smp", "", Owner.SYSTEM),
        ("main", "/usr/lib/R/bin/exec/R", "", Owner.SYSTEM),
        ("Rf_eval", "/usr/lib/R/lib/libR.so", "", Owner.SYSTEM),
        ("caml_call_gc", "/home/u/x", "", Owner.SYSTEM),
        ("camlStdlib__List__iter_261", "/home/u/x", "", Owner.SYSTEM),
        ("camlSolver__step_81", "/home/u/x", "", Owner.PROGRAM),
        ("CTHREADS_$$_THREADMAIN$POINTER$$POINTER", "/home/u/x", "", Owner.SYSTEM),
        ("fpc_setlength_dynarr", "/home/u/x", "", Owner.SYSTEM),
        ("P$SOLVE_$$_STEP", "/home/u/x", "/home/u/solve.pas", Owner.PROGRAM),
        ("mono-sgen+0x23d260", "/usr/bin/mono-sgen", "", Owner.SYSTEM),
        ("mono_jit_exec", "libmonosgen-2.0.so.1", "", Owner.SYSTEM),
        ("System.Threading.Tasks.Task:Execute ()", "[anon]", "", Owner.SYSTEM),
        ("(wrapper managed-to-native) System.Threading.Monitor:Exit (object)", "[anon]", "", Owner.SYSTEM),
        ("Solver:Step (int)", "[anon]", "", Owner.PROGRAM),
        ("[anon]", "[anon]", "", Owner.SYSTEM),
        ("_dl_start", "/lib64/ld-linux-x86-64.so.2", "", Owner.SYSTEM),
    ],
)
def test_whose_code_it_is(name: str, module: str, file: str, owner: Owner) -> None:
    assert Ownership().of(Frame(name, file, module=module)) is owner


def test_deep_paths() -> None:
    deep = " ".join(f"f{depth}" for depth in range(2000))
    causes = found(*balanced("main solve"), row(f"main {deep}", 300, 1))
    assert [cause.kind for cause in causes] == [Kind.SERIAL]


@given(any_profile)
def test_any_profile(profile: Profile) -> None:
    for cause in find_causes(profile):
        low, high = cause.interval_percent
        assert 0 <= low <= cause.lost_percent <= high + 1e-9 <= 100 + 1e-6
        assert cause.gain_bound >= 1


def test_fewer_threads_than_cores_are_not_unequal() -> None:
    """Two threads with equal shares on four cores; with a third one that does more, shares are unequal."""
    rows = [row("main PTHREAD_CREATE worker", 500, 2, tid) for tid in (1, 2)]
    (cause,) = causes_of(rows, CORES, "none")
    assert cause.kind is Kind.IMBALANCE
    assert cause.what == "2 threads share the work, 2 of 4 cores have none"
    rows.append(row("main PTHREAD_CREATE worker", 1500, 2, 3))
    (cause,) = causes_of(rows, CORES, "none")
    assert "unequal shares" in cause.what


def test_of_equal_losses_in_one_function_no_order_decides_where_it_is_told_of() -> None:
    rows = [
        PathSample((Frame("a", file="x.c"),), Metrics(work_ns=1, overhead_ns=1)),
        PathSample((Frame("b", file="x.c"),), Metrics(50, 2, 3, 5)),
        PathSample((Frame("a", file="x.c"), Frame("b", file="x.c")), Metrics(idleness_ns=5)),
    ]
    said = {
        tuple((cause.function, cause.lost_percent) for cause in causes_of(list(those), CORES, "none"))
        for those in permutations(rows)
    }
    assert len(said) == 1


@given(few_samples, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[PathSample], random: object) -> None:
    def said(rows: list[PathSample]) -> list[tuple[str, float]]:
        return [(cause.function, round(cause.lost_percent, 6)) for cause in causes_of(rows, CORES, "none")]

    shuffled = samples.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(said(shuffled)) == sorted(said(samples))


@given(st.floats(1e6, 1e12), st.floats(0, 1e12), st.integers(2, 64))
def test_the_gain_bound_is_that_of_a_perfect_division(work: float, rest: float, cores: int) -> None:
    """GIVEN serial work, and other work on all cores THEN without idleness both take their share of all cores."""
    idle = work * (cores - 1)
    before, after = work + rest / cores, (work + rest) / cores
    total = Metrics(work_ns=work + rest, idleness_ns=idle)
    assert gain_bound(idle, total) == pytest.approx(before / after)
    assert gain_bound(total.effort_ns, total) == math.inf
    assert row_gain(Metrics(idleness_ns=idle), total) == gain_bound(idle, total)


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12))
def test_a_bound_has_room_in_its_column(idle: float, stall: float, rest: float, more: float) -> None:
    part = Metrics(idleness_ns=idle, stall_ns=stall)
    total = Metrics(work_ns=rest, idleness_ns=idle + more, stall_ns=stall)
    bound = row_gain(part, total)
    assert bound >= 1 and len(gain_text(bound)) <= 5


def test_of_unlike_paths_only_the_first_steps_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN many deep paths that share nothing but their root THEN nobody goes along them to their ends."""
    made = []
    step = routes.Route.step
    monkeypatch.setattr(routes.Route, "step", lambda route, at: made.append(at) or step(route, at))
    frames = [frame(f"f{number}") for number in range(3000)]
    paths = [(frames[0], *(frames[1 + (7 * at + 31 * n) % 2999] for n in range(1, 40))) for at in range(2000)]
    whole = Evidence([PathSample(path, Metrics(1, 1e6, 1e6), Origin(1, "p", "t")) for path in paths]).root
    assert whole.children[next(iter(whole.children))].all.metrics.samples == 2000
    assert len(made) < 3 * len(paths)
    assert max(made) < 3


def test_the_interval_covers_what_sampling_does() -> None:
    """GIVEN a program that is serial for a tenth of its samples THEN 95 of 100 drawn samples lie in the interval."""
    from random import Random

    random = Random(1)
    true = 100 * 0.1 * 3 / (1 + 0.1 * 3)
    inside = 0
    for _ in range(200):
        serial = sum(random.random() < 0.1 for _ in range(1000))
        part = attribute(serial, 1e6, 1, CORES, ThreadState.WORKING)
        total = attribute(1000 - serial, 1e6, CORES, CORES, ThreadState.WORKING)
        total.add(part)
        low, high = interval_percent(part, total, CORES)
        inside += low <= true <= high
    assert inside >= 186


def _in_library_threads(counts: Sequence[int], n_working: float) -> list[PathSample]:
    """Threads that a library created when the program's `save` called it."""
    inside = [Frame(name, module="/usr/lib/liblzma.so.5") for name in ("lzma_code", "worker_start")]
    created = Frame("pthread_create", module="/usr/lib/libc.so.6")
    path = (frame("main", 9), frame("save", 9), inside[0], created, inside[1])
    return [
        PathSample(
            path,
            attribute(count, 1e6, n_working, CORES, ThreadState.WORKING),
            Origin(7, "x", f"t{tid}", tid=tid),
        )
        for tid, count in enumerate(counts, 2)
    ]


def test_work_that_libraries_do_for_the_program_is_its_creators() -> None:
    """A compressor: most of the work is done by threads of its library, with unequal shares."""
    (cause,) = found(row("main save", 100, 1), *_in_library_threads((900, 300), 1.5))
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "save")


def test_a_librarys_threads_beside_the_program_are_nobodys_fault() -> None:
    """Whoever happened to start them: an import, say."""
    causes = found(*balanced("main solve"), row("main setup", 300, 1), *_in_library_threads((300, 100), 1.5))
    assert "save" not in {cause.function for cause in causes}
    assert ("serial", "setup") in named(causes)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            "__GI___clock_nanosleep",
            "for 0.50 s while this waits for time to pass (clock_nanosleep); wait for what",
        ),
        ("__wait4", "this waits for a child process (wait4); start several children"),
        (
            "__pthread_cond_timedwait [waits: condition]",
            "for another thread, or for time to pass (pthread_cond_timedwait); where it looks again",
        ),
        ("__GI___libc_read", "this waits in read; let it happen beside"),
        ("pthread_cond_wait", "this waits for another thread (pthread_cond_wait); who is waited for"),
        ("python3.11+0x545963 [waits: sleep]", "this waits for time to pass (sleep); wait for"),
        ("fread [waits: page fault]", "this waits for memory to be read in (page faults); touch"),
        ("fread [waits: other]", "this waits in fread; let it happen beside"),
        ("__libc_read [waits: pipe]", "this waits for a pipe (read); let it happen beside"),
        ("python3.11+0x545963 [waits: pipe]", "this waits for a pipe; let it happen beside"),
        ("[waits: other]", "nobody works for 0.50 s while this waits; let it happen beside"),
    ],
)
def test_what_to_do_about_a_wait_depends_on_its_kind(calls: str, said: str) -> None:
    names = re.findall(r"\[.*?\]|\S+", calls)
    foreign = [Frame(name, module="[kernel]") if name[0] == "[" else library(name) for name in names]
    path = (frame("main", 9), frame("load", 9), *foreign)
    waiting = PathSample(path, Metrics(), Origin(7, "x", "t1", tid=1))
    waiting.metrics[STALL] = 2e9
    (cause,) = found(*balanced("main solve"), waiting)
    assert (cause.kind, cause.function) == (Kind.STALL, "load")
    assert said in f"{cause.what}; {cause.remedy}"


def test_waits_that_nobody_saw_are_told_as_such() -> None:
    """Two processes that read a disk so often that context switches were not followed; it is not their code."""
    unseen = PathSample(NOBODY, Metrics(), Origin(7, "x"))
    unseen.metrics[STALL] = 2e9
    (cause,) = found(*balanced("main read"), unseen)
    assert (cause.kind, cause.path, cause.lost_ns) == (Kind.STALL, (), 2e9)
    assert "nobody works" in sentence(cause) and "--budget" in sentence(cause)


def test_a_cause_in_code_without_names_says_how_to_get_them() -> None:
    """Erlang's schedulers: what is below the thread's start is JIT code, of which nobody knows what it is."""
    made = Frame(ANONYMOUS, module=ANONYMOUS)
    serial = row("main start", 300, 1)
    stripped = tuple(replace(each, file="", line=0, start_line=0) for each in serial.path)
    rows = [*balanced("main solve"), replace(serial, path=(*stripped, made))]
    profile = Profile(
        ProcessInfo(7, "beam.smp", "/opt/bin/beam.smp -x", "none", CORES, "scheduler"), 1, 100, rows
    )
    (cause,) = find_causes(profile)
    assert cause.function == "start" and "has no names" in cause.what and "+JPperf true" in cause.remedy
    # its source is known, as of a script that calls such code; or there is none
    for path in ((*serial.path, made), stripped):
        rows = [*balanced("main solve"), replace(serial, path=path)]
        (plain,) = find_causes(replace(profile, samples=rows))
        assert plain.function == "start" and "names" not in plain.what


def test_serial_code_is_that_on_a_busy_machine_too() -> None:
    """Other programs had the cores that it left idle; the threads of the parallel code waited for theirs."""
    setup = row("main setup", 300, 1)
    setup.metrics[STOLEN], setup.metrics[IDLENESS] = 500e6, 400e6
    waiting = PathSample(
        (frame("main", 9), frame("solve", 9), library("GOMP_barrier")), Metrics(), Origin(7, "x", "t1")
    )
    waiting.metrics[STALL], waiting.metrics[STOLEN] = 1500e6, 1600e6
    causes = found(*balanced("main solve"), setup, waiting, runtime="libgomp")
    assert named(causes) == [("serial", "setup"), ("busy_machine", "solve")]


def _of(
    program: str, *threads: tuple[int, int, float], begin: str = "MAIN", waits: float = 900e6
) -> list[Cause]:
    """Causes of threads that run nothing but an interpreter: each its process, samples of 1 ms, and n_w."""
    rows = []
    for tid, (pid, count, n_working) in enumerate(threads, 1):
        rows += [row(f"{begin} EVAL", count, n_working, tid, pid=pid), asleep(f"{begin} WAIT", waits, tid)]
    return causes_of(rows, CORES, "none", 0.0, program)


def test_threads_of_an_interpreter_with_a_lock_of_its_own() -> None:
    """Ruby's: which of its functions run is not known, but that one thread at a time runs them is."""
    (cause,) = _of("/usr/bin/ruby3.1", (7, 150, 1), (7, 150, 1), (7, 150, 1))
    assert (cause.kind, cause.function) == (Kind.LOCK, "")
    assert cause.what.startswith("one thread at a time works, 3 of them in turn") and "GVL" in cause.what
    assert "Ractors" in cause.remedy
    assert _of("/srv/crunch", (7, 150, 1), (7, 150, 1), (7, 150, 1)) == []


def test_threads_that_wait_for_each_other_all_the_time_have_one_lock_on_a_busy_machine_too() -> None:
    """Who has just given it away has no core for a while: two threads seem to work."""
    rows = [row("MAIN EVAL", count, n, tid) for tid in (1, 2, 3) for count, n in ((110, 1), (40, 2))]
    slept = [asleep("MAIN WAIT", 300e6, tid) for tid in (1, 2, 3)]
    (cause,) = causes_of([*rows, *slept], CORES, "none", 0.0, "ruby3.1")
    assert cause.kind is Kind.LOCK and "GVL" in cause.what
    (cause,) = causes_of([*rows, *slept[1:]], CORES, "none", 0.0, "ruby3.1")
    assert cause.kind is not Kind.LOCK, "one of them never waits"


@pytest.mark.parametrize(("program", "pids"), [("ruby3.1", (7, 7)), ("php8.2", (7, 8))])
def test_threads_of_an_interpreter_that_work_beside_each_other(program: str, pids: tuple[int, int]) -> None:
    """Ractors, each with a lock of its own, and processes that a script forked; each is alone for most of its time."""
    one, other = pids
    (cause,) = _of(program, (one, 200, 1), (one, 80, CORES), (other, 150, 1), (other, 80, CORES))
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "")
    who = "2 processes" if other > one else "4 threads"
    assert cause.what.startswith(f"{who} work in code of {program} itself")
    assert "GVL" not in cause.what and "one alone" in cause.what


@pytest.mark.parametrize("stolen", [0, 1])
def test_of_two_processes_of_an_interpreter_the_one_that_has_more_to_do_is_named(stolen: int) -> None:
    """R's mclapply, unequal pieces: a busy machine, whose time is no process's, changes nothing of that."""
    rows = [
        row("MAIN EVAL", count, n, pid, pid=pid)
        for pid, count, n in ((8, 700, 1), (8, 250, CORES), (9, 250, CORES))
    ]
    nobodys = PathSample(OTHERS, Metrics(), Origin(7, "x"))
    nobodys.metrics[STOLEN] = stolen * 3e9
    (cause,) = causes_of([*rows, nobodys], CORES, "none", 0.0, "/usr/bin/R")
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "")
    assert cause.what.startswith(
        "one of 2 processes, t8 (pid 8), does 79 % of the work here, and 74 % of that alone"
    )


@pytest.mark.parametrize("module", ["threads.so", "shared.so"])
def test_what_perl_does_for_threads_is_no_programs(module: str) -> None:
    main, evaluates = (
        replace(frame(name, 1), module="perl", file="") for name in ("main", "Perl_runops_standard")
    )
    starts = replace(frame("threads.so+0x4e00", 0), module=module, file="")
    rows = [
        replace(row("MAIN", count, n, tid), path=(main, starts, evaluates))
        for tid, count, n in ((8, 300, CORES), (9, 300, CORES), (9, 600, 1))
    ]
    (cause,) = causes_of(rows, CORES, "none", 0.0, "/usr/bin/perl")
    assert (cause.kind, cause.function) == (Kind.SERIAL, "") and "in code of perl itself" in cause.what


def test_threads_of_an_interpreter_without_one() -> None:
    """Erlang's schedulers: their own code is serial there; names are to be had where code has none."""
    (cause,) = _of("beam.smp", (7, 300, 1), (7, 60, 1), (7, 30, 1))
    assert cause.kind is Kind.SERIAL and "code of beam.smp" in cause.what
    assert "+JPperf" not in cause.remedy
    (cause,) = _of("beam.smp", (7, 300, 1), (7, 60, 1), (7, 30, 1), begin="[anon]")
    assert "+JPperf true" in cause.remedy


def test_schedulers_of_an_emulator_that_all_sleep() -> None:
    """Erlang's, for the second that it takes to stop: it was said that one thread works for 74 % of the cores' time."""
    asleep_all = PathSample(
        (Frame("[anon]"), Frame("[waits: condition]")), Metrics(), Origin(7, "x", "t1", tid=1)
    )
    asleep_all.metrics[STALL] = 1400e6
    serial, other = row("[anon]", 250, 1), row("[anon]", 30, 1, 2)
    idle_ns = serial.metrics.idleness_ns + other.metrics.idleness_ns
    blocked, working = causes_of([serial, other, asleep_all], CORES, "none", 0.0, "beam.smp")
    assert (blocked.kind, blocked.function, blocked.lost_ns) == (Kind.STALL, "", 1400e6)
    assert (
        "nobody works for 0.35 s while its threads wait for each other, or for time to pass" in blocked.what
    )
    assert "code of beam.smp" in blocked.what and "+JPperf true" in blocked.remedy
    assert (working.kind, working.lost_ns) == (Kind.SERIAL, idle_ns)
    assert "one thread works in code of beam.smp" in working.what
    # as little of it as it takes to go on from one to the next is no loss of its own, nor any of the other's
    asleep_all.metrics[STALL] = 100e6
    (working,) = causes_of([serial, other, asleep_all], CORES, "none", 0.0, "beam.smp")
    assert (working.kind, working.lost_ns) == (Kind.SERIAL, idle_ns)


def test_a_thread_of_an_interpreter_that_others_wait_for() -> None:
    """Perl's: what the main thread puts into a queue, workers take; their stacks lead through a library of Perl's."""
    rows = [row("MAIN EVAL", count, n) for count, n in ((500, 1), (900, CORES))]
    rows += [row("work EVAL", 450, CORES, tid) for tid in (2, 3)]
    (cause,) = causes_of(rows, CORES, "none", 0.0, "/usr/bin/perl")
    assert (cause.kind, cause.function) == (Kind.SERIAL, "")
    assert (
        cause.what
        == "one thread works in code of perl itself, or such that it gives no names, 36 % of that time alone"
    )


def test_a_thread_of_an_interpreter_that_works_alone_beside_helpers() -> None:
    """Node's main thread, which is helped by collectors of garbage, and two workers that are busy at the same time."""
    (cause,) = _of("node", (7, 400, 1), *((7, 60, CORES) for _ in range(6)))
    assert (cause.kind, cause.function) == (Kind.SERIAL, "")
    assert cause.what.startswith("one thread works in code of node itself")


def test_time_in_which_nobody_works_is_not_an_interpreters() -> None:
    unseen = PathSample(NOBODY, Metrics(), Origin(7, "x"))
    unseen.metrics[STALL] = 2e9
    rows = [*balanced("main solve"), unseen, row("MAIN EVAL", 5, 1)]
    (cause,) = causes_of(rows, CORES, "none", 0.0, "python3")
    assert cause.kind is Kind.STALL


def test_a_process_that_works_alone_is_named() -> None:
    """R's mclapply: the parent prepares, then two children share the work."""
    (cause,) = _of("/usr/lib/R/bin/exec/R", (7, 300, 1), (8, 300, CORES), (9, 300, CORES))
    assert (cause.kind, cause.function) == (Kind.SERIAL, "")
    assert "one of 3 processes, t1 (pid 7), works while the others have nothing to do" in cause.what
    assert "33 % of the work" in cause.what


def test_the_last_process_of_a_job_is_named() -> None:
    """make: of many compilers, which all run the same functions, one takes long and was begun last."""
    rows = [row("main compile passes", 100, CORES, pid, pid=pid) for pid in range(10, 22)]
    rows += [row("main compile passes", 600, 1, 30, pid=30)]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "passes")
    assert "one of 13 processes, t30 (pid 30)" in cause.what and "begin it first" in cause.remedy


def _rank(names: str, pid: int, count: int, n_working: float = CORES, spin: int = 0) -> PathSample:
    one = row(names, count, n_working, pid, pid=pid)
    one.metrics.spin_ns = spin * 1e6
    return one


@pytest.mark.parametrize("runtime", ["mpi", "libgomp+mpi", "none"])
def test_a_rank_that_others_wait_for_is_named(runtime: str) -> None:
    """One rank reads the input and sends it to the others, which poll for it."""
    rows = [_rank("main solve", pid, 400) for pid in (10, 11, 12, 13)]
    rows += [_rank("main PMPI_BCAST", pid, 0, spin=300) for pid in (11, 12, 13)]
    launch = _rank("main", 5, 60)  # what starts them is no rank
    rows.append(
        replace(launch, path=(Frame("main", module="orterun"), Frame("loop", module="libevent.so.7")))
    )
    (cause,) = found(*rows, _rank("main read_input", 10, 300, 1), runtime=runtime)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "read_input")
    told = "one of 4 processes, t10 (pid 10), works here while the others wait for messages"
    assert (cause.what == told) == (runtime != "none")


def test_a_master_that_only_waits_is_a_rank_too() -> None:
    rows = [_rank("main master", 10, 1), _rank("main master PMPI_RECV", 10, 0, spin=500)]
    (cause,) = found(*rows, _rank("main master work", 11, 500, 1), runtime="mpi")
    assert cause.what.startswith("one of 2 processes, t11 (pid 11), works here while the other waits")


@pytest.mark.parametrize("cores", [1, CORES])
def test_one_rank_by_itself_waits_for_others(cores: int) -> None:
    """Attached to one of them: what the others do is not seen, nor are the cores idle that they have."""
    waits = _rank("main step exchange PMPI_RECV", 10, 0, spin=300)
    waits.metrics[STALL] = 300e6 * cores
    rows = [_rank("main step compute", 10, 700, 1), waits]
    (cause,) = causes_of(rows, cores, "mpi")
    assert (cause.kind, cause.function) == (Kind.IMBALANCE, "exchange")
    assert cause.what.endswith(
        "one rank of an MPI program, which waits for messages of others for 30 % of its CPU time"
    )
    assert cause.lost_ns == pytest.approx(300e6 * cores) and "--children" in cause.remedy
    assert causes_of(rows, 1, "none") == []


@pytest.mark.parametrize("kind", ["sync", "schedule"])
def test_messages_are_no_barriers_and_locks(kind: str) -> None:
    rows = [
        row("main step PMPI_SENDRECV", 200, CORES, pid, pid=pid, overhead=kind) for pid in (10, 11, 12, 13)
    ]
    (cause,) = found(*balanced("main step compute"), *rows, runtime="mpi")
    assert (cause.kind, cause.function) == (Kind.OVERHEAD, "step")
    assert cause.what.endswith("is spent on sending and receiving messages") and "MPI_Isend" in cause.remedy


def test_one_rank_that_hardly_waits_may_be_one_of_several() -> None:
    rows = [_rank("main step compute", 10, 700, 1), _rank("main PMPI_RECV", 10, 0, spin=5)]
    (cause,) = causes_of(rows, CORES, "mpi")
    assert cause.kind is Kind.SERIAL_PROGRAM and cause.remedy.startswith("if this is one rank of several")
    (cause,) = causes_of(rows, CORES, "none")
    assert cause.kind is Kind.SERIAL_PROGRAM and "one rank" not in cause.remedy


def test_remedies_for_processes_are_not_in_the_words_of_openmp() -> None:
    rows = [_rank("main worker", pid, 300, 2.5) for pid in (10, 11, 12)]
    (cause,) = found(*rows, _rank("main worker", 13, 900, 2.5), runtime="libgomp+mpi")
    assert cause.kind is Kind.IMBALANCE and "schedule(" not in cause.remedy


def _of_stripped(count: int, n_working: float, tid: int, *names: str) -> PathSample:
    """A program without symbols of a few lines; the rest of it is in libraries."""
    stub = (Frame("main", module="sim"), Frame("sim+0x12f0", module="sim"))
    path = (*stub, *(Frame(name, module="libsim.so.0") for name in names))
    metrics = attribute(count, 1e6, n_working, CORES, ThreadState.WORKING)
    return PathSample(path, metrics, Origin(7, "sim", f"t{tid}", tid=tid))


def test_a_program_without_names_is_told_by_its_libraries() -> None:
    rows = [_of_stripped(400, CORES, tid, "Sim::run", "Pair::compute") for tid in range(1, 5)]
    rows.append(_of_stripped(300, 1, 1, "Sim::run", "Output::write"))
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "Output::write")
    assert cause.path == ("main", "sim+0x12f0", "Sim::run", "Output::write")
    own = row("main solve", 20, CORES)  # one with names is told by its own functions
    (cause,) = found(*rows, replace(own, path=(*own.path, Frame("dgemm", module="libblas.so.3"))))
    assert cause.function == "sim+0x12f0"


def test_a_program_without_names_is_that_beside_one_with_names_in_the_same_job() -> None:
    """A script that runs a compressor of the distribution and a program of one's own."""
    rows = [_of_stripped(400, CORES, tid, "Sim::run", "Pair::compute") for tid in range(1, 5)]
    rows.append(_of_stripped(300, 1, 1, "Sim::run", "Output::write"))
    own = row("main solve", 20, CORES, pid=8)
    (cause,) = found(*rows, replace(own, path=(*own.path, Frame("dgemm", module="libblas.so.3"))))
    assert cause.function == "Output::write"


def test_what_a_library_does_not_export_is_told_by_what_it_exports() -> None:
    """xz: all is in lzma_code, and below that nothing of liblzma has a name."""
    inside = [f"libsim.so.0+0x{at}" for at in ("b080", "9aa0", "15f30")]
    rows = [_of_stripped(400, CORES, tid, "Sim::run", "libsim.so.0+0x10") for tid in range(1, 5)]
    rows.append(_of_stripped(300, 1, 1, "Sim::write", *inside))
    (cause,) = found(*rows)
    assert cause.function == "Sim::write"


def _exporting(count: int, n_working: float, tid: int, *names: str, physical: int = 0) -> PathSample:
    """A program that is stripped but for what it exports, as a database server with plug-ins. ``physical``: so many of
    the innermost functions are on the stack of a thread that another one created."""
    metrics = attribute(count, 1e6, n_working, CORES, ThreadState.WORKING)
    path = tuple(Frame(name, module="db") for name in ("main", *names))
    stack = (Frame("start_thread", module="libc.so.6"), *path[-physical:]) if physical else ()
    return PathSample(path, metrics, Origin(7, "db", f"t{tid}", tid=tid), stack)


def test_a_function_without_a_name_is_part_of_its_caller_that_has_one() -> None:
    """XLogFlush of PostgreSQL, which calls what is not exported, was postgres+0x1e84f0."""
    way = "ServerLoop", "db+0x3ee3c0", "Execute"
    rows = [_exporting(400, CORES, tid, *way, f"db+0x{tid}00") for tid in range(1, 5)]
    rows += [
        _exporting(300, 1, 1, "ServerLoop", "db+0x472280", "Flush", f"db+0x1e{part}")
        for part in ("84f0", "9f80")
    ]
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "Flush")
    assert cause.path == ("main", "ServerLoop", "Flush")


def test_what_a_thread_does_is_no_part_of_who_created_it() -> None:
    """The lock that sysbench's threads fight for was one "in sb_thread_create_workers"."""
    rows = [
        _exporting(400, 1, tid, "StartWorkers", "db+0xc600", "db+0x1a3f0", physical=2) for tid in range(2, 4)
    ]
    rows += [_exporting(100, CORES, 1, "Flush"), _exporting(100, CORES, 1, "Execute")]
    inlined = _exporting(400, 1, 2, "StartWorkers", "db+0xc600", "db+0x1a3f0", physical=2)
    leaf = Frame("[waits: lock]", module="[kernel]")
    physical = (*inlined.physical, Frame("lock_inlined", module="libc.so.6"), leaf)
    rows.append(replace(inlined, path=(*inlined.path, leaf), physical=physical))
    (cause, *_) = found(*rows)
    assert cause.function == "db+0x1a3f0" and "StartWorkers" in cause.path


def test_what_a_team_does_is_part_of_the_function_that_has_it_run() -> None:
    """GROMACS: fft5d_plan_3d plans one after the other in an ordered loop, whose body has no name in libgromacs."""
    rows = []
    for tid in (1, 2):
        for names, count, n_working in (
            (("plan_3d", "db+0xc38fb0"), 300, 1),
            (("Force", "db+0xb1abf0"), 400, CORES),
        ):
            one = _exporting(count, n_working, tid, "Run", *names)
            team = [Frame(name, module="libgomp.so.1.0.0") for name in ("GOMP_parallel", "gomp_thread_start")]
            before = (
                (*one.path[:-1], team[0])
                if tid == 1
                else (Frame("start_thread", module="libc.so.6"), team[1])
            )
            rows.append(replace(one, physical=(*before, one.path[-1])))
    cause, *_ = found(*rows, runtime="libgomp")
    assert (cause.function, cause.path) == ("plan_3d", ("main", "Run", "plan_3d"))


@pytest.mark.parametrize("inlined", [(), ("introsort",), ("introsort", "less")])
def test_a_threads_function_is_where_it_begins_whatever_was_inlined_at_its_leaf(
    inlined: Sequence[str],
) -> None:
    """Inlined functions of a library are folded on the logical path, and have their caller's address on the stack."""
    worker = Frame("worker", "a.cc", 7, 5, "x", address=0x1000)
    part = replace(worker, name="part", start_line=3, inlined=True)
    leaf = Frame("std::sort", "stl.h", 9, 9, "x", address=0x2000)
    path = (*(Frame(name, "a.cc", 1, 1, "x") for name in ("main", "start")), worker, part, leaf)
    stack = Frame("start_thread", module="libc.so.6"), worker, part, leaf
    stack += tuple(replace(leaf, name=name, address=0x2001 + at) for at, name in enumerate(inlined))
    route = RouteFinder(Ownership()).find(path, stack)
    assert [route.step(at).procedure.name for at in range(route.region + 1)] == ["main", "start", "worker"]


def test_where_hardly_any_function_has_a_name_addresses_tell_more() -> None:
    rows = [_exporting(400, CORES, tid, "Begin", f"db+0x{tid}00", f"db+0x{tid}10") for tid in range(1, 5)]
    rows.append(_exporting(300, 1, 1, "Begin", "db+0x472280"))
    (cause,) = found(*rows)
    assert (cause.kind, cause.function) == (Kind.SERIAL, "db+0x472280")


def test_a_stripped_program_that_is_read_in_from_disk() -> None:
    rows = [_of_stripped(400, CORES, tid, "Sim::run", "Pair::compute") for tid in range(1, 5)]
    waits = _of_stripped(0, 1, 1, "Sim::run", "[waits: page fault]")
    waits.metrics[STALL] = 900e6
    (cause,) = found(*rows, waits)
    assert cause.function == "" and "measure again" in cause.remedy


def test_unequal_processes_tell_which_has_most() -> None:
    rows = [row("main worker", 300, 2.5, pid, pid=pid) for pid in (10, 11, 12)]
    (cause,) = found(*rows, row("main worker", 900, 2.5, 13, pid=13))
    assert cause.kind is Kind.IMBALANCE
    assert "(most: t13 (pid 13))" in cause.what


def test_stacks_that_nameless_code_cuts_short_say_how_to_name_it() -> None:
    """Node's: no stack goes beyond functions of V8's interpreter, and main thread and workers are mixed."""
    rows = [row("[truncated] JSON", 300, 2, 1), row("[truncated] JSON", 300, 2, 2), *balanced("START RUN")]
    process = ProcessInfo(7, "node", "node app.js", "none", CORES, "scheduler")
    profile = Profile(process, 1, 100, rows)
    for each in ("--perf-basic-prof", "--interpreted-frames-native-stack"):
        assert each in headline(profile, find_causes(profile))
    other = replace(profile, process=replace(process, command="/srv/app"))
    assert "stands out" in headline(other, find_causes(other))


@pytest.mark.parametrize(
    ("kind", "waiter", "told"),
    [
        ("requests", 1, True),
        ("lock", 1, False),
        ("requests", 9, False),
    ],  # a thread of MPICH's, which never works
)
def test_a_server_that_is_not_asked_for_more_is_told_so(kind: str, waiter: int, told: bool) -> None:
    """nginx's workers, which one client cannot keep busy: cores are idle a little everywhere."""
    rows = [row("START WRITE", 300, 3, tid) for tid in (1, 2, 3)]
    idle = asleep("START EPOLL", 400e6, waiter)
    rows.append(replace(idle, path=(*idle.path, Frame(f"[waits: {kind}]"))))
    profile = Profile(ProcessInfo(7, "nginx", "nginx", "none", CORES, "scheduler"), 1, 100, rows)
    line = headline(profile, find_causes(profile))
    assert line.startswith("25 % of the cores' time is lost, but at no place that stands out")
    assert line.endswith("meanwhile others wait for requests, and have nothing to do") == told


@pytest.mark.parametrize("is_one_function", [True, False], ids=["one function", "functions of their own"])
def test_a_function_that_is_called_in_a_region_and_beside_it_without_lines(is_one_function: bool) -> None:
    """Tail calls leave out who called it, and gcc's body of the region is the function that it is written in."""
    body, serial = 0x1270, 0x1050
    kernel = Frame("shared_kernel", module="/x/prog", address=0x1240)
    thread = Frame("libgomp.so.1+0x1cc40", module="/x/libgomp.so.1", address=0x1CD8E)
    region = Frame("GOMP_parallel", module="/x/libgomp.so.1", address=0x140B6)
    called = Frame("main", module="/x/prog", address=0x1040)
    part = Frame("main._omp_fn.0", module="/x/prog", address=body)
    rows = []
    for tid in range(1, CORES + 1):
        before = (called, region) if tid == 1 else (thread,)
        one = row("", 400, CORES, tid)
        path = (replace(called, address=body), kernel)
        rows.append(replace(one, path=path, physical=(*before, part, kernel)))
    caller = called if is_one_function else replace(called, name="setup")
    alone = replace(row("", 400, 1), path=(replace(caller, address=serial), kernel))
    (cause,) = found(*rows, alone, runtime="libgomp")
    assert (cause.kind, cause.function) == (Kind.SERIAL, "shared_kernel" if is_one_function else "setup")
    assert cause.lost_ns == pytest.approx(400e6 * (CORES - 1))
