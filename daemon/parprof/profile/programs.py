"""Jobs of many short processes, such as builds: told by program, not one by one.

A build of a thousand files starts three thousand processes, each with a few samples. One by one they are a list that
nobody reads, and a row for each call path of each of them, which reports take most of their time for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from parprof.attribution.concurrency import plus
from parprof.facts.drain import MeasuredImage
from parprof.facts.measurement import Measurement
from parprof.model import Origin, PathSample
from parprof.values import dataclass

_MANY = 32
"""So many processes, at most, are told one by one however short they were."""
_BRIEF_S = 1.0
"""A process that was there for longer is told by itself."""

RowKey = tuple[int, int, int, int]
"""What tells the rows of one maker apart: ids of paths, which are the same objects, image and thread."""


def row_key(row: PathSample) -> RowKey:
    """That of a row."""
    return id(row.path), id(row.physical), row.origin.image, row.origin.tid


@dataclass(slots=True)
class ByProgram:
    """The rows of a profile, those of brief processes by program."""

    samples: list[PathSample]
    numbers: Mapping[RowKey, int]
    """In which of ``samples`` each of the rows is that there were before."""
    others: Mapping[int, int] = field(default_factory=dict)
    """How many more processes are told as one, by the image of that one."""


def by_program(measured: Measurement, rows: Sequence[PathSample]) -> ByProgram:
    """Rows of processes that are told as others, with those others' rows, if there are many of them.

    Those that were brief and had one thread are, each program as the one of them with the most samples. Nothing that
    is said of threads beside each other in one process is lost so. The process that the profile is named after stays.
    """
    weights: Counter[int] = Counter()
    threads: dict[int, set[int]] = {}
    for row in rows:
        weights[row.origin.image] += row.metrics.samples
        threads.setdefault(row.origin.image, set()).add(row.origin.tid)
    brief = [
        image
        for number, image in measured.images.items()
        if number in weights
        and number != measured.main
        and len(threads[number]) == 1
        and image.watched_s() < _BRIEF_S
    ]
    told_as = _told_as(brief, weights, measured) if len(weights) > _MANY else {}
    if not told_as:
        return ByProgram(list(rows), {row_key(row): at for at, row in enumerate(rows)})
    samples: list[PathSample] = []
    numbers: dict[RowKey, int] = {}
    places: dict[tuple[int, int, Origin], int] = {}
    origins: dict[Origin, Origin] = {}
    for row in rows:
        one = told_as.get(row.origin.image)
        origin = row.origin if one is None else origins.setdefault(row.origin, _origin(row.origin, one))
        at = places.setdefault((id(row.path), id(row.physical), origin), len(samples))
        numbers[row_key(row)] = at
        if at == len(samples):
            samples.append(PathSample(row.path, row.metrics.copy(), origin, row.physical, row.levels))
        else:
            samples[at].metrics.add(row.metrics)
            samples[at].levels = plus(samples[at].levels, row.levels)
    others = Counter(one.image for one in told_as.values())
    return ByProgram(samples, numbers, {number: count - 1 for number, count in others.items()})


def _told_as(
    brief: Sequence[MeasuredImage], weights: Mapping[int, int], measured: Measurement
) -> dict[int, MeasuredImage]:
    """By image, the one that it is told as. PIDs of these are different, though an exec leaves the PID as it is."""
    programs: dict[tuple[str, str, str], list[MeasuredImage]] = {}
    for image in brief:
        key = image.process.comm, image.runtime, str(image.n_w_source)
        programs.setdefault(key, []).append(image)
    several = {image.image for images in programs.values() if len(images) > 1 for image in images}
    taken = {
        image.process.pid
        for number, image in measured.images.items()
        if number in weights and number not in several
    }
    out: dict[int, MeasuredImage] = {}
    for images in programs.values():
        if len(images) < 2:
            continue
        heaviest = sorted(images, key=lambda image: -weights[image.image])
        one = next((image for image in heaviest if image.process.pid not in taken), None)
        if one is not None:
            taken.add(one.process.pid)
            out.update((image.image, one) for image in images)
    return out


def _origin(origin: Origin, one: MeasuredImage) -> Origin:
    pid, comm = one.process.pid, one.process.comm
    return origin._replace(pid=pid, comm=comm, thread=comm, image=one.image, tid=pid)
