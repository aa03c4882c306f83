"""Who was waited for when nobody worked: of threads that sleep, the last one to fall asleep has the stall, but where
that waits for another thread, and one of these sleeps for a time, a file or the like, it is that one which kept all.

Only a thread that waits for nobody among them can be the first to wake up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from parprof.attribution.waiting import WaitKind
from parprof.metrics import STALL, WAIT
from parprof.model import SEVERAL_THREADS, Origin, PathSample

_FOR_THREADS = frozenset(f"[waits: {kind.value}]" for kind in WaitKind if kind.is_for_threads)
_BY_ITSELF = re.compile(r"\[waits: (?:sleep|file|page fault|child)\]")
_ENOUGH = 0.8
"""Who kept the others asleep slept at least for so much of that time."""
_RIVAL = 0.3
"""Another thread that slept for so much of it may as well have been the one."""

ThreadId = tuple[int, int]


def with_sleepers(samples: Sequence[PathSample], cores: int) -> Sequence[PathSample]:
    """The samples with each stall at who kept the others asleep, where that is one thread. ``cores``: n."""
    stalled: dict[int, float] = {}
    for number, sample in enumerate(samples):
        stall = sample.metrics[STALL]
        if stall and sample.path and sample.path[-1].name in _FOR_THREADS:
            stalled[number] = stall
    if not stalled:
        return samples
    sleeper = _sleeper(samples, sum(stalled.values()) / cores)
    if sleeper is None:
        return samples
    out = list(samples)
    moved = 0.0
    for number, stall in stalled.items():
        if _thread(samples[number].origin) != _thread(samples[sleeper].origin):
            out[number] = _with_stall(samples[number], 0.0)
            moved += stall
    out[sleeper] = _with_stall(samples[sleeper], samples[sleeper].metrics[STALL] + moved)
    return out


def _sleeper(samples: Sequence[PathSample], stall: float) -> int | None:
    """Where the one thread slept most that slept by itself for about as long; ``None`` if there is none, or several.

    ``stall``: the time that passed while nobody worked.
    """
    slept: dict[ThreadId, float] = {}
    most: dict[ThreadId, int] = {}
    for number, sample in enumerate(samples):
        wait = sample.metrics[WAIT]
        if wait and sample.path and _BY_ITSELF.fullmatch(sample.path[-1].name):
            thread = _thread(sample.origin)
            slept[thread] = slept.get(thread, 0.0) + wait
            known = most.setdefault(thread, number)
            if wait > samples[known].metrics[WAIT]:
                most[thread] = number
    longest = max(slept, key=lambda thread: slept[thread], default=None)
    if longest is None or slept[longest] < _ENOUGH * stall:
        return None
    rivals = (wait for thread, wait in slept.items() if thread != longest or thread[1] == SEVERAL_THREADS)
    if any(wait >= _RIVAL * stall for wait in rivals):
        return None
    return most[longest]


def _thread(origin: Origin) -> ThreadId:
    return origin.pid, origin.tid


def _with_stall(sample: PathSample, stall_ns: float) -> PathSample:
    metrics = sample.metrics.copy()
    metrics[STALL] = stall_ns
    return replace(sample, metrics=metrics)
