# SPDX-License-Identifier: Apache-2.0
"""Pools whose callers sleep while the threads work: whose work that is, by who waits for such meanwhile."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from logical_stacks import frames, text
from parprof.causes.evidence import Callee, Place
from parprof.causes.ownership import Owner
from parprof.causes.sites import LossSite
from parprof.causes.sites import together as sites_together
from parprof.causes.tallies import Tally
from parprof.cct.tree import Procedure
from parprof.logical import pooled
from parprof.logical.callers import Before, shared
from parprof.logical.paths import LogicalPaths
from parprof.logical.waited import MOST_CALLERS, Waited
from parprof.metrics import IDLENESS, Metrics
from parprof.model import NO_EVENT, Count, Frame, Path, SampleKey, ThreadState
from parprof.profile.waited import Division, divide, together
from parprof.runtimes.pools import POOLS
from parprof.runtimes.pools import Pool as LibraryPool
from test_logical_paths import MAIN, Pool, Process, Tasks

NEVER = re.compile(r"(?!)")
GANG = LibraryPool(
    "gang",
    NEVER,
    re.compile("gang_serve"),
    waits=re.compile("gang_wait|gang_join"),
    runs=re.compile("gang_run"),
)
PERIOD_NS = 10
F, G = "main f gang_wait", "main g gang_wait"


class GangProcess(Process):
    """Callers hand work to a pool of threads, which the first of them has started."""

    def __init__(self) -> None:
        super().__init__()
        self.born = self.context(self.stack(frames("main f start pthread_create"), start_up=MAIN))

    def waiter(self, names: str) -> int:
        return self.stack(frames(f"{names} pthread_cond_wait"), start_up=MAIN)

    def worker(self, names: str = "gang_serve gang_run part burn") -> int:
        return self.stack(frames(names))

    def work(self, stack: int, tid: int = 7) -> SampleKey:
        return SampleKey(1, tid, 0, ThreadState.WORKING, 1, stack, 0, context=self.born)

    def divide(self, *parts: Mapping[SampleKey, int]) -> list[Division]:
        facts = [{key: count_of(key, number) for key, number in part.items()} for part in parts]
        for part in facts:
            self.paths.learn(
                (key.user, key.context, one.samples) for key, one in part.items() if not key.event
            )
        return divide(facts, lambda key: self.paths, PERIOD_NS)

    def placed(self, division: Division, keys: Sequence[SampleKey], amount: int) -> dict[str, int]:
        out: Counter[str] = Counter()
        for key in keys:
            shares = self.paths.shares(key.user, 0, key.context, amount, key.event, division.get(key, ()))
            for here, share in shares:
                out[text(here.path)] += share
        return dict(out)


def count_of(key: SampleKey, number: int) -> Count:
    return Count(1, number) if key.event == NO_EVENT else Count(number, number)


def asleep(stack: int, tid: int = 1, state: ThreadState = ThreadState.BLOCKED) -> SampleKey:
    return SampleKey(1, tid, NO_EVENT, state, 0, stack, 0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> GangProcess:
    monkeypatch.setattr(pooled, "pools", lambda: (*POOLS, GANG))
    return GangProcess()


TODAY = "main f start gang_serve gang_run part burn"
BELOW_F, BELOW_G = f"{F} part burn", f"{G} part burn"


def test_work_is_of_those_that_wait_for_it(process: GangProcess) -> None:
    f, g, work = process.waiter(F), process.waiter(G), process.work(process.worker())
    (division,) = process.divide({asleep(f): 1000, asleep(g, 2): 2000, work: 9})
    assert process.placed(division, [work], 9) == {BELOW_F: 3, BELOW_G: 6}
    assert (process.paths.waited_samples, process.paths.joined_samples) == (9, 0)
    ((here, _), *_) = process.paths.shares(work.user, 0, work.context, 9, 0, division[work])
    assert here.complete and not here.unknown
    assert text(here.physical) == "gang_serve gang_run part burn"


def test_nobody_gets_what_was_done_while_he_did_not_wait(process: GangProcess) -> None:
    """Though of all the time he waited for longest."""
    f, g, work = process.waiter(F), process.waiter(G), process.work(process.worker())
    parts = [{asleep(f): 10, work: 5}, {asleep(g): 10_000, work: 2}, {asleep(g): 10_000}, {work: 4}]
    divisions = process.divide(*parts)
    assert [process.placed(one, [work], 1) for one in divisions] == [
        {BELOW_F: 1}, {BELOW_G: 1}, {TODAY: 1}, {TODAY: 1},
    ]  # fmt: skip
    assert process.placed(together(divisions), [work], 11) == {BELOW_F: 5, BELOW_G: 2, TODAY: 4}


def test_where_nobody_is_known_paths_stay_as_they_are(process: GangProcess) -> None:
    work = process.work(process.worker())
    elsewhere = asleep(process.stack(frames("main h pthread_cond_wait"), start_up=MAIN))
    not_waiting = asleep(process.waiter(F), state=ThreadState.STALLED)
    division = together(process.divide({work: 4, elsewhere: 1000, not_waiting: 1000}))
    assert process.placed(division, [work], 4) == {TODAY: 4}
    assert not process.paths.waited_samples
    assert process.placed({}, [work], 4) == {TODAY: 4}


def test_callers_that_spin_wait_as_well(process: GangProcess) -> None:
    f, g, work = process.waiter(F), process.waiter(G), process.work(process.worker())
    spins = SampleKey(1, 1, 0, ThreadState.SPINNING, 1, f, 0)
    (division,) = process.divide({spins: 3, asleep(g, 2): PERIOD_NS, work: 8})
    assert process.placed(division, [work], 8) == {BELOW_F: 6, BELOW_G: 2}


def test_threads_without_work_are_nobodys(process: GangProcess) -> None:
    f = process.waiter(F)
    idle = process.work(process.worker("gang_serve pthread_cond_wait"))
    runs = process.work(process.worker("gang_serve gang_run"))
    (division,) = process.divide({asleep(f): 1000, idle: 3, runs: 2})
    assert division == {}
    assert process.placed(division, [idle], 3) == {"main f start gang_serve pthread_cond_wait": 3}


def test_what_a_thread_of_the_pool_waits_for_is_its_callers_wait(process: GangProcess) -> None:
    """It hands out work in its turn, and what runs then is for who waits for all of it."""
    f, work = process.waiter(F), process.work(process.worker(), 8)
    inner = process.work(process.worker("gang_serve gang_run part gang_wait"))._replace(
        event=NO_EVENT, state=ThreadState.BLOCKED
    )
    (division,) = process.divide({asleep(f): 1000, inner: 900, work: 6})
    assert process.placed(division, [work], 6) == {BELOW_F: 6}
    assert process.placed(division, [inner], 900) == {f"{F} part gang_wait": 900}


def test_a_thread_without_work_does_not_wait_for_it(process: GangProcess) -> None:
    """Though it was started where its first caller waits: by him, who has done so since."""
    started = process.context(process.stack(frames("main f gang_wait start pthread_create"), start_up=MAIN))
    g, work = process.waiter(G), process.work(process.worker())
    idle = asleep(process.worker("gang_serve pthread_cond_wait"), 9)._replace(context=started)
    bystander = asleep(process.stack(frames("other pthread_cond_wait")), 10)._replace(context=started)
    (division,) = process.divide({asleep(g): 10, idle: 1000, bystander: 1000, work: 4})
    assert process.placed(division, [work], 4) == {BELOW_G: 4}
    f = asleep(process.stack(frames("h gang_wait gang_wait")), 11)._replace(context=started)
    (division,) = process.divide({f: 1000, work: 4})
    assert process.placed(division, [work], 4) == {"main f gang_wait start h gang_wait part burn": 4}


def test_a_thread_that_runs_other_work_while_it_waits(process: GangProcess) -> None:
    work = process.work(process.worker("gang_serve gang_run part gang_wait gang_serve gang_run other burn"))
    (division,) = process.divide({asleep(process.waiter(F)): 10, work: 1})
    assert process.placed(division, [work], 1) == {f"{F} other burn": 1}


def test_the_outermost_function_that_waits_is_where_work_was_handed_out(process: GangProcess) -> None:
    f = process.waiter("main f gang_join g gang_wait")
    work = process.work(process.worker())
    (division,) = process.divide({asleep(f): 10, work: 1})
    assert process.placed(division, [work], 1) == {"main f gang_join part burn": 1}


def test_of_two_pools_that_a_caller_waits_for_it_is_the_inner_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of events that has called something, which hands out work to another pool."""
    other = replace(GANG, name="other", serves=re.compile("other_serve"), waits=re.compile("other_loop"))
    monkeypatch.setattr(pooled, "pools", lambda: (GANG, other))
    process = GangProcess()
    f, work = process.waiter("main other_loop f gang_join g gang_wait"), process.work(process.worker())
    (division,) = process.divide({asleep(f): 10, work: 1})
    assert process.placed(division, [work], 1) == {"main other_loop f gang_join part burn": 1}


