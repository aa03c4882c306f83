"""The facts above every report, in words: what was measured, how well it runs, and what to blame."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from parprof.attribution import Effort, percent, verdict
from parprof.attribution.counters import ratios_of
from parprof.causes.cause import Cause
from parprof.causes.ranking import find_causes
from parprof.cct.tree import CallingContextTree, Procedure
from parprof.exporters.answer import (
    brief,
    location,
    mention,
    nothing_to_act_on,
    outside_percent,
    rounded,
    sentence,
    withheld_percent,
)
from parprof.exporters.screen import Screen, elided, elided_end
from parprof.metrics import METRICS, WAIT, Metrics, Shown
from parprof.model import Accounting, ProcessInfo, Profile
from parprof.untrusted import printable
from parprof.values import dataclass
from parprof.wording import many

_PROCESSES_TOLD = 5
_UNSAMPLED_TOLD = 0.02
"""Of n x time: what no sample saw is said from here on; less is the error of sampling."""
LEAST_PROFILING_SECONDS = 0.005
"""Below this, time in our own handlers is not worth a word."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the header."""

    label: str
    text: str


def place(procedure: Procedure, line: int) -> str:
    """Where a procedure, or a loop, is hit at this line; a loop's name says the rest: ``(line 42)``."""
    if not procedure.is_loop:
        return location(procedure.file, line, procedure.module)
    return f"(line {line})" if line > 0 and not procedure.name.endswith(f":{line}") else ""


def facts(profile: Profile, tree: CallingContextTree, causes: Sequence[Cause] | None = None) -> list[Fact]:
    """The header lines of a report, in order; the first one is what to act on. ``causes``: if they are known."""
    process = profile.process
    total = tree.root.inclusive
    found = find_causes(profile) if causes is None else causes
    labels = ("advice", *("also" for _ in found[1:]))
    out = [
        *(Fact(label, sentence(one)) for label, one in zip(labels, found, strict=False)),
        Fact("command", process.command or process.comm or "unknown"),
        Fact(
            "process",
            f"pid {process.pid} ({process.comm}), runtime {process.runtime}, "
            f"cores n = {process.cores}, n_w source {process.n_w_source}",
        ),
        Fact(
            "sampled",
            f"{profile.duration_s:.2f} s, {many(total.samples, 'sample')} at {profile.frequency_hz} Hz"
            f" of {profile.event}",
        ),
    ]
    if total:
        effort = Effort.of(total)
        out.append(Fact("effort", _effort(profile, effort, total)))
        out.append(Fact("parallel efficiency", f"{100 * effort.efficiency:.1f} %"))
        if found:
            out.append(Fact("verdict", f"{verdict(total).value} (the whole program)"))
        else:
            out.insert(0, Fact("verdict", nothing_to_act_on(profile, total)))
        out += _told(total)
        out += [Fact("accounted", _accounted(one)) for one in (profile.accounting,) if one is not None]
        out += process_facts(profile)
    else:
        out.append(Fact("no samples", _why_none(profile)))
    if total.events:
        out.append(
            Fact("events", ", ".join(f"{total.events[name]:,} {name}" for name in sorted(total.events)))
        )
    if ratios := ratios_of(total.events, total.cpu_ns):
        values = ((one, one.value(total.events, total.cpu_ns) or 0.0) for one in ratios)
        out.append(Fact("counters", ", ".join(f"{value:.2f} {one.meaning}" for one, value in values)))
    out.append(Fact("lost", _lost(profile, total.samples)))
    out.append(
        Fact(
            "cost",
            f"{profile.target_cost_percent:.2f} % of the target's CPU time{_cost(profile)}, "
            f"{profile.daemon_cost_percent:.2f} % of a CPU in the profiler",
        )
    )
    out += [Fact("note", note) for note in profile.notes]
    return [Fact(fact.label, printable(fact.text)) for fact in out]


def _accounted(account: Accounting) -> str:
    """What all core time adds up to, so that a reader can check the report."""
    parts = (
        ("work", account.work_s),
        ("waiting for a CPU", account.ready_s),
        ("cores that others had", account.stolen_s),
        ("idleness", account.idleness_s),
        ("nobody working", account.stall_s),
    )
    told = ", ".join(f"{name} {value:.2f} s" for name, value in parts if value >= 0.005)
    if account.unsampled_s > _UNSAMPLED_TOLD * account.available_s:
        told += f"; {account.unsampled_s:.2f} s passed in bursts of work that are too short for samples"
    if account.counted_idleness_s is None:
        told += " (by samples: fitted, so the sum is no check)"
    return f"{100 * account.accounted:.1f} % of {account.cores:g} cores x {account.elapsed_s:.2f} s: {told}"


