"""Bounds on the speed-up, from records of runs with several numbers of threads.

Every run is a real one with N threads. Its work divided by the least time that it takes with N cores is what N cores
can give at best (instruments.md sec. 3): bandwidth, caches, NUMA and input/output are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from parprof.model import Frames
from parprof.patterns import regex
from parprof.scale.calls import CallSite, call_sites
from parprof.scale.record import Address, Flag, SiteKind, SiteRecord, SpanRecord
from parprof.values import dataclass

_MAX_NAME = 40
_OUTLINED = regex(r"\._omp_fn|\.omp[._]")
_UNSEEN_SHARE = 0.2
_NOTABLE = 0.1
_MORE_WORK = 1.3
"""So many times the work of the run with the fewest threads is more than caches and neighbours make of it."""
ResolveAddress = Callable[[Address], Frames]
"""The frames at the call before an address: the innermost inlined function or loop first."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Shares of the N cores' time that the program cannot use, by reason; with the used share they add up to 1."""

    serial: float
    uneven: float
    critical: float
    runtime: float
    """Beside these: what the runtime and our own measuring took, as a share of all CPU time that was used."""


@dataclass(frozen=True, slots=True)
class ScaleSite:
    """A site with its name, and what fixing it would give."""

    kind: SiteKind
    label: str
    """``loop at solve.c:112``."""
    place: str
    """``solve.c:112``."""
    frames: Frames
    """Root first: the function, its loops, what is inlined."""
    work_s: float
    count: int
    span_s: float
    span_count: int
    bound_s: float
    uneven_s: float
    critical_s: float
    share: float
    """Of the least time that the program takes."""
    speedup_if_fixed: float
    uneven_factor: float
    """How many times the mean the longest share is; 1 where that is not the bound."""
    chained_s: float = 0.0
    """Of ``uneven_s``: of a path of threads that waited for each other."""
    at_once: int = 0
    """The most threads that there were at once where it is executed; 0: not known."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one run says of its number of threads."""

    threads: int
    work_s: float
    span_s: float
    bound_s: float
    elapsed_s: float
    """What the run took on the cores at hand: no prediction."""
    widest_team: int
    """Of threads of POSIX: how many there were at once, the first with them, where these are fewer than the cores."""
    lost: Lost
    sites: tuple[ScaleSite, ...]
    """The largest share of the bound first."""
    is_partial: bool
    flags: Flag
    calls: tuple[CallSite, ...] = ()
    """By local span on span; only of programs built with hooks."""
    burdened_s: float = 0.0
    """As ``bound_s``, where no phase takes less than its busiest thread was on a CPU in this run, with the runtime's
    own code; 0 where that says nothing: with more threads than cores who was busy is chance."""

    @property
    def burdened(self) -> float:
        """The speed-up with the runtime's own code, as this run shared its work out; 0 where that is not known."""
        return self.work_s / self.burdened_s if self.burdened_s else 0.0

    @property
    def speedup(self) -> float:
        """At best."""
        return self.work_s / self.bound_s if self.bound_s else 1.0

    @property
    def parallelism(self) -> float:
        """T_1 / T_inf."""
        return self.work_s / self.span_s if self.span_s else 1.0


def reached(predictions: Sequence[Prediction]) -> list[tuple[int, float]]:
    """Threads and the speed-up that the run with so many had, measured, where there was a core for each of them.

    Against the run with one thread; if there was none, against the work, which is what one thread would take at least.
    """
    alone_s = next((one.elapsed_s for one in predictions if one.threads == 1), 0.0)
    return [
        (one.threads, (alone_s or one.work_s) / one.elapsed_s)
        for one in predictions
        if one.burdened_s and one.elapsed_s
    ]


@dataclass(frozen=True, slots=True)
class Scale:
    """The whole answer: one prediction for each number of threads, the smallest first."""

    command: str
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]
    is_serial: bool = False
    """The paper's mode: one run with one thread, and no limit to the cores."""

    @property
    def main(self) -> Prediction:
        """That of the most threads: what the table of sites and the advice are about."""
        return self.predictions[-1]


UNLIMITED = 1 << 30
"""Cores."""


def unlimited(record: SpanRecord) -> SpanRecord:
    """A record of a serial run, as if for any number of cores: what remains of each site is its span."""
    sites = tuple(replace(one, bound_s=one.span_s, uneven_s=0.0, critical_s=0.0) for one in record.sites)
    return replace(record, threads=UNLIMITED, sites=sites)


