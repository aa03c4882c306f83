"""From a measurement to a Profile: addresses become frames, counts become metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parprof.attribution.invariant import CoreTime
from parprof.causes.handed import tell_nothing_to_do
from parprof.facts.measurement import Measurement
from parprof.facts.names import Namer
from parprof.facts.sleepers import together
from parprof.kernel.amounts import AMOUNT_STATISTICS, AMOUNTS, MALLOC, statistic
from parprof.kernel.counters import LEFT_OUT
from parprof.kernel.records import COST_NAMES
from parprof.languages.front_ends import loaders
from parprof.metrics import OUTSIDE, STALL, Metrics
from parprof.model import SCOPE, PathSample, ProcessInfo, Profile
from parprof.profile.accounting import complete, disagreements
from parprof.profile.addresses import AddressBook
from parprof.profile.cost import BUDGET, cost_shares, percent_of_rest, with_spun
from parprof.profile.intervals import by_interval, parts_of
from parprof.profile.jit import jit_notes
from parprof.profile.programs import ByProgram, by_program
from parprof.profile.rows import RowMaker
from parprof.wording import many

_MEMORY = "memory"
"""The n_w source (`parprof.session.sources.Source`) that is right in short phases, too."""
_MAX_PROBLEMS = 8
_MAX_PROCESSES = 256
_STACK_ENDS = {
    "no_mapping": "at an address in no known mapping",
    "no_table": "in code without unwind table",
    "bad_row": "where the table says nothing",
    "unreadable": "at unreadable stack memory",
    "too_deep": "deeper than 512 frames",
    "frame_pointers": "before the load map was known",
    "missing": "lost on their way",
}
_WHY_NO_BYTES = (
    "no system call that was seen had any",
    "no process called a malloc that can be replaced; static programs and such with an allocator of their own do not",
)
_LEAVING_TOLD = 0.01
_SHORT_PHASE_US = 200.0
"""Other threads run on while the sampling interrupt is taken, some 10 us: a twentieth of that."""


def measurement_notes(measured: Measurement, rows: RowMaker) -> list[str]:
    """What the reader of a measurement's results must know."""
    out = []
    counted = measured.kernel.statistics()
    if rows.cut_short:
        why = [f"{rows.cut[end]} {text}" for end, text in _STACK_ENDS.items() if rows.cut[end]]
        share = 100 * rows.cut_short / max(rows.samples, 1)
        out.append(f"{share:.1f} % of the stacks are cut short ({'; '.join(why)})")
    if rows.leaving > _LEAVING_TOLD * rows.samples:
        share = 100 * rows.leaving / rows.samples
        out.append(f"{share:.1f} % of the samples are of processes in exec or exit, which have no stack")
    left_out = [
        f"{counted[f'left_out_{name}']:,} {name.replace('_', ' ')}"
        for name in LEFT_OUT.values()
        if counted[f"left_out_{name}"]
    ]
    if left_out:
        out.append(
            f"left out to keep the cost to its budget: {', '.join(left_out)}; --budget allows for more"
        )
    out += _amount_notes(counted)
    if counted["ticks"]:
        out.append(
            f"n_w of {counted['ticks']:,} samples is what ran on the CPUs: context switches were too dear"
        )
    if counted.get("glimpses"):
        stall_s = sum(seen[STALL] + seen[OUTSIDE] for _, seen in rows.glimpsed()) / 1e9
        out.append(
            f"where threads wait was then seen in glimpses alone, {counted['glimpses']} of "
            f"{counted['glimpsed_us'] / 1e6:.2f} s in all: {stall_s:.2f} s"
            " of stall are shared out by them, and how long threads waited is estimated"
        )
    if looks := counted.get("looks"):
        out.append(
            f"where threads wait was then looked up {many(looks, 'time')}, from outside: what is told of stall "
            "since then is shared out by that, and how long threads waited is estimated"
        )
    if rows.unknown:
        out.append(
            f"{many(rows.unknown, 'sample')} of work whose creation was not seen: below [unknown context]"
        )
    if rows.incomplete_though_whole:  # the others have been told of as cut short
        share = 100 * rows.incomplete_though_whole / max(rows.samples, 1)
        out.append(f"{share:.1f} % of the logical call paths do not reach the entry of the program")
    if rows.joined:
        out.append(
            f"{many(rows.joined, 'sample')} of workers: shared among the call paths that create such work, "
            "in proportion to the samples there"
        )
    if rows.waited:
        out.append(
            f"{many(rows.waited, 'sample')} of threads of pools: shared among the call paths that waited for such work "
            "at the time, in proportion to how long they did"
        )
    if counted["disagreed"] > counted["checked"] * 0.05:
        out.append(
            f"n_w from probes and from the runtime's memory differed in {counted['disagreed']} of "
            f"{counted['checked']} samples"
        )
    if counted["python_too_deep"]:
        out.append(
            f"{many(counted['python_too_deep'], 'stack')} of more than 256 Python frames: the outermost are missing"
        )
    if measured.tables_refused:
        out.append(
            f"no room for {many(measured.tables_refused, 'unwind table')}: frame pointers were followed in those files"
        )
    if rows.unsure:
        out.append(
            f"n_w was partly guessed in {many(rows.unsure, 'sample')}: attached in mid-region, or an edge "
            "not probed yet"
        )
    if rows.fine:
        out.append(
            f"{many(rows.fine, 'working sample')} between barriers that come more often than every 200 us: "
            "idleness is the mean of such phases, from how many samples worked and how many spun"
        )
    by_memory = all(image.n_w_source == _MEMORY for image in measured.images.values() if image.agents)
    if not by_memory and 0 < measured.shortest_region_us < _SHORT_PHASE_US:
        out.append(
            f"regions come every {measured.shortest_region_us:.0f} us or less: idleness of phases this short is "
            "overstated (docs/limits.md); go by spin and overhead"
        )
    for image in measured.images.values():
        out += [f"process {image.process.pid}: {text}" for text in image.remarks()]
    return out


