"""What `record` and `attach` share: options, the loop with its progress line, and the results."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from parprof.commands.progress import Progress
from parprof.commands.report import add_view_options, print_report
from parprof.errors import UsageError
from parprof.exporters import pprof
from parprof.exporters.output import check_writable
from parprof.facts.replay import RememberingNamer
from parprof.facts.writing import encode, save
from parprof.kernel.detacher import detacher
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import EventChoice, choose, maximum_rate_hz
from parprof.kernel.records import Budget
from parprof.model import Profile
from parprof.probes.prices import machine_prices
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.resources import allow_many_files
from parprof.session.session import Pace, Session
from parprof.session.sources import Source
from parprof.session.target import Target
from parprof.symbols import Symbolizer

DEFAULT_FREQUENCY_HZ = 499
DEFAULT_BUDGET_PERCENT = 1.0
_NO_LIMIT_NS = 10**12


def add_measuring_options(parser: argparse.ArgumentParser, default_output: str) -> None:
    """Declare the options of a measurement."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", default=default_output,
        help="profile to write, gzipped pprof; - is standard output (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--save-facts",
        metavar="FILE",
        help="also write what the profile is made of - samples, stacks, processes, names - so that `parprof report` "
        "makes the same profile elsewhere, without root: for those who look into a report that is wrong",
    )
    parser.add_argument(
        "-F", "--frequency", metavar="HZ", type=int, default=DEFAULT_FREQUENCY_HZ,
        help="samples a second and core (default: %(default)s, odd so as not to run in step with the program)",
    )  # fmt: skip
    parser.add_argument(
        "-e", "--event", metavar="EVENT", action="append", default=[],
        help="cycles or cpu-clock is the clock; further events are counted beside it; may be repeated "
        "(default: cycles where there is a PMU, else cpu-clock)",
    )  # fmt: skip
    parser.add_argument(
        "--cores", metavar="N", type=int,
        help="cores that the program should use (default: those that its affinity, cgroup and pool allow)",
    )  # fmt: skip
    parser.add_argument(
        "--n-w-source", metavar="SOURCE", type=Source, choices=[Source.EXACT, Source.MEMORY, Source.SAMPLED],
        help="where the number of working threads comes from: exact (probes), memory (the runtime's own state) or "
        "sampled (what threads run); default: the best that the program and its rate of regions allow",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="PERCENT", type=float, default=DEFAULT_BUDGET_PERCENT,
        help="what profiling may take of the program's CPU time (default: %(default)g); what would go beyond that, "
        "such as probes that are hit too often, is left out at once, and the report says so; 100: no limit",
    )  # fmt: skip
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false",
        help="do not find out where threads sleep: it takes up to the budget where they do so often",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress line")
    add_view_options(parser)


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
    if not 0 < args.budget <= 100:
        raise UsageError(f"--budget {args.budget:g}: give a percentage above 0, at most 100")
    check_writable(args.output)
    if args.save_facts is not None:
        if args.save_facts == args.output:
            raise UsageError("--save-facts and -o name the same file: give each one of its own")
        check_writable(args.save_facts)
    return choose(args.event)


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


def _to_standard_error(line: str) -> None:
    print(f"parprof: {line}", file=sys.stderr)


def measure(
    args: argparse.Namespace,
    events: EventChoice,
    begin: Callable[[Session], Target],
    finished: Callable[[Session], bool],
) -> tuple[Profile, bytes]:
    """Run one session from ``begin`` until ``finished``, and return its profile; and its facts, if they are wanted."""
    cpu_before = time.process_time()
    allow_many_files()
    log = None if args.quiet else _to_standard_error
    budget = Budget(args.budget / 100, _NO_LIMIT_NS) if args.budget >= 100 else Budget(args.budget / 100)
    with (
        BpfKernel(events.names, args.frequency, budget=budget, waits=args.wait) as kernel,
        Symbolizer(log=log) as symbolizer,
    ):
        kernel.breaker.set_prices(machine_prices(kernel))
        pace = Pace(cores=math.inf) if args.cores else None
        session = Session(
            kernel, pace, wanted_source=args.n_w_source, blame_locks=args.blame == "locks", one_job=True
        )
        try:
            main = begin(session)
            with Progress(sys.stderr, enabled=not args.quiet) as progress:
                while not finished(session):
                    session.step()
                    progress.show(session, main)
            session.finish()
            newest = [target for target in session.targets.values() if target.pid == main.pid][-1]
            # our own time before names are looked up, which the target no longer feels
            measured = session.measurement(
                newest, own_cpu_s=time.process_time() - cpu_before, cores=args.cores, notes=events.notes
            )
            if args.save_facts is None:
                return make_profile(measured, FileNamer(symbolizer)), b""
            names = RememberingNamer(FileNamer(symbolizer))
            profile = make_profile(measured, names)
            return profile, encode(measured, names)
        finally:
            session.close()


def present(args: argparse.Namespace, profile: Profile, facts: bytes = b"") -> None:
    """Write the profile, then print the report (to standard error when a file goes to standard output).

    ``facts``: to be saved as well, if there are any.
    """
    pprof.write(profile, args.output, physical=args.physical)
    out = sys.stderr if "-" in (args.output, args.save_facts) else sys.stdout
    print_report(profile, view=args.view, sort=args.sort, limit=args.limit, physical=args.physical, file=out)
    if args.output != "-" and not args.quiet:
        print(f"parprof: wrote {args.output}", file=sys.stderr)
    if facts:
        save(facts, args.save_facts)
        if args.save_facts != "-" and not args.quiet:
            print(f"parprof: wrote {args.save_facts}", file=sys.stderr)
    if detacher.pending and not args.quiet:
        print(
            f"parprof: the kernel is still taking away {detacher.pending} links of probes; a process of its own waits "
            "for that, the program is unharmed",
            file=sys.stderr,
        )


def deadline(seconds: float | None) -> Callable[[], bool]:
    """A function that tells whether ``seconds`` have passed since now; never, for None."""
    end = None if seconds is None else time.monotonic() + seconds
    return lambda: end is not None and time.monotonic() >= end
