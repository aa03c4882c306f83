"""The facts above every report, in words: what was measured, how well it runs, and what to blame."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from parprof.attribution import Effort, percent, verdict
from parprof.cct import CallingContextTree, Node, Procedure
from parprof.model import Profile

HOT_PATH_SHARE = 0.5
"""Blame goes on to the heaviest callee as long as that answers for this share of its caller's idleness."""

NEGLIGIBLE_PERCENT = 0.5
"""Idleness below this share of effort is not blamed on anything."""

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # controls, bidi, surrogates
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the header."""

    label: str
    text: str


def printable(text: str) -> str:
    """Text from a target, harmless for a terminal and an encoder."""
    return _UNPRINTABLE.sub("\ufffd", text)


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
    """The header lines of a report, in order."""
    process = profile.process
    total = tree.root.inclusive
    out = [
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
    if total.samples:
        effort = Effort.of(total)
        out.append(Fact("effort", _effort(profile, effort, total.spin_ns)))
        out.append(Fact("parallel efficiency", f"{100 * effort.efficiency:.1f} %"))
        advice = verdict(total).advice
        alone = "; n = 1, so no core could be idle" if process.cores == 1 else ""
        out.append(Fact("verdict", advice + alone))
        if blamed := blame(tree, process.cores):
            out.append(Fact("most idleness", blamed))
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
            f"{profile.target_cost_percent:.2f} % of the target's CPU time, "
            f"{profile.daemon_cost_percent:.2f} % of a CPU in the profiler",
        )
    )
    out += [Fact("note", note) for note in profile.notes]
    return [Fact(fact.label, printable(fact.text)) for fact in out]


def blame(tree: CallingContextTree, cores: int) -> str:
    """The call path that answers for most idleness, as a sentence; empty when idleness is negligible."""
    total = tree.root.inclusive
    if percent(total.idleness_ns, total.effort_ns) < NEGLIGIBLE_PERCENT:
        return ""
    path = hot_path(tree)
    if not path:
        return ""
    last = path[-1]
    metrics = last.inclusive
    functions = [node.procedure for node in path if not node.procedure.is_loop] or [last.procedure]
    names = [_short(procedure.name) for procedure in functions]
    if len(names) > 4:
        names[1:-2] = ["..."]
    where = location(functions[-1].file, last.hottest_line("idleness"), functions[-1].module)
    idle = cores * metrics.idleness_ns / metrics.effort_ns
    return (
        f"{' > '.join(names)}{f' {where}' if where else ''} answers for"
        f" {percent(metrics.idleness_ns, total.idleness_ns):.0f} % of the idleness:"
        f" on average {idle:.1f} of {cores} cores stood idle while it ran"
    )


def hot_path(tree: CallingContextTree) -> list[Node]:
    """From the root down along the heaviest idleness, while one callee holds most of it.

    Callees at the end without known source (the inside of libc, say) are left out, if any has source.
    """
    path: list[Node] = []
    node, floor = tree.root, 0.0
    while node.children:
        heaviest = max(node.children.values(), key=lambda child: child.inclusive.idleness_ns)
        idleness = heaviest.inclusive.idleness_ns
        if idleness <= floor:
            break
        path.append(heaviest)
        node, floor = heaviest, HOT_PATH_SHARE * idleness
    with_source = [position for position, node in enumerate(path) if node.procedure.file]
    return path[: with_source[-1] + 1] if with_source else path


def _effort(profile: Profile, effort: Effort, spin_ns: float) -> str:
    useful, overhead, idleness = effort.percentages()
    kinds: dict[str, float] = {}
    for sample in profile.samples:
        if sample.overhead:
            kinds[sample.overhead] = kinds.get(sample.overhead, 0.0) + sample.metrics.overhead_ns
    split = ", ".join(
        f"{kind} {percent(value, effort.total_ns):.1f} %"
        for kind, value in sorted(kinds.items(), key=lambda item: -item[1])
        if value
    )
    return (
        f"useful work {useful:.1f} %, overhead {overhead:.1f} %{f' ({split})' if split else ''}, "
        f"idleness {idleness:.1f} %; spin {spin_ns / 1e9:.2f} s"
    )


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
