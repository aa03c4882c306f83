# SPDX-License-Identifier: Apache-2.0
"""Samples located: stacks, contexts, and what is shared where the context is unknown."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from logical_stacks import AGENTS, frames, physical_projection, stacks, text
from parprof.kernel.stacks import CONTEXT_UNKNOWN, Context, Stack
from parprof.logical import LogicalPaths, pooled
from parprof.logical.bichord import logical_projection
from parprof.logical.folding import UNKNOWN_CONTEXT
from parprof.logical.physical import NO_STACK, TRUNCATED, physical_path
from parprof.model import Frame, Path, StackRow
from parprof.runtimes.cilk5 import Cilk5
from parprof.runtimes.onetbb import OneTbb
from parprof.runtimes.pools import Pool as LibraryPool

KERNEL = 999


class Process:
    """Stacks and contexts by id, as the kernel side has them, and a resolver of their addresses."""

    def __init__(self) -> None:
        self.stacks: dict[int, Stack] = {0: Stack(), KERNEL: Stack(((1, False), (2, True)), "")}
        self.contexts: dict[int, Context] = {}
        self.code: dict[int, tuple[Frame, ...]] = {}
        self.addresses: dict[tuple[Frame, ...], int] = {}
        self.paths = self.fresh()

    def fresh(self) -> LogicalPaths:
        return LogicalPaths(
            lambda digest: self.stacks.get(digest, Stack()),
            self.contexts.get,
            lambda address, _: self.code.get(address, ()),
            lambda address, _: (Frame(f"kernel_{address}", module="[kernel]"),),
            agents=AGENTS,
        )

    def stack(self, path: Path, end: str = "complete", cut: int = 0, start_up: str = "libc.so.6+0x1") -> int:
        """A stack, from a path that is written root first. Inlined frames and loops share the address below."""
        rows: list[list[Frame]] = [[Frame(start_up, module="libc.so.6", address=7)]] if start_up else []
        for frame in path:
            if rows and (frame.inlined or frame.is_loop):
                rows[-1].insert(0, frame)
            else:
                rows.append([frame])
        out = []
        for row in reversed(rows):
            address = self.addresses.setdefault(tuple(row), 4096 + len(self.addresses))
            self.code[address] = tuple(row)
            out.append((address, bool(out)))
        digest = len(self.stacks) + 1
        self.stacks[digest] = Stack(tuple(out), end, cut=cut)
        return digest

    def context(self, stack: int, parent: int = 0) -> int:
        identity = 2 * len(self.contexts) + 3
        self.contexts[identity] = Context(stack, parent, 1)
        return identity


MAIN = "__libc_start_main"


def test_the_worker_of_a_region() -> None:
    process = Process()
    create = process.stack(frames("main f GOMP_parallel"), start_up=MAIN)
    worker = process.stack(frames("gomp_thread_start f._omp_fn.0 g"), cut=2)
    here = process.paths.locate(worker, KERNEL, process.context(create))
    assert text(here.path) == "main f g kernel_2 kernel_1"
    assert text(here.physical) == "gomp_thread_start f._omp_fn.0 g kernel_2 kernel_1"
    assert here.complete and not here.unknown and not here.overhead


def test_contexts_within_contexts() -> None:
    process = Process()
    region = process.context(process.stack(frames("main f GOMP_parallel"), start_up=MAIN))
    inside = process.stack(frames("gomp_thread_start f._omp_fn.0 h GOMP_task"), cut=3)
    task = process.context(inside, region)
    runner = process.stack(frames("main k GOMP_taskwait gomp_run h._omp_fn.3 leaf"), cut=2, start_up=MAIN)
    here = process.paths.locate(runner, 0, task)
    assert text(here.path) == "main f h leaf"
    assert text(here.physical) == "main k GOMP_taskwait gomp_run h._omp_fn.3 leaf"
    assert here.complete


def test_a_thread_is_rooted_in_its_creator() -> None:
    process = Process()
    create = process.stack(frames("main make_pool pthread_create"), start_up=MAIN)
    thread = process.stack(frames("worker step"))
    assert text(process.paths.locate(thread, 0, process.context(create)).path) == "main make_pool worker step"
    alone = process.paths.locate(thread, 0, 0)
    assert text(alone.path) == "worker step"
    assert not alone.complete and not alone.unknown


def test_who_made_a_scheduler_want_another_thread_did_not_create_its_work() -> None:
    """Go's routines: each begins on a stack of its own, whatever thread it runs on."""
    process = Process()
    create = process.stack(frames("runtime.mcall runtime.startm runtime.newosproc runtime.clone.abi0"))
    routine = process.stack(frames("runtime.goexit.abi0 main.main main.load"))
    here = process.paths.locate(routine, 0, process.context(create))
    assert text(here.path) == "runtime.goexit.abi0 main.main main.load"
    assert here.complete and not here.unknown


