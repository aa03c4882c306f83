"""What of a profile's rows was when, as plain data for the private comment of its file (`pprof_private`).

Times are microseconds. Each interval has its begin and end, the time at each n_w, the numbers of its rows, each as the
difference to the one before, and a column of values for each metric and event.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from parprof.metrics import METRICS, Metric, Metrics
from parprof.model import Interval
from parprof.units import NANOSECONDS

_MICRO = 1e6
_MOST = 2**63 - 1


def pack(intervals: Sequence[Interval]) -> dict[str, Any]:
    """As JSON can hold it; empty for no intervals."""
    if not intervals:
        return {}
    found = set().union(*(part.values for one in intervals for part in one.rows.values()))
    metrics = [metric for metric in METRICS if metric in found]
    events = sorted({name for one in intervals for part in one.rows.values() for name in part.events})
    return {
        "metrics": [metric.name for metric in metrics],
        "events": events,
        "parts": [_packed(one, metrics, events) for one in intervals],
    }


def _packed(one: Interval, metrics: Sequence[Metric], events: Sequence[str]) -> list[Any]:
    rows = sorted(one.rows.items())
    numbers = [number for number, _ in rows]
    steps = [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]
    return [
        round(one.begin_s * _MICRO),
        round(one.end_s * _MICRO),
        _text(round(seconds * _MICRO) for seconds in one.level_s),
        _text(steps),
        *(_text(round(part[metric] / _scale(metric)) for _, part in rows) for metric in metrics),
        *(_text(part.events.get(event, 0) for _, part in rows) for event in events),
    ]


def unpack(content: Any, samples: int) -> list[Interval]:
    """The intervals of a file with so many samples. Metrics that are not known any more are left out.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: there is something else.
    """
    if not content:
        return []
    known = {metric.name: metric for metric in METRICS}
    metrics = [known.get(str(name)) for name in content["metrics"]]
    events = [str(name) for name in content["events"]]
    out = [_unpacked(part, metrics, events, samples) for part in content["parts"]]
    if any(later.begin_s < one.end_s for one, later in zip(out, out[1:], strict=False)):
        raise ValueError("intervals overlap")
    return out


def _unpacked(part: Any, metrics: Sequence[Metric | None], events: Sequence[str], samples: int) -> Interval:
    begin, end, levels, steps, *columns = part
    numbers = list(accumulate(_numbers(steps)))
    if not 0 <= begin <= end <= _MOST or numbers and numbers[-1] >= samples:
        raise ValueError("no interval of this profile")
    values = [_numbers(column) for column in columns]
    if len(values) != len(metrics) + len(events):
        raise ValueError("other columns than metrics")
    rows = {number: Metrics() for number in numbers}
    for metric, column in zip(metrics, values, strict=False):
        for number, value in zip(numbers, column, strict=True):
            if metric is not None and value:
                rows[number][metric] = value * _scale(metric)
    for event, column in zip(events, values[len(metrics) :], strict=True):
        for number, value in zip(numbers, column, strict=True):
            if value:
                rows[number].events = {**rows[number].events, event: value}
    return Interval(begin / _MICRO, end / _MICRO, tuple(ns / _MICRO for ns in _numbers(levels)), rows)


def _scale(metric: Metric) -> int:
    return 1000 if metric.unit is NANOSECONDS else 1


def _text(values: Any) -> str:
    return " ".join(map(str, values))


def _numbers(text: Any) -> list[int]:
    values = [int(word) for word in text.split()]
    if values and (min(values) < 0 or max(values) > _MOST):
        raise ValueError("no counts")
    return values