def process_facts(profile: Profile) -> list[Fact]:
    """Who worked, where several processes were one job."""
    out: list[Fact] = []
    several = profile.by_process() if profile.processes else []
    busiest = sorted(several, key=lambda pair: -pair[1].cpu_ns)
    for process, mine in busiest[:_PROCESSES_TOLD]:
        out.append(
            Fact(
                "process" if out else "processes",
                f"{process.comm} ({process.number}), {process.runtime}, n_w {process.n_w_source}: "
                f"work {mine.work_ns / 1e9:.2f} s, idleness {mine.idleness_ns / 1e9:.2f} s, "
                f"spin {mine.spin_ns / 1e9:.2f} s",
            )
        )
    if len(busiest) > _PROCESSES_TOLD:
        more = sum(1 + process.others for process, _ in busiest[_PROCESSES_TOLD:])
        out.append(Fact("process", f"and {more:,} more"))
    return out


_ACTIVATIONS = "activations"
_MAX_FIRST_LINES = 6
_HIGH_SPIN_PERCENT = 25.0
_HIGH_APART_PERCENT = 10.0
_LEAST_WORK = 0.01
"""Of a job's work: who did less only started the others, as a shell does."""
_MOST_NAMED = 12
_MUCH_MORE = 2
"""Times the mean of a program's processes: who did more than that is told by itself."""
_LONGEST_COMM = 24
_INDENT = 3
"""As `Screen.brief` leaves room for."""
_LEAST_NAME = 20
"""Cells: a program can be told by so much of its command."""
_MOST_NAME = 80
"""Cells: more than that of it only hides how well the program runs. ``-v`` has it in full."""


def first_lines(screen: Screen, profile: Profile, causes: Sequence[Cause], changed: str = "") -> None:
    """What a reader must know, in at most six lines: how well it runs, and what to do about it. ``changed``: which
    files are not what they were; empty if none."""
    total = profile.total()
    screen.brief(_how_well(profile, total, screen), 1)
    left = _MAX_FIRST_LINES - 2 - bool(changed)
    if workers := working_processes(profile):
        screen.brief(_who_worked(workers, screen.width), 1)
        left -= 1
    told = 0
    for number, cause in enumerate(causes, 1):
        if left < (2 if screen.is_limited else 1):
            break
        left -= screen.brief(f"{number}. {brief(cause)}", min(2, left))
        told = number
    if not causes:
        screen.brief(nothing_to_act_on(profile, total) if total.samples else _why_none(profile), left)
    if changed:
        screen.brief(changed, 1)
    rest = _rest(profile, causes[told:])
    if rest:
        screen.brief(rest, 1)


def working_processes(profile: Profile) -> list[tuple[ProcessInfo, Metrics, float]]:
    """The processes of a job with their share of its work, the busiest first; empty where one alone did it."""
    if not profile.processes:
        return []
    found = profile.by_process()
    whole = sum(mine.work_ns for _, mine in found)
    worked = [
        (process, mine, mine.work_ns / whole)
        for process, mine in found
        if mine.work_ns and mine.work_ns >= _LEAST_WORK * whole
    ]
    return sorted(worked, key=lambda row: -row[2]) if len(worked) > 1 else []


def _who_worked(workers: Sequence[tuple[ProcessInfo, Metrics, float]], width: int) -> str:
    """In a line: as many of them as fit, the rest counted; where not all do, those of a program as one."""
    line, left = _named([(process, share) for process, _, share in workers], width)
    return _named(_by_program(workers), width)[0] if left else line


def _by_program(
    workers: Sequence[tuple[ProcessInfo, Metrics, float]],
) -> list[tuple[ProcessInfo, float]]:
    """Processes with their shares, those of a program as one, as of compilers by the dozen, but for such that did much
    more than the others."""
    programs: dict[str, list[tuple[ProcessInfo, float]]] = {}
    for process, _, share in workers:
        programs.setdefault(process.comm, []).append((process, share))
    out = []
    for those in programs.values():
        mean = sum(share for _, share in those) / sum(1 + process.others for process, _ in those)
        alike = [one for one in those if one[1] <= _MUCH_MORE * mean * (1 + one[0].others)]
        out += [one for one in those if one not in alike]
        if alike:
            others = sum(1 + process.others for process, _ in alike) - 1
            out.append((replace(alike[0][0], others=others), sum(share for _, share in alike)))
    return sorted(out, key=lambda one: -one[1])


def _named(workers: Sequence[tuple[ProcessInfo, float]], width: int) -> tuple[str, int]:
    """As many of them as fit, in words; and how many do not."""
    names = [
        f"{elided(printable(process.comm) or 'unknown', _LONGEST_COMM)} "
        f"({'' if process.others else 'pid '}{process.number}) {rounded(100 * share)} %"
        for process, share in workers
    ]
    numbers = [1 + process.others for process, _ in workers]
    begin = f"{sum(numbers):,} processes: "
    for told in range(min(len(names), _MOST_NAMED), 0, -1):
        more = f", {sum(numbers[told:]):,} more" if told < len(names) else ""
        line = f"{begin}{', '.join(names[:told])}{more}; shares of the work"
        if cell_len(line) <= width - _INDENT:
            break
    return line, len(names) - told


