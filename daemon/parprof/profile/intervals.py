"""A profile's rows by the intervals in which they were counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from parprof.facts.intervals import CountedInterval, spread_rows, spread_waits
from parprof.facts.measurement import Measurement
from parprof.halving import few
from parprof.metrics import OUTSIDE, READY, STALL, WORK, Metrics
from parprof.model import Interval, PathSample
from parprof.profile.programs import ByProgram, row_key
from parprof.profile.rows import RowMaker

MOST_SHARES = 100_000
"""Rows of all intervals together: beyond that intervals get longer."""


def parts_of(measured: Measurement) -> list[CountedInterval]:
    """The intervals of a measurement, not too many, with waits in those in which they were."""
    return spread_waits(few(measured.intervals, spread_rows, MOST_SHARES))


def by_interval(
    measured: Measurement, parts: Sequence[CountedInterval], rows: RowMaker, whole: ByProgram
) -> list[Interval]:
    """What of ``whole`` was when: the shares of each row add up to it.

    Its rows are what ``rows`` made last, of these ``parts``, complete with what is known of the whole alone. Its
    counters change.
    """
    shares: list[dict[int, Metrics]] = []
    divisions = rows.divisions if parts else []
    for one, division in zip(parts, divisions, strict=True):
        share: dict[int, Metrics] = {}
        drain = replace(measured.drain, facts=one.facts, by_cores=one.by_cores)
        for row in rows.rows(drain, division=division):
            number = whole.numbers.get(row_key(row))
            if number in share:
                share[number].add(row.metrics)
            elif number is not None:
                share[number] = row.metrics
        shares.append(share)
    out = [
        Interval(one.begin_ns / 1e9, one.end_ns / 1e9, tuple(ns / 1e9 for ns in one.level_ns), share)
        for one, share in zip(parts, shares, strict=True)
    ]
    fit(whole.samples, out, shares)
    return out


def fit(
    samples: Sequence[PathSample], intervals: Sequence[Interval], shares: Sequence[dict[int, Metrics]]
) -> None:
    """Let what is in the intervals of each row add up to it. ``shares``: their rows, which change."""
    if not intervals:
        return
    without_cpu = _without_cpu(intervals)  # once, of what was sampled: there may be tens of thousands of rows
    for number, sample in enumerate(samples):
        _fit(sample.metrics, number, intervals, shares, without_cpu)


def _fit(
    whole: Metrics,
    number: int,
    intervals: Sequence[Interval],
    shares: Sequence[dict[int, Metrics]],
    without_cpu: Mapping[int, float],
) -> None:
    """Let a row's shares add up to it. ``without_cpu``: see `_without_cpu`.

    What is a mean over some time was one over other times in them. What is only known of the whole they lack: time
    without a CPU, which is where the work is; stall that no sample is of, which is when nobody worked; and cores that
    others had meanwhile, which is when threads that were to work did not.
    """
    parts = {at: share[number] for at, share in enumerate(shares) if number in share}
    if whole[OUTSIDE] and not whole[STALL]:  # what is told so of the whole alone: see `parprof.causes.handed`
        for part in parts.values():
            part[OUTSIDE] += part[STALL]
            part[STALL] = 0
    metrics = set(whole.values).union(*(part.values for part in parts.values()))
    for metric in metrics:
        if not metric.additive:
            continue
        found = sum(part[metric] for part in parts.values())
        if found:
            factor = whole[metric] / found
            if factor != 1:
                for part in parts.values():
                    part[metric] *= factor
            continue
        when: Mapping[int, float]
        if parts:
            when = {at: part[WORK] if metric is READY else part.cpu_ns for at, part in parts.items()}
        elif metric is STALL or metric is OUTSIDE:
            when = {at: one.level_s[0] if one.level_s else 0.0 for at, one in enumerate(intervals)}
        else:
            when = without_cpu
        if not any(when.values()):
            when = {at: one.end_s - one.begin_s for at, one in enumerate(intervals)}
        for at, amount in _divided(whole[metric], when.items()):
            shares[at].setdefault(number, Metrics())[metric] = amount


def _without_cpu(intervals: Sequence[Interval]) -> dict[int, float]:
    """How much more threads of the job were to work in each than was sampled: they had no CPU then."""
    out = {}
    for at, one in enumerate(intervals):
        wanted_s = sum(n_w * took_s for n_w, took_s in enumerate(one.level_s))
        out[at] = max(wanted_s - sum(part.cpu_ns for part in one.rows.values()) / 1e9, 0.0)
    return out


def _divided(whole: float, weights: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """In proportion to the weights, without those that are 0."""
    some = [(at, weight) for at, weight in weights if weight > 0]
    total = sum(weight for _, weight in some)
    return [(at, whole * weight / total) for at, weight in some]