def test_slow_clones_of_the_ancestors_are_the_author_s_functions() -> None:
    process = with_cilk5()
    ancestors = process.stack(frames("main _cilk_fib_slow"), start_up=MAIN)
    thread = process.stack(frames("Cilk_child_main Cilk_scheduler _cilk_fib_slow fib leaf"), cut=3)
    assert text(process.paths.locate(thread, 0, process.context(ancestors)).path) == "main fib fib fib leaf"


def with_cilk5() -> Process:
    process = Process()
    process.paths = LogicalPaths(
        process.stacks.__getitem__, process.contexts.get, lambda a, _: process.code[a], lambda *_: (),
        agents=[Cilk5()],
    )  # fmt: skip
    return process


CREATED = "main Cilk_init Cilk_create_children pthread_create"
WORKER = "Cilk_child_main Cilk_scheduler"


def test_closures_that_reach_the_first_work_are_complete() -> None:
    """Of a program that was attached to, nobody saw who created its workers: nor does anything come before that."""
    process = with_cilk5()
    ancestors = process.stack(frames("invoke_main_slow _cilk_cilk_main_slow _cilk_fib_slow"), start_up="")
    context = process.context(ancestors, CONTEXT_UNKNOWN)
    thief = process.stack(frames(f"{WORKER} _cilk_fib_slow fib leaf"), cut=3)
    here = process.paths.locate(thief, 0, context)
    assert text(here.path) == "cilk_main fib fib fib leaf"
    assert here.complete and not here.unknown
    first = process.stack(frames(f"{WORKER} invoke_main_slow _cilk_cilk_main_import cilk_main fib"), cut=4)
    here = process.paths.locate(first, 0, CONTEXT_UNKNOWN)
    assert text(here.path) == "cilk_main fib"
    assert here.complete and not here.unknown


def test_closures_that_do_not_reach_the_first_work() -> None:
    process = with_cilk5()
    thief = process.stack(frames(f"{WORKER} _cilk_fib_slow fib leaf"), cut=3)
    cut_short = process.stack(frames("_cilk_main_slow _cilk_fib_slow"), "too_deep", start_up="")
    here = process.paths.locate(thief, 0, process.context(cut_short, CONTEXT_UNKNOWN))
    assert not here.complete
    assert process.paths.locate(thief, 0, CONTEXT_UNKNOWN).unknown


def test_first_work_goes_on_from_where_the_workers_were_created() -> None:
    process = with_cilk5()
    created = process.context(process.stack(frames(CREATED), start_up=MAIN))
    context = process.context(
        process.stack(frames("invoke_main_slow _cilk_cilk_main_slow"), start_up=""), created
    )
    thief = process.stack(frames(f"{WORKER} _cilk_fib_slow fib leaf"), cut=3)
    here = process.paths.locate(thief, 0, context)
    assert text(here.path) == "main cilk_main fib fib leaf"
    assert here.complete
    alone = process.context(process.stack(frames("invoke_main_slow"), start_up=""), created)
    assert text(process.paths.locate(thief, 0, alone).path) == "main fib fib leaf"


def test_idle_workers_of_cilk5_do_nothing_of_their_creators() -> None:
    process = with_cilk5()
    created = process.context(process.stack(frames(CREATED), start_up=MAIN))
    idle = process.stack(frames("start_thread Cilk_child_main Cilk_scheduler Closure_steal"))
    for context in (created, CONTEXT_UNKNOWN, 0):
        here = process.paths.locate(idle, 0, context)
        assert text(here.path) == "[cilk5 worker]"
        assert here.complete and not here.unknown
    main = process.stack(frames("main solve Cilk_start Cilk_wakeup_workers"), start_up=MAIN)
    assert text(process.paths.locate(main, 0, 0).path) == "main solve Cilk_start"


@pytest.mark.parametrize("context", [0, CONTEXT_UNKNOWN, 77])
def test_unknown_context(context: int) -> None:
    process = Process()
    worker = process.stack(frames("gomp_thread_start f._omp_fn.0 g"))
    process.paths.learn([(worker, context, 5)])
    ((here, count),) = process.paths.shares(worker, 0, context, 5)
    assert text(here.path) == "[unknown context] f._omp_fn.0 g"
    assert (here.complete, here.unknown, count, process.paths.unknown_samples) == (False, True, 5, 5)


