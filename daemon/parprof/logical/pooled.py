"""Whose work the threads of a library's pool do: see `parprof.runtimes.pools`."""

from __future__ import annotations

from dataclasses import replace

from parprof.files.libc import is_of_c_library
from parprof.logical.bichord import logical_projection
from parprof.logical.folding import Folded
from parprof.logical.owners import FunctionId, function_of
from parprof.logical.physical import TRUNCATED
from parprof.logical.threads import THREADS
from parprof.model import Frame, Path
from parprof.runtimes.pools import Pool, pools
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class Pooled:
    """The stack of a thread of a pool."""

    pool: Pool
    start: int
    """Where among the frames of the thread the pool's own begin, behind what starts any thread."""
    bodies: tuple[tuple[FunctionId, int], ...]
    """Functions of the library that it was given to run, or that these call, and where; none while it waits."""

    @property
    def root(self) -> Frame:
        """What its call path begins with where nobody is known who gave it the work."""
        return Frame(self.pool.worker)

    def start_of(self, body: FunctionId) -> int:
        """Where among the frames of the thread the outermost call of one of the ``bodies`` is."""
        return next(at for function, at in self.bodies if function == body)


def pooled(own: Path) -> Pooled | None:
    """What a thread is doing whose frames are these, root first, if it is one of a pool.

    Frames that are missing at the beginning do no harm where it is known what must have been there.
    """
    start = next((at for at, frame in enumerate(own) if not _starts_threads(frame)), 0)
    pool = next((pool for pool in pools() if own and pool.has(own[start])), None)
    if pool is None or (TRUNCATED in own[:start] and not pool.serves.fullmatch(own[start].name)):
        return None
    bodies = tuple(
        (function_of(frame), at)
        for at, frame in enumerate(own[start + 1 :], start + 1)
        if pool.is_body(frame)
    )
    return Pooled(pool, start, bodies)


def with_handed_out(folded: Folded) -> Folded:
    """With the functions that a caller runs his own part of, as threads of a pool run theirs, among the ``calls``."""
    path, handed = logical_projection(folded.path), {}
    for at, frame in enumerate(path):
        pool = next((one for one in pools() if one.is_handing_out(frame)), None)
        if pool is not None:
            body = next((below for below in range(at + 1, len(path)) if not path[below].is_loop), None)
            if body is not None and pool.is_body(path[body]):
                handed[function_of(path[body])] = body, ()
    return replace(folded, calls={**folded.calls, **handed}) if handed else folded


def _starts_threads(frame: Frame) -> bool:
    return frame is TRUNCATED or is_of_c_library(frame.module) or THREADS.owns(frame.name, frame.module)
