"""Pools of threads inside libraries that need no probes: n_w is told by what their threads are found running.

What is to be known of them is whose work they do. Threads of a pool are started once, often while the library is
loaded, and what runs then says nothing of their work. But who hands work to them either takes part in it: he is seen
in the same function, below the one that hands out. Or he waits until it is done, in a function that does nothing else.
"""

from __future__ import annotations

import re
from functools import cache

from parprof.model import Frame
from parprof.patterns import regex
from parprof.runtimes.others import brought
from parprof.values import dataclass

NOTHING = regex(r"(?!)")
"""Matches no name."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One library's pool. Adding one is adding an entry to `POOLS`, or, in a package of one's own, an entry point of
    the group ``parprof.pools`` that names one: docs/runtimes.md.
    """

    name: str
    """As in ``[OpenBLAS worker]``."""
    library: re.Pattern[str]
    """Matches the base name of the files that it lies in; nothing for one that is compiled into programs."""
    serves: re.Pattern[str]
    """Matches the functions that its threads run for good, where it is linked into something else."""
    hands_out: re.Pattern[str] = NOTHING
    """Matches its functions that hand out work and then call the caller's part of it, or a thread's."""
    runs_any: bool = False
    """What it runs are functions of whoever calls it, not of its own library."""
    waits: re.Pattern[str] = NOTHING
    """Matches the functions in which a caller waits for what he has handed out. If he helps there, that is his anyway,
    and counts as waiting."""
    runs: re.Pattern[str] = NOTHING
    """Matches the functions in which a thread runs a piece of work, where callers wait: what these call is the work.
    Nothing: what `serves` calls is."""
    rests: re.Pattern[str] = NOTHING
    """Found in the name or the module of what `serves` calls to wait for work, and to tell what came of it: that is no
    work. For those that call the work itself."""
    starts: re.Pattern[str] = NOTHING
    """Matches functions below which its threads are started, where those of a pool before it run the same functions."""
    within: re.Pattern[str] = regex("")
    """Found in the name of the source file, or else of the module, of what these match where callers wait (`serves`,
    `waits`, `runs`, `starts`): for names that other code may have as well."""

    @property
    def takes_part(self) -> bool:
        """Whether its callers do a part of the work themselves."""
        return self.hands_out.pattern != NOTHING.pattern

    @property
    def is_waited_for(self) -> bool:
        """Whether it is known where its callers wait for the work."""
        return self.waits.pattern != NOTHING.pattern

    def has(self, frame: Frame) -> bool:
        """Whether a function belongs to the library."""
        return bool(self.library.match(frame.module) or self.serves.fullmatch(frame.name))

    def is_body(self, frame: Frame) -> bool:
        """Whether a function may be one that is handed out, or what that calls of the library."""
        if frame.is_loop or self.hands_out.fullmatch(frame.name):
            return False
        return not self.serves.fullmatch(frame.name) if self.runs_any else self.has(frame)

    @property
    def worker(self) -> str:
        """What the call paths of its threads begin with where nobody is known who gave them work."""
        return f"[{self.name} worker]"

    def may_wait_in(self, function: str) -> bool:
        """Whether that is one in which its threads wait for work, or a caller who takes part for what they do."""
        return self.takes_part and bool(self.serves.fullmatch(function) or self.hands_out.fullmatch(function))

    def is_within(self, frame: Frame) -> bool:
        """Whether a function may be the pool's, as far as the file that it is in tells."""
        return bool(self.within.search(frame.file or frame.module) or self.within.search(frame.module))

    def has_threads_as(self, other: Pool) -> bool:
        """Whether threads of the two run the same functions."""
        return self.serves.pattern == other.serves.pattern

    def is_starting(self, frame: Frame) -> bool:
        """Whether threads that are started below this function are its own."""
        return bool(self.starts.fullmatch(frame.name)) and self.is_within(frame)

    def is_resting(self, frame: Frame) -> bool:
        """Whether a function that `serves` calls is no work."""
        return bool(self.rests.search(frame.name) or self.rests.search(frame.module))

    def is_handing_out(self, frame: Frame) -> bool:
        """Whether a function is one in which a caller hands out work and takes part in it."""
        return bool(self.hands_out.fullmatch(frame.name)) and (self.runs_any or self.has(frame))


def _java(names: str) -> re.Pattern[str]:
    """Methods of Java's own executors, as HotSpot names them, or a perf map: then with types around."""
    return re.compile(rf"(?:\S+ )?java\.util\.concurrent\.(?:{names})(?:\(.*)?")


_PYTHON_WORKER, _PYTHON_TASK = regex(r"_worker"), regex(r"(?:_WorkItem\.|WorkerContext\.)?run")
"""Of a ThreadPoolExecutor: what its threads run, and what runs a piece of work there."""