def predict_serial(record: SpanRecord, resolve: ResolveAddress) -> Prediction:
    """Work and span of a run with one thread (schardl-2015): T_1 / T_inf is what any number of cores gives at best."""
    return replace(predict(unlimited(record), resolve), threads=1, lost=Lost(0, 0, 0, _runtime(record)))


def predict(record: SpanRecord, resolve: ResolveAddress, cores: int = UNLIMITED) -> Prediction:
    """What a run's record says. ``cores``: those that it ran on."""
    threads = max(record.threads, 1)
    work_s, bound_s = record.work_s, record.bound_s
    used = (
        one for one in record.sites if one.kind != SiteKind.LOCK and (one.work_s or one.span_s or one.bound_s)
    )
    sites = [_site(one, record, resolve) for one in joined(used, resolve)]
    sites.sort(key=lambda site: (-site.bound_s, -site.work_s, site.label))
    return Prediction(
        threads=threads,
        work_s=work_s,
        span_s=record.span_s,
        bound_s=bound_s,
        elapsed_s=record.elapsed_s,
        widest_team=record.widest_team,
        lost=_lost(record, threads),
        sites=tuple(sites),
        is_partial=not record.flags & Flag.CLOSED or bool(record.flags & Flag.INSIDE) or record.is_torn,
        flags=record.flags | (Flag.TBB if _has_tbb(record) else Flag(0)),
        calls=call_sites(record, resolve, place_of),
        burdened_s=_burdened_s(record) if threads <= cores else 0.0,
    )


def _has_tbb(record: SpanRecord) -> bool:
    """Whether a thread was made by oneTBB's library."""
    return any(
        call.module.rpartition("/")[2].startswith("libtbb.so")
        for site in record.sites
        if site.kind == SiteKind.THREAD
        for call in site.address.chain
    )


def _burdened_s(record: SpanRecord) -> float:
    """Serial code is as long as it is."""
    serial_s = sum(site.bound_s for site in record.sites if site.kind in (SiteKind.SERIAL, SiteKind.PENDING))
    return record.scheduled_s + serial_s if record.scheduled_s else 0.0


def _lost(record: SpanRecord, threads: int) -> Lost:
    """Core time that is not work, of ``threads`` x the least time."""
    bound_s = record.bound_s
    if not bound_s:
        return Lost(0, 0, 0, 0)
    serial = sum(site.bound_s for site in record.sites if site.kind in (SiteKind.SERIAL, SiteKind.PENDING))
    critical = sum(site.critical_s for site in record.sites) / bound_s
    serial_lost = serial * (1 - 1 / threads) / bound_s
    used = record.work_s / (threads * bound_s)
    return Lost(serial_lost, max(0.0, 1 - used - serial_lost - critical), critical, _runtime(record))


def _runtime(record: SpanRecord) -> float:
    return max(0.0, record.cpu_s - record.work_s) / record.cpu_s if record.cpu_s else 0.0


def joined(sites: Iterable[SiteRecord], resolve: ResolveAddress) -> list[SiteRecord]:
    """Sites with those of the same line as one: of an unrolled loop, a compiler makes several calls of one."""
    found: dict[object, SiteRecord] = {}
    for one in sites:
        frames = resolve(one.address) if one.address.vaddr else ()
        lines = tuple((frame.name, frame.file, frame.line, frame.is_loop) for frame in frames)
        key = (one.kind, lines, one.origin) if any(frame.file and frame.line for frame in frames) else one
        found[key] = _sum(found[key], one) if key in found else one
    return list(found.values())


def _sum(one: SiteRecord, other: SiteRecord) -> SiteRecord:
    return replace(
        one,
        work_s=one.work_s + other.work_s,
        count=one.count + other.count,
        span_s=one.span_s + other.span_s,
        span_count=one.span_count + other.span_count,
        bound_s=one.bound_s + other.bound_s,
        uneven_s=one.uneven_s + other.uneven_s,
        critical_s=one.critical_s + other.critical_s,
        chained_s=one.chained_s + other.chained_s,
        at_once=max(one.at_once, other.at_once),
    )


def if_fixed(record: SpanRecord, site: SiteRecord) -> float:
    """The speed-up if a site's part of the bound were spread evenly over all threads, which have no less to do then."""
    threads = max(record.threads, 1)
    fixed_s = record.bound_s - site.bound_s + min(site.bound_s, site.work_s / threads)
    fixed_s = max(fixed_s, min(record.bound_s, record.work_s / threads))
    return record.work_s / fixed_s if fixed_s > 0 else float(threads)


