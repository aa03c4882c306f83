"""Work of pools, shared among their callers, who wait for it or take part in it: part by part of the time, so that
nobody is given what was done while he did neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parprof.logical.callers import Before
from parprof.logical.owners import FunctionId
from parprof.logical.paths import LogicalPaths
from parprof.logical.pooled import Task
from parprof.logical.waited import Waited
from parprof.model import ACTIVATION, NO_EVENT, Count, SampleKey, ThreadState

Division = Mapping[SampleKey, Sequence[tuple[Before | None, int]]]
"""Who gets how much of what was counted under each key: only of pools' work. None: nobody is known to have waited for
it, or taken part."""


def divide(
    parts: Sequence[Mapping[SampleKey, Count]],
    paths: Callable[[SampleKey], LogicalPaths | None],
    period_ns: float,
) -> list[Division]:
    """How the work of pools is shared in each part of the time.

    ``paths``: of a key's process, by its load map then, if there are any. ``period_ns``: what a sample of the clock
    stands for.
    """
    waited = Waited()
    return [_divide(facts, paths, period_ns, waited) for facts in parts]


def together(divisions: Sequence[Division]) -> Division:
    """All of them as one."""
    sums: dict[SampleKey, dict[Before | None, int]] = {}
    for division in divisions:
        for key, shares in division.items():
            known = sums.setdefault(key, {})
            for before, share in shares:
                known[before] = known.get(before, 0) + share
    return {key: list(shares.items()) for key, shares in sums.items()}


def _divide(
    facts: Mapping[SampleKey, Count],
    paths: Callable[[SampleKey], LogicalPaths | None],
    period_ns: float,
    waited: Waited,
) -> Division:
    return {**_by_waits(facts, paths, period_ns, waited), **_by_parts(facts, paths, waited)}


def _by_waits(
    facts: Mapping[SampleKey, Count],
    paths: Callable[[SampleKey], LogicalPaths | None],
    period_ns: float,
    waited: Waited,
) -> Division:
    """Of work that callers only wait for: by how long they did."""
    tasks = {
        key: task
        for key in facts
        if (known := paths(key)) is not None and (task := known.task(key.user, key.context)) is not None
    }
    if not tasks:
        return {}
    waiting_ns: dict[tuple[int, str], dict[Before, int]] = {}
    """By process image and pool."""
    for key, count in facts.items():
        known, ns = paths(key), _waiting_ns(key, count, period_ns)
        found = known.waits(key.user, key.context) if known is not None and ns else None
        if found is not None:
            callers = waiting_ns.setdefault((key.image, found[0].name), {})
            callers[found[1]] = callers.get(found[1], 0) + ns
    return {
        key: waited.split(
            f"{key.image} {task.pool.name}",
            key.event,
            _callers_of(task, key.image, waiting_ns),
            _amount(key, facts[key]),
        )
        for key, task in tasks.items()
    }


def _by_parts(
    facts: Mapping[SampleKey, Count], paths: Callable[[SampleKey], LogicalPaths | None], waited: Waited
) -> Division:
    """Of work that callers do a part of: by the samples of it that they have themselves."""
    works = {
        key: function
        for key in facts
        if (known := paths(key)) is not None
        and (function := known.shared_work(key.user, key.context)) is not None
    }
    if not works:
        return {}
    wanted = {(key.image, function) for key, function in works.items()}
    samples: dict[tuple[int, FunctionId], dict[Before, int]] = {}
    """By process image and what is done."""
    for key, count in facts.items():
        known = paths(key) if key.event == 0 else None
        for function, before in known.creators(key.user, key.context) if known is not None else ():
            if (key.image, function) in wanted:
                callers = samples.setdefault((key.image, function), {})
                callers[before] = callers.get(before, 0) + count.samples
    return {
        key: waited.split(
            f"{key.image} {function}",
            key.event,
            samples.get((key.image, function), {}),
            _amount(key, facts[key]),
        )
        for key, function in works.items()
    }


def _callers_of(
    task: Task, image: int, waiting_ns: Mapping[tuple[int, str], Mapping[Before, int]]
) -> Mapping[Before, int]:
    """For how long who waited that may have waited for it."""
    if not task.or_of:
        return waiting_ns.get((image, task.pool.name), {})
    out: dict[Before, int] = {}
    for pool in (task.pool, *task.or_of):
        out.update(waiting_ns.get((image, pool.name), {}))
    return out


def _waiting_ns(key: SampleKey, count: Count, period_ns: float) -> int:
    """For how long a thread was there: asleep, or on a CPU."""
    if key.event == NO_EVENT:
        return count.total if key.state is ThreadState.BLOCKED else 0
    return round(count.samples * period_ns) if key.event == 0 else 0


def _amount(key: SampleKey, count: Count) -> int:
    """What is shared of what was counted under a key: see `parprof.model.Count`."""
    return count.samples if key.event in (0, ACTIVATION) else count.total
