"""What `parprof calls` does once its options are checked: the look, the count, the result.

A module of its own because it imports most of parprof.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import TextIO

from parprof.calls.counting import CallCounting
from parprof.calls.durations import so_many_calls
from parprof.calls.estimate import LOOK_SECONDS, Estimate, Look, estimate
from parprof.calls.finder import FunctionFinder
from parprof.calls.moment import Moment
from parprof.calls.nop5 import nop5_is_cheap, with_exits
from parprof.calls.report import print_result, write_json
from parprof.calls.result import CallProfile, make_result
from parprof.calls.times import Times
from parprof.calls.wanted import Wanted
from parprof.commands.progress import Progress
from parprof.errors import TargetError, UsageError
from parprof.exporters.output import open_output
from parprof.files.dso import ANONYMOUS
from parprof.kernel import bpf
from parprof.kernel.call_counts import map_sizes
from parprof.kernel.call_times import RoutineTime, time_sizes
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import choose, maximum_rate_hz
from parprof.kernel.records import Budget, Cost, Prices
from parprof.probes.prices import machine_prices
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.resources import allow_many_files
from parprof.session.pace import Pace
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import Target
from parprof.symbols.symbolizer import Symbolizer

_FREQUENCY_HZ = 499
_LOOK_HZ = 1999
"""While a running process is looked at, which may take 50 ms alone."""
_NO_LIMIT_NS = 10**12
_PROBLEMS_TOLD = 2
_BURST_NS = 50_000_000
"""What counting may take at once: a burst of calls is not to end it."""


def count_calls(
    args: argparse.Namespace,
    wanted: list[Wanted],
    begin: Callable[[Session], Target],
    finished: Callable[[Session], bool],
    *,
    refuses: bool,
) -> CallProfile:
    """Count from ``begin`` until ``finished``.

    ``refuses``: raise an error if it would cost more than the budget, else end counting then, and say so.

    Raises:
        TargetError: no such function, or too dear.
    """
    allow_many_files()
    events = choose([])
    look_hz = min(_LOOK_HZ, maximum_rate_hz())
    sizes = {**map_sizes(), **(time_sizes() if args.times else {})}
    budget = Budget(1.0, _NO_LIMIT_NS) if args.force else Budget(args.budget / 100, _BURST_NS)
    log = None if args.quiet else _to_standard_error
    with (
        Symbolizer(log=log) as symbolizer,
        BpfKernel(
            events.names, look_hz if refuses else _FREQUENCY_HZ, budget=budget, waits=False, sizes=sizes
        ) as kernel,
        ExitStack() as until_end,
    ):
        prices = machine_prices(kernel)
        if args.times:
            prices = with_exits(kernel, prices)
        kernel.breaker.set_prices(prices)
        finder = until_end.enter_context(
            FunctionFinder(
                wanted, symbolizer.resolve, cache(lambda: nop5_is_cheap(kernel, prices)), times=args.times
            )
        )
        counting = until_end.enter_context(CallCounting(kernel, finder))
        source = Source(args.n_w_source) if args.n_w_source else None
        session = Session(
            kernel,
            Pace(cores=math.inf),
            wanted_source=source,
            one_job=True,
            on_planned=counting.follow,
            awaits_files=finder.awaits_files,
        )
        try:
            count = _Count(args, session, counting, prices, refuses)
            main = begin(session)
            symbolizer.prepare()
            count.run(main, finished)
            return count.result(symbolizer, main)
        finally:
            session.close()


class _Count:
    """One count, from its look to its result."""

    def __init__(
        self,
        args: argparse.Namespace,
        session: Session,
        counting: CallCounting,
        prices: Prices,
        refuses: bool,
    ) -> None:
        self._args = args
        self._session = session
        self._counting = counting
        self._prices = prices
        self._refuses = refuses
        self._estimate: Estimate | None = None
        self._begun_s = self._ended_s = 0.0
        self._sampled_before = 0, 0
        self._notes: list[str] = []
        self._times: dict[int, RoutineTime] = {}
        self._unsampled: dict[int, int] = {}
        """Calls by site whose time's samples do not count."""

    def run(self, main: Target, finished: Callable[[Session], bool]) -> None:
        """Look, and count on.

        Raises:
            TargetError, UsageError.
        """
        self._check_found(main)
        self._begun_s = time.monotonic()
        begun = self._counting.begun() if self._refuses else None
        self._sampled_before = self._samples_of_probes(main.pid)
        with ExitStack() as until_looked, Progress(sys.stderr, enabled=not self._args.quiet) as progress:
            until_looked.callback(os.close, bpf.enable_stats())
            while not (finished(self._session) or self._is_over()):
                had_started = self._has_started(main.pid)
                self._session.step()
                if not had_started:  # its files may have been looked into meanwhile
                    self._begun_s, begun = time.monotonic(), None
                progress.show(self._session, main)
                begun = begun or self._counting.moment(main.pid)
                is_cut = self._is_cut(main.pid)
                looked_s = time.monotonic() - self._begun_s
                if self._estimate is None and (is_cut or looked_s >= LOOK_SECONDS):
                    self._look(main.pid, begun)
                    until_looked.close()
                    if self._is_too_dear(is_cut):
                        break
                    self._sample_on()
                    if not self._args.quiet:
                        _to_standard_error(f"{self._estimate_text()}: counting")
                elif is_cut:
                    self._notes.append(self._ended_text(looked_s))
                    break
        self._ended_s = time.monotonic()
        self._times = self._session.kernel.calls.times.by_routine()
        self._counting.detach()
        self._session.finish()

    def _check_found(self, main: Target) -> None:
        """Whether there is anything to count; of a command that may still come."""
        finder = self._counting.finder
        if self._refuses and not self._counting.sites:
            if main.is_gone():
                raise TargetError(f"process {main.pid} ended while we attached to it")
            problems = finder.unsearched()[:_PROBLEMS_TOLD]
            finder.is_interpreted = main.language is not None
            raise TargetError("; ".join([*finder.missing(), *self._counting.notes, *problems]))

    def _is_over(self) -> bool:
        """Whether it was counted for as long as was asked for."""
        seconds: float | None = self._args.duration
        return seconds is not None and time.monotonic() - self._begun_s >= seconds

    def _has_started(self, pid: int) -> bool:
        """Whether the program runs, and something of it is counted."""
        target = self._session.live(pid)
        return bool(self._counting.sites) and (target is None or target.has_started)

    def _cost_s(self) -> float:
        """CPU time that counting took from the program."""
        cheap, dear = self._counting.hits()
        own_ns = self._session.kernel.calls.price_ns()
        return (
            cheap * self._call_ns(self._prices.entry_ns, own_ns)
            + dear * self._call_ns(self._prices.dear_ns, own_ns)
        ) / 1e9

    def _call_ns(self, trap_ns: float, own_ns: float) -> float:
        """What a call takes, of its entry and, where it is timed, its exit. ``own_ns``: our program."""
        exit_ns = self._prices.dear_ns + own_ns if self._args.times else 0.0
        return trap_ns + own_ns + exit_ns

    def _is_cut(self, pid: int) -> bool:
        target = self._session.live(pid)
        return target is not None and Cost.CALL in target.probing.cuts

    def _look(self, pid: int, begun: Moment) -> None:
        """Reckon from what was seen since then."""
        now = self._counting.moment(pid)
        kernel = self._session.kernel
        in_kernel = self._samples_of_traps(pid)
        target = self._session.live(pid)
        cut = target.probing.calls_cut if target else None
        cpu_s = (cut.cpu_ns / 1e9 if cut and cut.cpu_ns else now.cpu_s) - begun.cpu_s
        own_ns = self._program_ns()
        self._estimate = estimate(
            Look(
                now.unhindered_s(begun, cpu_s),
                cpu_s,
                now.cheap_calls - begun.cheap_calls,
                now.dear_calls - begun.dear_calls,
                self._call_ns(self._prices.entry_ns, own_ns),
                self._call_ns(self._prices.dear_ns, own_ns),
                in_kernel,
                in_kernel / kernel.frequency_hz,
                begun.calls,
                kernel.statistics()["left_out_calls"],
            )
        )

    def _estimate_text(self) -> str:
        return self._estimate.text(len(self._counting.routines())) if self._estimate else ""

    def _sample_on(self) -> None:
        """Of a running process no more samples than need be. Those of the look, of another rate, do not count."""
        if self._refuses:
            self._session.drain()
            self._session.kernel.set_frequency(_FREQUENCY_HZ)
            self._session.take()
            self._unsampled = {
                site: sum(calls.all for calls in by_cpu.values())
                for site, by_cpu in self._session.kernel.calls.by_site().items()
            }

    def _program_ns(self) -> float:
        """What our program took for a call, by the kernel's statistics: the breaker's price errs on the safe side."""
        ran_ns, runs = self._session.kernel.run_time_ns().get("on_call", (0, 0))
        return ran_ns / runs if runs else float(self._session.kernel.calls.price_ns())

    def _samples_of_traps(self, pid: int) -> float:
        """Samples in the kernel so far, and those that were held back until a trap was over.

        Before anything was probed, samples at such places were the program's own: what came since tells how many of
        these there are for each one in the kernel.
        """
        in_kernel, held_back = self._samples_of_probes(pid)
        in_kernel_before, held_back_before = self._sampled_before
        since = in_kernel - in_kernel_before
        return in_kernel * (1 + (held_back - held_back_before) / since) if since else in_kernel

    def _samples_of_probes(self, pid: int) -> tuple[int, int]:
        """Samples so far in the kernel, and in user mode where something is probed."""
        self._session.drain()
        target, stacks = self._session.live(pid), self._session.kernel.stacks
        load_map = target.load_map if target is not None else None
        places = self._counting.held_back_at(load_map) if load_map is not None else set()
        in_kernel = held_back = 0
        for key, count in self._session.facts.items():
            if key.event:
                continue
            if key.kernel:
                in_kernel += count.samples
            elif (stack := stacks.raw(key.user)) is not None and stack.native:
                held_back += count.samples * (stack.words[0] in places)
        return in_kernel, held_back

    def _is_too_dear(self, is_cut: bool) -> bool:
        """Whether counting ends with the look."""
        assert self._estimate is not None
        # a command has just started, which says little of the rest: it goes on until the breaker ends it
        beyond = self._estimate.percent > self._args.budget and not self._estimate.is_negligible
        is_dear = is_cut or (self._refuses and beyond)
        if self._args.force or not is_dear:
            return False
        refusal = (
            f"{self._estimate_text()}: {self._estimate.slowdown}, and the budget is {self._args.budget:g} %; "
            "name fewer functions, or --force"
        )
        if self._refuses:
            raise TargetError(refusal)
        self._notes.append(f"counting ended after {time.monotonic() - self._begun_s:.2f} s. {refusal}")
        return True

    def _ended_text(self, after_s: float) -> str:
        return (
            f"counting ended after {after_s:.1f} s: calls came to cost more than the budget of "
            f"{self._args.budget:g} %; --force counts on"
        )

    def result(self, symbolizer: Symbolizer, main: Target) -> CallProfile:
        """What was counted and sampled.

        Raises:
            UsageError: too many functions were meant.
        """
        newest = [target for target in self._session.targets.values() if target.pid == main.pid][-1]
        with FileNamer(symbolizer, loops=False) as namer:
            profile = make_profile(self._session.measurement(newest), namer)
        calls = self._session.kernel.calls
        made = make_result(
            self._counting.sites,
            calls.by_site(),
            calls.by_caller(),
            self._session.targets,
            symbolizer.resolve,
            profile,
            self._ended_s - self._begun_s,
            Times(self._times, calls.times.by_caller()) if self._args.times else None,
            self._unsampled,
        )
        made.estimate = self._estimate_text()
        made.cost_s = self._cost_s()
        failures = [text for text in newest.failures if "functions of one file" in text]
        if failures and not self._counting.sites:
            raise UsageError(failures[0])
        untimed = self._session.kernel.statistics()["untimed_calls"]
        if untimed:
            self._notes.append(
                f"{so_many_calls(untimed, 'are')} counted without their time: too many were open at once"
            )
        finder = self._counting.finder
        finder.is_interpreted = finder.is_interpreted or newest.language is not None
        modules = {frame.module for sample in profile.samples for frame in sample.path}
        finder.runs_made_code = (
            finder.runs_made_code or ANONYMOUS in modules
        )  # made after its files were read
        made.notes = [
            *self._notes,
            *self._counting.notes,
            *finder.missing(),
            *finder.unsearched()[:_PROBLEMS_TOLD],
        ]
        return made


def _to_standard_error(line: str) -> None:
    print(f"parprof: {line}", file=sys.stderr)


def present(args: argparse.Namespace, result: CallProfile, *, shares_output: bool = False) -> None:
    """Write the result where it was asked for. ``shares_output``: the program prints to our standard output."""
    text = io.StringIO()
    if args.output is not None and args.output != "-":
        _write(args, result, text)
        with open_output(args.output) as file:
            file.write(text.getvalue().encode("utf-8", "backslashreplace"))
        return
    to_errors = args.output is None and shares_output and not args.json and not sys.stdout.isatty()
    _write(args, result, sys.stderr if to_errors else sys.stdout)


def _write(args: argparse.Namespace, result: CallProfile, file: TextIO) -> None:
    if args.json:
        write_json(result, file)
    else:
        print_result(result, file)