def _site(one: SiteRecord, record: SpanRecord, resolve: ResolveAddress) -> ScaleSite:
    frames = resolve(one.address) if one.address.vaddr else ()
    origin = resolve(one.origin) if one.origin.vaddr else ()
    place = place_of(frames) or place_of(origin)
    return ScaleSite(
        kind=one.kind,
        label=label_of(one.kind, frames, origin),
        place=place,
        frames=tuple(reversed(frames or origin)),
        work_s=one.work_s,
        count=one.count,
        span_s=one.span_s,
        span_count=one.span_count,
        bound_s=one.bound_s,
        uneven_s=one.uneven_s,
        critical_s=one.critical_s,
        share=one.bound_s / record.bound_s if record.bound_s else 0.0,
        speedup_if_fixed=if_fixed(record, one),
        uneven_factor=_uneven_factor(one, max(record.threads, 1)),
        chained_s=one.chained_s,
        at_once=one.at_once,
    )


def _uneven_factor(one: SiteRecord, threads: int) -> float:
    if not one.uneven_s:
        return 1.0
    even_s = one.bound_s - one.uneven_s
    if even_s <= 0:  # it stands for all of a path that is longer than itself
        even_s = one.work_s / min(threads, one.at_once or threads)
    return one.bound_s / even_s if even_s > 0 else 1.0


def place_of(frames: Frames) -> str:
    """``heat.c:12``; the function's name where lines are not known; empty for no frames."""
    if not frames:
        return ""
    leaf = next((frame for frame in frames if not frame.is_loop), frames[0])
    if leaf.file and leaf.line:
        return f"{leaf.file.rpartition('/')[2]}:{leaf.line}"
    return shortened(leaf.name)


def shortened(name: str) -> str:
    """A function's name in the room that a line has for it.

    >>> shortened("__pyx_pw_7sklearn_8ensemble_23_hist_gradient_boosting_9splitting_8Splitter_5find_node_split")
    '__pyx_pw_7sk...Splitter_5find_node_split'
    """
    return name if len(name) <= _MAX_NAME else f"{name[:12]}...{name[15 - _MAX_NAME :]}"


def function_of(frames: Frames) -> str:
    """The function that a place is in; empty where only its outlined part has a name."""
    names = [frame.name for frame in frames if not frame.is_loop]
    return shortened(_enclosing(names[0])) if names else ""


def _enclosing(name: str) -> str:
    """A function's name without what compilers call the parts that they take out of it.

    >>> _enclosing("solve._omp_fn.0"), _enclosing("solve.omp_outlined"), _enclosing(".omp_outlined._debug__.22")
    ('solve', 'solve', '')
    """
    return _OUTLINED.split(name)[0]


_NOUNS: Mapping[SiteKind, str] = {
    SiteKind.REGION: "region", SiteKind.LOOP: "loop", SiteKind.SECTIONS: "sections", SiteKind.SINGLE: "single",
    SiteKind.TASK: "task",
    SiteKind.TASKLOOP: "taskloop", SiteKind.CRITICAL: "critical section", SiteKind.ORDERED: "ordered region",
    SiteKind.THREAD: "thread", SiteKind.MASKED: "masked region", SiteKind.DOACROSS: "doacross loop",
}  # fmt: skip


def label_of(kind: SiteKind, frames: Frames, origin: Frames) -> str:
    """What readers call a site."""
    place = place_of(frames)
    if kind == SiteKind.SERIAL:
        if place and origin:
            return f"serial code between {place_of(origin)} and {place}"
        if place:
            return f"serial code before {place}"
        return f"serial code after {place_of(origin)}" if origin else "serial code: the whole program"
    if kind == SiteKind.PHASE:
        return f"code before the barrier at {place}"
    if kind == SiteKind.PENDING:
        return "serial code (unfinished)"
    if kind == SiteKind.OTHER:
        return "other sites"
    return (
        f"{_NOUNS.get(kind, kind.name.lower())} at {place}" if place else _NOUNS.get(kind, kind.name.lower())
    )


def context_of(site: ScaleSite) -> str:
    """The function and the loops that a site is in: ``solve > loop at solve.c:90``."""
    named = [shortened(_enclosing(frame.name)) for frame in site.frames]
    return " > ".join(dict.fromkeys(filter(None, named)))


