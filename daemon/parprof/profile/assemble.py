"""From a finished session to a Profile: addresses become frames, counts become metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from parprof.attribution.invariant import CoreTime
from parprof.kernel.counters import LEFT_OUT
from parprof.languages.front_ends import loaders
from parprof.metrics import Metrics
from parprof.model import PathSample, ProcessInfo, Profile
from parprof.profile.addresses import AddressBook
from parprof.profile.rows import RowMaker
from parprof.session.cost import COST_NAMES
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.session.target import Target
from parprof.symbols import Symbolizer

_STACK_ENDS = {
    "no_mapping": "at an address in no known mapping",
    "no_table": "in code without unwind table",
    "bad_row": "where the table says nothing",
    "unreadable": "at unreadable stack memory",
    "too_deep": "deeper than 512 frames",
    "zero": "at a return address of 0",
    "frame_pointers": "before the load map was known",
}


_SHORT_PHASE_US = 200.0
"""Other threads run on while the sampling interrupt is taken, some 10 us: a twentieth of that."""


def session_notes(session: Session, rows: RowMaker) -> list[str]:
    """What the reader of a session's results must know."""
    out = []
    counted = session.kernel.statistics()
    if rows.cut_short:
        why = [
            f"{counted[f'stacks_{e}']} {text}" for e, text in _STACK_ENDS.items() if counted[f"stacks_{e}"]
        ]
        share = 100 * rows.cut_short / max(rows.samples, 1)
        out.append(f"{share:.1f} % of the stacks are cut short ({'; '.join(why)})")
    left_out = [f"{counted[f'left_out_{name}']:,} {name.replace('_', ' ')}"
                for name in LEFT_OUT.values() if counted[f"left_out_{name}"]]  # fmt: skip
    if left_out:
        out.append(
            f"left out to keep the cost to its budget: {', '.join(left_out)}; --budget allows for more"
        )
    if counted["ticks"]:
        out.append(
            f"n_w of {counted['ticks']:,} samples is what ran on the CPUs: context switches were too dear"
        )
    if rows.unknown:
        out.append(f"{rows.unknown} samples are of work whose creation was not seen: below [unknown context]")
    if rows.incomplete:
        share = 100 * rows.incomplete / max(rows.samples, 1)
        out.append(f"{share:.1f} % of the logical call paths do not reach the entry of the program")
    if rows.joined:
        out.append(
            f"{rows.joined} samples of workers were shared among the call paths that create such work, "
            "in proportion to the samples there"
        )
    if counted["disagreed"] > counted["checked"] * 0.05:
        out.append(
            f"n_w from probes and from the runtime's memory differed in {counted['disagreed']} of "
            f"{counted['checked']} samples"
        )
    refused = session.watched.placer.refused
    if refused:
        out.append(f"no room for {refused} unwind tables: frame pointers were followed in those files")
    if rows.unsure:
        out.append(
            f"n_w was partly guessed in {rows.unsure} samples: attached in mid-region, or an edge not probed yet"
        )
    if rows.fine:
        out.append(
            f"{rows.fine} working samples lie between barriers that come more often than every 200 us: their "
            "idleness is the mean of such phases, from how many samples worked and how many spun"
        )
    by_memory = all(
        target.source is Source.MEMORY for target in session.targets.values() if target.plan.agents
    )
    if not by_memory and 0 < session.regions.shortest_us < _SHORT_PHASE_US:
        out.append(
            f"regions come every {session.regions.shortest_us:.0f} us or less: idleness of phases this short is "
            "overstated (docs/limits.md); go by spin and overhead"
        )
    for target in session.targets.values():
        texts = [*target.failures, *target.plan.notes, *target.switches]
        if target.memory.problem:
            texts.append(f"n_w is not read from memory: {target.memory.problem}")
        out += [f"process {target.pid}: {text}" for text in texts]
    return out


def percent_of_rest(paid_ns: float, cpu_ns: float) -> float:
    """What was paid, in percent of the CPU time that the program used for itself."""
    return 100 * paid_ns / max(cpu_ns - paid_ns, 0.01 * cpu_ns) if cpu_ns else 0.0


def violations(session: Session, rows: RowMaker, samples: Sequence[PathSample]) -> list[str]:
    """Processes that were charged with more core time than there was. There should be none."""
    charged: dict[int, Metrics] = {}
    for sample in samples:
        charged.setdefault(sample.origin.image, Metrics()).add(sample.metrics)
    out = []
    for image, metrics in charged.items():
        target = session.targets.get(image)
        if target is None:
            continue
        times = CoreTime(
            metrics.work_ns / 1e9, metrics.idleness_ns / 1e9, target.ready_ns / 1e9, rows.cores_of(target),
            target.watched_s(), 1 / session.kernel.frequency_hz,
            max((key.n_working for key in session.facts if key.image == image), default=0),
        )  # fmt: skip
        if not times.is_possible:
            out.append(f"process {target.pid}: {times.violation()}")
    return out


def make_profile(
    session: Session,
    symbolizer: Symbolizer,
    main: Target,
    *,
    event: str = "cpu-clock",
    cores: int | None = None,
    notes: Sequence[str] = (),
    cpu_seconds_before: float = 0.0,
) -> Profile:
    """The profile of a session that is over, described by its main process.

    ``cores``: n, if the user says so. ``cpu_seconds_before``: this process's CPU time when it began to measure.
    """
    duration_s = (session.ended_ns - session.started_ns) / 1e9
    # before the work below, which the target no longer feels
    own_s = time.process_time() - cpu_seconds_before
    book = AddressBook(session, symbolizer)
    rows = RowMaker(session, book, cores)
    samples = rows.rows(session.facts)
    cpu_ns = sum(s.metrics.cpu_ns for s in samples)
    paid = session.cost.by_kind_ns(session.targets.values())
    impossible = violations(session, rows, samples)
    lost = session.kernel.lost()
    probe_failures = sum(len(target.failures) for target in session.targets.values())
    if probe_failures:
        lost["probes"] = probe_failures
    problems = {**session.builder.problems, **symbolizer.problems}
    return Profile(
        process=ProcessInfo(
            main.pid, main.process.comm, main.process.command, main.plan.runtime, rows.cores_of(main),
            main.n_w_source,
        ),
        duration_s=duration_s,
        frequency_hz=session.kernel.frequency_hz,
        samples=samples,
        event=event,
        lost=lost,
        target_cost_percent=percent_of_rest(sum(paid.values()), cpu_ns),
        daemon_cost_percent=100 * own_s / duration_s if duration_s else 0.0,
        notes=[
            *notes, *impossible, *session_notes(session, rows), *book.notes,
            *(f"{path}: {problem}" for path, problem in list(problems.items())[:8]),
        ],
        extra={
            **{key: str(value) for key, value in {**session.kernel.statistics(), **_language_counts(session)}.items()},
            "invariant_violations": str(len(impossible)),
            "cost_budget_percent": f"{100 * session.kernel.breaker.budget.ratio:g}",
            **{f"cost_{COST_NAMES[kind].replace(' ', '_')}_percent": f"{percent_of_rest(ns, cpu_ns):.3f}"
               for kind, ns in paid.items() if ns},
        },
        start_time_s=session.started_s,
    )  # fmt: skip


def _language_counts(session: Session) -> dict[str, int]:
    """What the front ends of languages count; 0 where no process runs them."""
    out = {name: 0 for loader in loaders() for name in loader.counters}
    for target in session.targets.values():
        if target.language is not None:
            for name, count in target.language.counts().items():
                out[name] = out.get(name, 0) + count
    return out
