"""Whose work the threads of a library's pool do: see `parprof.runtimes.pools`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from parprof.files.libc import is_of_c_library
from parprof.logical.bichord import logical_projection
from parprof.logical.folding import Folded
from parprof.logical.owners import MOST_FRAMES, FunctionId, function_of
from parprof.logical.physical import TRUNCATED
from parprof.logical.threads import THREADS
from parprof.model import Frame, Path
from parprof.remembered import Remembered
from parprof.runtimes.pools import NOTHING, Pool, pools
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
    pool = next((pool for pool in pools() if own and pool.takes_part and pool.has(own[start])), None)
    if pool is None or (TRUNCATED in own[:start] and not pool.serves.fullmatch(own[start].name)):
        return None
    bodies = tuple(
        (function_of(frame), at)
        for at, frame in enumerate(own[start + 1 :], start + 1)
        if pool.is_body(frame)
    )
    return Pooled(pool, start, bodies)


def pool_called(own: Path) -> str:
    """The pool that somebody with these frames, root first, is in as a caller who takes part: until he comes out of
    there its threads work for him, and then they do not. Empty: he is in none."""
    taking_part = [pool for pool in pools() if pool.takes_part]
    found = (
        pool.name for pool in taking_part for frame in own if pool.has(frame) or pool.is_handing_out(frame)
    )
    return next(found, "")


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


class Task(NamedTuple):
    """A piece of work that a thread of a pool does for somebody who waits for it."""

    pool: Pool
    start: int
    """Where among the frames of the thread the work begins."""
    or_of: tuple[Pool, ...] = ()
    """Pools that it may be of as well, for all that is known: nobody saw where the thread was started."""


class _Roles(NamedTuple):
    """The pools, of those that callers wait for, of which a function is one that..."""

    serves: Pool | None
    runs: Pool | None
    waits: Pool | None


class WaitedPools:
    """Tells in which frames threads of pools run work for others, and in which callers wait for such."""

    def __init__(self) -> None:
        """All pools of which it is known where callers wait."""
        self._pools = [pool for pool in pools() if pool.is_waited_for]
        self._by_start = [pool for pool in self._pools if pool.starts.pattern != NOTHING.pattern]
        self._roles = Remembered[tuple[str, str, str], _Roles | None](MOST_FRAMES)
        """By a function's name, module and file; None for nearly all."""

    def task(self, path: Path, started: Path = ()) -> Task | None:
        """The piece of work that a thread with these frames, root first, does for somebody, if it does one.

        A thread that waits inside of one for others may run another one meanwhile: then it is that. ``started``: the
        logical call path that the thread was started from, if anybody knows.
        """
        roles = [self._role(frame) for frame in path] if self._pools else []
        serves = next((at for at, role in enumerate(roles) if role and role.serves), None)
        if serves is None:
            return None
        pool = _of(roles, serves).serves
        assert pool is not None
        no_runs = pool.runs.pattern == NOTHING.pattern
        if no_runs:
            at = serves
            while at + 1 < len(path) and (path[at + 1].is_loop or _of(roles, at + 1).serves is pool):
                at += 1
        else:
            runs = (at for at in range(len(path) - 1, serves, -1) if _of(roles, at).runs is pool)
            at = next(runs, len(path))
        start = next((at for at in range(at + 1, len(path)) if not path[at].is_loop), None)
        if start is None or (no_runs and (_starts_threads(path[start]) or pool.is_resting(path[start]))):
            return None
        alike = tuple(one for one in self._by_start if one.has_threads_as(pool))
        if alike and not started:
            return Task(pool, start, alike)
        return Task(self._by_its_start(pool, alike, started), start)

    def _by_its_start(self, pool: Pool, alike: Sequence[Pool], started: Path) -> Pool:
        """Which pool a thread is of that was started from there: one of those ``alike`` that have such threads, too?"""
        for frame in reversed(started) if alike else ():
            if found := next((one for one in alike if one.is_starting(frame)), None):
                return found
            if (role := self._role(frame)) and role.serves is pool:
                break  # by what another thread of such a pool ran
        return pool

    def waiter(self, own: Path, logical: Path) -> tuple[Pool, int] | None:
        """Of a caller who waits for work he has handed out: for which pool, and where in his logical call path the
        outermost function is in which he does. Of several pools the innermost, as what he waits for now.

        ``own``: the frames of his stack. What else is in the logical path is of who created the thread. No thread of a
        pool is a caller of it: who waits for its work waits for what it hands out in turn.
        """
        roles = [role for role in map(self._role, own) if role is not None] if self._pools else []
        found = [role.waits for role in roles if role.waits is not None]
        if not found or any(
            role.serves is not None and role.serves.has_threads_as(found[-1]) for role in roles
        ):
            return None
        pool, count = found[-1], sum(one is found[-1] for one in found)
        there = [at for at, frame in enumerate(logical) if (role := self._role(frame)) and role.waits is pool]
        return (pool, there[-count]) if count <= len(there) else None

    def _role(self, frame: Frame) -> _Roles | None:
        key = frame.name, frame.module, frame.file
        if frame.is_loop:
            return None
        if key not in self._roles:
            mine = [pool for pool in self._pools if pool.is_within(frame)]
            roles = _Roles(
                next((pool for pool in mine if pool.serves.fullmatch(frame.name)), None),
                next((pool for pool in mine if pool.runs.fullmatch(frame.name)), None),
                next((pool for pool in mine if pool.waits.fullmatch(frame.name)), None),
            )
            self._roles[key] = roles if any(roles) else None
        return self._roles[key]


_NONE = _Roles(None, None, None)


def _of(roles: Sequence[_Roles | None], at: int) -> _Roles:
    return roles[at] or _NONE


def _starts_threads(frame: Frame) -> bool:
    return frame is TRUNCATED or is_of_c_library(frame.module) or THREADS.owns(frame.name, frame.module)
