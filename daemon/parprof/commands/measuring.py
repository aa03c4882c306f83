"""What `record` and `attach` share: options, and how a measurement starts; the rest of it is in `measured`.

What is imported here is waited for before the programs begin to load.
"""

from __future__ import annotations

import argparse
import gc
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Self

from parprof.commands.views import add_html_option, add_loops_option, add_source_option, add_view_options
from parprof.errors import UsageError
from parprof.exporters.output import check_writable
from parprof.kernel.amounts import MALLOC
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import EventChoice, choose, maximum_rate_hz
from parprof.kernel.records import Budget
from parprof.kernel.trace import TraceBounds
from parprof.probes.wait_functions import check_pattern
from parprof.resources import allow_many_files

if TYPE_CHECKING:
    from parprof.model import Profile
    from parprof.session.session import Session
    from parprof.session.target import Target

DEFAULT_FREQUENCY_HZ = 499
DEFAULT_BUDGET_PERCENT = 1.0
DEFAULT_TRACE_MIB, MOST_TRACE_MIB = 16, 1024
DEFAULT_TRACE_SECONDS, MOST_TRACE_SECONDS = 60.0, 86400.0
_NO_LIMIT_NS = 10**12


def add_measuring_options(parser: argparse.ArgumentParser, default_output: str) -> None:
    """Declare the options of a measurement."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=default_output,
        help="profile to write, gzipped pprof; - is standard output (default: %(default)s)",
    )
    add_loops_option(parser)
    parser.add_argument(
        "--save-facts",
        metavar="FILE",
        help="also write what the profile is made of - samples, stacks, processes, names - so that `parprof report` "
        "makes the same profile elsewhere, without root: for those who look into a report that is wrong",
    )
    parser.add_argument(
        "-F",
        "--frequency",
        metavar="HZ",
        type=int,
        default=DEFAULT_FREQUENCY_HZ,
        help="samples a second and core (default: %(default)s, odd so as not to run in step with the program)",
    )
    parser.add_argument(
        "-e",
        "--event",
        metavar="EVENT",
        action="append",
        default=[],
        help="cycles or cpu-clock is the clock; further events are counted beside it, such as page-faults, "
        "context-switches, read-bytes[=SIZE], write-bytes[=SIZE], malloc-bytes[=SIZE]; may be repeated "
        "(default: cycles where there is a PMU, else cpu-clock)",
    )
    parser.add_argument(
        "--cores",
        metavar="N",
        type=int,
        help="cores that the program should use (default: those that its affinity, cgroup and pool allow)",
    )
    parser.add_argument(
        "--n-w-source",
        metavar="SOURCE",
        choices=("exact", "memory", "sampled"),
        help="where the number of working threads comes from: exact (probes), memory (the runtime's own state) or "
        "sampled (what threads run); default: the best that the program and its rate of regions allow",
    )
    parser.add_argument(
        "--wait-function",
        metavar="RE",
        help="a thread that is found in the code of a function with such a name (a regular expression for the whole "
        "name) waits there for others: it counts as spinning, not as work; what the function calls is named, too",
    )
    parser.add_argument(
        "--spin-loops",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether loops count as spinning of which the machine code says that they only look at memory until "
        "another thread writes to it (default: they do)",
    )
    parser.add_argument(
        "--budget",
        metavar="PERCENT",
        type=float,
        default=DEFAULT_BUDGET_PERCENT,
        help="what profiling may take of the program's CPU time (default: %(default)g); what would go beyond that, "
        "such as probes that are hit too often, is left out at once, and the report says so; 100: no limit",
    )
    parser.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="do not find out where threads sleep: it takes up to the budget where they do so often",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress line")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--report",
        metavar="FILE",
        help="write the report to FILE; - is standard output, also where that is no terminal",
    )
    where.add_argument(
        "--no-report", action="store_true", help="print no report: `parprof report` shows it later"
    )
    add_view_options(parser)
    add_html_option(parser, "also write the report as a web page to OUT")
    add_source_option(parser)


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of an execution trace."""
    parser.add_argument(
        "--trace",
        metavar="OUT",
        help="also write an execution trace that ui.perfetto.dev shows: n_w over time, and for each thread its states, "
        "regions, tasks, waits and samples; and say what would remain of the time with the machine to itself",
    )
    parser.add_argument(
        "--trace-limit",
        metavar="MIB",
        type=int,
        default=DEFAULT_TRACE_MIB,
        help="size of the trace at most (default: %(default)s MiB); there it ends, and the report says so",
    )
    parser.add_argument(
        "--trace-seconds",
        metavar="S",
        type=float,
        default=DEFAULT_TRACE_SECONDS,
        help="time that the trace covers at most, from the start (default: %(default)g)",
    )


