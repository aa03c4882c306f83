"""What calls took: the second table, the notes on it, and the same as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from parprof.calls.durations import duration, so_many_calls
from parprof.calls.result import CallProfile, RoutineCalls
from parprof.kernel.call_times import ArcTime, CallTime, RoutineTime
from parprof.untrusted import printable
from parprof.wording import some

TIME_HEADINGS = [
    ("elapsed", 10),
    ("direct", 10),
    ("cpu", 10),
    ("direct cpu", 11),
    ("beside", 7),
    ("each", 9),
    ("cpu each", 9),
    ("longest", 9),
    ("routine", 0),
]
_BESIDE_ITSELF = 1.005
_LEAST_LEFT = 0.5
"""Of the time of a routine, after what timing took is taken off, for that to be certain."""


def time_rows(result: CallProfile) -> Iterator[tuple[list[str], Text]]:
    """A line for each routine whose calls were timed, the most elapsed time first; none if that was not asked for."""
    timed = [row for row in result.routines if row.times is not None and row.times.all.ended]
    for row in sorted(timed, key=_elapsed_ns, reverse=True):
        times = row.times
        assert times is not None
        took = times.all
        cells = [
            _duration(times.elapsed_ns),
            _duration(times.direct_ns),
            _duration(took.first_cpu_ns),
            _duration(took.direct_cpu_ns),
            _beside(times),
            _duration(took.elapsed_ns / took.ended),
            _duration(took.cpu_ns / took.ended),
            _duration(took.longest_ns),
        ]
        yield cells, Text(printable(row.function.name))


def _elapsed_ns(row: RoutineCalls) -> float:
    return row.times.elapsed_ns if row.times is not None else 0.0


def _duration(ns: float) -> str:
    return duration(ns / 1e9)


def threads_inside(times: RoutineTime) -> float:
    """How many threads were in the routine on average, while any was.

    >>> threads_inside(RoutineTime(concurrent=CallTime(2, first_gross_ns=30), inside_ns=20))
    1.5
    """
    return times.all.first_gross_ns / times.inside_ns if times.inside_ns else 0.0


def _beside(times: RoutineTime) -> str:
    inside = threads_inside(times)
    return f"{inside:.1f}" if inside > _BESIDE_ITSELF else ""


def time_notes(result: CallProfile) -> list[str]:
    """Calls whose times are missing or uncertain, and why."""
    out = []
    uncertain = [
        row.function.name
        for row in result.routines
        if row.times is not None and row.times.all.first_ns < _LEAST_LEFT * row.times.all.first_gross_ns
    ]
    if uncertain:
        out.append(
            f"timing took most of the time of {some(uncertain, 3)}: what is left after that is uncertain; "
            "time functions that are called less often"
        )
    for row in result.routines:
        times = row.times
        if times is None:
            continue
        if times.open:
            threads = "1 thread is" if times.open == 1 else f"{times.open:,} threads are"
            out.append(f"{row.function.name}: {threads} in it still, which only elapsed and direct know")
        if times.unseen:
            missing = "its time is missing" if times.unseen == 1 else "their times are missing"
            out.append(f"{row.function.name}: {so_many_calls(times.unseen)} ended unseen: {missing}")
        if times.unseen_within and times.all.ended:
            these = "that" if times.unseen_within == 1 else "these"
            within = so_many_calls(times.unseen_within)
            out.append(
                f"{row.function.name}: {within} within it ended unseen: direct and direct cpu have what {these} took"
            )
        if times.unwound:
            out.append(
                f"{row.function.name}: {so_many_calls(times.unwound, 'were')} left by an exception, a panic or longjmp"
            )
    return out


def times_json(times: RoutineTime) -> dict[str, Any]:
    """The times of a routine, in seconds."""
    return {
        "elapsed_s": _seconds(times.elapsed_ns),
        "direct_s": _seconds(times.direct_ns),
        "threads_inside": round(threads_inside(times), 3),
        "open": times.open,
        "unseen": times.unseen,
        "unwound": times.unwound,
        "unseen_within": times.unseen_within,
        "sequential": _state_json(times.sequential),
        "concurrent": _state_json(times.concurrent),
    }


def _state_json(took: CallTime) -> dict[str, Any]:
    return {
        "ended": took.ended,
        "elapsed_s": _seconds(took.first_ns),
        "cpu_s": _seconds(took.first_cpu_ns),
        "outermost_s": _seconds(took.outermost_ns),
        "direct_s": _seconds(took.direct_ns),
        "direct_cpu_s": _seconds(took.direct_cpu_ns),
        "elapsed_per_call_s": _seconds(took.elapsed_ns / took.ended) if took.ended else None,
        "cpu_per_call_s": _seconds(took.cpu_ns / took.ended) if took.ended else None,
        "longest_s": _seconds(took.longest_ns),
    }


def arc_times_json(took: ArcTime) -> dict[str, float]:
    """The times of an arc; nothing if they were not measured."""
    if not took.ended:
        return {}
    return {"elapsed_s": _seconds(took.elapsed_ns), "cpu_s": _seconds(took.cpu_ns)}


def _seconds(ns: float) -> float:
    return round(ns / 1e9, 9)