POOLS = (
    Pool(
        "OpenBLAS",
        regex(r"lib\w*openblas"),
        regex(r"blas_thread_server"),
        regex(r"exec_blas(?:_async(?:_wait)?)?(?:64_|_64)?|exec_threads"),
    ),
    Pool(
        "rayon",
        NOTHING,
        regex(r"<?rayon_core::registry::(?:main_loop|ThreadBuilder>?::run|WorkerThread>?::wait_until_cold)"),
        waits=regex(
            r"<?rayon_core::(?:registry::Registry>?::in_worker_cold(?:(?:::)?<.*>)?|"
            r"latch::LockLatch>?::wait(?:_and_reset)?)"
        ),
        runs=regex(
            r"<rayon_core::job::\w+(?:<.*>)? as rayon_core::job::Job>::execute|"
            r"<?rayon_core::job::JobResult<.*>::call(?:::.*)?"
        ),
    ),
    Pool(
        "Taskflow",  # callers have a std::future of what they run
        NOTHING,
        regex(r"tf::Executor::_spawn\(.*\)::.*"),
        waits=regex(
            r"tf::Executor::wait_for_all\b.*|(?:tf::Future|std::__basic_future)<.*>::(?:wait|_M_get_result)\b.*|"
            r"std::__future_base::_State_baseV2::wait\b.*|std::__atomic_futex_unsigned_base::_M_futex_wait_until\w*\b.*"
        ),
        runs=regex(r"tf::Executor::_invoke\w*\(.*"),
    ),
    Pool(
        "Eigen",
        NOTHING,
        regex(r"Eigen::(?:NonBlocking)?ThreadPoolTempl<.*>::WorkerLoop\b.*"),
        waits=regex(r"Eigen::(?:Barrier|Notification)::Wait\w*\b.*"),
        rests=regex(
            r"\AEigen::(?:\w*ThreadPoolTempl<[^()]*>::(?:WaitForWork|\w*Steal|NonEmptyQueueIndex)|RunQueue<|EventCount::)"
        ),
    ),
    Pool(
        "concurrent.futures",
        NOTHING,
        _PYTHON_WORKER,
        waits=regex(
            r"(?:Future\.)?(?:result|exception)|wait|as_completed|(?:ThreadPoolExecutor\.)?shutdown|_python_exit"
        ),
        runs=_PYTHON_TASK,
        within=regex(r"\bconcurrent/futures/(?:thread|_base)\.py\Z"),
    ),
    Pool(
        "asyncio",  # coroutines that wait are on no stack, but their loop is
        NOTHING,
        _PYTHON_WORKER,
        waits=regex(r"(?:BaseEventLoop\.)?_run_once"),
        runs=_PYTHON_TASK,
        starts=regex(r"(?:BaseEventLoop\.)?run_in_executor"),
        within=regex(r"\b(?:concurrent/futures/thread|asyncio/base_events)\.py\Z"),
    ),
    Pool(
        "multiprocessing",  # its ThreadPool: of a pool of processes no thread works for another one of its process
        NOTHING,
        regex(r"worker|(?:star)?mapstar"),
        waits=regex(
            r"(?:ApplyResult\.)?(?:get|wait)|(?:IMapIterator\.)?next|(?:Pool\.)?(?:apply|map|starmap|join)"
        ),
        rests=regex(r"SimpleQueue|\A_queue\."),
        within=regex(r"\bmultiprocessing/pool\.py\Z"),
    ),
    Pool(
        "java.util.concurrent",
        NOTHING,
        _java(
            r"ThreadPoolExecutor(?:\$Worker\.run|\.runWorker)|ForkJoin(?:WorkerThread\.run|Pool\.runWorker)"
        ),
        waits=_java(
            r"(?:FutureTask|ForkJoinTask|CompletableFuture)\.(?:get|join|invoke)|(?:ForkJoinPool|ThreadPoolExecutor|"
            r"(?:Abstract)?ExecutorService)\.(?:invoke(?:All|Any)?|awaitTermination|awaitQuiescence|close)"
        ),
        runs=_java(
            r"FutureTask\.run|ForkJoinTask\.doExec|Executors\$RunnableAdapter\.call|CompletableFuture\$Async\w+\.\w+"
        ),
    ),
    Pool(
        "numba",
        NOTHING,
        regex(r"thread_worker"),
        waits=regex(r"parallel_for"),
        within=regex(r"\Aworkqueue\."),
    ),
)
"""All that are known here."""


@cache
def pools() -> tuple[Pool, ...]:
    """All pools, those of other packages (entry points ``parprof.pools``) behind ours."""
    return (*POOLS, *brought("parprof.pools", "pool", _checked))


def is_idle_worker(name: str) -> bool:
    """Whether call paths that begin with a frame of that name are of a pool's threads without work."""
    return any(pool.worker == name for pool in pools())


def _checked(loaded: object) -> Pool:
    if not isinstance(loaded, Pool) or not loaded.name:
        raise TypeError("not a parprof.runtimes.pools.Pool with a name")
    return loaded
