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
    LOCATIONS,
    LOGICAL,
    PHYSICAL,
    checksum,
    to_comments,
)
from parprof.exporters.pprof_reader import read
from parprof.metrics import METRICS, Metric
from parprof.model import PathSample, Profile

__all__ = ["check_writable", "encode", "read", "write"]

_NS = 10**9


def write(profile: Profile, target: str | os.PathLike[str] | IO[bytes], *, physical: bool = False) -> None:
    """Write a profile to a binary file object or a path (``-``: standard output), the path atomically.

    Equal profiles make equal bytes. ``physical``: other tools are to see the physical call paths instead of
    the logical ones; `read` gives both, either way.

    Raises:
        OutputError: the path cannot be written.
    """
    data = encode(profile, physical=physical).SerializeToString(deterministic=True)
    if isinstance(target, (str, os.PathLike)):
        with open_output(os.fspath(target)) as file:
            _compress(data, file)
    else:
        _compress(data, target)


def _compress(data: bytes, file: IO[bytes]) -> None:
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as out:
        out.write(data)


def encode(profile: Profile, *, physical: bool = False) -> pb.Profile:
    """The protobuf message of a profile. Times become whole nanoseconds; column totals keep within one.

    Its columns are the metrics of the table, optional ones only where they have values, then events by name.
    """
    found = set().union(*(sample.metrics.values.keys() for sample in profile.samples))
    metrics = [metric for metric in METRICS if metric in found or not metric.optional]
    events = sorted({name for sample in profile.samples for name in sample.metrics.events})
    builder = PprofBuilder(
        [*(metric.sample_type for metric in metrics), *((event, "count") for event in events)],
        DEFAULT_SAMPLE_TYPE,
    )
    builder.period("cpu", "nanoseconds", round(_NS / profile.frequency_hz) if profile.frequency_hz else 0)
    builder.times(profile.start_time_s, profile.duration_s)
    for line in to_comments(profile):
        builder.comment(line)
    frames = (frame for sample in profile.samples for frame in sample.path)
    if program := next((frame for frame in frames if _is_program(frame.module)), None):
        builder.mapping(program)
    for sample in profile.samples:
        _add(builder, sample, metrics, events, physical)
    if any(sample.physical for sample in profile.samples):
        builder.comment(f"{LOCATIONS}: {checksum(builder.out.location)}")
    return builder.finish()


def _add(
    builder: PprofBuilder, sample: PathSample, metrics: list[Metric], events: list[str], physical: bool
) -> None:
    first, second, key = sample.path, sample.physical or sample.path, PHYSICAL
    if physical:
        first, second, key = second, first, LOGICAL

    def labels() -> Iterator[tuple[str, str | int]]:
        if second != first:
            yield key, " ".join(map(str, builder.path(second)))
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
        *(sample.metrics.events.get(event, 0) for event in events),
    ]
    builder.sample(first, values, labels())


def _is_program(module: str) -> bool:
    """Whether a module may be the program itself, not a library, ``[vdso]`` or the kernel."""
    name = os.path.basename(module)
    return bool(name) and not name.startswith("[") and ".so" not in name