def test_unknown_context_of_work_on_another_s_stack() -> None:
    process = Process()
    runner = process.stack(frames("main k GOMP_taskwait gomp_run body leaf"), cut=2, start_up=MAIN)
    assert text(process.paths.locate(runner, 0, 0).path) == "[unknown context] body leaf"


def test_attached_in_mid_region() -> None:
    process = Process()
    worker = process.stack(frames("gomp_thread_start f._omp_fn.0 g"))
    masters = [
        process.stack(frames(f"main {caller} f:{line} GOMP_parallel f._omp_fn.0 {leaf}"), start_up=MAIN)
        for caller, line, leaf in (("a", 10, "g"), ("a", 10, "h"), ("b", 10, "g"))
    ]
    facts = [
        (worker, 0, 30),
        (masters[0], 0, 100),
        (masters[1], 0, 100),
        (masters[2], 0, 100),
        (worker, 0, 1),
    ]
    process.paths.learn(facts)
    placed: Counter[str] = Counter()
    for user, context, count in facts:
        for here, share in process.paths.shares(user, KERNEL, context, count):
            placed[text(here.path)] += share
            assert here.complete
    assert placed == {"main a f g kernel_2 kernel_1": 121, "main b f g kernel_2 kernel_1": 110,
                      "main a f h kernel_2 kernel_1": 100}  # fmt: skip
    assert (process.paths.joined_samples, process.paths.unknown_samples) == (31, 0)
    assert sum(share for _, share in process.paths.shares(worker, 0, 0, 12345, stream=1)) == 12345
    assert process.paths.joined_samples == 31


def test_attached_in_mid_region_whose_body_is_on_no_stack() -> None:
    """It calls a function as its last, which is a jump."""
    process = Process()
    worker = process.stack(frames("gomp_thread_start g h"))
    created = process.context(process.stack(frames("main f GOMP_parallel"), start_up=MAIN))
    facts = [(worker, 0, 30), (worker, created, 100)]
    process.paths.learn(facts)
    for user, context, count in facts:
        ((here, share),) = process.paths.shares(user, 0, context, count)
        assert (text(here.path), share, here.complete) == ("main f g h", count, True)
    assert (process.paths.joined_samples, process.paths.unknown_samples) == (30, 0)


def test_interval_by_interval() -> None:
    process = Process()
    worker = process.stack(frames("gomp_thread_start f._omp_fn.0 g"))
    process.paths.learn([(worker, 0, 1)])
    ((here, _),) = process.paths.shares(worker, 0, 0, 1)
    assert here.unknown
    masters = [
        process.stack(frames(f"main {name} f GOMP_parallel f._omp_fn.0"), start_up=MAIN) for name in "ab"
    ]
    placed: Counter[str] = Counter()
    for _ in range(10):
        process.paths.learn([(masters[0], 0, 3), (masters[1], 0, 2), (worker, 0, 1)])
        ((here, _),) = process.paths.shares(worker, 0, 0, 1)
        placed[text(here.path)] += 1
    assert placed == {"main a f g": 6, "main b f g": 4}


def test_a_context_that_comes_late() -> None:
    process = Process()
    worker = process.stack(frames("gomp_thread_start f._omp_fn.0 g"), cut=2)
    assert process.paths.locate(worker, KERNEL, 3).unknown
    create = process.stack(frames("main f GOMP_parallel"), start_up=MAIN)
    assert process.context(create) == 3
    process.paths.learn([(worker, 3, 1)])
    assert text(process.paths.locate(worker, KERNEL, 3).path) == "main f g kernel_2 kernel_1"


def test_contexts_that_go_round_in_a_circle() -> None:
    process = Process()
    inside = process.stack(frames("gomp_thread_start f._omp_fn.0 GOMP_task"), cut=2)
    process.contexts |= {3: Context(inside, 5, 1), 5: Context(inside, 3, 1), 7: Context(inside, 7, 1)}
    for context in (3, 5, 7):
        here = process.paths.locate(inside, 0, context)
        assert here.path[0] == UNKNOWN_CONTEXT and here.unknown and not here.complete


