"""Label values from hostile text, and counters that never fall, whatever comes and goes behind them.

To Prometheus a counter that falls was reset: all of its value counts as new. So none may fall, not even by a
rounding error, while processes end and functions enter and leave the costliest few.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from dataclasses import field
from itertools import zip_longest
from typing import Generic, TypeVar

from parprof.metrics import METRICS, Metric, Metrics, Shown
from parprof.untrusted import printable
from parprof.values import dataclass

MAX_LABEL = 120
"""Longest label value, in characters."""

OTHER = "other"
"""Label value of all that has no series of its own."""

FunctionKey = tuple[str, str]
"""(function, module), as label values."""

REST: FunctionKey = (OTHER, "")

Amounts = tuple[float, ...]
"""Of some metrics, in the order of `function_metrics`, in the units of Prometheus. Missing ones are 0."""

NONE: Amounts = ()

_Key = TypeVar("_Key", bound=Hashable)


def label(text: str, limit: int = MAX_LABEL) -> str:
    """A label value: controls and undecodable bytes replaced; one that is too long ends in its hash."""
    if len(text) <= limit:
        return text if text.isascii() and text.isprintable() else printable(text)
    digest = hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{printable(text[: limit - 9])}~{digest}"


def module_label(path: str) -> str:
    """A file's name without its directories."""
    return label(os.path.basename(path) or path)


def function_metrics() -> tuple[Metric, ...]:
    """The metrics that functions have counters of."""
    return tuple(metric for metric in METRICS.at(Shown.FUNCTION) if metric.additive)


def amounts_of(metrics: Metrics, which: tuple[Metric, ...]) -> Amounts:
    """These of the metrics."""
    return tuple([metric.unit.amount(metrics[metric]) for metric in which])


def plus(a: Amounts, b: Amounts) -> Amounts:
    """The sum of each."""
    return tuple([x + y for x, y in zip_longest(a, b, fillvalue=0.0)])


def minus(a: Amounts, b: Amounts) -> Amounts:
    """The difference of each."""
    return tuple([x - y for x, y in zip_longest(a, b, fillvalue=0.0)])


def higher(a: Amounts, b: Amounts) -> Amounts:
    """The higher one of each."""
    return tuple([x if x > y else y for x, y in zip_longest(a, b, fillvalue=0.0)])


@dataclass(slots=True)
class FunctionLedger:
    """Splits what a process has among its costliest functions and the rest.

    A function that enters later than its process starts at 0: what it had before stays in the rest, which
    already counted it. One that leaves takes what it showed along: the rest never counts that again. So every
    series only grows, and the rates of all together are the process's.
    """

    _start: dict[FunctionKey, Amounts] = field(default_factory=dict)
    _shown: dict[FunctionKey, Amounts] = field(default_factory=dict)
    _left: Amounts = NONE
    _rest: Amounts = NONE
    _begun: bool = False

    def split(self, total: Amounts, functions: Mapping[FunctionKey, Amounts]) -> dict[FunctionKey, Amounts]:
        """What to show of each of these functions, and of `REST`. ``functions`` are cumulative."""
        for key in self._shown.keys() - functions.keys():
            self._left = plus(self._left, self._shown.pop(key))
            del self._start[key]
        rest = minus(total, self._left)
        for key, seconds in functions.items():
            start = self._start.setdefault(key, seconds if self._begun else NONE)
            shown = higher(minus(seconds, start), self._shown.get(key, NONE))
            self._shown[key] = shown
            rest = minus(rest, shown)
        self._begun = True
        self._rest = higher(rest, self._rest)
        return {**self._shown, REST: self._rest}


class HighWater(Generic[_Key]):
    """Counters by key, each at the highest value that it ever had."""

    def __init__(self) -> None:
        self._marks: dict[_Key, float] = {}

    def __call__(self, key: _Key, value: float) -> float:
        """The counter's value, given what it should be now."""
        mark = self._marks[key] = max(value, self._marks.get(key, 0))
        return mark


class BoundedCounters:
    """Counters by label values, of which only the first ``limit`` get series; the others share one."""

    def __init__(self, names: int, limit: int = 64) -> None:
        """For counters with this many labels."""
        self._other = (OTHER,) * names
        self._limit = limit
        self._known: set[tuple[str, ...]] = {self._other}
        self._highest: HighWater[tuple[str, ...]] = HighWater()

    def series(self, counts: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
        """Label values and counts to show."""
        out: dict[tuple[str, ...], float] = {}
        for raw, count in counts.items():
            key = tuple(label(text) for text in raw)
            if key not in self._known:
                if len(self._known) > self._limit:
                    key = self._other
                self._known.add(key)
            out[key] = out.get(key, 0) + count
        return {key: self._highest(key, count) for key, count in out.items()}
