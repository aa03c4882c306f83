"""Physical frames to bichords (tallent-2009 sec. 4.1): the runtime's frames go, the author's stay.

Which frames are whose, the runtimes' agents say. The rules:

- The author's frames stand for themselves (1-1), loops and inlined functions too.
- Frames of a runtime between them are no part of the logical path (1-0, M-0), and neither is what the C library
  does for the runtime.
- Innermost frames of a runtime become one: the function that the author's code called (1-1, M-1), or the
  outermost that has a name.
- A function that a compiler made of a part of another (a region's or task's body, a spawn helper) is that other
  function, at the lines of the part, where it continues it: caller, runtime and body become one frame (M-1).
  Where that is not known it keeps its own name.
- Work that was created elsewhere goes on from where it was created: its creator's frames come first, for the
  runtime's frame that called the work (1-M).

Folding what was folded changes nothing; but a nameless body that was kept apart (see `Agent.encloser`) would join
what then looks like its caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from parprof.logical.bichord import Bichord, LogicalPath, bichords, logical_projection
from parprof.logical.owners import MOST_FRAMES, FunctionId, Owners, function_of, is_nameless
from parprof.logical.threads import THREADS
from parprof.model import Frame, Path
from parprof.remembered import Remembered
from parprof.runtimes import Agent
from parprof.values import dataclass

UNKNOWN_CONTEXT = Frame("[unknown context]")
"""Root of the path of work that some thread created, but nobody saw where."""


@dataclass(frozen=True, slots=True)
class Folded:
    """One stack as bichords, root first."""

    path: LogicalPath
    calls: Mapping[FunctionId, tuple[int, Path]] = field(default_factory=dict)
    """By body of parallel work, innermost instance: how deep the logical path was, and its innermost frames then."""

    def creator(self, function: FunctionId) -> Path:
        """The logical call path that created the work which this function is the body of."""
        depth, level = self.calls[function]
        return (*logical_projection(self.path)[: depth - len(level)], *level)


class Folder(Owners):
    """Folds the stacks of processes in which these runtimes may be."""

    def __init__(self, known: Sequence[Agent] | None = None) -> None:
        """``known``: see `Owners`."""
        super().__init__(known)
        self._plain = Remembered[int, Bichord](MOST_FRAMES)
        self._moved = Remembered[tuple[int, int], tuple[Frame, Frame, Frame]](MOST_FRAMES)

    def plain(self, frame: Frame) -> Bichord:
        """The bichord of a frame that stands for itself: one and the same for one frame."""
        known = self._plain.get(id(frame))
        if known is None:
            known = self._plain[id(frame)] = Bichord.of((frame,), (frame,))
        return known

    def moved(self, frame: Frame, body: Frame) -> Frame:
        """A function, or a loop of it, where a body of it runs: one and the same for the same two."""
        known = self._moved.get((id(frame), id(body)))
        if known is None:
            known = self._moved[id(frame), id(body)] = frame, body, _moved(frame, body)
        return known[2]

    def fold(
        self, own: Path, *, outer: Path = (), before: Path | None = None, keep_runtime_leaf: bool = True
    ) -> Folded:
        """The bichords of a stack, root first.

        ``own`` are the frames of the piece of work that runs, ``outer`` what lies below it on the same stack,
        ``before`` the logical call path that created the work; None if the stack says it all. Without
        ``keep_runtime_leaf``, innermost frames of the runtime leave no trace: for stacks that create work.
        """
        owners = self.owners(own)
        start = next((index for index, agent in enumerate(owners) if agent is None), len(own))
        out = _Builder(self)
        if start == len(own):
            return Folded(out.runtime_alone(own, owners, outer, before, keep_runtime_leaf))
        out.begin(own[start], (*outer, *own[:start]), before)
        pending: list[Frame] = []
        runtime: Agent | None = None
        for frame, agent in zip(own[start + 1 :], owners[start + 1 :], strict=True):
            if agent is None:
                out.add(frame, pending, runtime)
                pending, runtime = [], None
            else:
                runtime = runtime or agent
                pending.append(frame)
        if pending:
            out.group(pending, _entry(pending, runtime) if keep_runtime_leaf else ())
        return Folded(out.path(), out.calls)


class _Builder:
    """The bichords of one stack, from the root on."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._groups: list[tuple[tuple[Frame, ...], int]] = []
        """The physical frames of a bichord, and how many of ``_logical`` they stand for."""
        self._logical: list[Frame] = []
        self.calls: dict[FunctionId, tuple[int, Path]] = {}

    def group(self, physical: Sequence[Frame], logical: Sequence[Frame]) -> None:
        """Another bichord."""
        self._groups.append((tuple(physical), len(logical)))
        self._logical += logical

    def path(self) -> LogicalPath:
        """All bichords."""
        _in_place(self._logical)
        out: list[Bichord] = []
        at = 0
        for physical, count in self._groups:
            if count == len(physical) == 1 and physical[0] is self._logical[at]:
                out.append(self._folder.plain(physical[0]))
            else:
                out += bichords(physical, self._logical[at : at + count])
            at += count
        return tuple(out)

    def runtime_alone(
        self,
        own: Path,
        owners: Sequence[Agent | None],
        outer: Path,
        before: Path | None,
        keep: bool,
    ) -> LogicalPath:
        """A stack without any frame of the author."""
        if before is None and keep and own:
            runtimes = [agent for agent in owners if agent is not None]
            name = next((agent.name for agent in runtimes if agent is not THREADS), runtimes[0].name)
            self.group((*outer, *own), [Frame(f"[{name} worker]")])
            return self.path()
        context = list(before or ())
        if outer:
            self._below(outer, context)
            context = []
        if own:
            self.group(own, [*context, *(_entry(own, owners[0]) if keep else ())])
        return self.path()

    def _below(self, plumbing: Sequence[Frame], context: Sequence[Frame]) -> None:
        """What lies between the thread's root and its work; the innermost frame stands for the context."""
        if not context or len(plumbing) == 1:
            self.group(plumbing, context)
        else:
            self.group(plumbing[:-1], ())
            self.group(plumbing[-1:], context)

    def begin(self, frame: Frame, plumbing: Path, before: Path | None) -> None:
        """The author's first frame on this stack."""
        context = list(before or ())
        lead = [self._named(frame)]
        part = None if frame.is_loop else self._folder.encloser(frame.name)
        if part and (beside := self._beside_call(context, part)):
            del context[-beside:]
        level = _level(context)
        if part is not None and level and not _is_synthetic(level[0]):
            self.calls[function_of(frame)] = len(context), tuple(level)
            if not part or self._is_same(part, level[0].name):
                del context[len(context) - len(level) :]
                lead = [self._folder.moved(one, frame) for one in level]
        if plumbing:
            self._below(plumbing, context)
            self.group([frame], lead)
        else:
            self.group([frame], [*context, *lead])

    def add(self, frame: Frame, pending: Sequence[Frame], runtime: Agent | None) -> None:
        """A further frame of the author, called through the runtime's frames ``pending``."""
        if not pending and (frame.is_loop or self._folder.is_as_written(frame.name)):
            self.group((frame,), (frame,))
            return
        part = None if frame.is_loop else self._folder.encloser(frame.name)
        if part and (beside := self._beside_call(self._logical, part)):
            self._leave_out(beside)
        level = _level(self._logical)
        creates = runtime is not None and runtime.overhead(pending[0].name) == "create"
        continues = self._continues(frame, part, level[0], creates, not pending)
        joins = runtime is not None and runtime.joins
        is_body = part is not None or joins or (creates and is_nameless(frame.name))
        if is_body and pending and (continues or creates or joins) and not _is_synthetic(level[0]):
            body = (
                self._folder.handed_out(pending, frame, runtime) if joins and runtime else function_of(frame)
            )
            self.calls[body] = len(self._logical), tuple(level)
        if continues:
            self._logical[len(self._logical) - len(level) :] = [
                self._folder.moved(one, frame) for one in level
            ]
            physical, count = self._groups[-1]
            self._groups[-1] = (*physical, *pending, frame), count
        else:
            if pending:
                self.group(pending, ())
            self.group([frame], [self._named(frame)])

    def _continues(self, frame: Frame, part: str | None, level: Frame, passed: bool, direct: bool) -> bool:
        """Whether a frame belongs to the author's function that the frames before it are of (``level``).

        ``direct``: this function calls it itself; ``passed``: or hands it to the runtime to run.
        """
        if frame.is_loop or _is_synthetic(level):
            return False
        if part is None:
            author = self._folder.author(frame.name)
            return (
                author != frame.name
                and direct
                and author == level.name
                and not self._folder.is_copy(frame.name)
            )
        # nobody but its own function calls or passes a body that does not say whose it is
        return self._is_same(part, level.name) if part else passed or direct

    def _beside_call(self, path: Sequence[Frame], part: str) -> int:
        """How many innermost frames of a path do not lead to a part of a function, though they seem to.

        They are inlined into that function at the same address. Where optimization has mixed their instructions with
        the call, the line table has that in the midst of theirs; but a part is called where it was written.
        """
        inner = len(path)
        for at in range(len(path) - 1, -1, -1):
            frame = path[at]
            if frame.is_loop:
                continue
            if self._is_same(part, frame.name):
                return len(path) - inner
            if not frame.inlined or at == 0 or _place(path[at - 1]) != _place(frame):
                return 0
            inner = at
        return 0

    def _leave_out(self, count: int) -> None:
        """Have so many innermost logical frames go, which stand for themselves: they become a part of their caller."""
        here = self._groups[-count:]
        if len(here) < count or any(number != 1 for _, number in here) or len(self._groups) == count:
            return
        del self._groups[-count:], self._logical[-count:]
        physical, number = self._groups[-1]
        self._groups[-1] = (*physical, *(frame for frames, _ in here for frame in frames)), number

    def _is_same(self, part: str, name: str) -> bool:
        return part in (name, self._folder.encloser(name))

    def _named(self, frame: Frame) -> Frame:
        name = frame.name
        if frame.is_loop or self._folder.is_as_written(name) or self._folder.encloser(name) is not None:
            return frame
        author = self._folder.author(name)
        if self._folder.is_copy(name) and frame.line == frame.start_line:
            return replace(
                frame, name=author, line=0
            )  # from a closure, which has no more than where the copy begins
        return replace(frame, name=author)


