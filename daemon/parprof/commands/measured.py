"""What a measurement does once its programs are in the kernel: the session's loop, the profile, the report.

A module of its own because it imports most of parprof: `measuring` does so while the kernel looks at the programs.
"""

from __future__ import annotations

import argparse
import gc
import io
import math
import sys
import time
from collections.abc import Callable

from parprof import cache
from parprof.commands.measuring import wants_allocations
from parprof.commands.progress import Progress
from parprof.exporters import pprof
from parprof.exporters.output import keep_old, open_output
from parprof.facts.measurement import Measurement
from parprof.facts.replay import RememberingNamer
from parprof.facts.writing import encode, save
from parprof.kernel.detacher import detacher
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import EventChoice
from parprof.kernel.trace import TraceLog
from parprof.model import TRACE_ELAPSED, TRACE_MINIMUM, Profile
from parprof.probes.prices import machine_prices
from parprof.probes.wait_functions import SpinRules, WaitFunctions
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.resources import collect_less
from parprof.session.pace import Pace
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import Target
from parprof.symbols.symbolizer import Symbolizer


def _to_standard_error(line: str) -> None:
    print(f"parprof: {line}", file=sys.stderr)


def _without_cache() -> list[str]:
    return [f"{problem}; each start takes longer" for problem in cache.problems()]


def _of_allocations(session: Session, events: EventChoice) -> list[str]:
    if not wants_allocations(events):
        return []
    from parprof.commands import allocations

    return allocations.notes(session)


def run_session(
    kernel: BpfKernel,
    args: argparse.Namespace,
    events: EventChoice,
    begin: Callable[[Session], Target],
    finished: Callable[[Session], bool],
    cpu_before_s: float,
    *,
    names_early: bool,
) -> tuple[Profile, bytes]:
    """Run one session from ``begin`` until ``finished``, and return its profile; and its facts, if they are wanted.

    ``cpu_before_s``: our CPU time before the measurement. ``names_early``: start the process that looks up names beside
    the target, and not when that has ended: the report is ready 0.1 s earlier.
    """
    log = None if args.quiet else _to_standard_error
    with Symbolizer(log=log) as symbolizer, FileNamer(symbolizer) as namer:
        kernel.breaker.set_prices(machine_prices(kernel))
        pace = Pace(cores=math.inf) if args.cores else None
        wanted = Source(args.n_w_source) if args.n_w_source else None
        named = WaitFunctions(args.wait_function) if args.wait_function is not None else None
        rules = SpinRules(args.spin_loops, named)
        session = Session(
            kernel,
            pace,
            wanted_source=wanted,
            blame_locks=args.blame == "locks",
            one_job=True,
            by_interval=True,
            spin_rules=rules,
        )
        try:
            gc.freeze()  # modules stay: looking at them again and again was a tenth of our time beside the target
            gc.enable()
            collect_less()
            main = begin(session)
            if names_early:
                namer.prepare()
            with Progress(sys.stderr, enabled=not args.quiet) as progress:
                while not finished(session):
                    session.step()
                    progress.show(session, main)
            session.finish()
            if session.samples():
                namer.prepare()
            newest = [target for target in session.targets.values() if target.pid == main.pid][-1]
            misnamed = named.notes() if named is not None else []
            if not args.quiet:
                for note in misnamed:
                    _to_standard_error(note)
            # our own time before names are looked up, which the target no longer feels
            measured = session.measurement(
                newest,
                own_cpu_s=time.process_time() - cpu_before_s,
                cores=args.cores,
                notes=[*events.notes, *_of_allocations(session, events), *misnamed, *_without_cache()],
                scope=getattr(args, "scope", ""),
            )
            if args.save_facts is None:
                profile, facts = make_profile(measured, namer), b""
            else:
                names = RememberingNamer(namer)
                profile = make_profile(measured, names)
                facts = encode(measured, names)
            if kernel.trace_log is not None:
                _trace(args, kernel.trace_log, measured, namer, profile)
            return profile, facts
        finally:
            session.close()


def _trace(
    args: argparse.Namespace, log: TraceLog, measured: Measurement, namer: FileNamer, profile: Profile
) -> None:
    """Write the execution trace, and note what it says."""
    from parprof.timeline.trace import write_trace  # which few ask for

    with open_output(args.trace) as file:
        result = write_trace(measured, log, namer, file, args.trace_limit << 20)
    told = result.sentence(args.trace)
    profile.notes.append(told)
    if not args.quiet:
        _to_standard_error(told)
    if not result.is_blind:
        profile.extra = {
            **profile.extra,
            TRACE_ELAPSED: f"{result.minimum.elapsed_ns / 1e9:.6f}",
            TRACE_MINIMUM: f"{result.minimum.minimum_ns / 1e9:.6f}",
        }


def _report(args: argparse.Namespace, profile: Profile, *, shares_output: bool) -> None:
    """Print the report where it disturbs nobody: not in between the results of the program, nor in a file that goes to
    standard output."""
    if args.no_report:
        return
    from parprof.commands.showing import print_report, shown  # a tenth of a second, when it disturbs nobody
    from parprof.commands.views import view_of

    view = view_of(args)
    if args.report is not None and args.report != "-":
        text = io.StringIO()
        print_report(shown(args, profile), view, file=text)
        with open_output(args.report) as file:
            file.write(text.getvalue().encode("utf-8", "backslashreplace"))
        return
    taken = "-" in (args.output, args.save_facts, args.html)
    if args.report is None:
        taken = taken or (shares_output and not sys.stdout.isatty())
    print_report(shown(args, profile), view, file=sys.stderr if taken else sys.stdout)


def present(
    args: argparse.Namespace, profile: Profile, facts: bytes = b"", *, shares_output: bool = False
) -> None:
    """Write the profile, then print the report.

    ``facts``: to be saved as well, if there are any. ``shares_output``: the program prints to our standard output.
    """
    keep_old(args.output)
    pprof.write(profile, args.output, physical=args.physical, loops=args.loops)
    _report(args, profile, shares_output=shares_output)
    if args.html is not None:
        from parprof.commands.showing import write_page

        write_page(args, profile)
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
