"""What `parprof attach --span` does: work and span of a running process, from its barriers.

A module of its own because it imports most of parprof.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from contextlib import ExitStack

from parprof.calls.estimate import LOOK_SECONDS, Estimate, Look, estimate
from parprof.commands.measuring import Interrupt
from parprof.commands.scale import log_of, named
from parprof.commands.scaled import write_page
from parprof.errors import ProbeAttachError, TargetError
from parprof.exporters import scale_page, scale_pprof, scale_table
from parprof.exporters.output import check_writable, keep_old, open_output
from parprof.kernel import bpf
from parprof.kernel.engine import BpfKernel
from parprof.kernel.perf_events import choose
from parprof.kernel.phases import MAX_SITES, PhaseKind, PhaseSum, phase_sizes
from parprof.kernel.records import Budget, Cost, Prices
from parprof.kernel.uprobes import ProbeSet, Site
from parprof.plans import Edge
from parprof.probes.prices import machine_prices
from parprof.process.identity import used_cpu_s
from parprof.process.loadmap import LoadMap
from parprof.resources import Closing, allow_many_files
from parprof.runtimes import Agent, agent_for_library
from parprof.scale.model import Scale
from parprof.scale.phases import NOWHERE, Phase, record_of
from parprof.scale.record import Address, SpanRecord
from parprof.session.pace import Pace
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import Target

_FREQUENCY_HZ = 99
_BURST_NS = 50_000_000
_FOLLOWED = (Edge.WORK, Edge.WAIT, Edge.REGION)
_RUNTIMES = ("libgomp", "libomp", "libiomp5")
_NOTE = (
    "a running process: code up to a barrier takes as long as the thread that had most of it; tasks, chunks of loops "
    "and locks are taken as they fell out in this run, on this team"
)


def attach_span(args: argparse.Namespace, pid: int, interrupt: Interrupt) -> int:
    """Measure until the end, Ctrl-C, or for the given seconds, and print the answer. Returns the exit code.

    Raises:
        TargetError: it has no such runtime, or that would cost more than the budget.
    """
    for path in (args.output, args.html, args.report):
        if path is not None:
            check_writable(path)
    record, notes = _measure(args, pid, interrupt)
    log = log_of(args.quiet)
    scale = named([record], record.command, log)
    scale = Scale(scale.command, scale.predictions, (_NOTE, *notes, *scale.notes))
    keep_old(args.output)
    with open_output(args.output) as file:
        scale_pprof.write(scale, file)
    if args.html is not None:
        write_page(scale_page.page(scale), args.html)
    if not (args.no_report or args.output == "-"):
        with open_output(args.report or "-") as file:
            file.write(scale_table.text(scale, args.limit).encode("utf-8", "backslashreplace"))
    log(f"wrote {args.output}")
    return 0


class _Phases(Closing):
    """The probes of the process, placed as its files become known."""

    def __init__(self, kernel: BpfKernel) -> None:
        self._kernel = kernel
        self._sets: list[ProbeSet] = []
        self._placed: set[tuple[str, int]] = set()
        self.problem = ""
        self.agents: tuple[Agent, ...] = ()
        self.load_map: LoadMap | None = None

    @property
    def is_there(self) -> bool:
        """Whether anything is probed."""
        return bool(self._sets)

    def follow(self, target: Target) -> None:
        """Probe what is not probed yet."""
        self.load_map = target.load_map or self.load_map
        self.agents = tuple(target.agents)
        if not any(agent.name in _RUNTIMES for agent in self.agents):
            return
        fresh = [
            site
            for site in target.plan.sites
            if site.kind in _FOLLOWED and site.returns and _key(site) not in self._placed
        ]
        if not any(site.kind == Edge.WORK for site in target.plan.sites):
            self.problem = (
                f"process {target.pid}: the bodies of its regions have no symbols (stripped), so its threads' shares "
                "cannot be told: run it anew by `parprof scale`, which needs none"
            )
            return
        if not fresh:
            return
        try:
            probes = self._kernel.phases.attach(fresh, target.pid)
        except ProbeAttachError as error:
            self.problem = str(error)
            return
        self._kernel.breaker.guard(target.pid, Cost.CALL, probes)
        self._sets.append(probes)
        self._placed.update(map(_key, fresh))

    def close(self) -> None:
        """Take the probes away. It does not wait."""
        for probes in self._sets:
            probes.close()
        self._sets.clear()


def _key(site: Site) -> tuple[str, int]:
    return site.path, site.offset


def _measure(args: argparse.Namespace, pid: int, interrupt: Interrupt) -> tuple[SpanRecord, list[str]]:
    allow_many_files()
    budget = Budget(args.budget / 100, _BURST_NS)
    events = choose([])
    with (
        BpfKernel(events.names, _FREQUENCY_HZ, budget=budget, waits=False, sizes=phase_sizes()) as kernel,
        ExitStack() as until_end,
    ):
        prices = machine_prices(kernel)
        kernel.breaker.set_prices(prices)
        phases = until_end.enter_context(_Phases(kernel))
        session = Session(
            kernel, Pace(cores=math.inf), wanted_source=Source.SAMPLED, one_job=True, on_planned=phases.follow
        )
        try:
            return _Measurement(args, session, phases, prices).run(pid, interrupt)
        finally:
            session.close()


class _Measurement:
    def __init__(self, args: argparse.Namespace, session: Session, phases: _Phases, prices: Prices) -> None:
        self._args = args
        self._session = session
        self._phases = phases
        self._prices = prices
        self._notes: list[str] = []

    def run(self, pid: int, interrupt: Interrupt) -> tuple[SpanRecord, list[str]]:
        """Look, measure on, and read what there is.

        Raises:
            TargetError.
        """
        main = self._session.watch(pid)
        if not self._phases.is_there:
            self._refuse(main)
        begun_s, cpu_s, used_s = time.monotonic(), used_cpu_s(pid), 0.0
        with ExitStack() as until_looked:
            until_looked.callback(os.close, bpf.enable_stats())
            is_looking = True
            while not interrupt.signal and self._session.live(pid) is not None:
                elapsed_s = time.monotonic() - begun_s
                if self._args.duration is not None and elapsed_s >= self._args.duration:
                    break
                self._session.step()
                used_s = max(used_s, used_cpu_s(pid) - cpu_s)
                target = self._session.live(pid)
                is_cut = target is not None and Cost.CALL in target.probing.cuts
                if is_looking and (is_cut or elapsed_s >= LOOK_SECONDS):
                    self._check_cost(self._look(elapsed_s, used_s), is_cut)
                    until_looked.close()
                    is_looking = False
                elif is_cut:
                    self._notes.append(
                        f"partial: it ended after {elapsed_s:.1f} s, when it cost more than {self._args.budget:g} %"
                    )
                    break
        elapsed_s = time.monotonic() - begun_s
        used_s = max(used_s, used_cpu_s(pid) - cpu_s)
        self._phases.close()
        self._session.finish()
        return self._record(pid, main, elapsed_s, used_s)

    def _refuse(self, main: Target) -> None:
        if self._phases.problem:
            raise TargetError(self._phases.problem)
        if not any(agent.name in _RUNTIMES for agent in self._phases.agents):
            raise TargetError(
                f"process {main.pid} has no OpenMP runtime whose barriers are known (libgomp, libomp, libiomp5): "
                "`parprof attach` without --span profiles any"
            )
        raise TargetError(
            f"process {main.pid}: no function of its runtime can be probed (stripped, or gone); run it anew by "
            "`parprof scale`"
        )

    def _look(self, elapsed_s: float, cpu_s: float) -> Estimate:
        """What it costs, from what it cost until now. A hit is an entry or a return: by two."""
        kernel = self._session.kernel
        ran_ns, runs = kernel.run_time_ns().get("on_phase", (0, 0))
        own_ns = ran_ns / runs if runs else 0.0
        pair_ns = self._prices.entry_ns + self._prices.return_ns + 2 * own_ns
        left_out = kernel.statistics()["left_out_calls"]
        hits = (kernel.phases.state().hits + left_out) // 2
        return estimate(Look(max(elapsed_s, 1e-3), max(cpu_s, 0.0), hits, 0, pair_ns, pair_ns))

    def _check_cost(self, found: Estimate, is_cut: bool) -> None:
        told = f"estimate: {found.calls_per_s:,.0f} functions/s x {found.call_ns / 1000:.1f} us"
        if self._args.budget < 100 and (is_cut or found.percent > self._args.budget):
            raise TargetError(
                f"{told} = {found.percent:.0f} % of what the program takes itself, and the budget is "
                f"{self._args.budget:g} %: its phases are too fine to be measured from outside; --budget 100 has no "
                "limit, `parprof scale` measures from inside"
            )
        log_of(self._args.quiet)(
            f"{told} = {found.percent:.2g} % of what the program takes itself: measuring"
        )

    def _record(self, pid: int, main: Target, elapsed_s: float, cpu_s: float) -> tuple[SpanRecord, list[str]]:
        kernel = self._session.kernel
        state = kernel.phases.state()
        sums = kernel.phases.sums()
        if not state.regions or not sums:
            raise TargetError(
                f"process {pid} began no parallel region in {elapsed_s:.1f} s: give it longer (-d), or see "
                "`parprof attach` without --span"
            )
        if state.nested > state.beside:
            self._notes.append(
                f"{state.nested - state.beside:,} regions began within others: they are part of these"
            )
        if state.beside:
            self._notes.append(
                f"{state.beside:,} regions that other threads began meanwhile are not told apart from those beside "
                "them: these figures say little of how it scales; `parprof scale` measures each thread from inside"
            )
        if len(sums) == MAX_SITES:
            self._notes.append(
                f"more than {MAX_SITES:,} barriers and regions: the phases of the others are missing"
            )
        phases = [_phase(one, self._phases.load_map) for one in sums]
        command = main.process.command or main.process.comm
        record = record_of(
            phases,
            pid=pid,
            command=command,
            threads=max(state.widest, 1),
            regions=state.regions,
            cpu_s=cpu_s,
            elapsed_s=elapsed_s,
        )
        return record, self._notes


def _phase(one: PhaseSum, load_map: LoadMap | None) -> Phase:
    return Phase(
        one.kind == PhaseKind.SERIAL,
        _address(one.function, load_map),
        _barrier(one.barrier, load_map),
        one.work_ns / 1e9,
        one.span_ns / 1e9,
        one.phases,
    )


def _barrier(address: int, load_map: LoadMap | None) -> Address:
    """Where a barrier was called; nowhere if the body ended with it: then it returns to the runtime."""
    found = _address(address, load_map)
    is_runtime = agent_for_library(found.module.rpartition("/")[2]) is not None
    return NOWHERE if is_runtime or not address else found


def _address(address: int, load_map: LoadMap | None) -> Address:
    found = load_map.find(address) if load_map is not None else None
    if found is None:
        return Address("", "", address)
    dso, vaddr = found
    return Address(dso.path, dso.build_id, vaddr)
