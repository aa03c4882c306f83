"""The facts above every report, in words: what was measured, how well it runs, and what to blame."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from parprof.attribution import Effort, Verdict, percent, verdict
from parprof.attribution.advice import Advice, advise, lost_ns
from parprof.cct.tree import CallingContextTree, Node, Procedure
from parprof.metrics import IDLENESS, METRICS, OVERHEAD, Metrics, Shown, add_to
from parprof.model import Accounting, ProcessInfo, Profile
from parprof.untrusted import printable

_PROCESSES_TOLD = 5
LEAST_PROFILING_SECONDS = 0.005
"""Below this, time in our own handlers is not worth a word."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the header."""

    label: str
    text: str


def location(file: str, line: int, module: str) -> str:
    """Where something is, as short as useful: ``(heat.c:42)``, ``(heat.c)``, ``[libc.so.6]`` or nothing."""
    if file:
        name = os.path.basename(file)
        return printable(f"({name}:{line})" if line > 0 else f"({name})")
    return printable(f"[{os.path.basename(module)}]") if module else ""


def place(procedure: Procedure, line: int) -> str:
    """Where a procedure, or a loop, is hit at this line; a loop's name says the rest: ``(line 42)``."""
    if not procedure.is_loop:
        return location(procedure.file, line, procedure.module)
    return f"(line {line})" if line > 0 and not procedure.name.endswith(f":{line}") else ""


def facts(profile: Profile, tree: CallingContextTree) -> list[Fact]:
    """The header lines of a report, in order; the first one is what to act on."""
    process = profile.process
    total = tree.root.inclusive
    advice = advise(tree)
    labels = ("advice", *("also" for _ in advice[1:]))
    out = [
        *(Fact(label, sentence(one, process.cores)) for label, one in zip(labels, advice, strict=False)),
        Fact("command", process.command or process.comm or "unknown"),
        Fact(
            "process",
            f"pid {process.pid} ({process.comm}), runtime {process.runtime}, "
            f"cores n = {process.cores}, n_w source {process.n_w_source}",
        ),
        Fact(
            "sampled",
            f"{profile.duration_s:.2f} s, {total.samples:,} samples at {profile.frequency_hz} Hz"
            f" of {profile.event}",
        ),
    ]
    if total:
        effort = Effort.of(total)
        out.append(Fact("effort", _effort(profile, effort, total)))
        out.append(Fact("parallel efficiency", f"{100 * effort.efficiency:.1f} %"))
        if advice:
            out.append(Fact("verdict", f"{verdict(total).value} (the whole program)"))
        else:
            out.insert(0, Fact("verdict", verdict(total).advice + _alone(process.cores)))
        out += _told(total)
        out += [Fact("accounted", _accounted(one)) for one in (profile.accounting,) if one is not None]
        out += _processes(profile)
    else:
        out.append(Fact("no samples", _why_none(profile)))
    if total.events:
        out.append(
            Fact("events", ", ".join(f"{total.events[name]:,} {name}" for name in sorted(total.events)))
        )
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
    return f"{100 * account.accounted:.1f} % of {account.cores:g} cores x {account.elapsed_s:.2f} s: {told}"


def _processes(profile: Profile) -> list[Fact]:
    """Who worked, where several processes were one job."""
    sums: dict[int, Metrics] = {}
    for sample in profile.samples:
        add_to(sums, sample.origin.pid, sample.metrics)
    out: list[Fact] = []
    known: dict[int, ProcessInfo] = {}
    for process in profile.processes:
        known.setdefault(process.pid, process)
    busiest = sorted(known, key=lambda pid: -sums.get(pid, Metrics()).cpu_ns)
    for pid in busiest[:_PROCESSES_TOLD]:
        mine, process = sums.get(pid, Metrics()), known[pid]
        out.append(
            Fact(
                "process" if out else "processes",
                f"{process.comm} ({pid}), {process.runtime}, n_w {process.n_w_source}: "
                f"work {mine.work_ns / 1e9:.2f} s, idleness {mine.idleness_ns / 1e9:.2f} s, "
                f"spin {mine.spin_ns / 1e9:.2f} s",
            )
        )
    if len(busiest) > _PROCESSES_TOLD:
        out.append(Fact("process", f"and {len(busiest) - _PROCESSES_TOLD} more"))
    return out


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


def headline(tree: CallingContextTree, cores: int) -> str:
    """The one sentence to read: what to act on, or that all is well; empty without samples."""
    total = tree.root.inclusive
    if not total.samples:
        return ""
    found = advise(tree)
    return sentence(found[0], cores) if found else verdict(total).advice + _alone(cores)


def sentence(advice: Advice, cores: int) -> str:
    """Which call path, how much is lost in it, and what to try."""
    mine, total, judged = advice.metrics, advice.total, advice.verdict
    part, whole, what = lost_ns(mine), lost_ns(total), "lost effort"
    if judged is Verdict.REFINE:
        part, whole, what = mine.idleness_ns, total.idleness_ns, "idleness"
    elif judged is Verdict.COARSEN:
        part, whole, what = mine.overhead_ns, total.overhead_ns, "overhead"
    idle = ""
    if mine.idleness_ns and cores > 1:
        idle = f"; {cores * mine.idleness_ns / mine.effort_ns:.1f} of {cores} cores idle while it runs"
    return printable(
        f"{_named(advice.path, judged)} has {_rounded(percent(part, whole))} % of the {what}"
        f" ({_rounded(percent(part, total.effort_ns))} % of the effort{idle}): {judged.advice}"
    )


def _named(path: Sequence[Node], judged: Verdict) -> str:
    """A call path by its functions, and the line in the last one that weighs most."""
    if not path:
        return "the whole program"
    last = path[-1]
    functions = [node.procedure for node in path if not node.procedure.is_loop] or [last.procedure]
    names = [_short(procedure.name or "[unknown]") for procedure in functions]
    if len(names) > 4:
        names[1:-2] = ["..."]
    line = last.hottest_line(OVERHEAD if judged is Verdict.COARSEN else IDLENESS)
    where = location(functions[-1].file, line, functions[-1].module)
    return " > ".join(names) + (f" {where}" if where else "")


def _rounded(share: float) -> str:
    return f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"


def _alone(cores: int) -> str:
    return "; n = 1, so no core could be idle" if cores == 1 else ""


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
    """Every reason with its count, or plainly nothing."""
    lost = {reason: count for reason, count in profile.lost.items() if count}
    if not lost:
        return "nothing"
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(lost.items())) + (
        f" (beside {samples:,} samples counted)"
    )


def _why_none(profile: Profile) -> str:
    text = (
        "the process used no CPU while it was observed: it slept or waited all the time, or it ended before"
        " its first sample was due"
    )
    if profile.frequency_hz:
        text += f" (one each {1000 / profile.frequency_hz:.1f} ms of CPU time)"
    if any(profile.lost.values()):
        text += "; or its samples are among the lost ones"
    return text


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:29]}...{name[-28:]}"