def _entry(run: Sequence[Frame], runtime: Agent | None) -> Path:
    """What innermost frames of a runtime become. The first may be without a name, after a tail call."""
    named = next((frame for frame in run if not frame.is_loop and not is_nameless(frame.name)), None)
    return (named or replace(run[0], name=f"[{runtime.name if runtime else 'runtime'}]"),)


def _is_synthetic(frame: Frame) -> bool:
    return frame.name.startswith("[") and not frame.address


def _level(frames: Sequence[Frame]) -> list[Frame]:
    """The innermost function of a path, root first, with the loops of it that it is in."""
    start = len(frames) - 1
    while start > 0 and frames[start].is_loop:
        start -= 1
    return list(frames[max(start, 0) :])


def _moved(frame: Frame, body: Frame) -> Frame:
    """A function, or a loop of it, where a body of it runs."""
    return replace(
        frame,
        file=frame.file if frame.is_loop else body.file or frame.file,
        line=body.line or frame.line,
        module=body.module,
        build_id=body.build_id,
        address=body.address,
    )


def _in_place(path: list[Frame]) -> None:
    """Inline no function into one that is not before it: its own was the runtime's."""
    last: Frame | None = None
    for index, frame in enumerate(path):
        if frame.inlined and not frame.is_loop and (last is None or _place(last) != _place(frame)):
            path[index] = replace(frame, inlined=False)
        last = path[index]


def _place(frame: Frame) -> tuple[str, str, int]:
    return frame.module, frame.build_id, frame.address