def test_a_long_chain_of_contexts() -> None:
    process = Process()
    context = process.context(process.stack(frames("main f GOMP_task"), start_up=MAIN))
    inside = process.stack(frames("gomp_run f._omp_fn.0 g f GOMP_task"), cut=4)
    for _ in range(3000):
        context = process.context(inside, context)
    here = process.paths.locate(inside, 0, context)
    assert here.path[0] == TRUNCATED and not here.complete
    assert len(here.path) < 2000
    for _ in range(3000):
        context = process.context(inside, context)
    assert not process.fresh().locate(inside, 0, context).complete


def test_idle_workers_and_missing_stacks() -> None:
    process = Process()
    idle = process.paths.locate(process.stack(frames("gomp_thread_start gomp_barrier_wait")), 0, 0)
    assert text(idle.path) == "[libgomp worker]" and idle.complete
    nothing = process.paths.locate(0, KERNEL, 0)
    assert text(nothing.path) == f"{NO_STACK.name} kernel_2 kernel_1" and not nothing.complete
    lost = process.paths.locate(process.stack(frames("worker")), 0, process.context(12345))
    assert text(lost.path) == "[unknown context] worker"
    short = process.stack(frames("x y"), end="too_deep", cut=4, start_up="")
    create = process.context(process.stack(frames("main f GOMP_parallel"), start_up=MAIN))
    gap = process.paths.locate(short, 0, create)
    assert text(gap.path) == "main f [truncated] x y" and not gap.complete


def test_python_frames_with_a_cut() -> None:
    """What merges an interpreter's frames sees the whole stack; the cut is found again behind it."""
    process = Process()
    user = process.stack(frames("main eval GOMP_parallel f._omp_fn.0 g"), cut=2, start_up=MAIN)
    create = process.context(process.stack(frames("main f GOMP_parallel"), start_up=MAIN))

    def merge(rows: list[StackRow], whole: bool) -> tuple[list[Frame], bool]:
        flat = [frame for _, _, here in rows for frame in here]
        at = next(index for index, frame in enumerate(flat) if frame.name == "eval")
        return [*flat[:at], Frame("python", "p.py", 3), *flat[at + 1 :]], whole

    paths = LogicalPaths(
        process.stacks.__getitem__, process.contexts.get, lambda a, _: process.code[a], lambda *_: (),
        merge=lambda digest, _: merge if digest == user else None, agents=AGENTS,
    )  # fmt: skip
    here = paths.locate(user, 0, create)
    assert text(here.path) == "main f g"
    assert text(here.physical) == "main python GOMP_parallel f._omp_fn.0 g"
    assert [frame.address for frame in here.physical][-1] == frames("a b c d g")[4].address