def _amount_notes(counted: Mapping[str, int]) -> list[str]:
    """Of each event by amount, what the samples can be held against."""
    out = []
    for name in AMOUNTS:
        total, times, left_out = (counted.get(statistic(name, what), 0) for what in AMOUNT_STATISTICS)
        missing = f"; {left_out:,} of them in samples that the budget had no time for" if left_out else ""
        if total:
            left = counted.get("left_out_allocations" if name == MALLOC else "left_out_transfers")
            # threads that end otherwise than by exit() have not told the last of what they allocated
            exactly = "at least" if left else "counted" if name == MALLOC else "exactly"
            out.append(f"{name}: {exactly} {total:,} bytes in {many(times, 'call')}{missing}")
        elif statistic(name, "total") in counted:
            out.append(f"{name}: none were seen: {_WHY_NO_BYTES[name == MALLOC]}")
    return out


def violations(measured: Measurement, rows: RowMaker, samples: Sequence[PathSample]) -> list[str]:
    """Processes that were charged with more core time than there was. There should be none."""
    charged: dict[int, Metrics] = {}
    for sample in samples:
        charged.setdefault(sample.origin.image, Metrics()).add(sample.metrics)
    most_working: dict[int, int] = {}
    for key in measured.drain.facts:
        most_working[key.image] = max(most_working.get(key.image, 0), key.n_working)
    out = []
    for number, metrics in charged.items():
        image = measured.images.get(number)
        if image is None:
            continue
        times = CoreTime(
            work_s=metrics.work_ns / 1e9,
            idleness_s=metrics.idleness_ns / 1e9,
            ready_s=image.ready_ns / 1e9,
            cores=rows.mean_cores(image),
            elapsed_s=image.watched_s(),
            period_s=1 / measured.drain.frequency_hz,
            most_working=most_working.get(number, 0),
        )
        if not times.is_possible:
            out.append(f"process {image.process.pid}: {times.violation()}")
    return out


