"""Work and span by site as a pprof file. Both columns add up: local work to T_1, local span on span to T_inf.

So do the columns of call sites, which are there for programs built with hooks: they divide the same work and span.
A comment that other tools do not show has the whole answer, for `parprof report` and `diff`.
"""

from __future__ import annotations

import gzip
from typing import IO

from google.protobuf.message import DecodeError

from parprof import pprof_pb2 as pb
from parprof.errors import ProfileFormatError
from parprof.exporters.pprof_builder import PprofBuilder
from parprof.exporters.pprof_header import SCALE_KIND
from parprof.exporters.pprof_private import PREFIX
from parprof.model import Frame
from parprof.scale import saved
from parprof.scale.answer import sentence
from parprof.scale.calls import CallSite
from parprof.scale.model import Scale, ScaleSite

COLUMNS = (("count", "count"), ("work", "nanoseconds"), ("span", "nanoseconds"), ("bound", "nanoseconds"))
_ANSWER = f"{PREFIX}scale: "
CALL_COLUMNS = (("calls", "count"), ("call_work", "nanoseconds"), ("call_span", "nanoseconds"))


def encode(scale: Scale) -> pb.Profile:
    """The message: the sites of the run with the most threads."""
    main = scale.main
    call_columns = CALL_COLUMNS if main.calls else ()
    builder = PprofBuilder((*COLUMNS, *call_columns), "span")
    for line in (
        SCALE_KIND,
        f"command: {scale.command}",
        f"threads: {main.threads}",
        f"answer: {sentence(scale)}",
        _ANSWER + saved.dumps(scale),
    ):
        builder.comment(line)
    for site in main.sites:
        of_calls = [0.0 for _ in call_columns]
        values = (site.count, site.work_s * 1e9, site.span_s * 1e9, site.bound_s * 1e9, *of_calls)
        builder.sample(_path(site), values, (("kind", site.kind.name.lower()),))
    for call in main.calls:
        builder.sample(call.path or (Frame(call.label),), _call_values(call), (("kind", "call"),))
    return builder.finish()


def decode(data: bytes) -> Scale | None:
    """The answer in an uncompressed message; None if it is of another kind.

    Raises:
        ProfileFormatError: it is damaged.
    """
    if SCALE_KIND.encode() not in data:
        return None
    try:
        message = pb.Profile.FromString(data)
    except (DecodeError, ValueError) as error:
        raise ProfileFormatError("it is not a pprof profile, or damaged") from error
    texts = message.string_table
    comments = [texts[at] for at in message.comment if 0 <= at < len(texts)]
    if SCALE_KIND not in comments:
        return None
    for comment in comments:
        if comment.startswith(_ANSWER):
            return saved.loads(comment.removeprefix(_ANSWER))
    raise ProfileFormatError(
        "it is of work and span, from before these could be read again, or from another tool: use `go tool pprof`"
    )


def _call_values(call: CallSite) -> tuple[float, ...]:
    of_sites = [0.0 for _ in COLUMNS]
    return *of_sites, call.on_work.count, call.on_work.local_work_s * 1e9, call.on_span.local_span_s * 1e9


def write(scale: Scale, file: IO[bytes]) -> None:
    """Write it, compressed as pprof files are; equal answers make equal bytes."""
    file.write(gzip.compress(encode(scale).SerializeToString(deterministic=True), mtime=0))


def _path(site: ScaleSite) -> tuple[Frame, ...]:
    """The site itself is the leaf, below the code that it is in."""
    leaf = site.frames[-1] if site.frames else Frame("")
    own = Frame(site.label, leaf.file, leaf.line, leaf.start_line, leaf.module, leaf.build_id)
    return (*site.frames, own)