@given(
    st.lists(st.tuples(stacks(5), st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=6), st.data()
)
def test_any_process(rows: list[tuple[Path, int, int]], data: st.DataObject) -> None:
    process = Process()
    contexts = [0, CONTEXT_UNKNOWN]
    facts = []
    for path, cut, count in rows:
        depth = sum(1 for frame in path if not (frame.inlined or frame.is_loop))
        user = process.stack(path, cut=min(cut, depth), start_up=MAIN)
        context = data.draw(st.sampled_from(contexts))
        contexts.append(process.context(user, context))
        facts.append((user, context, count))
    process.paths.learn(facts)
    total = 0
    for user, context, count in facts:
        for here, share in process.paths.shares(user, KERNEL, context, count):
            total += share
            stack, kernel = process.stacks[user], process.stacks[KERNEL]
            assert here.physical == physical_path(
                stack, kernel, lambda a, _: process.code[a], process.paths._resolve_kernel
            )
            assert physical_projection(here.bichords) == here.physical
            assert logical_projection(here.bichords) == here.path
            assert here.unknown == (here.path[0] == UNKNOWN_CONTEXT)
            assert not (here.complete and here.unknown)
            assert [frame.name for frame in here.path[-2:]] == ["kernel_2", "kernel_1"]
    assert total == sum(count for _, _, count in facts)


BLAS = "libscipy_openblas64_-32a4b2a6.so"


def blas(names: str) -> Path:
    return tuple(replace(one, module=BLAS) for one in frames(names))


class Pool(Process):
    """Two places of a program that call OpenBLAS, whose thread was started when the library was loaded."""

    def __init__(self) -> None:
        super().__init__()
        load = self.stack(
            (*frames("main import"), *blas("blas_thread_init"), *frames("pthread_create")), start_up=MAIN
        )
        self.born = self.context(load)

    def caller(self, names: str, inside: str = "dgemm exec_blas inner_thread kernel") -> int:
        return self.stack((*frames(names), *blas(inside)), start_up=MAIN)

    def worker(self, inside: str = "blas_thread_server exec_threads inner_thread kernel") -> int:
        return self.stack(blas(inside))


def test_a_librarys_pool_works_for_those_that_hand_it_work() -> None:
    process = Pool()
    worker = process.worker()
    lost = process.stack(blas("dgemm exec_blas inner_thread kernel"), "no_table", start_up="")
    samples = [(process.caller("main f"), 0, 3), (process.caller("main g"), 0, 1), (worker, process.born, 8)]
    samples.append((lost, 0, 9))  # a caller without a beginning is none to go by
    process.paths.learn(samples)
    found = {
        text(here.path): (here, count) for here, count in process.paths.shares(worker, 0, process.born, 8)
    }
    f, g = (f"main {name} dgemm exec_blas inner_thread kernel" for name in "fg")
    assert {path: count for path, (_, count) in found.items()} == {f: 6, g: 2}
    assert all(here.complete and not here.unknown for here, _ in found.values())
    assert text(found[f][0].physical) == "blas_thread_server exec_threads inner_thread kernel"
    assert process.paths.joined_samples == 8
    cut = process.stack(blas("blas_thread_server exec_threads inner_thread kernel"), "no_table", start_up="")
    assert {text(here.path) for here, _ in process.paths.shares(cut, 0, process.born, 8)} == {f, g}
    part = process.stack(blas("exec_threads inner_thread kernel"), "no_table", start_up="")
    ((here, _),) = process.paths.shares(part, 0, process.born, 8)
    assert text(here.path).startswith("main import blas_thread_init [truncated]")
    # a function of the library that nobody was seen in hands the work on to one that somebody was
    other = process.worker("blas_thread_server blas_thread_server exec_threads gemm_part inner_thread kernel")
    assert {text(here.path) for here, _ in process.paths.shares(other, 0, process.born, 8)} == {f, g}


def test_a_pool_in_a_header_runs_functions_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    never = re.compile(r"(?!)")
    crew = LibraryPool("crew", never, re.compile("crew_serve"), re.compile("crew_run"), runs_any=True)
    monkeypatch.setattr(pooled, "pools", lambda: (crew,))
    process = Process()
    born = process.context(process.stack(frames("main crew_start"), start_up=MAIN))
    callers = [
        process.stack(frames(f"main {name} crew_run {name}_part burn"), start_up=MAIN) for name in "fg"
    ]
    f, g, idle, other = (
        process.stack(frames(f"crew_serve{inside}"))
        for inside in (" f_part burn", " g_part", "", " h_part burn")
    )
    process.paths.learn(
        [(callers[0], 0, 3), (callers[1], 0, 1), (f, born, 4), (g, born, 2), (other, born, 1)]
    )

    def shown(stack: int) -> list[str]:
        return [text(here.path) for here, _ in process.paths.shares(stack, 0, born, 8)]

    assert shown(f) == ["main f crew_run f_part burn"], "not of all that call burn"
    assert shown(g) == ["main g crew_run g_part"]
    assert shown(idle) == ["[crew worker] crew_serve"]
    assert shown(other) == ["[crew worker] crew_serve h_part burn"]


@pytest.mark.parametrize(
    ("inside", "complete"), [("blas_thread_server", True), ("blas_thread_server other_part", False)]
)
def test_a_pools_thread_is_none_of_who_loaded_the_library(inside: str, complete: bool) -> None:
    process = Pool()
    worker = process.worker(inside)
    process.paths.learn([(process.caller("main f"), 0, 3), (worker, process.born, 8)])
    ((here, count),) = process.paths.shares(worker, 0, process.born, 8)
    assert (text(here.path), count) == (f"[OpenBLAS worker] {inside}", 8)
    assert here.complete == complete and not here.unknown and not process.paths.joined_samples


def test_a_thread_of_the_program_that_calls_the_library_stays_where_it_is() -> None:
    process = Process()
    started = process.context(process.stack(frames("main make_pool pthread_create"), start_up=MAIN))
    thread = process.stack((*frames("worker"), *blas("dgemm exec_blas inner_thread")))
    process.paths.learn([(thread, started, 5)])
    ((here, _),) = process.paths.shares(thread, 0, started, 5)
    assert text(here.path) == "main make_pool worker dgemm exec_blas inner_thread"


class Tasks(Process):
    """A program that calls TBB's algorithms with lambdas, all of one name; their templates are in the program."""

    def fresh(self) -> LogicalPaths:
        return LogicalPaths(
            lambda digest: self.stacks.get(digest, Stack()),
            self.contexts.get,
            lambda address, _: self.code.get(address, ()),
            lambda address, _: (Frame("kernel"),),
            agents=[OneTbb()],
        )

    def work(self, which: str, work: str) -> Path:
        """From the library into the program."""
        library = (Frame("tbb::detail::r1::execute_and_wait", module="libtbb.so.12"),)
        template = Frame(f"tbb::detail::d1::start_for<{which}>::execute", module="a.out")
        return (*library, template, Frame("operator()", module="a.out", inlined=True), *frames(work))


def test_a_worker_of_tbb_works_for_who_takes_part() -> None:
    process = Tasks()
    thread = (Frame("tbb::detail::r1::rml::private_worker::run", module="libtbb.so.12"),)
    f = process.stack((*frames("main f"), *process.work("f(int)::{lambda#1}", "solve")), start_up=MAIN)
    g = process.stack((*frames("main g"), *process.work("g(int)::{lambda#1}", "sort")), start_up=MAIN)
    worker = process.stack((*thread, *process.work("g(int)::{lambda#1}", "sort")))
    other = process.stack((*thread, *process.work("h(int)::{lambda#1}", "merge")))
    process.paths.learn([(f, 0, 5), (g, 0, 5), (worker, 0, 4), (other, 0, 3)])
    ((here, count),) = process.paths.shares(worker, 0, 0, 4)
    assert (text(here.path), count) == ("main g operator() sort", 4)
    assert here.complete and not here.unknown and process.paths.joined_samples == 4
    ((here, _),) = process.paths.shares(other, 0, 0, 3)
    assert here.unknown, "nobody is seen to take part in it"


def test_who_started_a_worker_of_tbb_created_no_work_of_it() -> None:
    """Threads of a library that was loaded a moment ago are seen as any thread's are: where they were started."""
    process = Tasks()
    thread = (Frame("tbb::detail::r1::rml::private_worker::run", module="libtbb.so.12"),)
    started = process.context(process.stack(frames("main import launch pthread_create"), start_up=MAIN))
    half_seen = process.context(process.stack(frames("launch pthread_create"), "no_mapping", start_up=""))
    f = process.stack((*frames("main f"), *process.work("f(int)::{lambda#1}", "solve")), start_up=MAIN)
    worker = process.stack((*thread, *process.work("f(int)::{lambda#1}", "solve")))
    other = process.stack((*thread, *process.work("h(int)::{lambda#1}", "merge")))
    process.paths.learn([(f, 0, 5), (worker, started, 4), (worker, half_seen, 2), (other, started, 3)])
    for context in (started, half_seen):
        ((here, _),) = process.paths.shares(worker, 0, context, 4)
        assert text(here.path) == "main f operator() solve"
        assert here.complete and not here.unknown
    ((here, _),) = process.paths.shares(other, 0, started, 3)
    assert text(here.path) == "main import launch operator() merge", "nobody is seen to take part in it"


def test_who_created_work_of_a_runtime_that_is_probed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though others take part in the same function."""
    monkeypatch.setattr(OneTbb, "hooks", (object(),))
    process = Tasks()
    thread = (Frame("tbb::detail::r1::rml::private_worker::run", module="libtbb.so.12"),)
    f, g = (
        process.stack((*frames(f"main {one}"), *process.work("b", "solve")), start_up=MAIN) for one in "fg"
    )
    created = process.context(process.stack(frames("main g"), start_up=MAIN))
    worker = process.stack((*thread, *process.work("b", "solve")))
    process.paths.learn([(f, 0, 5), (g, 0, 5), (worker, created, 4)])
    ((here, count),) = process.paths.shares(worker, 0, created, 4)
    assert (text(here.path), count) == ("main g operator() solve", 4)


def test_stripped_tasks_of_tbb_are_told_by_where_they_begin() -> None:
    process = Tasks()
    library = (Frame("tbb::detail::r1::execute_and_wait", module="libtbb.so.12"),)
    body = frames("a.out+0x549a20 a.out+0x7fb0a0")
    caller = process.stack((*frames("main f"), *library, *body), start_up=MAIN)
    worker = process.stack((*library, *body))
    process.paths.learn([(caller, 0, 1), (worker, 0, 1)])
    ((here, _),) = process.paths.shares(worker, 0, 0, 1)
    assert text(here.path) == "main f a.out+0x549a20 a.out+0x7fb0a0"
