"""Work and span by site as a pprof file. Both columns add up: local work to T_1, local span on span to T_inf."""

from __future__ import annotations

import gzip
from typing import IO

from parprof import pprof_pb2 as pb
from parprof.exporters.pprof_builder import PprofBuilder
from parprof.exporters.pprof_header import SCALE_KIND
from parprof.model import Frame
from parprof.scale.answer import sentence
from parprof.scale.model import Scale, Site

COLUMNS = (("count", "count"), ("work", "nanoseconds"), ("span", "nanoseconds"), ("bound", "nanoseconds"))


def encode(scale: Scale) -> pb.Profile:
    """The message: the sites of the run with the most threads."""
    builder = PprofBuilder(COLUMNS, "span")
    main = scale.main
    for line in (
        SCALE_KIND,
        f"command: {scale.command}",
        f"threads: {main.threads}",
        f"answer: {sentence(scale)}",
    ):
        builder.comment(line)
    for site in main.sites:
        values = (site.count, site.work_s * 1e9, site.span_s * 1e9, site.bound_s * 1e9)
        builder.sample(_path(site), values, (("kind", site.kind.name.lower()),))
    return builder.finish()


def write(scale: Scale, file: IO[bytes]) -> None:
    """Write it, compressed as pprof files are; equal answers make equal bytes."""
    file.write(gzip.compress(encode(scale).SerializeToString(deterministic=True), mtime=0))


def _path(site: Site) -> tuple[Frame, ...]:
    """The site itself is the leaf, below the code that it is in."""
    leaf = site.frames[-1] if site.frames else Frame("")
    own = Frame(site.label, leaf.file, leaf.line, leaf.start_line, leaf.module, leaf.build_id)
    return (*site.frames, own)