def test_threads_that_another_pool_has_started_serve_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions serve both; who waits for the one does not wait for the other."""
    loop = replace(GANG, name="loop", waits=re.compile("spin_once"), starts=re.compile("loop_submit"))
    monkeypatch.setattr(pooled, "pools", lambda: (GANG, loop))
    process = GangProcess()
    f, spins = process.waiter(F), process.waiter("main h spin_once")
    started = process.context(process.stack(frames("main g loop_submit start pthread_create"), start_up=MAIN))
    work, looped = process.work(process.worker()), process.work(process.worker(), 8)._replace(context=started)
    unseen = process.work(process.worker(), 9)._replace(context=0)
    inner = asleep(process.stack(frames("gang_serve gang_run spin_once")), 9)
    (division,) = process.divide(
        {asleep(f): 10, asleep(spins, 2): 10, inner: 10, work: 3, looped: 4, unseen: 5}
    )
    assert process.placed(division, [work], 3) == {BELOW_F: 3}
    assert process.placed(division, [looped], 4) == {"main h spin_once part burn": 4}
    assert process.placed(division, [unseen], 5) == {f"{F} part burn": 3, "main h spin_once part burn": 2}, (
        "of either"
    )
    (division,) = process.divide({asleep(spins, 2): 10, work: 3, unseen: 5})
    assert process.placed(division, [unseen], 5) == {"main h spin_once part burn": 5}
    assert process.placed(division, [work], 3) == {TODAY: 3}
    parent = process.context(process.stack(frames("gang_serve gang_run part start pthread_create")), started)
    inside = process.work(process.worker(), 10)._replace(context=parent)
    (division,) = process.divide({asleep(f): 10, asleep(spins, 2): 10, inside: 1})
    assert process.placed(division, [inside], 1) == {BELOW_F: 1}, (
        "started by what a thread of the other one ran"
    )
    (division,) = process.divide({asleep(f): 10, looped: 4})
    assert process.placed(division, [looped], 4) == {
        "main g loop_submit start gang_serve gang_run part burn": 4
    }


def test_a_caller_without_a_beginning_is_none(process: GangProcess) -> None:
    lost = process.stack(frames("f gang_wait pthread_cond_wait"), "no_table", start_up="")
    work = process.work(process.worker())
    (division,) = process.divide({asleep(lost): 1000, work: 4})
    assert process.placed(division, [work], 4) == {TODAY: 4}


def test_a_callers_own_part_tells_more_than_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    both = replace(GANG, hands_out=re.compile("gang_all"), runs=NEVER, runs_any=True)
    monkeypatch.setattr(pooled, "pools", lambda: (both,))
    process = GangProcess()
    takes_part = process.work(process.stack(frames("main g gang_all part burn"), start_up=MAIN))._replace(
        context=0
    )
    seen = process.work(process.worker("gang_serve part burn"))
    unseen = process.work(process.worker("gang_serve other burn"))
    idle = process.work(process.worker("gang_serve pthread_cond_wait"))
    (division,) = process.divide(
        {takes_part: 5, asleep(process.waiter(F)): 10_000, seen: 4, unseen: 3, idle: 1}
    )
    assert set(division) == {seen, unseen}
    assert process.placed(division, [seen], 4) == {"main g gang_all part burn": 4}
    assert process.placed(division, [unseen], 3) == {f"{F} other burn": 3}
    assert process.placed({}, [unseen], 3) == {"[gang worker] gang_serve other burn": 3}


def _of_blas(process: Pool, names: str) -> tuple[int, int]:
    """A caller of OpenBLAS there, and what the pool's thread does for him: the same for all."""
    return process.caller(names), process.worker()


