"""What is not over when a measurement is: it is read from what the programs know of each thread."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from parprof.kernel.glimpses import Glimpse
from parprof.kernel.objects import LoadedObject
from parprof.kernel.scopes import Scopes, wait_key
from parprof.model import Count, Facts, ThreadState, add_facts
from parprof.values import dataclass

_MOST_ANEW = 64
"""Threads that are looked at once more: each takes some 10 us, in which other waits may end."""


@dataclass(frozen=True)
class Unended:
    """What lasts at a time."""

    facts: Facts
    """Waits and stalls."""
    ready_ns: Mapping[int, int]
    """For how long working threads have had no CPU, by process image. Where context switches are not followed nobody
    saw when that ended: their samples tell."""


class PlacelessWait(NamedTuple):
    """A thread that sleeps, of which nobody saw where it went to sleep."""

    tid: int
    since_ns: int
    """Since when, or since it was met: CLOCK_MONOTONIC."""


class LastSeen(NamedTuple):
    """What the programs know of the sleep of a thread. Times are CLOCK_MONOTONIC, ns."""

    since_ns: int = 0
    """Since when it sleeps; 0: they do not know that it does."""
    in_glimpse: bool = False
    """It fell asleep in a glimpse: the rest of its sleep they do not count."""
    shown_ns: int = 0
    """When it had its last sample; 0: it has had none."""
    gap_ns: tuple[int, int] = (0, 0)
    """The last time that passed without one and was a long one: its begin and its end."""


def last_seen(loaded: LoadedObject, tid: int, image: int) -> LastSeen:
    """That of a thread of a process image."""
    thread = _thread(loaded, tid)
    if thread is None or thread.image != image:
        return LastSeen()
    since_ns = thread.wait_since_ns if thread.blocked else 0
    gap_ns = thread.gap_begun_ns, thread.gap_ended_ns
    return LastSeen(since_ns, bool(thread.wait_glimpse), thread.shown_ns, gap_ns)


def placeless_wait(loaded: LoadedObject, tid: int, image: int) -> PlacelessWait | None:
    """The one of a thread of a process image; None: it does not sleep, or it is known where."""
    thread = _thread(loaded, tid)
    if thread is None or thread.image != image or not thread.blocked or thread.wait_user:
        return None
    return PlacelessWait(tid, thread.wait_since_ns) if thread.wait_since_ns else None


def find_unended(
    loaded: LoadedObject,
    scopes: Scopes,
    images: Mapping[int, int],
    now_ns: int,
    *,
    follows_switches: bool,
    cut: Callable[[], None] | None = None,
) -> Unended:
    """``images``: of each process that is of interest its scope, by image. ``now_ns``: CLOCK_MONOTONIC.

    ``follows_switches``: whether context switches are followed at all. ``cut``: is called to have waits that end later
    count from ``now_ns`` on only. A wait that ends after its thread was read, and before that, counts as a whole: so
    threads are looked at again behind it.
    """
    facts, ready_ns = Facts(), Counter[int]()
    if not images:
        return Unended(facts, ready_ns)
    processes = list(loaded.entries("processes", "process"))
    since_ns = {
        one.image: max(one.waits_since_ns, _begun_ns(scopes, one.scope))
        for _, one in processes
        if one.waits_since_ns and one.image in images
    }
    followed = {one.image for _, one in processes if follows_switches and not one.ticks}
    for number in {number for image, number in images.items() if image in since_ns}:
        add_facts(facts, scopes.stall(number, now_ns))
    asleep = []
    for tid, thread in loaded.entries("threads", "thread"):
        if thread.image not in images:
            continue
        if thread.ready_since_ns and thread.image in followed:
            ready_ns[thread.image] += max(now_ns - thread.ready_since_ns, 0)
        if thread.image in since_ns and thread.blocked and thread.wait_since_ns and not thread.wait_glimpse:
            asleep.append((tid, thread))
    if cut is not None:
        cut()
        asleep = [*_still(loaded, asleep[:_MOST_ANEW]), *asleep[_MOST_ANEW:]]
    for _, thread in asleep:
        add_facts(facts, _wait(thread, since_ns[thread.image], now_ns))
    return Unended(facts, ready_ns)


def _thread(loaded: LoadedObject, tid: int) -> Any:
    """What the programs know of a thread; None: nothing."""
    return loaded.get("threads", struct.pack("<I", tid), "thread")


def _begun_ns(scopes: Scopes, number: int) -> int:
    """Since when the time of a scope is counted, if that is known to the programs alone."""
    state = scopes.state(number)
    return 0 if state is None else state.begun_ns


def _still(loaded: LoadedObject, asleep: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Those of these threads that are in the same wait."""
    for tid, thread in asleep:
        again = _thread(loaded, tid)
        if again is not None and again.wait_since_ns == thread.wait_since_ns:
            yield tid, thread


def cut_by_glimpse(loaded: LoadedObject, glimpse: Glimpse, until_ns: int) -> Facts:
    """The waits that began in a glimpse and were not over when it ended, up to then: nobody saw what came of them.

    Ask before the next one begins.
    """
    facts = Facts()
    for _, thread in loaded.entries("threads", "thread"):
        if thread.wait_glimpse == glimpse.number and thread.wait_since_ns:
            add_facts(facts, _wait(thread, glimpse.begin_ns, until_ns))
    return facts


def _wait(thread: Any, since_ns: int, now_ns: int) -> Facts:
    """The wait of a thread that sleeps, as far as it is of interest."""
    key = wait_key(
        ThreadState.BLOCKED,
        thread.image,
        thread.tid,
        thread.wait_user,
        thread.wait_kernel,
        thread.wait_context,
        thread.wait_epoch,
        thread.wait_glimpse,
        thread.awaits,
    )
    return {key: Count(1, max(now_ns - max(thread.wait_since_ns, since_ns), 0))}