def notes_of(predictions: Sequence[Prediction], is_serial: bool = False) -> list[str]:
    """What readers must know to judge the figures."""
    flags = Flag(0)
    for prediction in predictions:
        flags |= prediction.flags
    notes = []
    partial = [prediction.threads for prediction in predictions if prediction.is_partial]
    if partial:
        runs = ", ".join(map(str, partial))
        notes.append(
            f"partial: with {runs} threads the program ended inside a region, by a signal, exit or _exit"
        )
    if is_serial:
        notes.append(
            "serial: with one thread a loop with schedule(static), on LLVM's runtime any, is one strand, and locks are "
            "no bound; --threads shows what they cost"
        )
    narrow = [one for one in predictions if 0 < one.widest_team < one.threads]
    if narrow:
        worst = narrow[-1]
        is_posix = any(site.kind == SiteKind.THREAD for site in worst.sites)
        notes.append(
            f"asked for {worst.threads} threads, the program had at most {worst.widest_team} at once: it chooses their "
            f"number itself{' (by an option of its own?)' if is_posix else ''}"
        )
    notes.extend(_growing_work(predictions))
    if predictions and predictions[-1].lost.runtime > _UNSEEN_SHARE:
        notes.append(
            f"{predictions[-1].lost.runtime:.0%} of the CPU time was in no code of the program that is followed: in "
            "the runtime, in measuring, or in threads of other runtimes than OpenMP's"
        )
    if any(map(_has_threads, predictions)):
        notes.append(
            "threads: a condition (channel, latch, ...) orders them only where one of them slept for it in these runs"
        )
    notes.extend(_uneven_threads(predictions[-1:]))
    if flags & Flag.CALLS and not any(one.calls for one in predictions[-1:]):
        notes.append("call sites are missing: they are written when the program ends, and it was killed")
    for flag, text in _FLAG_NOTES.items():
        if flags & flag:
            notes.append(text)
    return notes


def _growing_work(predictions: Sequence[Prediction]) -> list[str]:
    """Each run's speed-up is against its own work: of more of that no number of cores makes a gain."""
    whole = [one for one in predictions if one.work_s and not one.is_partial]
    if not whole or whole[-1].work_s < _MORE_WORK * whole[0].work_s:
        return []
    few, main = whole[0], whole[-1]
    times = main.work_s / few.work_s
    gain = main.speedup / times
    return [
        f"with {main.threads} threads the program did {times:.1f} times the work that it did with {few.threads}: it "
        "waits in loops of its own (around an atomic), each thread does some of it again, or it has more to do with "
        f"more threads; at best is against that work, against the smaller it is x{gain:.3g}"
    ]


def _has_threads(prediction: Prediction) -> bool:
    """Whether the program makes threads itself."""
    return any(site.kind == SiteKind.THREAD for site in prediction.sites)


_OF_THREADS = (SiteKind.THREAD, SiteKind.CRITICAL, SiteKind.SERIAL, SiteKind.PENDING)
"""What such a thread's path is of: its own code, with a lock, or the first thread's."""


def _uneven_threads(predictions: Sequence[Prediction]) -> list[str]:
    """The range, where nothing tells whether the threads' shares are the program's choice."""
    return [
        f"{site.label}: its unequal shares are taken for the program's choice; if the threads take what comes next "
        f"(from a queue), they are chance, and at best is up to x{site.speedup_if_fixed:.3g}"
        for prediction in filter(_has_threads, predictions)
        for site in prediction.sites
        if site.kind in _OF_THREADS and site.uneven_s > _NOTABLE * prediction.bound_s
    ]


_FLAG_NOTES = {
    Flag.NO_RSEQ: "no rseq here (glibc 2.35, x86-64): time is by system calls, which cost more",
    Flag.WAITS_LOST: "loops with ordered(n): some of their waits, for iterations far back, are not modelled",
    Flag.FOREIGN: "threads other than the first began regions: they are taken as one after the other",
    Flag.DETACHED: "detached tasks: what their events wait for is not modelled",
    Flag.OFFLOADED: "target nowait: what it offloads runs on the host as tasks that are not followed",
    Flag.DEALT_OUT: "threads that were through at the same time, whatever each had done, are taken to share their "
    "work out themselves (by a counter): who did how much is chance, and all have the mean",
    Flag.TBB: "oneTBB: its tasks are not followed; which of its threads (the first thread is one of them) took which "
    "is chance, so what is told as uneven, or as serial, need not be",
    Flag.FUTEX_LOCKS: "locks that wait by the kernel's futex (Rust's Mutex and RwLock, semaphores of C++20): only for "
    "how long threads had them that had slept for them is known, and at best may be too high",
    Flag.TASKLOOP_ALONE: "a taskloop of more than 64 tasks a thread: libgomp executes all of it in one thread; "
    "at best is what fewer tasks could reach (num_tasks, grainsize)",
    Flag.CALLS_FULL: "more call sites, or ways to them, than are told apart: the rest is in `other call sites`",
    Flag.FULL: "more sites than the record holds: the rest is one, `other sites`",
}