def _of_tbb(process: Tasks, names: str) -> tuple[int, int]:
    thread = (Frame("tbb::detail::r1::rml::private_worker::run", module="libtbb.so.12"),)
    work = process.work("body", "solve")
    return process.stack((*frames(names), *work), start_up=MAIN), process.stack((*thread, *work))


@pytest.mark.parametrize(("kind", "of"), [(Pool, _of_blas), (Tasks, _of_tbb)], ids=["OpenBLAS", "oneTBB"])
def test_callers_by_turns_that_take_part_get_what_was_done_meanwhile(
    kind: type[Process], of: Callable[[Process, str], tuple[int, int]]
) -> None:
    """Where none is seen in a part of the time, it is in proportion to what they did in all."""
    process = kind()
    (f, worker), (g, _) = of(process, "main f"), of(process, "main g")
    caller = SampleKey(1, 1, 0, ThreadState.WORKING, 2, f, 0)
    other, work = caller._replace(user=g), caller._replace(tid=7, user=worker)
    asleep = work._replace(event=NO_EVENT, state=ThreadState.BLOCKED)
    numbers: list[dict[SampleKey, int]] = [
        {caller: 3, work: 5}, {other: 1, work: 2, asleep: 90}, {work: 4}, {caller: 6, other: 2, work: 8},
    ]  # fmt: skip
    parts = [
        {key: Count(1, number) if key is asleep else Count(number, number) for key, number in part.items()}
        for part in numbers
    ]
    whole = {key: sum(part.get(key, 0) for part in numbers) for key in (caller, other, work)}
    process.paths.learn((key.user, 0, number) for key, number in whole.items())
    divisions = divide(parts, lambda key: process.paths, PERIOD_NS)

    def whose(division: Division, key: SampleKey, amount: int) -> list[int]:
        shares = process.paths.shares(key.user, 0, 0, amount, key.event, division.get(key, ()))
        by = [sum(share for here, share in shares if f" {name} " in text(here.path)) for name in "fg"]
        assert sum(by) == amount
        return by

    assert [whose(one, work, part[work].samples) for one, part in zip(divisions, parts, strict=True)] == [
        [5, 0], [0, 2], [3, 1], [6, 2],
    ]  # fmt: skip
    assert whose(divisions[1], asleep, 90) == [0, 90]
    assert process.paths.joined_samples == 19 and not process.paths.waited_samples
    assert whose(together(divisions), work, 19) == [14, 5]


