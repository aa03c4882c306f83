"""The sizes of inputs by the sets of coppa-2013's figure 10: what `parprof input` is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

ENTER, LEAVE, READ, WRITE, KERNEL_WRITE, EXIT, FORGET = range(7)

Event = tuple[int, int, int]
"""A kind, a thread, and a routine or a cell."""


class Sizes(NamedTuple):
    trms: int
    rms: int
    induced: int
    external: int
    blocks: int


@dataclass
class Activation:
    routine: int
    trms: int = 0
    rms: int = 0
    induced: int = 0
    external: int = 0
    blocks: int = 0
    current: set[int] = field(default_factory=set)
    """L of figure 10: what nobody else has written since."""
    ever: set[int] = field(default_factory=set)

    def sizes(self) -> Sizes:
        return Sizes(self.trms, self.rms, self.induced, self.external, self.blocks)


@dataclass
class NaiveThread:
    pending: list[Activation] = field(default_factory=list)
    written_by: dict[int, str] = field(default_factory=dict)
    """By cell, who else wrote it since this thread last accessed it."""


class Naive:
    """Definitions 1 to 3, with a set for each activation. Which kind an induced access is follows figure 11."""

    def __init__(self) -> None:
        self.threads: dict[int, NaiveThread] = {}
        self.ended: list[tuple[int, Sizes]] = []
        """By activation, which routine's it was."""
        self.latest: dict[int, str] = {}

    def take(self, event: Event) -> None:
        kind, number, what = event
        if number not in self.threads:
            self.threads[number] = NaiveThread(written_by=dict(self.latest))
        thread = self.threads[number]
        if kind in (READ, WRITE):
            self._access(thread, what, is_read=kind == READ)
        if kind in (WRITE, KERNEL_WRITE):
            kernel = kind == KERNEL_WRITE
            self.latest[what] = "external" if kernel else "induced"
            for other in self.threads.values():
                if other is not thread or kernel:
                    other.written_by[what] = self.latest[what]
                    for activation in other.pending:
                        activation.current.discard(what)
        if kind == ENTER:
            self._spend(thread, 3)
            thread.pending.append(Activation(what))
        elif kind == LEAVE:
            self._spend(thread, 2)
            self._end(thread, 1)
        elif kind == EXIT:
            self._end(thread, len(thread.pending))
            del self.threads[number]
        elif kind == FORGET:
            self._forget(what)

    def _forget(self, cell: int) -> None:
        """Memory that was given back is new when it is there again."""
        self.latest.pop(cell, None)
        for thread in self.threads.values():
            thread.written_by.pop(cell, None)
            for activation in thread.pending:
                activation.current.discard(cell)
                activation.ever.discard(cell)

    def _access(self, thread: NaiveThread, cell: int, is_read: bool) -> None:
        source = thread.written_by.pop(cell, None)
        self._spend(thread, int(is_read))
        for activation in thread.pending:
            if is_read:
                activation.trms += cell not in activation.current
                activation.rms += cell not in activation.ever
                activation.induced += source == "induced"
                activation.external += source == "external"
            activation.current.add(cell)
            activation.ever.add(cell)

    @staticmethod
    def _spend(thread: NaiveThread, blocks: int) -> None:
        for activation in thread.pending:
            activation.blocks += blocks

    def _end(self, thread: NaiveThread, n: int) -> None:
        for _ in range(min(n, len(thread.pending))):
            activation = thread.pending.pop()
            self.ended.append((activation.routine, activation.sizes()))

    def finish(self) -> dict[int, Sizes]:
        """All that is pending ends. By routine, if each is called once."""
        for thread in self.threads.values():
            self._end(thread, len(thread.pending))
        return dict(self.ended)
