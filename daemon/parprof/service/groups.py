"""Accounts of processes with the same name, unit, container and pod, which stay when the processes end.

They are what metrics without the label ``pid`` are made of: however many processes come and go, there are as many
series as groups. No counter falls when a process ends, and what it had until then is in no series twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from operator import add

from parprof.metrics import READY, UNUSED
from parprof.model import PathSample
from parprof.service.accounts import Account
from parprof.service.levels import NONE
from parprof.service.metrics.series import OTHER, label
from parprof.service.model import GroupKey, GroupSnapshot, Labels

MAX_GROUPS = 500
"""Groups that have series of their own; later ones share one."""

KEPT_SECONDS = 3600.0
"""A group whose last process ended so long ago is forgotten: should it come again, its counters begin at 0, which
Prometheus takes for a restart and adds up rightly."""

REST = GroupKey(OTHER)


class Group:
    """One group's account. It only ever grows."""

    def __init__(self, key: GroupKey, now_s: float) -> None:
        """``now_s``: of the clock of `Groups`."""
        self.key = key
        self.members = 0
        """Processes that live."""
        self.left_s = now_s
        """When the last one ended."""
        self.folded = 0
        self.levels_s = NONE
        self.is_parallel = False
        """Whether one of its processes has, or had, a second thread."""
        self.account = Account(time.time())

    def charge(
        self,
        rows: Iterable[PathSample],
        unused_ns: float | None,
        levels_s: tuple[float, ...],
        folded: int,
        ready_ns: float = 0.0,
    ) -> None:
        """What one of its processes had in one interval. ``unused_ns``: None if that is serial by design.

        ``ready_ns``: time without a CPU that is in no row.
        """
        self.account.add(rows)
        self.account.totals[READY] += ready_ns
        if unused_ns is not None:
            self.is_parallel = True
            self.account.totals[UNUSED] += unused_ns
        self.levels_s = tuple(map(add, self.levels_s, levels_s))
        self.folded += folded

    def snapshot(self, functions: int) -> GroupSnapshot:
        """All that it was charged with, with so many of its costliest functions by name."""
        account = self.account
        return GroupSnapshot(
            self.key,
            account.totals.copy(),
            account.functions(functions),
            self.levels_s,
            self.folded,
            self.is_parallel,
        )


class Groups:
    """All groups, a bounded number of them. For one thread."""

    def __init__(self, limit: int = MAX_GROUPS, clock: Callable[[], float] = time.monotonic) -> None:
        """At most ``limit`` groups and one for the rest."""
        self.limit = limit
        self._clock = clock
        self._groups: dict[GroupKey, Group] = {}

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._groups)

    def join(self, labels: Labels) -> Group:
        """The group of a process that has begun; to be left when it ends.

        A process stays in its group for life, whatever it is called later.
        """
        key = clean_key(labels)
        if key not in self._groups and len(self._groups) >= self.limit:
            self._forget_old()
            if len(self._groups) >= self.limit:
                key = REST
        group = self._groups.setdefault(key, Group(key, self._clock()))
        group.members += 1
        return group

    def leave(self, group: Group) -> None:
        """A process of the group has ended, and all that it had was charged."""
        group.members -= 1
        group.left_s = self._clock()

    def snapshots(self, functions: int) -> tuple[GroupSnapshot, ...]:
        """All groups, without those that are long gone."""
        self._forget_old()
        return tuple(group.snapshot(functions) for group in self._groups.values())

    def _forget_old(self) -> None:
        oldest_s = self._clock() - KEPT_SECONDS
        kept = {key: one for key, one in self._groups.items() if one.members or one.left_s > oldest_s}
        if len(kept) < len(self._groups):
            self._groups = kept


def clean_key(labels: Labels) -> GroupKey:
    """The group of a process as label values: two keys that look the same are the same."""
    own = labels.group
    return GroupKey(
        label(own.comm), label(own.unit), label(own.container), label(own.namespace), label(own.pod)
    )