def test_what_was_learned_before_does_not_count_where_callers_are_seen() -> None:
    """As the daemon learns for hours, and looks at one interval after the other."""
    process = Pool()
    (f, worker), (g, _) = _of_blas(process, "main f"), _of_blas(process, "main g")
    process.paths.learn([(f, 0, 9000), (worker, 0, 9000)])
    now = {SampleKey(1, 1, 0, ThreadState.WORKING, 2, g, 0): Count(9, 9)}
    work = SampleKey(1, 7, 0, ThreadState.WORKING, 2, worker, 0)
    process.paths.learn([(g, 0, 9), (worker, 0, 9)])
    (division,) = divide([{**now, work: Count(9, 9)}], lambda key: process.paths, PERIOD_NS)
    ((here, _),) = process.paths.shares(worker, 0, 0, 9, 0, division[work])
    assert text(here.path).startswith("main g ")


def assert_thread_pool(known: pooled.WaitedPools, python: Callable[[str, str], Path]) -> None:
    """Python's older pool of threads: from 3.11 on methods have the names of their classes."""
    file = "multiprocessing/pool.py"
    serves, burn = python("worker", file), python("burn", "mine.py")
    for between, work in (
        ("", burn),
        ("mapstar", burn),
        ("starmapstar", burn),
        ("", (Frame("hash", module="c.so"),)),
    ):
        run = (*python("Thread.run", "threading.py"), *serves, *python(between, file), *work)
        task = known.task(run)
        assert task is not None and (task.pool.name, run[task.start :]) == ("multiprocessing", work)
    rests = (
        Frame("_queue_SimpleQueue_get", module="libpython3.12.so"),
        Frame("+0x12", module="_queue.cpython-311.so"),
    )
    for idle in rests:
        assert (
            known.task((*serves, idle, Frame("PyThread_acquire_lock_timed", module="libpython3.12.so")))
            is None
        )
    assert known.task(serves) is None
    ways = (
        "Pool.map ApplyResult.get ApplyResult.wait",
        "IMapIterator.next",
        "map get wait",
        "next",
        "Pool.join",
    )
    for waits in ways:
        path = (*python("main f", "mine.py"), *python(waits, file), *python("Condition.wait", "threading.py"))
        assert known.waiter(path, path) == (task.pool, 2)
    for helper in ("Pool._handle_tasks", "_handle_results", "Pool._handle_workers Pool._wait_for_updates"):
        path = (*python(helper, file), *python("Condition.wait", "threading.py"))
        assert known.waiter(path, path) is None and known.task(path) is None


