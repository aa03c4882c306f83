"""Profiles as gzipped pprof files (DESIGN.md section 6): the writer; the reader is in `pprof_reader`."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from typing import IO

from parprof import pprof_pb2 as pb
from parprof.exporters.output import check_writable, open_output
from parprof.exporters.pprof_builder import PprofBuilder
from parprof.exporters.pprof_header import (
    DEFAULT_SAMPLE_TYPE,
    LEVEL_COLUMNS,
    LOGICAL,
    PHYSICAL,
    to_comments,
    to_private_comments,
)
from parprof.exporters.pprof_intervals import pack
from parprof.exporters.pprof_private import Private
from parprof.exporters.pprof_reader import read
from parprof.metrics import METRICS, Metric
from parprof.model import Path, PathSample, Profile
from parprof.units import event_unit

__all__ = ["check_writable", "encode", "read", "write"]

_NS = 10**9


def write(
    profile: Profile,
    target: str | os.PathLike[str] | IO[bytes],
    *,
    physical: bool = False,
    loops: bool = False,
) -> None:
    """Write a profile to a binary file object or a path (``-``: standard output), the path atomically.

    Equal profiles make equal bytes. ``physical``: other tools are to see the physical call paths instead of
    the logical ones. ``loops``: they are to see loops as functions, inlined where they stand; then what a loop costs
    is no longer its function's own. `read` gives both paths and the loops, whatever other tools see.

    Raises:
        OutputError: the path cannot be written.
    """
    data = encode(profile, physical=physical, loops=loops).SerializeToString(deterministic=True)
    if isinstance(target, (str, os.PathLike)):
        with open_output(os.fspath(target)) as file:
            _compress(data, file)
    else:
        _compress(data, target)


def _compress(data: bytes, file: IO[bytes]) -> None:
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as out:
        out.write(data)


def encode(profile: Profile, *, physical: bool = False, loops: bool = False) -> pb.Profile:
    """The protobuf message of a profile. Times become whole nanoseconds; column totals keep within one.

    Its columns are the metrics of the table, optional ones only where they have values, then elapsed time and work by
    n_w, as far as there is any, then events by name.
    """
    found = set().union(*(sample.metrics.values.keys() for sample in profile.samples))
    metrics = [metric for metric in METRICS if metric in found or not metric.optional]
    levels = _level_columns(profile)
    events = sorted({name for sample in profile.samples for name in sample.metrics.events})
    builder = PprofBuilder(
        [
            *(metric.sample_type for metric in metrics),
            *(LEVEL_COLUMNS[at] for at in levels),
            *((event, event_unit(event).name) for event in events),
        ],
        DEFAULT_SAMPLE_TYPE,
        loops=loops,
    )
    builder.period("cpu", "nanoseconds", round(_NS / profile.frequency_hz) if profile.frequency_hz else 0)
    builder.times(profile.start_time_s, profile.duration_s)
    for line in to_comments(profile):
        builder.comment(line)
    frames = (frame for sample in profile.samples for frame in sample.path)
    if program := next((frame for frame in frames if _is_program(frame.module)), None):
        builder.mapping(program)
    others: dict[tuple[int, ...], int] = {}
    private = Private(to_private_comments(profile), projection=LOGICAL if physical else PHYSICAL)
    for sample in profile.samples:
        first, second = sample.path, sample.physical or sample.path
        if physical:
            first, second = second, first
        _add(builder, sample, first, metrics, levels, events)
        ids = tuple(builder.path(second)) if second != first else None
        private.path_of.append(-1 if ids is None else others.setdefault(ids, len(others)))
    private.loops = builder.hidden_loops
    private.paths = [list(ids) for ids in others]
    private.intervals = pack(profile.intervals)
    if private.head or private.loops or private.paths or private.intervals:
        builder.comment(private.encode(builder.out))
    return builder.finish()


def _level_columns(profile: Profile) -> list[int]:
    """Which elements of rows' `Levels` are not 0 everywhere."""
    found = {sample.levels for sample in profile.samples}
    return sorted({at for levels in found for at, value in enumerate(levels) if value})


def _add(
    builder: PprofBuilder,
    sample: PathSample,
    path: Path,
    metrics: list[Metric],
    levels: list[int],
    events: list[str],
) -> None:
    def labels() -> Iterator[tuple[str, str | int]]:
        origin = sample.origin
        own = (
            ("pid", origin.pid),
            ("tid", origin.tid),
            ("comm", origin.comm),
            ("thread", origin.thread),
            ("runtime", origin.runtime),
            ("overhead", origin.overhead),
        )
        yield from ((name, value) for name, value in own if value)
        yield from origin.labels

    values = [
        *(sample.metrics[metric] for metric in metrics),
        *(sample.levels[at] if at < len(sample.levels) else 0 for at in levels),
        *(sample.metrics.events.get(event, 0) for event in events),
    ]
    builder.sample(path, values, labels())


def _is_program(module: str) -> bool:
    """Whether a module may be the program itself, not a library, ``[vdso]`` or the kernel."""
    name = os.path.basename(module)
    return bool(name) and not name.startswith("[") and ".so" not in name