def _how_well(profile: Profile, total: Metrics, screen: Screen) -> str:
    process = profile.process
    effort = Effort.of(total)
    useful, overhead, idleness = effort.percentages()
    cores = many(process.cores, "core")
    text = f": {cores}, {rounded(useful)} % of their time useful, {rounded(idleness)} % idle"
    if overhead >= 0.1:
        text += f", {rounded(overhead)} % overhead"
    stall = percent(effort.stall_ns, effort.total_ns)
    if stall >= 0.1:
        text += f", {rounded(stall)} % blocked"
    apart = (
        (withheld_percent(profile), "that it was not given"),
        (outside_percent(profile, total), "in which it had nothing to do"),
    )
    left_out = [f"{rounded(share)} % {what}" for share, what in apart if share >= _HIGH_APART_PERCENT]
    if left_out:
        text += f", not counting {' and '.join(left_out)}"
    spin = percent(total.spin_ns, total.cpu_ns)
    if spin >= _HIGH_SPIN_PERCENT:
        text += f"; {rounded(spin)} % of the CPU time is spin"
    if not total.samples:
        text = ": no samples"
    name = printable(" ".join(_short(process.command).split()) or process.comm or "unknown")
    return elided_end(name, min(max(screen.width - len(text) - 2, _LEAST_NAME), _MOST_NAME)) + text


def _short(command: str) -> str:
    """A command without the folder of its program: the details have it in full."""
    program, _, arguments = command.partition(" ")
    if program[:1] in "'\"":  # there are blanks in it
        return command
    return " ".join(filter(None, (os.path.basename(program), arguments)))


def _rest(profile: Profile, causes: Sequence[Cause]) -> str:
    """What else there is, in a line."""
    parts = []
    if causes:
        parts.append(f"also: {', '.join(map(mention, causes))}")
    lost = sum(count for reason, count in profile.lost.items() if reason != _ACTIVATIONS)
    if lost:
        parts.append(f"{lost:,} lost")
    if profile.notes:
        parts.append(many(len(profile.notes), "note"))
    return f"{'; '.join(parts)} (-v tells more)" if parts else ""


def _told(total: Metrics) -> list[Fact]:
    """What was measured besides effort, each with a sentence of its own."""
    found = ((metric, total[metric]) for metric in METRICS.at(Shown.COLUMN) if metric.optional)
    return [
        Fact(
            metric.name,
            (metric.fact or "{value}: {meaning}").format(
                value=metric.unit.text(value), meaning=metric.meaning[0].lower() + metric.meaning[1:]
            ),
        )
        for metric, value in found
        if value
    ]


def _effort(profile: Profile, effort: Effort, total: Metrics) -> str:
    useful, overhead, idleness = effort.percentages()
    kinds: dict[str, float] = {}
    for sample in profile.samples:
        if kind := sample.origin.overhead:
            kinds[kind] = kinds.get(kind, 0.0) + sample.metrics.overhead_ns
    split = ", ".join(
        f"{kind} {percent(value, effort.total_ns):.1f} %"
        for kind, value in sorted(kinds.items(), key=lambda item: -item[1])
        if value
    )
    stall = percent(effort.stall_ns, effort.total_ns)
    stalled = f", stall {stall:.1f} %" if effort.stall_ns else ""
    profiling = total.profiling_ns / 1e9
    ours = f", profiling {profiling:.2f} s" if profiling >= LEAST_PROFILING_SECONDS else ""
    return (
        f"useful work {useful:.1f} %, overhead {overhead:.1f} %{f' ({split})' if split else ''}, "
        f"idleness {idleness:.1f} %{stalled}; spin {total.spin_ns / 1e9:.2f} s{ours}"
    )


def _cost(profile: Profile) -> str:
    """The kinds of events that it is for, dearest first, and the budget."""
    kinds = {
        key.removeprefix("cost_").removesuffix("_percent").replace("_", " "): float(value)
        for key, value in profile.extra.items()
        if re.fullmatch(r"cost_[a-z_']+_percent", key) and re.fullmatch(r"\d+(\.\d+)?", value)
    }
    budget = kinds.pop("budget", 0.0)
    dearest = sorted(kinds.items(), key=lambda kind: -kind[1])
    parts = [f"{name} {share:.2f} %" for name, share in dearest if share >= 0.005]
    if budget:
        parts.append(f"budget {budget:g} %")
    return f" ({', '.join(parts)})" if parts else ""


def _lost(profile: Profile, samples: int) -> str:
    """Every reason with its count, or plainly nothing. Calls that are told nowhere are no samples."""
    lost = {reason: count for reason, count in profile.lost.items() if count}
    calls = lost.pop(_ACTIVATIONS, 0)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(lost.items()))
    told = f"{reasons} (beside {many(samples, 'sample')} counted)" if lost else "nothing"
    return told + (f"; of the calls that samples told apart {calls:,} are in no row" if calls else "")


def _why_none(profile: Profile) -> str:
    text = (
        "the process used no CPU while it was observed: it slept or waited all the time, or it ended before"
        " its first sample was due"
    )
    if profile.frequency_hz:
        text += f" (one each {1000 / profile.frequency_hz:.1f} ms of CPU time)"
    if profile.total()[WAIT]:
        text += "; --sort wait tells where"
    if any(profile.lost.values()):
        text += "; or its samples are among the lost ones"
    return text