def test_names_that_other_code_has_too() -> None:
    """Python's are told by the file, numba's by the module."""

    def python(names: str, file: str) -> Path:
        path = f"/usr/lib/python3.11/{file}"
        return tuple(replace(one, module="python", file=path) for one in frames(names))

    known = pooled.WaitedPools()
    run = (
        *python("Thread.run", "threading.py"),
        *python("_worker _WorkItem.run", "concurrent/futures/thread.py"),
        *python("burn", "mine.py"),
    )
    task = known.task(run)
    assert task is not None and (task.pool.name, run[task.start].name) == ("concurrent.futures", "burn")
    assert known.task((*python("_worker _WorkItem.run", "mine.py"), *python("burn", "mine.py"))) is None
    result = (*python("main", "mine.py"), *python("Future.result", "concurrent/futures/_base.py"))
    assert known.waiter(result, result) == (task.pool, 1)
    mine = python("main wait", "mine.py")
    assert known.waiter(mine, mine) is None
    started = python("main", "mine.py"), python("BaseEventLoop.run_in_executor", "asyncio/base_events.py")
    task = known.task(run, (*started[0], *started[1], *python("Thread.start", "threading.py")))
    assert task is not None and (task.pool.name, run[task.start].name) == ("asyncio", "burn")
    for once in ("BaseEventLoop._run_once", "_run_once"):
        path = (*started[0], *python(once, "asyncio/base_events.py"), *python("select", "selectors.py"))
        assert known.waiter(path, path) == (task.pool, 1)
    assert_thread_pool(known, python)
    numba = (Frame("thread_worker", module="workqueue.cpython-311-x86_64-linux-gnu.so"), Frame("kernel"))
    task = known.task(numba)
    assert task is not None and (task.pool.name, task.start) == ("numba", 1)
    assert known.task((Frame("thread_worker", module="a.out"), Frame("kernel"))) is None


@pytest.mark.parametrize(
    ("serves", "job", "waits"),
    [
        (
            "rayon_core::registry::ThreadBuilder::run",
            "<rayon_core::job::StackJob<L,F,R> as rayon_core::job::Job>::execute",
            "rayon_core::registry::Registry::in_worker_cold",
        ),
        (
            "<rayon_core::registry::WorkerThread>::wait_until_cold",
            "<rayon_core::job::HeapJob<x::{closure#0}> as rayon_core::job::Job>::execute",
            "<rayon_core::registry::Registry>::in_worker_cold::<x::{closure#0}, f64>",
        ),
        (
            "rayon_core::registry::main_loop",
            "rayon_core::job::JobResult<T>::call::{{closure}}",
            "rayon_core::latch::LockLatch::wait_and_reset",
        ),
    ],
)
def test_rayon_as_its_compilers_name_it(serves: str, job: str, waits: str) -> None:
    known = pooled.WaitedPools()
    task = known.task((Frame("start"), Frame(serves), Frame(job), Frame("work")))
    assert task is not None and (task.pool.name, task.start) == ("rayon", 3)
    assert known.task((Frame("start"), Frame(serves), Frame("rayon_core::sleep::Sleep::sleep"))) is None
    caller = (Frame("main"), Frame(waits), Frame("syscall"))
    assert known.waiter(caller, caller) == (task.pool, 1)
    inside = "rayon_core::registry::Registry::in_worker_cold::{{closure}}::{{closure}}"
    worker = (Frame("main"), Frame(inside))
    assert known.waiter(worker, worker) is None