def _check_trace(args: argparse.Namespace) -> None:
    if args.trace is None:
        return
    if args.trace in (args.output, args.save_facts, args.html, args.report):
        raise UsageError("--trace names a file that another option names: give it one of its own")
    if not 1 <= args.trace_limit <= MOST_TRACE_MIB:
        raise UsageError(f"--trace-limit {args.trace_limit}: give 1 to {MOST_TRACE_MIB} MiB")
    if not 0 < args.trace_seconds <= MOST_TRACE_SECONDS:
        raise UsageError(f"--trace-seconds {args.trace_seconds:g}: give up to {MOST_TRACE_SECONDS:g} seconds")
    check_writable(args.trace)


def trace_bounds(args: argparse.Namespace) -> TraceBounds | None:
    """What may be traced at most; None: no trace is wanted."""
    return None if args.trace is None else TraceBounds(args.trace_limit << 20, args.trace_seconds)


def validate(args: argparse.Namespace) -> EventChoice:
    """Check everything that can be checked before anything is started or stopped.

    Raises:
        UsageError, OutputError, PrivilegeError, KernelUnsupported.
    """
    if not 1 <= args.frequency <= maximum_rate_hz():
        raise UsageError(
            f"-F {args.frequency}: give 1 to {maximum_rate_hz()} Hz (kernel.perf_event_max_sample_rate)"
        )
    if args.cores is not None and not 1 <= args.cores <= 1 << 16:
        raise UsageError(f"--cores {args.cores}: give a positive number")
    check_budget(args.budget)
    if args.wait_function is not None:
        check_pattern(args.wait_function)
    check_writable(args.output)
    if args.report is not None:
        check_writable(args.report)
    if args.html is not None:
        if args.html in (args.output, args.save_facts):
            raise UsageError("--html names a file that another option names: give it one of its own")
        check_writable(args.html)
    if args.save_facts is not None:
        if args.save_facts == args.output:
            raise UsageError("--save-facts and -o name the same file: give each one of its own")
        check_writable(args.save_facts)
    _check_trace(args)
    return choose(args.event)


def wants_allocations(events: EventChoice) -> bool:
    """Whether samples of allocations are asked for: what that takes is in `allocations`, which few need."""
    return any(one.name == MALLOC for one in events.amounts)


def check_budget(percent: float) -> None:
    """See that ``--budget`` is one.

    Raises:
        UsageError: it is none.
    """
    if not 0 < percent <= 100:
        raise UsageError(f"--budget {percent:g}: give a percentage above 0, at most 100")


class Interrupt:
    """Ctrl-C and SIGTERM end the measurement, not the program; a second one gives up the results."""

    def __init__(self) -> None:
        self.signal = 0
        self.time_s = 0.0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self.time_s = time.monotonic()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


class _Loading:
    """The kernel side of a measurement, made in a thread: what the kernel takes for that need not be waited for."""

    def __init__(self, make: Callable[[], BpfKernel]) -> None:
        self._thread = ThreadPoolExecutor(1, "parprof-kernel")
        self._kernel = self._thread.submit(make)
        self._taken = False

    def kernel(self) -> BpfKernel:
        """It, once it is there; the caller closes it.

        Raises:
            PrivilegeError, KernelUnsupported.
        """
        self._taken = True
        return self._kernel.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        if not self._taken and self._kernel.exception() is None:
            self._kernel.result().close()


def _maps_runtime(pid: int) -> bool:
    from parprof.probes.plan import maps_runtime  # beside the loading

    return maps_runtime(pid)


def measure(
    args: argparse.Namespace,
    events: EventChoice,
    begin: Callable[[Session], Target],
    finished: Callable[[Session], bool],
    *,
    running: int = 0,
) -> tuple[Profile, bytes]:
    """Run one session from ``begin`` until ``finished``, and return its profile; and its facts, if they are wanted.

    ``running``: PID of the target, if it is there before and after: what comes behind the measurement is felt by it,
    too, and what it will need can be told beforehand.
    """
    cpu_before_s = time.process_time()
    gc.disable()  # until all is imported: `run_session`
    allow_many_files()
    budget = Budget(args.budget / 100, _NO_LIMIT_NS) if args.budget >= 100 else Budget(args.budget / 100)
    with _Loading(
        lambda: BpfKernel(
            events.names,
            args.frequency,
            budget=budget,
            waits=args.wait,
            activations=True,
            amounts=events.amounts,
            traced=trace_bounds(args),
            edges_wanted=lambda: not running or _maps_runtime(running),
        )
    ) as loading:
        thread_before_s = time.thread_time()
        from parprof.commands.measured import run_session  # beside the loading
        from parprof.runtimes import agents

        agents()  # which takes a while, too, and would keep the first target waiting
        cpu_before_s += time.thread_time() - thread_before_s
        with loading.kernel() as kernel:
            return run_session(kernel, args, events, begin, finished, cpu_before_s, names_early=bool(running))


def present(
    args: argparse.Namespace, profile: Profile, facts: bytes = b"", *, shares_output: bool = False
) -> None:
    """See `measured.present`."""
    from parprof.commands import measured

    measured.present(args, profile, facts, shares_output=shares_output)
