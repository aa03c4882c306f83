"""Brings profiles into the shape that stores take: few rows, few labels, and within their limits."""

from __future__ import annotations

import gzip
from dataclasses import replace
from functools import cached_property

from parprof import pprof_pb2 as pb
from parprof.errors import OutputError
from parprof.exporters import pprof
from parprof.metrics import Metrics
from parprof.model import Origin, Path, PathSample, Profile
from parprof.patterns import regex
from parprof.service.folding import fold_cold

MAX_PATHS = 10_000
"""Call paths in a pushed profile; the coldest ones are folded into their callers. Pyroscope takes 16,000
samples as it comes, and a call path may have some for each category of overhead."""
MAX_BYTES = 4 << 20
"""A pushed profile before compression: what Pyroscope takes as it comes."""

_UNSAFE = regex("[^a-zA-Z0-9_]")


def shaped(profile: Profile, max_paths: int = MAX_PATHS) -> Profile:
    """The profile with one row for each call path and category of overhead.

    Threads, PIDs and physical call paths go, because stores make a series of each value of a label. The
    command line goes, because it can hold secrets. Names of events become such as PromQL takes: Pyroscope and
    Parca refuse the whole profile otherwise.
    """
    rows: dict[tuple[Path, str], PathSample] = {}
    for sample in profile.samples:
        key = (sample.path, sample.origin.overhead)
        row = rows.get(key)
        if row is None:
            row = rows[key] = PathSample(sample.path, Metrics(), Origin(overhead=key[1]))
        row.metrics.add(sample.metrics)
    for row in rows.values():
        events: dict[str, int] = {}
        for name, value in row.metrics.events.items():
            name = _UNSAFE.sub("_", name)
            events[name] = events.get(name, 0) + value
        row.metrics.events = events
    samples, _ = fold_cold(rows.values(), max_paths)
    return replace(profile, samples=samples, process=replace(profile.process, command=""))


def message(profile: Profile, max_bytes: int = MAX_BYTES) -> pb.Profile:
    """The pprof of a profile, `shaped`, and with so many call paths folded that it has at most ``max_bytes``.

    Raises:
        OutputError: it does not fit, however much is folded.
    """
    limit = MAX_PATHS
    while limit:
        small = shaped(profile, limit)
        out = pprof.encode(small)
        if out.ByteSize() <= max_bytes:
            return out
        limit = min(limit, len(small.samples)) // 2
    raise OutputError(
        f"a profile of PID {profile.process.pid} does not fit into {max_bytes} bytes; not pushed"
    )


class Payload:
    """A profile on its way to all stores: what several of them want is made once."""

    def __init__(self, profile: Profile) -> None:
        """Nothing is made yet, and nobody may change the profile from now on."""
        self.profile = profile

    @cached_property
    def message(self) -> pb.Profile:
        """The pprof, within limits; raises OutputError, see `message`."""
        return message(self.profile)

    @cached_property
    def packed(self) -> bytes:
        """The pprof, gzipped; raises OutputError, see `message`. Equal profiles make equal bytes."""
        return gzip.compress(self.message.SerializeToString(deterministic=True), 6, mtime=0)