SPAWN = "tf::Executor::_spawn(unsigned long, std::shared_ptr<tf::WorkerInterface>)"
FUTURE = "std::__atomic_futex_unsigned_base::_M_futex_wait_until(unsigned int*, unsigned int, bool)"


@pytest.mark.parametrize(
    "runs",
    [
        (
            "_exploit_task(tf::Worker&, tf::Node*&)",
            "_invoke(tf::Worker&, tf::Node*)",
            "_invoke_static_task(tf::Worker&)",
        ),
        ("_invoke(tf::Worker&, tf::Node*)",),
    ],
    ids=["with inlined functions", "without debug information"],
)
@pytest.mark.parametrize(
    "waits",
    [
        ("std::__basic_future<void>::wait() const", "std::__future_base::_State_baseV2::wait()", FUTURE),
        (FUTURE,),
        ("tf::Executor::wait_for_all()",),
    ],
)
def test_taskflow_as_its_compilers_name_it(runs: Sequence[str], waits: Sequence[str]) -> None:
    known = pooled.WaitedPools()
    thread = (Frame("start"), Frame(f"{SPAWN}::{{lambda()#1}}::operator()() const"))
    work = (*thread, *(Frame(f"tf::Executor::{name}") for name in runs), Frame("work(long)"))
    task = known.task(work)
    assert task is not None and (task.pool.name, work[task.start].name) == ("Taskflow", "work(long)")
    for idle in ("_wait_for_task(tf::Worker&, tf::Node*&)", "_explore_task(tf::Worker&, tf::Node*&)"):
        assert known.task((*thread, Frame(f"tf::Executor::{idle}"))) is None
    assert known.task((Frame("main"), Frame(SPAWN), Frame("pthread_create"))) is None, (
        "who starts them is none"
    )
    caller = (Frame("main"), Frame("f"), *map(Frame, waits), Frame("syscall"))
    assert known.waiter(caller, caller) == (task.pool, 2)


@pytest.mark.parametrize("calls", [("Eigen::StlThreadEnvironment::ExecuteTask(Eigen::Task const&)",), ()])
def test_eigen_as_its_compilers_name_it(calls: Sequence[str]) -> None:
    known = pooled.WaitedPools()
    pool = "Eigen::ThreadPoolTempl<Eigen::StlThreadEnvironment>"
    thread = (Frame("start"), Frame(f"{pool}::WorkerLoop(int)"))
    kernel = Frame("Eigen::TensorEvaluator<Eigen::TensorContractionOp<float> >::kernel(long)")
    task = known.task((*thread, *map(Frame, calls), kernel))
    assert task is not None and (task.pool.name, task.start) == ("Eigen", 2)
    for idle in (
        f"{pool}::WaitForWork(Eigen::EventCount::Waiter*, Eigen::Task*)",
        f"{pool}::Steal()",
        "Eigen::RunQueue<Eigen::StlThreadEnvironment::Task, 1024u>::PopBack()",
        "Eigen::EventCount::CommitWait(Eigen::EventCount::Waiter*)",
    ):
        assert known.task((*thread, Frame(idle), Frame("pthread_cond_wait"))) is None
    caller = (Frame("main"), Frame("contract"), Frame("Eigen::Barrier::Wait()"), Frame("pthread_cond_wait"))
    assert known.waiter(caller, caller) == (task.pool, 2)


