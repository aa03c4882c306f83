"""How process images come under observation: from outside, while they run, or as what the programs tell of."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace

from parprof.errors import TargetError
from parprof.kernel import records
from parprof.kernel.records import ControlRecord
from parprof.process.identity import Process, inspect, is_32_bit
from parprof.process.threads import is_running
from parprof.session.lifecycle import End, Lives, State
from parprof.session.passed import Fork, Passed, execs_of_forks
from parprof.session.scopes import Scope
from parprof.session.target import Target, Watched
from parprof.untrusted import visible


class Arrivals:
    """Makes the targets of a session, and puts each into its scope. What becomes of them then is `Lives`' to say."""

    def __init__(
        self,
        watched: Watched,
        lives: Lives[Target],
        one_job: bool,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """``one_job``: all processes are one scope; else each is its own, with the children that it forks.

        ``on_first``: called when all is prepared for the first one, immediately before it is counted.
        """
        self._watched = watched
        self._kernel = watched.kernel
        self._lives = lives
        self._one_job = one_job
        self._on_first = on_first
        self._next_image = 1
        self._passed = Passed()
        self.scopes: dict[int, Scope] = {}
        """By number."""

    def watch(
        self,
        pid: int,
        *,
        follow: bool = False,
        stop: bool = False,
        patient: Callable[[int], bool] | None = None,
        wait: bool = True,
        children: Collection[int] = (),
    ) -> Target:
        """Begin to profile a running process.

        ``follow``: children that it forks, too. ``stop``: it has yet to exec, and is to be stopped at each exec until
        its probes are in place. ``patient``: see `Target.prepare`; without it stacks are cut short until tables that
        have to be built are there. Not to ``wait`` means not to begin before everything is known of its files.
        ``children``: processes that are to be counted from the same moment on; those that are gone are left out.

        Raises:
            TargetError: gone, a kernel thread, a zombie; FilesUnknown: try again.
        """
        target = self._meet(pid, self._scope_for(self._next_image), follow, stop)
        with self._or_forget(target):
            if stop:
                self._note_first()
                self._kernel.watch(
                    pid, target.image, target.config(), from_exec=True, scope=target.scope.number
                )
                self._join(target)
                return target
            target.prepare(patient, wait)
            others = self._prepared(children, target, patient, wait)
            if wait:
                self._kernel.await_programs()
        self._begin(target, others, wait)
        return target

    def _begin(self, target: Target, children: Sequence[Target], wait: bool) -> None:
        """Count prepared processes from one moment on; children that are gone by now are left out."""
        together = (target, *children)
        self._note_first()
        # where somebody runs, the job's time begins with the first thread that is seen to work
        begun_ns = 0 if any(is_running(one.pid) for one in together) else time.monotonic_ns()
        with self._or_forget(*together):
            target.begin(begun_ns, wait)
            self._join(target)
        for child in children:
            with suppress(TargetError), self._or_forget(child):
                child.begin(begun_ns, wait)
                self._join(child)

    def _note_first(self) -> None:
        if not self.scopes:
            self._on_first()

    def _prepared(
        self, children: Collection[int], parent: Target, patient: Callable[[int], bool] | None, wait: bool
    ) -> list[Target]:
        """The children that are not watched yet and live, ready to begin."""
        found = []
        for pid in children:
            if not self.is_watched(pid):
                with suppress(TargetError):
                    scope = parent.scope if self._one_job else self._scope_for(self._next_image)
                    child = self._meet(pid, scope, parent.follows, stop=False)
                    with self._or_forget(child):
                        child.prepare(patient, wait)
                    found.append(child)
        return found

    def _meet(self, pid: int, scope: Scope, follow: bool, stop: bool) -> Target:
        """A process that runs already, for which nothing has been done yet.

        Raises:
            TargetError: gone, a kernel thread, a zombie, none that can be profiled.
        """
        process = inspect(pid)
        self._lives.make_room(pid)
        target = Target(self._watched, process, self._next_image, follow=follow, stop=stop, scope=scope)
        self._next_image += 1
        with self._or_forget(target):
            # from now on the descriptor in `target` keeps the PID from meaning another
            if inspect(pid).start_ticks != process.start_ticks:
                raise TargetError(f"process {pid} ended while we attached to it")
            if is_32_bit(pid):
                raise TargetError(
                    f"process {pid} ({process.comm}) is a 32-bit program: only 64-bit ones can be profiled"
                )
            self._lives.begin(target, State.SETTLED, time.monotonic())
        return target

    @contextmanager
    def _or_forget(self, *targets: Target) -> Iterator[None]:
        """What fails in this context leaves nothing of the targets."""
        try:
            yield
        except BaseException:
            for target in targets:
                self._lives.end(target, End.FAILED)
                self._lives.forget(target)
                if target.scope.number not in self.scopes:
                    self._kernel.scopes.forget(target.scope.number)
            raise

    def _join(self, target: Target) -> None:
        """A process image counts in its scope from now on."""
        self.scopes.setdefault(target.scope.number, target.scope).add(target)

    def _scope_for(self, image: int) -> Scope:
        """The scope of a process that comes from outside."""
        if self._one_job and self.scopes:
            return next(iter(self.scopes.values()))
        return Scope(self._kernel.scopes, image)

    def is_watched(self, pid: int) -> bool:
        """Whether the programs count it already, as they do with children whose parent is followed."""
        return self._lives.live(pid) is not None or self._kernel.process_state(pid) is not None

    def drop(self, images: Set[int]) -> None:
        """These images have been dealt with: their scopes go with the last of theirs."""
        for number, scope in list(self.scopes.items()):
            for image in images & scope.members.keys():
                scope.remove(image)
            if not scope.members:
                del self.scopes[number]
                self._kernel.scopes.forget(number)

    def let_pass(self, batch: Sequence[ControlRecord]) -> Iterator[ControlRecord]:
        """Those records of a batch that are to be acted upon, before the next one is asked for.

        That is all but the forks that have called exec by now.
        """
        execs = execs_of_forks(batch)
        for record in batch:
            over = execs.get(record.image) if record.kind == records.RECORD_FORK else None
            parent = self._lives.newest(record.parent_pid) if over is not None else None
            if over is None or parent is None:
                yield record
                continue
            self._lives.make_room(record.pid)
            self._passed.add(Fork(record, parent, over.time_ns))

    def remember(self, image: int) -> Target | None:
        """The target of an image that was let pass, since there are samples of it; None: it is none."""
        fork = self._passed.take(image)
        if fork is None:
            return None
        parent, record = fork.parent, fork.record
        target = Target(
            self._watched,
            self._describe(record, parent),
            image,
            follow=parent.follows,
            stop=parent.stops,
            scope=parent.scope,
            program=record.address,
            like=parent,
            begun_ns=record.time_ns,
            ended_ns=fork.ended_ns,
        )
        self._join(target)
        target.inherit(parent)
        self._lives.remember(target, End.REPLACED)
        return target

    def new_image(self, record: ControlRecord) -> None:
        """A watched process called exec, or a child was forked: the kernel already counts the new image."""
        is_exec = record.kind == records.RECORD_EXEC
        before = self._lives.newest(record.pid if is_exec else record.parent_pid)
        if not is_exec:
            self._lives.make_room(record.pid)
        elif before is not None:
            before.observe()  # what the kernel keeps of the image that was replaced
            self._lives.end(before, End.REPLACED)
        else:
            before = self._passed.parent_of(record.pid)
        like = before if before and not (record.stopped or (is_exec and not before.stops)) else None
        scope = before.scope if before is not None else self._scope_for(record.image)
        try:
            target = Target(
                self._watched,
                self._describe(record, like),
                record.image,
                follow=before.follows if before else False,
                stop=before.stops if before else False,
                scope=scope,
                program=record.address,
                like=like,
                begun_ns=record.time_ns,
            )
        except TargetError:
            self._kernel.unwatch(record.pid)
            return
        self._join(target)
        if is_exec:  # who was before may have been allowed more
            scope.look_at(target)
        elif before is not None:
            target.inherit(before)
        self._lives.begin(target, target.first_state, time.monotonic())
        if target.life.state is State.SETTLED:
            if record.stopped:
                target.start_again(started_libraries=False)
            else:
                target.refresh()
        elif target.life.state is State.YOUNG and not is_exec and before is not None:
            self._watched.placer.inherit(before.pid, target.pid)

    @staticmethod
    def _describe(record: ControlRecord, like: Target | None) -> Process:
        """The process that a record is about; with ``like``, what is known of it without looking.

        Raises:
            TargetError: it is gone.
        """
        if like is None:
            return inspect(record.pid)
        if record.kind == records.RECORD_FORK:
            return replace(like.process, pid=record.pid)
        comm = visible(record.comm.encode())
        return replace(like.process, pid=record.pid, comm=comm, command=f"[{comm}]", exe="")
