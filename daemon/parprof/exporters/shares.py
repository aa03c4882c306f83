"""Which node of the picture has what of which thread, and when: what the page adds up for a span or a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parprof.exporters.breakdown import ThreadKey, thread_of
from parprof.exporters.graph import Graph, ShownMetric
from parprof.halving import few
from parprof.metrics import ACTIVATIONS, Metrics
from parprof.model import Interval, PathSample, Profile

MOST_SHARES = 200_000
"""Nodes of all threads and intervals together. Beyond that, intervals get longer."""


def shares(
    profile: Profile, found: Graph, shown: Sequence[ShownMetric], threads: Mapping[ThreadKey, int]
) -> dict[str, Any]:
    """Columns of plain data. ``threads``: their numbers on the page; others are -1. Times in microseconds.

    Without intervals all is in one, from 0 to 0. Of nodes that have nothing of a metric it has no column.
    """
    places = [found.place(sample.path) for sample in profile.samples]
    owners = [threads.get(thread_of(sample), -1) for sample in profile.samples]
    parts = profile.intervals or [_whole(profile.samples)]
    intervals = few(parts, lambda some: sum(len(one.rows) for one in some), MOST_SHARES)
    sums: list[dict[tuple[int, int], Metrics]] = []
    for one in intervals:
        own: dict[tuple[int, int], Metrics] = {}
        for row, metrics in one.rows.items():
            if metrics[ACTIVATIONS] and not profile.samples[row].metrics[ACTIVATIONS]:
                metrics = metrics.copy()  # of a function that is not shown, see `parprof.exporters.readable`
                metrics[ACTIVATIONS] = 0
            key = places[row], owners[row]
            if key in own:
                own[key].add(metrics)
            else:
                own[key] = metrics.copy()
        sums.append(own)
    entries = [(key, metrics) for own in sums for key, metrics in own.items()]
    columns = {one.name: [one.value(metrics) for _, metrics in entries] for one in shown}
    return {
        "intervals": [
            [round(one.begin_s * 1e6), round(one.end_s * 1e6), [round(took * 1e6) for took in one.level_s]]
            for one in intervals
        ],
        "sizes": [len(own) for own in sums],
        "nodes": [node for (node, _), _ in entries],
        "threads": [thread for (_, thread), _ in entries],
        "values": {name: column for name, column in columns.items() if any(column)},
    }


def _whole(samples: Sequence[PathSample]) -> Interval:
    return Interval(0.0, 0.0, (), {row: sample.metrics for row, sample in enumerate(samples)})
