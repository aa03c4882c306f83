"""The call paths of all samples of one process image under one load map, physical and logical."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from parprof.kernel.stacks import Context, Stack
from parprof.logical.bichord import logical_projection
from parprof.logical.callers import Before, Callers, shared
from parprof.logical.folding import UNKNOWN_CONTEXT, Folded
from parprof.logical.memory import Located, PathMemory, StackInContext, StackShape
from parprof.logical.ourselves import PROFILING, in_handler
from parprof.logical.overhead import TAG
from parprof.logical.owners import FunctionId, function_of, is_nameless
from parprof.logical.physical import TRUNCATED, ResolvePlace
from parprof.logical.pooled import Pooled, Task, pool_called, pooled, with_handed_out
from parprof.logical.threads import THREADS, is_of_scheduler
from parprof.logical.unwound import Unwound, unwind
from parprof.model import Path, StackMerge
from parprof.runtimes import Agent
from parprof.runtimes.pools import Pool

MAX_CONTEXTS = 4096
"""Contexts that are followed from one sample towards the root."""
MAX_KERNEL_FRAMES = 127
"""The kernel's own limit."""
MAX_CONTEXT_FRAMES = 1024
"""Frames that a context contributes: the innermost ones. With a stack of 512, what pprof readers still show."""


_UNKNOWN = Before((UNKNOWN_CONTEXT,), False)