def make_profile(measured: Measurement, namer: Namer) -> Profile:
    """The profile of a measurement, described by its main process and the runtimes of all that have samples."""
    measured, asleep = together(measured)
    rows = RowMaker(AddressBook(namer), measured.cores, by_thread=True)
    parts = parts_of(measured)
    each = rows.rows(measured.drain, [part.facts for part in parts])
    parted = disagreements(measured, rows, each)
    accounting = complete(measured, rows, each)
    tell_nothing_to_do(each, rows.mean_cores(measured.images[measured.main]))
    impossible = violations(measured, rows, each)
    nameless = jit_notes(each, measured.images)
    whole = by_program(measured, each)
    samples = whole.samples
    main = measured.images[measured.main]
    processes = _processes(measured, rows, whole)
    cpu_ns = sum(s.metrics.cpu_ns for s in samples)
    spin_ns = sum(s.metrics.spin_ns for s in samples)
    paid_ns = with_spun(
        {COST_NAMES[kind]: ns for kind, ns in measured.paid_ns.items()}, spin_ns, rows.usual_cores(main)
    )
    lost = measured.kernel.lost()
    probe_failures = sum(len(image.failures) for image in measured.images.values())
    if probe_failures:
        lost["probes"] = probe_failures
    problems = {**measured.problems, **namer.problems}
    notes = measurement_notes(measured, rows)  # before rows are made once more
    return Profile(
        process=ProcessInfo(
            main.process.pid,
            main.process.comm,
            main.process.command,
            _runtimes(processes) or main.runtime,
            rows.usual_cores(main),
            processes[0].n_w_source if processes else main.n_w_source,
        ),
        duration_s=measured.duration_s,
        frequency_hz=measured.drain.frequency_hz,
        samples=samples,
        event=measured.drain.events[0],
        lost=lost,
        target_cost_percent=percent_of_rest(sum(paid_ns.values()), cpu_ns),
        daemon_cost_percent=100 * measured.own_cpu_s / measured.duration_s if measured.duration_s else 0.0,
        notes=[
            *measured.notes,
            *impossible,
            *parted,
            *notes,
            *(
                [f"{asleep:,} threads that only slept are told by call path, not one by one"]
                if asleep
                else []
            ),
            *nameless,
            *namer.notes,
            *(f"{path}: {problem}" for path, problem in list(problems.items())[:_MAX_PROBLEMS]),
        ],
        extra=_extra(measured, impossible, paid_ns, cpu_ns),
        start_time_s=measured.started_s,
        accounting=accounting,
        processes=processes,
        intervals=by_interval(measured, parts, rows, whole),
    )


def _runtimes(processes: Sequence[ProcessInfo]) -> str:
    """The runtimes of those that did the work; the main process is often a shell that started them."""
    names = (name for one in processes for name in one.runtime.split("+") if name != "none")
    return "+".join(dict.fromkeys(names))


def _processes(measured: Measurement, rows: RowMaker, whole: ByProgram) -> list[ProcessInfo]:
    """The process images that have samples, the one with most of them first; none if there is only one."""
    weights: dict[int, int] = {}
    for sample in whole.samples:
        weights[sample.origin.image] = weights.get(sample.origin.image, 0) + sample.metrics.samples
    found = [
        (weight, measured.images[number]) for number, weight in weights.items() if number in measured.images
    ]
    if len(found) < 2:
        return []
    found.sort(key=lambda one: (-one[0], one[1].process.pid))
    return [
        ProcessInfo(
            image.process.pid,
            image.process.comm,
            image.process.command,
            image.runtime,
            rows.usual_cores(image),
            image.n_w_source,
            whole.others.get(image.image, 0),
        )
        for weight, image in found[:_MAX_PROCESSES]
        if weight
    ]


def _extra(
    measured: Measurement, impossible: Sequence[str], paid_ns: Mapping[str, float], cpu_ns: float
) -> dict[str, str]:
    """Further comments of a profile file, for those who look into what parprof itself did."""
    return {
        **{
            key: str(value)
            for key, value in {**measured.kernel.statistics(), **_language_counts(measured)}.items()
        },
        **({SCOPE: measured.scope} if measured.scope else {}),
        "invariant_violations": str(len(impossible)),
        BUDGET: f"{100 * measured.kernel.budget_ratio:g}",
        **cost_shares(paid_ns, cpu_ns),
    }


def _language_counts(measured: Measurement) -> dict[str, int]:
    """What the front ends of languages count; 0 where no process runs them."""
    out = {name: 0 for loader in loaders() for name in loader.counters}
    for image in measured.images.values():
        for name, count in image.language_counts().items():
            out[name] = out.get(name, 0) + count
    return out
