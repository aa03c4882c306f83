"""Whose code a frame is: what the runtimes' agents say about functions, remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parprof.logical.threads import THREADS, calls_clone, may_call_clone, passes_by
from parprof.model import Frame
from parprof.patterns import regex
from parprof.remembered import Remembered
from parprof.runtimes import Agent, agents

FunctionId = tuple[str, str, str, int]
"""A compiler-made function: name, module, file, first line. Names such as ``.omp_outlined.`` are not unique."""


_PATHS_REMEMBERED = 64
MOST_FRAMES = 1 << 14
"""That are remembered, some 500 bytes each; then all are forgotten. Interpreters that come and go have frames of their
own, each, which are of no use when they have ended."""
_MOST_NAMES = 1 << 16
_NAMELESS = regex(r"\+0x[0-9a-f]+\Z")


def is_nameless(name: str) -> bool:
    """Whether this is all that is known of a function without a name: its file, and where it begins.

    >>> is_nameless("libblast.so+0x288e0"), is_nameless("solve")
    (True, False)
    """
    return _NAMELESS.search(name) is not None


def function_of(frame: Frame) -> FunctionId:
    """The function of a frame."""
    return frame.name, frame.module, frame.file, frame.start_line


class _Told(NamedTuple):
    """What is to be known of a frame, whatever is around it."""

    frame: Frame
    owner: Agent | None
    passes: bool
    """It is whose its caller is."""
    may_clone: bool


class Owners:
    """Asks the agents of the runtimes that a process may have."""

    def __init__(self, known: Sequence[Agent] | None = None) -> None:
        """``known``: the agents to ask, the first one that owns a frame wins. None: all that there are."""
        self._agents = (*(agents() if known is None else known), THREADS)
        self._owners = Remembered[tuple[str, str, str], Agent | None](_MOST_NAMES)
        self._told = Remembered[int, _Told](MOST_FRAMES)
        """By the frame's identity: paths have the same objects by the ten thousand."""
        self._last = Remembered[int, tuple[Sequence[Frame], Sequence[Agent | None]]](_PATHS_REMEMBERED)
        """What was asked lately, by the path's identity: the same is asked several times of each stack."""
        self._parts = Remembered[str, str | None](_MOST_NAMES)
        self._authors = Remembered[str, str](_MOST_NAMES)
        self._as_written = Remembered[str, bool](_MOST_NAMES)

    def owner(self, frame: Frame) -> Agent | None:
        """The runtime that a frame is plumbing of; None for code of the author."""
        key = frame.name, frame.module, frame.file
        if key not in self._owners:
            self._owners[key] = next((agent for agent in self._agents if agent.owns(*key)), None)
        return self._owners[key]

    def encloser(self, name: str) -> str | None:
        """See `Agent.encloser`."""
        if name not in self._parts:
            told = (agent.encloser(name) for agent in self._agents)
            self._parts[name] = next((part for part in told if part is not None), None)
        return self._parts[name]

    def author(self, name: str) -> str:
        """See `Agent.author_name`."""
        if name not in self._authors:
            told = (agent.author_name(name) for agent in self._agents)
            self._authors[name] = next((author for author in told if author != name), name)
        return self._authors[name]

    def is_copy(self, name: str) -> bool:
        """See `Agent.copies`."""
        return any(agent.copies.fullmatch(name) for agent in self._agents)

    def is_as_written(self, name: str) -> bool:
        """Whether no compiler made a function of another one, as far as its name tells."""
        known = self._as_written.get(name)
        if known is None:
            known = self._as_written[name] = self.encloser(name) is None and self.author(name) == name
        return known

    def owners(self, frames: Sequence[Frame]) -> Sequence[Agent | None]:
        """For each frame, root first, the runtime that it is plumbing of.

        A loop belongs to whom its function does; what a runtime calls of the C library belongs to the runtime.
        """
        if not isinstance(frames, tuple):  # what may change is remembered by nobody
            return self._owners_of(frames)
        asked, told = self._last.get(id(frames), (None, ()))
        if asked is frames:
            return told
        out = self._owners_of(frames)
        self._last[id(frames)] = frames, out
        return out

    def _owners_of(self, frames: Sequence[Frame]) -> Sequence[Agent | None]:
        out: list[Agent | None] = []
        last: Agent | None = None
        known = self._told
        for index, frame in enumerate(frames):
            told = known.get(id(frame)) or self._look_at(frame)
            if told.owner is not None or not told.passes:
                last = told.owner
            if last is None and told.may_clone and index + 1 < len(frames):
                last = THREADS if calls_clone(frame, frames[index + 1]) else None
            out.append(last)
        return out

    def _look_at(self, frame: Frame) -> _Told:
        if frame.is_loop:
            told = _Told(frame, None, True, False)
        else:
            told = _Told(frame, self.owner(frame), passes_by(frame), may_call_clone(frame))
        self._told[id(frame)] = told
        return told

    def handed_out(self, plumbing: Sequence[Frame], frame: Frame, runtime: Agent) -> FunctionId:
        """What tells a piece of work that a runtime's ``plumbing`` called: that is in ``frame``, the author's first.

        Of templates it is the function that the runtime's library called, which has the types of the work in its name:
        all lambdas are called the same, and of those that were inlined nobody knows where they begin.
        """
        called = frame
        for one in reversed(plumbing):
            if runtime.library.match(one.module):
                break
            called = one if not one.inlined and not one.is_loop else called
        return function_of(called)

    def is_part(self, frame: Frame) -> bool:
        """Whether a compiler made the function out of a part of another."""
        return not frame.is_loop and self.encloser(frame.name) is not None