class LogicalPaths:
    """Locates samples. Everything that is asked for twice is remembered."""

    def __init__(
        self,
        stack: Callable[[int], Stack],
        context: Callable[[int], Context | None],
        resolve: ResolvePlace,
        resolve_kernel: ResolvePlace,
        *,
        merge: Callable[[int, Stack], StackMerge | None] | None = None,
        agents: Sequence[Agent] | None = None,
        tag: re.Pattern[str] = TAG,
        shape: Callable[[int], StackShape | None] | None = None,
        memory: PathMemory | None = None,
        kernel_depth: int = MAX_KERNEL_FRAMES,
    ) -> None:
        """``stack`` and ``context`` are the kernel's, by id; ``resolve`` and ``resolve_kernel`` name addresses.

        ``merge`` gives what puts the frames of an interpreted language into a stack, None if it has none.
        ``agents``: those of the runtimes that the process may have, by default all. ``tag`` tells overhead that
        the program tagged by the names of files or procedures. With ``shape``, the shape of a stack by id or None,
        stacks of other processes that have the same shape and ``memory`` (which then knows the agents and the tag)
        are not unwound and folded again. ``kernel_depth``: so many of the kernel's frames are shown, from the system
        call or interrupt on; those of our own handlers are one, ``[profiling]``, however deep they are.
        """
        self._stack, self._context = stack, context
        self._resolve, self._resolve_kernel = resolve, resolve_kernel
        self._merge = merge
        self._shape = shape
        self._kernel_depth = kernel_depth
        self._shared = PathMemory.of(agents, tag) if memory is None else memory
        self._folder = self._shared.folder
        self._own = PathMemory(self._folder, self._shared.kinds)
        """By stack id, what has no shape."""
        self._before: dict[int, Before | None] = {}
        """By context; None: it says nothing of what is done in it."""
        self._missing: set[int] = set()
        self._wanted: set[FunctionId] = set()
        self._places: dict[tuple[int, int], StackInContext] = {}
        """By user stack and context."""
        self._callers: dict[FunctionId, Callers] = {}
        self.unknown_samples = 0
        """Samples whose path begins with ``[unknown context]``."""
        self.joined_samples = 0
        """Samples that were given to the call paths known to create such work."""
        self.waited_samples = 0
        """Samples that were given to call paths which waited for such work."""
        self.incomplete_samples = 0
        """Samples, those of unknown context among them, whose path does not reach the program's entry."""

    def learn(self, samples: Iterable[tuple[int, int, int]]) -> None:
        """Learn from all samples (user stack, context, count) who creates the work of unknown context among them.

        Before `shares` of these samples. What was learned from earlier ones still counts.
        """
        if any(self._context(identity) for identity in self._missing):
            self._forget_contexts()
        counts: dict[tuple[int, int], int] = {}
        for user, context, count in samples:
            counts[user, context] = counts.get((user, context), 0) + count
        for key in counts:
            self._wanted.update(self._place(*key).located.bodies)
        for key, count in counts.items() if self._wanted else ():
            place = self._places[key]
            folded, begin = place.folded, place.begin
            for function, before in self.creators(*key):
                self._add_caller(function, before, count)
            if begin is not None and begin in self._wanted and begin not in folded.calls:
                self._learn_begin(begin, key[1], count)

    def creators(self, user: int, context: int) -> list[tuple[FunctionId, Before]]:
        """Of parallel work of unknown context that has been met (`learn`): which a stack has created, and where."""
        place = self._place(user, context)
        found = [(one, place.folded.creator(one)) for one in place.folded.calls.keys() & self._wanted]
        return [
            (function, self._shared.before(path, place.complete))
            for function, path in found
            if _is_known(path)
        ]

    def shared_work(self, user: int, context: int) -> FunctionId | None:
        """The work there, if those who created such (`learn`) do a part of it themselves at the time."""
        place = self._place(user, context)
        return self._known_body(place.located) if place.has_partner else None

    def in_pool(self, user: int, context: int) -> tuple[str, bool]:
        """The pool of a library that a thread is in there, if callers take part; and whether it is one of its own."""
        place = self._place(user, context)
        return place.in_pool, bool(place.in_pool) and place.has_partner

    def _known_body(self, here: Located) -> FunctionId | None:
        return next((one for one in here.bodies if one in self._callers), None)

    def _learn_begin(self, function: FunctionId, context: int, count: int) -> None:
        """A body that calls a function as its last, by a jump, is on no stack: that function stands for it."""
        before = self._before_of(context) if context else None
        if before is not None and _is_known(before.path):
            self._add_caller(function, before, count)

    def _add_caller(self, function: FunctionId, before: Before, count: int) -> None:
        self._callers.setdefault(function, Callers()).add(before, count)

    def _forget_contexts(self) -> None:
        """Contexts that were missed have come: whatever lies in them is to be located anew."""
        for memory in (self._missing, self._before, self._places):
            memory.clear()

    def locate(self, user: int, kernel: int, context: int) -> Located:
        """Where a sample with these ids was taken."""
        here = self._place(user, context).located
        return self._with_kernel(here, kernel) if kernel else here

    def shares(
        self,
        user: int,
        kernel: int,
        context: int,
        samples: int,
        stream: int = 0,
        waited: Sequence[tuple[Before | None, int]] = (),
    ) -> list[tuple[Located, int]]:
        """Where these samples were taken, and how many of them: one place, or several that add up.

        Work of unknown context is shared among the call paths that are known (`learn`) to create such work.
        ``samples`` may be any whole number that is to be shared; each ``stream`` of them is rounded by itself, and
        only stream 0 is counted in `unknown_samples`, `joined_samples`, `waited_samples` and `incomplete_samples`.
        ``waited``: how to share what is a `task`, among those that waited for it, or `shared_work`, among those that
        did a part of it; None: nobody is known to have.
        """
        here = self.locate(user, kernel, context)
        function = self._known_body(here)
        if function is not None:
            split = self._split(function, samples, stream, waited)
            out = [(self._join(user, kernel, before, function), share) for before, share in split]
        elif waited:
            out = [
                (here if before is None else self._join(user, kernel, before, None), share)
                for before, share in shared(waited, samples)
            ]
        else:
            out = [(here, samples)]
        if not stream:
            for located, count in out:
                self.unknown_samples += count if located.unknown else 0
                self.joined_samples += 0 if function is None or located.unknown else count
                self.waited_samples += count if function is None and located is not here else 0
                self.incomplete_samples += 0 if located.complete else count
        return out

    def _split(
        self, function: FunctionId, samples: int, stream: int, took_part: Sequence[tuple[Before | None, int]]
    ) -> list[tuple[Before, int]]:
        """Who gets how much of work: those that took part in it then, and of the rest all that were ever seen to."""
        out: dict[Before, int] = {}
        for one, share in shared(took_part, samples):
            those = [(one, share)] if one is not None else self._callers[function].split(share, stream)
            for before, part in those:
                out[before] = out.get(before, 0) + part
        return list(out.items())

    def task(self, user: int, context: int) -> Task | None:
        """The piece of work of a pool there, if no caller was seen to take part in it (`learn`)."""
        place = self._place(user, context)
        if place.task is None or any(one in self._callers for one in place.located.bodies):
            return None
        return place.task

    def waits(self, user: int, context: int) -> tuple[Pool, Before] | None:
        """Where a thread is that waits for work which it has handed out to a pool: to which, and its call path."""
        return self._place(user, context).waits

    def _memory_of(self, user: int) -> tuple[PathMemory, StackShape]:
        """Where a stack is remembered, and under what."""
        shape = self._shape(user) if self._shape else None
        return (self._own, user) if shape is None else (self._shared, shape)

    def _unwind(self, user: int) -> Unwound:
        memory, shape = self._memory_of(user)
        found = memory.unwound.get(shape)
        if found is None:
            stack = self._stack(user)
            merge = self._merge(user, stack) if self._merge else None
            found = memory.unwound[shape] = unwind(stack, self._resolve, merge)
        return found

    def _place(self, user: int, context: int) -> StackInContext:
        found = self._places.get((user, context))
        if found is None:
            memory, shape = self._memory_of(user)
            before = self._before_of(context) if context else None
            found = memory.places.get((shape, before))
            if found is None:
                found = memory.places[shape, before] = self._make_place(self._unwind(user), before)
            self._places[user, context] = found
        return found

    def _make_place(self, unwound: Unwound, before: Before | None) -> StackInContext:
        """``before`` is where the work was created, if the kernel says so."""
        pooled = self._pooled(unwound)
        if pooled is not None:
            return self._place_in_pool(unwound, pooled)._replace(task=self._task(unwound, before))
        idle = unwound.whole and self._is_idle_beside_closures(unwound)
        started, before = before, None if idle else self._origin(unwound, before)
        folded = with_handed_out(self._fold(unwound, before, True))
        complete = self._is_complete(unwound, before)
        if before is None and unwound.whole and self._is_idle(unwound):
            complete = True
        is_of_pool = self._is_of_unseen_pool(unwound)
        located = Located(
            folded.path,
            unwound.path,
            complete,
            self._shared.kinds.kind(unwound.path),
            before is not None and before.path[0] is UNKNOWN_CONTEXT,
            self._work(unwound) if before is _UNKNOWN or is_of_pool else (),
        )
        located = located.in_handler() if unwound.in_slot else located
        task = self._task(unwound, started)
        waits = self._waits(unwound, folded, complete)
        begin, called = self._begin(unwound), pool_called(unwound.path)
        return StackInContext(located, folded, complete, begin, task, waits, is_of_pool, called)

    def _task(self, unwound: Unwound, started: Before | None) -> Task | None:
        outer, own = _split(unwound)
        known = () if started is None or started.path[0] is UNKNOWN_CONTEXT else started.path
        return None if outer else self._shared.pools.task(own, known)

    def _waits(self, unwound: Unwound, folded: Folded, complete: bool) -> tuple[Pool, Before] | None:
        path = logical_projection(folded.path)
        found = self._shared.pools.waiter(unwound.path, path)
        if found is None or not _is_known(path):
            return None
        return found[0], self._shared.before(path[: found[1] + 1], complete)

    def _pooled(self, unwound: Unwound) -> Pooled | None:
        outer, own = _split(unwound)
        return None if outer else pooled(own)

    def _place_in_pool(self, unwound: Unwound, pooled: Pooled) -> StackInContext:
        """Of a thread of a library's pool: who started it, once, says nothing of its work."""
        folded = self._fold_from(unwound, pooled.start, (pooled.root,))
        bodies = tuple(function for function, _ in pooled.bodies)
        kind = self._shared.kinds.kind(unwound.path)
        located = Located(folded.path, unwound.path, not bodies, kind, bodies=bodies)
        located = located.in_handler() if unwound.in_slot else located
        return StackInContext(located, folded, not bodies, has_partner=True, in_pool=pooled.pool.name)

    def _fold_from(self, unwound: Unwound, start: int, before: Path) -> Folded:
        """As `_fold`, where what lies before a frame only led to it."""
        return self._folder.fold(unwound.path[start:], outer=unwound.path[:start], before=before)

    def _fold(self, unwound: Unwound, before: Before | None, keep_runtime_leaf: bool) -> Folded:
        outer, own = _split(unwound)
        path = None if before is None else before.path
        return self._folder.fold(own, outer=outer, before=path, keep_runtime_leaf=keep_runtime_leaf)

    def _origin(self, unwound: Unwound, before: Before | None) -> Before | None:
        """Where the work was created; None if its stack says it all. ``before``: what the kernel says, if anything."""
        if before in (None, _UNKNOWN) and self._is_first_work(unwound):
            return None
        return before or self._created(unwound)

    def _is_complete(self, unwound: Unwound, before: Before | None) -> bool:
        if before is not None:
            return before.complete and unwound.whole
        return unwound.entry or (unwound.whole and self._is_first_work(unwound))

    def _is_first_work(self, unwound: Unwound) -> bool:
        """Whether the program's first piece of work begins here: see `Agent.first_work`."""
        for frame, agent in zip(unwound.path, self._folder.owners(unwound.path), strict=True):
            if agent is None:
                return False
            if agent.first_work.match(frame.name):
                return True
        return False

    def _is_idle_beside_closures(self, unwound: Unwound) -> bool:
        """Whether a worker has no work, whose stolen work would be rooted in closures: its creator has none in it."""
        owners = self._folder.owners(unwound.path)
        return None not in owners and any(agent is not None and agent.has_closures for agent in owners)

    def _created(self, unwound: Unwound) -> Before | None:
        """Where the work was created, if the kernel says nothing; None if its stack says it all."""
        if unwound.is_cut:
            return _UNKNOWN
        own, owners, first = self._first(unwound)
        if first is None:
            return None
        by_runtime = any(agent is not None and agent is not THREADS for agent in owners[:first])
        return _UNKNOWN if by_runtime or self._folder.is_part(own[first]) else None

    def _before_of(self, context: int) -> Before | None:
        """The logical call path of a context, with those of the contexts that it lies in; None: see `_before`."""
        chain: dict[int, Context] = {}
        at = context
        while at and at not in self._before and at not in chain and len(chain) < MAX_CONTEXTS:
            found = self._context(at)
            if found is None:
                self._before[at] = _UNKNOWN
                self._missing.add(at)
                break
            chain[at] = found
            at = found.parent
        if at and at not in self._before:
            self._before[at] = _UNKNOWN  # too many, or they go round in a circle
        for identity, found in reversed(chain.items()):
            self._before[identity] = self._context_path(found)
        return self._before[context]

    def _context_path(self, context: Context) -> Before | None:
        memory, shape = self._memory_of(context.stack)
        parent = self._before[context.parent] if context.parent else None
        found = memory.created.get((shape, parent))
        if found is None:
            found = memory.created[shape, parent] = self._make_before(context.stack, parent)
        return found

    def _make_before(self, user: int, before: Before | None) -> Before | None:
        unwound = self._unwind(user)
        if unwound.path and is_of_scheduler(unwound.path[-1]):
            return None
        if not self._stack(user).frames:
            return _UNKNOWN
        before = self._origin(unwound, before)
        path = logical_projection(self._fold(unwound, before, False).path)
        if not path:
            return _UNKNOWN
        complete = self._is_complete(unwound, before)
        if len(path) > MAX_CONTEXT_FRAMES:
            path, complete = (TRUNCATED, *path[-MAX_CONTEXT_FRAMES:]), False
        return self._shared.before(path, complete)

    def _is_of_unseen_pool(self, unwound: Unwound) -> bool:
        """Whether a thread of a runtime without probes works, where nothing but its start can have been seen: then who
        takes part in the same work tells more."""
        _, owners, at = self._first(unwound)
        return any(agent is not None and agent.joins and not agent.hooks for agent in owners[:at])

    def _work(self, unwound: Unwound) -> tuple[FunctionId, ...]:
        """The body of parallel work that a stack's own frames begin with, or what it called as its last."""
        own, owners, at = self._first(unwound)
        if at is None:
            return ()
        runtime = next((agent for agent in owners[:at] if agent is not None and agent.joins), None)
        if runtime is not None:
            return (self._folder.handed_out(own[:at], own[at], runtime),)
        if self._folder.is_part(own[at]) or is_nameless(own[at].name):
            return (function_of(own[at]),)
        begin = self._begin(unwound)
        return () if begin is None else (begin,)

    def _begin(self, unwound: Unwound) -> FunctionId | None:
        """The function that a piece of work began with, where all of its frames are known."""
        if not unwound.whole:
            return None
        own, _, at = self._first(unwound)
        return function_of(own[at]) if at or (at == 0 and unwound.is_cut) else None

    def _first(self, unwound: Unwound) -> tuple[Path, Sequence[Agent | None], int | None]:
        """The work's own frames, whose they are, and which of them is the first that is no runtime's."""
        _, own = _split(unwound)
        owners = self._folder.owners(own)
        return own, owners, next((index for index, agent in enumerate(owners) if agent is None), None)

    def _is_idle(self, unwound: Unwound) -> bool:
        return all(agent is not None for agent in self._folder.owners(unwound.path))

    def _join(self, user: int, kernel: int, before: Before, function: FunctionId | None) -> Located:
        """``function``: what tells that this was created there; None: that is who waited for the `task`."""
        memory, shape = self._memory_of(user)
        found = memory.joined.get((shape, before, function))
        if found is None:
            unwound = self._unwind(user)
            pooled = self._pooled(unwound)
            task = self._task(unwound, None) if function is None else None
            if task is not None:
                folded = self._fold_from(unwound, task.start, before.path)
            elif function is None or pooled is None:
                folded = self._fold(unwound, before, True)
            else:
                folded = self._fold_from(unwound, pooled.start_of(function), before.path)
            complete = before.complete and (unwound.whole or pooled is not None or task is not None)
            kind = self._shared.kinds.kind(unwound.path)
            found = Located(folded.path, unwound.path, complete, kind)
            found = found.in_handler() if unwound.in_slot else found
            memory.joined[shape, before, function] = found
        return self._with_kernel(found, kernel) if kernel else found

    def _with_kernel(self, here: Located, kernel: int) -> Located:
        return self._shared.with_kernel(here, self._shared.below(kernel, lambda: self._kernel_path(kernel)))

    def ending_in(self, here: Located, below: Path) -> Located:
        """The same place with frames of the kernel below it."""
        return self._shared.with_kernel(here, self._shared.below_of(below))

    def _kernel_path(self, kernel: int) -> Path:
        rows = [self._resolve_kernel(address, is_return) for address, is_return in self._stack(kernel).frames]
        if in_handler(frame for row in rows for frame in row):
            return (PROFILING,)
        return tuple(frame for row in reversed(rows[-self._kernel_depth :]) for frame in reversed(row))


def _is_known(path: Path) -> bool:
    """Whether a call path begins where its beginning is known."""
    return path[0] not in (UNKNOWN_CONTEXT, TRUNCATED)


def _split(unwound: Unwound) -> tuple[Path, Path]:
    """What lies below the work on its stack, and the work's own frames."""
    at = len(unwound.path) - unwound.own
    return unwound.path[:at], unwound.path[at:]