@pytest.mark.parametrize(
    ("names", "waits"),
    [
        ("ThreadPoolExecutor.runWorker FutureTask.run", "FutureTask.get"),
        ("ThreadPoolExecutor$Worker.run Executors$RunnableAdapter.call", "AbstractExecutorService.invokeAll"),
        ("ForkJoinWorkerThread.run ForkJoinTask.doExec", "ForkJoinTask.invoke"),
        ("ForkJoinPool.runWorker CompletableFuture$AsyncSupply.run", "CompletableFuture.join"),
    ],
)
def test_javas_executors(names: str, waits: str) -> None:
    known = pooled.WaitedPools()
    for before, behind in (("", ""), ("void ", "(java.lang.Runnable)")):  # HotSpot's own names, a perf map's

        def method(name: str, before: str = before, behind: str = behind) -> Frame:
            return Frame(f"{before}java.util.concurrent.{name}{behind}")

        task = known.task((Frame("start"), *map(method, names.split()), Frame("Work.part")))
        assert task is not None and (task.pool.name, task.start) == ("java.util.concurrent", 3)
        caller = (Frame("Work.main"), method(waits), Frame("Unsafe_Park"))
        assert known.waiter(caller, caller) == (task.pool, 1)
        idle = method("LinkedBlockingQueue.take")
        assert known.task((Frame("start"), method(names.split()[0]), idle)) is None


def test_what_rounding_takes_is_given_later() -> None:
    """A thousand stacks of one sample each."""
    f, g = (Before((Frame(name),), True) for name in "fg")
    waited, got = Waited(), Counter[Before | None]()
    for _ in range(1000):
        ((before, share),) = waited.split("gang", 0, {f: 1, g: 2}, 1)
        got[before] += share
    assert got == pytest.approx({f: 333, g: 667}, abs=1)


def test_of_very_many_callers_those_that_wait_for_longest() -> None:
    callers = {Before((Frame(str(number)),), True): 1 + number for number in range(10 * MOST_CALLERS)}
    split = Waited().split("gang", 0, callers, 100_000)
    assert len(split) == MOST_CALLERS and sum(share for _, share in split) == 100_000
    assert {before for before, _ in split} == set(list(callers)[-MOST_CALLERS:])


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 4), st.integers(0, 99)), st.integers(0, 50)), max_size=12
    )
)
def test_any_times(parts: list[tuple[dict[int, int], int]]) -> None:
    """Shares add up, and are of those that waited at the time."""
    callers = [Before((Frame(str(number)),), True) for number in range(5)]
    waited = Waited()
    for waits, amount in parts:
        ns = {callers[number]: took for number, took in waits.items()}
        split = waited.split("gang", 0, ns, amount)
        assert sum(share for _, share in split) == amount
        for before, _ in split:
            assert ns[before] > 0 if before is not None else not any(ns.values())


def test_amounts_that_are_not_what_was_divided() -> None:
    f, g = (Before((Frame(name),), True) for name in "fg")
    assert shared([(f, 1), (None, 0), (g, 3)], 8) == [(f, 2), (g, 6)]
    assert shared([(f, 0), (None, 0)], 8) == [(None, 8)]
    assert shared([(f, 5), (g, 0)], 0) == []


def test_paths_without_such_pools() -> None:
    process = Process()
    user = process.stack(frames("main gang_wait"), start_up=MAIN)
    assert isinstance(process.paths, LogicalPaths)
    assert process.paths.task(user, 0) is None and process.paths.waits(user, 0) is None


def test_a_function_in_two_pools_calls_is_told_of_in_the_region_around_it() -> None:
    """What its threads wait for is looked for up to there: not in what another caller's do."""
    sites = []
    for name, lost_ns in (("f", 1.0), ("g", 2.0)):
        caller = Place(Procedure("main", "a.out", "a.c", False)).child(
            Callee(Procedure(name, "a.out", "a.c", False), False), Owner.PROGRAM
        )
        body = caller.child(Callee(Procedure("burn", "a.out", "a.c", False), True), Owner.PROGRAM)
        tally = Tally(Metrics.of({IDLENESS: lost_ns}))
        sites.append(LossSite(body, tally, region=body))
    for order in (sites, sites[::-1]):
        both = sites_together(order)
        assert both.place is sites[1].place is both.region
        assert both.lost_ns == 3
