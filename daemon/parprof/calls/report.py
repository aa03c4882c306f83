"""The result for people, and as JSON (DESIGN.md section 5)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import IO, Any, TextIO

from rich.text import Text

from parprof.calls.cedar import callee_calls
from parprof.calls.durations import duration, so_many_calls
from parprof.calls.function import Function
from parprof.calls.result import Arc, CallProfile, RoutineCalls
from parprof.calls.timed import TIME_HEADINGS, arc_times_json, time_notes, time_rows, times_json
from parprof.exporters.answer import shortened
from parprof.exporters.screen import Screen
from parprof.kernel.call_counts import Calls
from parprof.untrusted import printable
from parprof.wording import some

SCHEMA = 1
_ARCS_SHOWN = 5
_NAMED = 3
_SHORT_S, _LONG_S = 1e-6, 1e-3
_MANY_PER_S = 1000.0


def advice(result: CallProfile) -> str:
    """The sentence that comes first: of the routine that took most CPU time, or else was called most."""
    called = [row for row in result.routines if row.calls.all]
    if not result.routines:
        return "nothing was counted: none of the functions was found, or could be probed"
    if not called:
        return (
            "none of the functions was called at its own code by this process; a compiler may have put copies of them "
            "into their callers (inlined), where there is no call: count these; or children that it forks call them, "
            "which are processes of their own: give the PID of one"
        )
    row = max(called, key=lambda row: (row.cpu_s, row.calls.all))
    rate = row.calls.all / result.counted_s if result.counted_s else 0.0
    each = row.cpu_per_call_s
    cost = f" at {duration(each)} each" if each is not None else ""
    how_often = f"is called {rate:,.0f}/s" if rate >= 10 else f"was called {times(row.calls.all)}"
    return f"{row.function.name} {how_often}{cost}: {_why(row, rate, each)}"


def _why(row: RoutineCalls, rate: float, each: float | None) -> str:
    share = row.calls.sequential / row.calls.all
    beside = (
        "always while nothing else runs"
        if share > 0.99
        else "always beside other threads"
        if share < 0.01
        else f"{100 * share:.0f} % of them while nothing else runs"
    )
    if each is None:
        return f"too short for samples to meet it; {beside}"
    if each < _SHORT_S and rate >= _MANY_PER_S:
        return f"many short calls: call it less often, or have it inlined; {beside}"
    if each >= _LONG_S:
        return f"few long calls: look inside of it; {beside}"
    return beside


def times(count: int) -> str:
    """In words.

    >>> times(1), times(2100)
    ('once', '2,100 times')
    """
    return "once" if count == 1 else f"{count:,} times"


def print_result(result: CallProfile, file: TextIO) -> None:
    """The table: each routine, and below it who calls it."""
    with Screen(file) as screen:
        screen.fact("advice", printable(advice(result)))
        screen.line("")
        headings = [
            ("calls", 13),
            ("sequential", 13),
            ("concurrent", 13),
            ("cpu/call", 9),
            ("routine <- caller", 0),
        ]
        screen.table(headings, _rows(result))
        screen.line("")
        if rows := list(time_rows(result)):
            screen.table(TIME_HEADINGS, rows)
            screen.line("")
        screen.line(
            f"counted for {result.counted_s:.1f} s; n_w from {result.profile.process.n_w_source}; "
            f"counting took about {duration(result.cost_s)} of the program's CPU time"
        )
        for text in notes(result):
            screen.fact("note", printable(text))


def _rows(result: CallProfile) -> Iterable[tuple[list[str], Text]]:
    for row in [one for one in result.routines if one.calls.all] or result.routines[:_ARCS_SHOWN]:
        each = row.cpu_per_call_s
        cells = [f"{row.calls.all:,}", *_states(row.calls), duration(each) if each is not None else ""]
        yield cells, Text(printable(f"{row.function.name}{_place(row.function, row.function.line)}"))
        mine = [arc for arc in result.arcs if arc.callee == row.function]
        for arc in mine[:_ARCS_SHOWN]:
            where = _place(arc.caller, arc.line)
            yield ["", *_states(arc.calls), ""], Text(printable(f"  <- {arc.caller.name}{where}"))
        rest = mine[_ARCS_SHOWN:]
        if rest:
            total = Calls()
            for arc in rest:
                total = total.plus(arc.calls)
            yield ["", *_states(total), ""], Text(f"  <- {len(rest)} others")


def _states(calls: Calls) -> list[str]:
    return [f"{count:,}" if count else "" for count in (calls.sequential, calls.concurrent)]


def _place(function: Function, line: int) -> str:
    base = function.file.rpartition("/")[2]
    if base:
        return f" ({base}:{line})" if line else f" ({base})"
    return f" [{function.module}]" if function.module else ""


def notes(result: CallProfile) -> list[str]:
    """What the reader must know."""
    out = list(result.notes)
    idle = [row.function.name for row in result.routines if not row.calls.all]
    if idle and len(idle) < len(result.routines):
        out.append(f"not called by this process, whose children are not counted: {_some(idle)}")
    noted: dict[str, list[str]] = {}
    for row in result.routines:
        for text in row.notes:
            noted.setdefault(text, []).append(row.function.name)
    out += [f"{_some(names)}: {text}" for text, names in noted.items()]
    for row in result.routines:
        if row.inlined_in:
            into = ", ".join(row.inlined_in[:3])
            time = f", and their {duration(row.inlined_cpu_s)} of CPU time are not in cpu/call"
            inlined = "begins inlined in" if row.has_rest else "is inlined into"
            there = "that end there" if row.has_rest else "there"
            out.append(
                f"{row.function.name} {inlined} {into}: calls {there} cannot be counted"
                f"{time if row.inlined_cpu_s else ''}"
            )
    out += time_notes(result)
    unsure = sum(row.calls.unsure for row in result.routines)
    if unsure:
        out.append(f"n_w was partly guessed at {so_many_calls(unsure)}")
    lost = result.profile.lost
    if lost.get("calls"):
        out.append(f"{so_many_calls(lost['calls'], 'are')} not counted: no room for their thread")
    if lost.get("callers"):
        out.append(f"{so_many_calls(lost['callers'], 'are')} counted without their caller: too many callers")
    return [*out, *result.profile.notes]


def _some(names: Sequence[str]) -> str:
    return some([shortened(name) for name in names], _NAMED)


def as_json(result: CallProfile) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "schema": SCHEMA,
        "process": result.profile.process.as_json(),
        "duration_s": round(result.counted_s, 6),
        "estimate": result.estimate,
        "advice": advice(result),
        "routines": [_routine_json(row, result.arcs) for row in result.routines],
        "arcs": [_arc_json(arc) for arc in result.arcs],
        "lost": dict(result.profile.lost),
        "cost": {"counting_s": round(result.cost_s, 6)},
        "notes": notes(result),
    }


def _routine_json(row: RoutineCalls, arcs: Iterable[Arc]) -> dict[str, Any]:
    work = row.at_work
    concurrent_elapsed_ns = max(work.elapsed_ns - work.sequential_ns, 0.0)
    made = [arc.calls for arc in arcs if (arc.caller.name, arc.caller.module, arc.caller.file) in row.frames]
    callees = callee_calls(row.calls, made)
    cpus = range(max(row.per_cpu, default=-1) + 1)
    return {
        "name": row.function.name,
        "module": row.function.module,
        "file": row.function.file,
        "line": row.function.line,
        "calls": row.calls.all,
        "cpu_s": round(row.cpu_s, 9),
        "own_cpu_s": round(row.own_cpu_s, 9),
        "cpu_per_call_s": row.cpu_per_call_s,
        "sequential": {
            "entries": row.calls.sequential,
            "elapsed_s": round(work.sequential_ns / 1e9, 9),
            "cpu_s": round(work.sequential_ns / 1e9, 9),
            "per_cpu": [row.per_cpu.get(cpu, Calls()).sequential for cpu in cpus],
        },
        "concurrent": {
            "entries": row.calls.concurrent,
            "elapsed_s": round(concurrent_elapsed_ns / 1e9, 9),
            "cpu_s": round(work.concurrent_ns / 1e9, 9),
            "per_cpu": [row.per_cpu.get(cpu, Calls()).concurrent for cpu in cpus],
        },
        "unsure": row.calls.unsure,
        "inlined": {"cpu_s": round(row.inlined_cpu_s, 9), "into": list(row.inlined_in)},
        "callees": {kind: {"count": getattr(callees, kind)} for kind in ("ss", "sc", "cs", "other")},
        "times": times_json(row.times) if row.times is not None else None,
    }


def _arc_json(arc: Arc) -> dict[str, Any]:
    return {
        "caller": arc.caller.name,
        "callee": arc.callee.name,
        "file": arc.caller.file,
        "line": arc.line,
        "module": arc.caller.module,
        "sequential": {"count": arc.calls.sequential, **arc_times_json(arc.times[0])},
        "concurrent": {"count": arc.calls.concurrent, **arc_times_json(arc.times[1])},
    }


def write_json(result: CallProfile, file: IO[str]) -> None:
    """As one line of ASCII."""
    file.write(json.dumps(as_json(result), allow_nan=False) + "\n")
