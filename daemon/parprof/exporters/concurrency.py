"""How many threads worked at once: all the time, and while each process and each function worked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from parprof.attribution.concurrency import AtWork, plus, trimmed
from parprof.cct.tree import Procedure
from parprof.model import Frame, Levels, Path, PathSample, Profile
from parprof.values import dataclass

_MOST_EXACT = 12
"""Up to so many cores each n_w has a line of its own."""

MOST_TOLD = 127
"""The last of `parprof.model.Accounting.level_s` is for as many and more (SCOPE_LEVELS in bpf/wire.h)."""


@dataclass(frozen=True, slots=True)
class Level:
    """A line of the histogram: for how long n_w was in a range."""

    first: int
    last: int | None
    """None: there is no highest."""
    seconds: float
    """Of wall-clock time."""


def job_histogram(level_s: Sequence[float], cores: int) -> list[Level]:
    """`parprof.model.Accounting.level_s` in a few lines: for 0, 1, ... n threads, and for more where there were.

    With many cores a line is for as many n_w as all lines before it.

    >>> [(one.first, one.last, one.seconds) for one in job_histogram((0.5, 2.0, 1.0, 0.25), 2)]
    [(0, 0, 0.5), (1, 1, 2.0), (2, 2, 1.0), (3, None, 0.25)]
    """
    cores = max(cores, 1)
    firsts = list(range(cores + 2))
    if cores > _MOST_EXACT:
        powers = [1 << power for power in range(cores.bit_length())]
        firsts = [0, *powers, *([cores] if cores > powers[-1] else []), cores + 1]
    if cores >= MOST_TOLD:
        firsts = [*(first for first in firsts if first < MOST_TOLD), MOST_TOLD]
    out = [Level(first, after - 1, sum(level_s[first:after])) for first, after in pairwise(firsts)]
    beyond = sum(level_s[firsts[-1] :])
    return [*out, Level(firsts[-1], None, beyond)] if beyond else out


@dataclass(frozen=True, slots=True)
class FunctionLevels:
    """At which n_w a function worked, by itself and with all that it calls; there recursion counts once."""

    exclusive: Levels = ()
    inclusive: Levels = ()


def by_function(samples: Iterable[PathSample]) -> dict[Procedure, FunctionLevels]:
    """The histograms of functions; loops are parts of theirs. Only functions of which anything is known."""
    paths: dict[int, tuple[Path, Levels]] = {}
    for sample in samples:
        if sample.levels:
            path, known = paths.get(id(sample.path), (sample.path, ()))
            paths[id(path)] = path, plus(known, sample.levels)
    alike: dict[Levels, list[Path]] = {}
    for path, levels in paths.values():
        alike.setdefault(levels, []).append(path)
    numbers = _Numbers()
    exclusive, inclusive = _Sums(), _Sums()
    for (
        levels,
        found,
    ) in alike.items():  # where paths are many, most of them have one sample, and are alike in that
        own: Counter[int] = Counter()
        all_of_it: Counter[int] = Counter()
        for path in found:
            called = numbers.of(path)
            own.update(called[-1:])
            all_of_it.update(set(called))
        exclusive.add(own, levels)
        inclusive.add(all_of_it, levels)
    return {
        procedure: FunctionLevels(exclusive.of(number), inclusive.of(number))
        for number, procedure in enumerate(numbers.procedures)
    }


class _Numbers:
    """Procedures by number. Frames are fewer than what paths go through, and slow to hash: each is looked at once."""

    def __init__(self) -> None:
        self.procedures: dict[Procedure, int] = {}
        self._by_frame: dict[int, int] = {}
        """By the identity of frames, which live as long as this does; -1: a loop."""

    def of(self, path: Path) -> list[int]:
        """Those on a path, root first."""
        known = self._by_frame
        try:
            found = [known[id(frame)] for frame in path]
        except KeyError:
            found = [self._number(frame) for frame in path]
        return [number for number in found if number >= 0]

    def _number(self, frame: Frame) -> int:
        if frame.is_loop:
            number = -1
        else:
            procedure = Procedure(frame.name, frame.module, frame.file)
            number = self.procedures.setdefault(procedure, len(self.procedures))
        return self._by_frame.setdefault(id(frame), number)


class _Sums:
    """Sums of histograms by number of procedure; one dictionary for each element, of which few are not 0."""

    def __init__(self) -> None:
        self._elements: list[dict[int, float]] = []

    def add(self, counts: Mapping[int, int], levels: Levels) -> None:
        """Add a histogram to those of some procedures, so many times."""
        while len(self._elements) < len(levels):
            self._elements.append({})
        for sums, value in zip(self._elements, levels, strict=False):
            if value:
                for number, times in counts.items():
                    sums[number] = sums.get(number, 0.0) + times * value

    def of(self, number: int) -> Levels:
        """The sum of one."""
        return trimmed([sums.get(number, 0.0) for sums in self._elements])


def by_process(samples: Iterable[PathSample]) -> dict[int, Levels]:
    """The histograms of processes, by PID."""
    out: dict[int, Levels] = {}
    for sample in samples:
        if sample.levels:
            out[sample.origin.pid] = plus(out.get(sample.origin.pid, ()), sample.levels)
    return out


def whole(samples: Iterable[PathSample]) -> Levels:
    """The histogram of all samples."""
    out: Levels = ()
    for sample in samples:
        out = plus(out, sample.levels)
    return out


def as_json(levels: Levels) -> dict[str, Any] | None:
    """A histogram for programs, in seconds; None where it is not known. docs/reading.md has the schema."""
    if not levels:
        return None
    at_work = AtWork.of(levels)
    return {
        "elapsed_s": round(at_work.elapsed_ns / 1e9, 9),
        "sequential_s": round(at_work.sequential_ns / 1e9, 9),
        "concurrent_s": round(at_work.concurrent_ns / 1e9, 9),
        "levels": [
            {
                "from": bucket.first,
                "to": bucket.last,
                "work_s": round(bucket.work_ns / 1e9, 9),
                "share": round(bucket.work_ns / at_work.work_ns, 6) if at_work.work_ns else 0.0,
            }
            for bucket in at_work.buckets
            if bucket.work_ns
        ],
    }


def what_is_missing(profile: Profile) -> str:
    """Why there is nothing, or not everything, to say of functions; empty where all is known."""
    work_ns = sum(sample.metrics.work_ns for sample in profile.samples)
    known_ns = sum(sample.metrics.work_ns for sample in profile.samples if sample.levels)
    if not work_ns or known_ns >= 0.999 * work_ns:
        return ""
    if not known_ns:
        return (
            "How many threads worked beside each function is not known: this profile was written by a parprof that did "
            "not keep it, or by a tool that left it out. Record it again."
        )
    return f"Of {100 * (1 - known_ns / work_ns):.1f} % of the work it is not known how many threads worked."
