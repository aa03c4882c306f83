"""The table in which the programs count samples: read and emptied a phase at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter

from parprof.kernel import bpf
from parprof.kernel.objects import LoadedObject
from parprof.model import Fact, ThreadState

_STATES = tuple(ThreadState)
_KEY = attrgetter("phase", "image", "tid", "event", "state", "n_working", "unsure", "user_hash", "kernel_hash", "epoch",
    "context", "waiters", "fine")  # fmt: skip
_VALUE = attrgetter("count", "total")
_PATIENCE = 8
"""Drains that a sample waits for its stack, which found no room in the ring and comes with a later sample."""


class CountTable:
    """Takes the counts out, and holds back those whose stack is yet to come."""

    def __init__(self, loaded: LoadedObject, is_known: Callable[[int], bool]) -> None:
        """``is_known``: whether there is a stack of that id."""
        self._object = loaded
        self._is_known = is_known
        self._waiting: list[tuple[int, Fact]] = []
        self.without_stack = 0
        """Samples that were given out without their stack, which never came."""

    def take(self, phase: int) -> list[Fact]:
        """Read and delete what was counted in a phase, which the programs must have left."""
        definition, fd = self._object.definitions["counts"], self._object.maps["counts"]
        key_layout, value_layout = self._object.layouts["sample_key"], self._object.layouts["sample_value"]
        facts, seen = [], []
        for raw_key, raw_value in bpf.map_read_all(fd, definition["key_size"], definition["value_size"]):
            (
                counted_in,
                image,
                tid,
                event,
                state,
                n_working,
                unsure,
                user,
                kernel,
                epoch,
                context,
                waiters,
                fine,
            ) = _KEY(key_layout.from_buffer_copy(raw_key))
            if counted_in == phase:
                seen.append(raw_key)
                facts.append(
                    Fact(
                        image, tid, event, _STATES[state], n_working, bool(unsure), user, kernel,
                        *_VALUE(value_layout.from_buffer_copy(raw_value)), epoch, context, waiters, fine,
                    )
                )  # fmt: skip
        bpf.map_delete_batch(fd, seen)
        return facts

    def ready(self, facts: Iterable[Fact], drain: int) -> list[Fact]:
        """Those of these facts, and of earlier ones, whose stacks are there, or have not come for too long."""
        ready, late = [], []
        waiting, self._waiting = self._waiting, []
        for since, fact in (*waiting, *((drain, fact) for fact in facts)):
            if self._is_known(fact.user) and self._is_known(fact.kernel):
                ready.append(fact)
            elif drain - since < _PATIENCE:
                self._waiting.append((since, fact))
            else:
                late.append(fact)
        return ready + self._bare(late)

    def rest(self) -> list[Fact]:
        """Those that wait, without the stacks that have not come."""
        waiting, self._waiting = self._waiting, []
        return self._bare(fact for _, fact in waiting)

    def _bare(self, facts: Iterable[Fact]) -> list[Fact]:
        out = []
        for fact in facts:
            user, kernel = self._is_known(fact.user), self._is_known(fact.kernel)
            self.without_stack += fact.count
            out.append(replace(fact, user=fact.user if user else 0, kernel=fact.kernel if kernel else 0))
        return out
