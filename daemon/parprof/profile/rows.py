"""Facts to rows: each sample's call paths, logical and physical, with the metrics that it is charged with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from parprof.attribution.concurrency import levels_of, plus
from parprof.attribution.counters import CYCLES, INSTRUCTIONS
from parprof.attribution.idleness import attribute
from parprof.attribution.waiting import WaitKind
from parprof.facts.cores import mean_cores, usual_cores
from parprof.facts.drain import Drain, Image, MeasuredImage
from parprof.facts.sleepers import MOST as MOST_THREADS
from parprof.kernel.stacks import StackTable
from parprof.logical import Located, LogicalPaths, PathMemory, StackShape
from parprof.logical.overhead import TAG
from parprof.metrics import ACTIVATIONS, BLAME, OUTSIDE, PROFILING, SAMPLES, STALL, WAIT, Metrics
from parprof.model import (
    ACTIVATION,
    NO_EVENT,
    NOBODY,
    Count,
    Facts,
    Levels,
    Origin,
    Path,
    PathSample,
    SampleKey,
    ThreadState,
)
from parprof.profile.addresses import AddressBook
from parprof.profile.beside_pools import n_working_beside_pools
from parprof.profile.called import called
from parprof.profile.fine import fine_n_working
from parprof.profile.wait_reasons import WaitReasons
from parprof.profile.waited import Division, divide, together
from parprof.runtimes import Agent

_RowKey = tuple[int, int, int, int]
"""Identities of the logical and the physical path; image, thread."""
_Paths = tuple[Path, Path]
"""The one object for a logical path, and that for its physical one: empty where that is the same."""
_MOST_ORIGINS = 1 << 13
_FEWEST_STACKS = 1 << 10
"""So many are remembered at least before any is forgotten."""


class RowMaker:
    """Makes rows of facts. Keeps the paths of processes until `forget`."""

    def __init__(
        self,
        book: AddressBook,
        cores: int | None = None,
        tag: re.Pattern[str] = TAG,
        *,
        by_thread: bool = False,
    ) -> None:
        """``cores``: n, if the user says so. ``tag``: tells overhead that the program tagged.

        ``by_thread``: origins tell threads of one name apart; that is more than the daemon can remember of all
        processes, see `tell_threads`.
        """
        self._book = book
        self._cores = cores
        self._tag = tag
        self._by_thread = by_thread
        self._told_threads: dict[int, set[int]] = {}
        """By image of which threads are told apart, those that are."""
        self._paths: dict[tuple[int, int], LogicalPaths] = {}
        """By image and epoch."""
        self._memories: dict[tuple[Agent, ...], PathMemory] = {}
        self._located: dict[int, tuple[Located, _Paths]] = {}
        """By its identity: what was located, with its paths."""
        self._calls: dict[int, tuple[Located, _Paths | None]] = {}
        """As `_located`, for the functions that these places are in."""
        self._interned: dict[Path, Path] = {}
        self._most_stacks = _FEWEST_STACKS
        """When there are more, all are forgotten."""
        self._has_forgotten = False
        """In the last `trim`: what is remembered since then is what is in use."""
        self._origins: dict[Origin, Origin] = {}
        """One object for all rows of the same origin, of all drains: it is then compared by identity."""
        self._reasons = WaitReasons(book.kernel_frames)
        self.samples = 0
        """Samples of the clock event so far."""
        self.unsure = 0
        """Those whose n_w is partly a guess."""
        self.cut: Counter[str] = Counter()
        """Those whose stack does not reach the outermost frame, by why: one of `parprof.kernel.stacks.STACK_ENDS`, or
        ``missing``, the stack never came."""
        self.leaving = 0
        """Those in exec or exit, which have none."""
        self.incomplete_though_whole = 0
        """Those whose logical path is not whole, although their stack is."""
        self.fine = 0
        """Those of threads that worked in phases so short that n_w is a mean over all of them."""
        self._spun_alone: dict[int, tuple[PathSample, float]] = {}
        """Rows by their identity, with how many of their samples spun while nobody worked."""
        self._glimpsed: dict[int, tuple[PathSample, Metrics]] = {}
        """Rows by their identity, with the waits and stalls that glimpses are of."""
        self.fine_n_working: dict[int, float] = {}
        """That mean in the rows made last, by image."""
        self.joined = self.waited = self.unknown = self.incomplete = 0
        """Those shared among the paths that create such work, or that waited for it; of unknown context; and those
        whose logical path is not whole."""
        self._beside_pools: dict[SampleKey, float] = {}
        """n_w in the rows made last where a pool's callers tell it."""
        self.divisions: list[Division] = []
        """How the work of pools in the rows made last is shared, for each part of the time that they were made of."""
        self._division: Division = {}
        """The same of all of the time."""

    def tell_threads(self, images: Collection[int]) -> None:
        """Tell apart the threads of these processes from now on, and no others'.

        Of each process the first `MOST_THREADS`, and four times as many where they do more than sleep.
        """
        self._told_threads = {image: self._told_threads.get(image, set()) for image in images}

    def _tells(self, key: SampleKey) -> bool:
        """Whether the thread is told apart from others of its name."""
        if self._by_thread:
            return True
        told = self._told_threads.get(key.image)
        most = MOST_THREADS if key.event == NO_EVENT else 4 * MOST_THREADS
        if told is None or (key.tid not in told and len(told) >= most):
            return False
        told.add(key.tid)
        return True

    @property
    def cut_short(self) -> int:
        """Samples whose stack does not reach the outermost frame."""
        return self.cut.total()

    def cores_of(self, image: Image | None) -> int:
        """n for a process, now."""
        return self._cores or (image.parallel_cores() if image else 1)

    def mean_cores(self, image: MeasuredImage) -> float:
        """n for a process, over all of its time."""
        return self._cores or mean_cores(image.cores_held())

    def usual_cores(self, image: MeasuredImage) -> int:
        """The n that a process had for longest."""
        return self._cores or usual_cores(image.cores_held())

    def _by_cores(self, drain: Drain, image: Image | None, key: SampleKey) -> Iterable[tuple[int, Count]]:
        """The samples of a key, by n when they were counted."""
        divided = drain.by_cores.get(key)
        if divided is None or image is None or self._cores:
            return ((self.cores_of(image), drain.facts[key]),)
        return ((image.parallel_cores(allowed), count) for allowed, count in divided.items())

    def rows(
        self, drain: Drain, parts: Sequence[Facts] = (), division: Division | None = None
    ) -> list[PathSample]:
        """The rows of these facts; together they have all of their samples.

        ``parts``: the same facts by when they were counted, if that is known. ``division``: how work of pools is shared
        where that has been found already: one of the `divisions` of rows that these are a part of.
        """
        facts = drain.facts
        self._book.look_up(drain)
        self._spun_alone.clear()
        self._glimpsed.clear()
        self.fine_n_working = fine_n_working(drain, self._by_cores)
        groups: dict[tuple[int, int], list[SampleKey]] = {}
        for key in facts:
            groups.setdefault((key.image, key.epoch), []).append(key)
        out: dict[_RowKey, PathSample] = {}
        for (number, epoch), keys in groups.items():
            paths = self._paths.get((number, epoch))
            if paths is None:
                image = drain.images.get(number)
                paths = self._paths[number, epoch] = self._make_paths(drain.stacks, image, number, epoch)
            paths.learn((key.user, key.context, facts[key].samples) for key in keys if key.event == 0)
        if division is None:
            found = divide(
                parts or (facts,),
                lambda key: self._paths.get((key.image, key.epoch)),
                1e9 / drain.frequency_hz,
            )
            self.divisions, division = found, together(found)
        self._division = division
        self._beside_pools = n_working_beside_pools(
            facts,
            lambda key: self._paths.get((key.image, key.epoch)),
            lambda key: 0 if key in drain.by_cores else self.cores_of(drain.images.get(key.image)),
        )
        for (number, epoch), keys in groups.items():
            image, paths = drain.images.get(number), self._paths[number, epoch]
            before = (
                paths.joined_samples, paths.waited_samples, paths.unknown_samples, paths.incomplete_samples,
            )  # fmt: skip
            for key in keys:
                for cores, count in self._by_cores(drain, image, key):
                    self._add(out, drain, paths, image, cores, key, count)
            self.joined += paths.joined_samples - before[0]
            self.waited += paths.waited_samples - before[1]
            self.unknown += paths.unknown_samples - before[2]
            self.incomplete += paths.incomplete_samples - before[3]
        return list(out.values())

    def _make_paths(self, stacks: StackTable, image: Image | None, number: int, epoch: int) -> LogicalPaths:
        def shape(stack: int) -> StackShape | None:
            raw = stacks.raw(stack)
            return (
                None
                if raw is not None and (raw.python or raw.is_own)
                else self._book.shape(number, epoch, stack)
            )

        agents = tuple(image.agents) if image else ()
        memory = self._memories.get(agents)
        if memory is None:
            memory = self._memories[agents] = PathMemory.of(agents, self._tag)
        return LogicalPaths(
            stacks.get,
            stacks.context,
            lambda address, is_return: self._book.frames(number, epoch, address, is_return),
            self._book.kernel_frames,
            merge=image.merge if image else None,
            shape=shape,
            memory=memory,
            kernel_depth=self._book.kernel_depth,
        )

    def _add(
        self,
        out: dict[_RowKey, PathSample],
        drain: Drain,
        paths: LogicalPaths,
        image: Image | None,
        cores: int,
        key: SampleKey,
        count: Count,
    ) -> None:
        if key.event == NO_EVENT:
            self._add_wait(out, drain, paths, image, cores, key, count)
            return
        if key.event == ACTIVATION:
            self._add_activations(out, drain, paths, image, key, count)
            return
        is_clock = key.event == 0
        amount = count.samples if is_clock else count.total
        reason = ""
        counts_cycles = (
            drain.events[0] == CYCLES and INSTRUCTIONS in drain.events
        )  # which is read as their ratio
        if is_clock:
            self.samples += amount
            self.unsure += count.unsure
            self.fine += amount * (key.fine > 0 and key.state is ThreadState.WORKING)
            reason = _cut_by(key.user, drain.stacks)
            if not key.user:
                self.leaving += amount
            elif reason:
                self.cut[reason] += amount
        incomplete = paths.incomplete_samples
        for located, share in self._shares(paths, key, key.kernel, amount):
            overhead = located.overhead if key.state is ThreadState.WORKING else ""
            period_ns = 1e9 / drain.frequency_hz
            levels: Levels = ()
            if is_clock and located.profiling:
                metrics = Metrics.of({SAMPLES: share, PROFILING: share * period_ns})
            elif is_clock:
                n_working = (
                    self.fine_n_working.get(key.image, 0.0) if key.fine else self._beside_pools.get(key, 0.0)
                ) or key.n_working
                metrics = attribute(
                    share,
                    period_ns,
                    n_working,
                    cores,
                    key.state,
                    overhead=overhead != "",
                    away=key.away,
                )
                if key.waiters:
                    metrics[BLAME] = share * period_ns * key.waiters
                if key.state is ThreadState.WORKING:
                    levels = levels_of(share * period_ns, n_working, cores)
            else:
                metrics = Metrics(events={drain.events[key.event]: share})
            if is_clock and counts_cycles:
                metrics.events = {CYCLES: round(share * count.total / count.samples)}
            row = self._charge(out, drain, key, self._paths_of(located), image, overhead, metrics)
            row.levels = plus(row.levels, levels)
            if is_clock and key.state is ThreadState.SPINNING and not key.n_working:
                self._spun_alone[id(row)] = row, self._spun_alone.get(id(row), (row, 0.0))[1] + share
        if is_clock and not reason:
            self.incomplete_though_whole += paths.incomplete_samples - incomplete

    def _shares(
        self, paths: LogicalPaths, key: SampleKey, kernel: int, amount: int
    ) -> list[tuple[Located, int]]:
        """Where an amount of what was counted under a key was, below a kernel stack."""
        waited = self._division.get(key, ())
        return paths.shares(key.user, kernel, key.context, amount, key.event, waited)

    def _largest(self, paths: LogicalPaths, key: SampleKey) -> Located:
        """Where samples are, or a thread sleeps: of several call paths that share them the one with most."""
        kernel = key.kernel * (key.event != NO_EVENT)
        waited = self._division.get(key, ())
        shares = paths.shares(key.user, kernel, key.context, 1 << 16, NO_EVENT, waited)
        return max(shares, key=lambda share: share[1])[0]

    def path_of(self, drain: Drain, key: SampleKey) -> Path:
        """The logical call path of samples that the rows made last are of; empty where nothing is known.

        Of work that is shared among several call paths, the one with the largest share.
        """
        paths = self._paths.get((key.image, key.epoch))
        if paths is None:
            return ()
        located = self._largest(paths, key)
        if key.event == NO_EVENT:
            located = paths.ending_in(
                located, self._reasons.below(key, self._reasons.told(drain.stacks, key), located)
            )
        return located.path

    def wait_kind(self, drain: Drain, key: SampleKey) -> WaitKind:
        """What a thread waits for, of a wait that the rows made last are of."""
        kind = self._reasons.told(drain.stacks, key)
        paths = self._paths.get((key.image, key.epoch))
        return self._reasons.at(kind, self._largest(paths, key)) if paths is not None and key.user else kind

    def spun_alone(self) -> list[tuple[PathSample, float]]:
        """Rows made last of threads that spun while nobody worked, with how often they were sampled so."""
        return list(self._spun_alone.values())

    def glimpsed(self) -> list[tuple[PathSample, Metrics]]:
        """Rows made last with what of their waits and stalls is estimated from glimpses: see `SampleKey.glimpse`."""
        return list(self._glimpsed.values())

    def _add_wait(
        self,
        out: dict[_RowKey, PathSample],
        drain: Drain,
        paths: LogicalPaths,
        image: Image | None,
        cores: int,
        key: SampleKey,
        count: Count,
    ) -> None:
        """Time that a thread slept, or that nobody worked since it went to sleep."""
        kind = self._reasons.told(drain.stacks, key)
        for located, share in self._shares(paths, key, 0, count.total):
            if key.state is ThreadState.BLOCKED:
                metrics = Metrics.of({WAIT: share})
            else:
                told = self._reasons.at(kind, located) if key.user else kind
                metrics = Metrics.of({OUTSIDE if told.is_outside else STALL: share * cores})
            where = self._paths_of(paths.ending_in(located, self._reasons.below(key, kind, located)))
            if key.state is ThreadState.STALLED and not key.user:
                where = self._one_object(NOBODY, NOBODY)
            row = self._charge(out, drain, key, where, image, "", metrics)
            if key.glimpse:
                self._glimpsed.setdefault(id(row), (row, Metrics()))[1].add(metrics)

    def _add_activations(
        self,
        out: dict[_RowKey, PathSample],
        drain: Drain,
        paths: LogicalPaths,
        image: Image | None,
        key: SampleKey,
        count: Count,
    ) -> None:
        """Calls of the innermost function of a stack: where it is a row of its own, that has nothing but these."""
        for located, share in self._shares(paths, key, 0, count.samples):
            pair = self._called(located)
            if pair is not None:
                self._charge(out, drain, key, pair, image, "", Metrics.of({ACTIVATIONS: share}))

    def _called(self, located: Located) -> _Paths | None:
        """The function that a stack ends in, as a call path; None if it has no place of its own there."""
        known = self._calls.get(id(located))
        if known is None:
            found = called(located.path, located.physical)
            known = self._calls[id(located)] = located, found and self._one_object(*found)
        return known[1]

    def _charge(
        self,
        out: dict[_RowKey, PathSample],
        drain: Drain,
        key: SampleKey,
        where: _Paths,
        image: Image | None,
        overhead: str,
        metrics: Metrics,
    ) -> PathSample:
        path, physical = where
        row_key = id(path), id(physical), key.image, key.tid
        row = out.get(row_key)
        if row is not None:
            row.metrics.add(metrics)
            return row
        row = out[row_key] = PathSample(path, metrics, self._origin(drain, key, image, overhead), physical)
        return row

    def _origin(self, drain: Drain, key: SampleKey, image: Image | None, overhead: str) -> Origin:
        process = image.process if image else None
        origin = Origin(
            process.pid if process else 0,
            process.comm if process else "?",
            drain.thread_names.get((key.image, key.tid)) or str(key.tid),
            image.runtime if image else "",
            overhead,
            key.image,
            tid=key.tid if self._tells(key) else 0,
        )
        return self._origins.setdefault(origin, origin)

    def _paths_of(self, located: Located) -> _Paths:
        known = self._located.get(id(located))
        if known is None:
            known = self._located[id(located)] = (
                located,
                self._one_object(located.path, located.physical),
            )
        return known[1]

    def _one_object(self, logical: Path, physical: Path) -> _Paths:
        path = self._interned.setdefault(logical, logical)
        own = self._interned.setdefault(physical, physical)
        return path, () if own is path else own

    def trim(self) -> None:
        """Give back what is only kept to save work: paths are made anew when they are sampled again."""
        self._paths.clear()
        for memory in self._memories.values():
            memory.forget_kernel()
        if len(self._origins) > _MOST_ORIGINS:
            self._origins.clear()
        self._forget_stacks()
        # places in the kernel are made anew from here on, and never found again under their old identity
        pairs = (pair for _, pair in (*self._located.values(), *self._calls.values()) if pair)
        self._interned = {path: path for pair in pairs for path in pair}
        self._located.clear()
        self._calls.clear()
        self._reasons.clear()
        self._book.trim()

    def _forget_stacks(self) -> None:
        """Forget them all when there are twice as many as are in use: each is then made anew once at the most for one
        that was new, and memory does not grow with time."""
        stacks = sum(map(len, self._memories.values()))
        if self._has_forgotten:
            self._most_stacks = max(_FEWEST_STACKS, 2 * stacks)
        self._has_forgotten = stacks > self._most_stacks
        if self._has_forgotten:
            self._memories.clear()

    def forget(self, images: Collection[int]) -> None:
        """Drop what belongs to processes that are gone."""
        if not images:
            return
        self._paths = {group: paths for group, paths in self._paths.items() if group[0] not in images}
        self._origins = {one: one for one in self._origins if one.image not in images}
        self._book.forget(images)


def _cut_by(user: int, stacks: StackTable) -> str:
    """Why a stack does not reach its outermost frame; empty if it does."""
    if not user:
        return "none"
    raw = stacks.raw(user)
    if raw is None:
        return "missing"
    return "" if raw.is_whole else stacks.get(user).end
