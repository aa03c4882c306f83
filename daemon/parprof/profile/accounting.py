"""What all core time of a job adds up to: n x time = work + ready + idleness + stall (DESIGN.md sec. 2)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest

from parprof.attribution.agreement import TwoWays
from parprof.attribution.ready import share_ready
from parprof.facts.measurement import Measurement
from parprof.facts.scopes import ScopeTimes
from parprof.metrics import IDLENESS, OUTSIDE, PROFILING, STALL, STOLEN, WAIT, WORK, Metric, Metrics
from parprof.model import (
    NOBODY,
    OTHERS,
    SEVERAL_THREADS,
    Accounting,
    Count,
    Origin,
    PathSample,
    SampleKey,
    ThreadState,
)
from parprof.profile.rows import RowMaker
from parprof.runtimes.pools import is_idle_worker
from parprof.values import dataclass

_NEGLIGIBLE = 0.001
"""Of all core time: stall of no call path below that is of the edges of the measurement."""
_AS_SAMPLED = 2.0
"""Stall so many times as long as threads were sampled spinning meanwhile may be theirs: samples are few."""
_LEAST_OTHERS = 0.2
"""Of the time in which threads spun while nobody worked."""
_AS_GLIMPSED = 2.0
"""And so many times as long as glimpses have of it: they are few, and who was woken takes a while to run."""

_ThreadKey = tuple[int, int]
"""Image and number of a thread."""
Spun = Sequence[tuple[PathSample, float]]
"""Rows, with how much of their CPU time was spun while nobody worked, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Glimpsed:
    """What was seen of a job in glimpses, while context switches were too dear to be followed all the time."""

    rows: Sequence[tuple[PathSample, Metrics]] = ()
    """Its rows with what of their waits and stalls is estimated from glimpses."""
    number: int = 0
    """Of glimpses."""
    unseen_ns: float = 0.0
    """Time for which none of them stands."""


_NO_GLIMPSES = Glimpsed()


@dataclass(frozen=True, slots=True)
class JobTime:
    """What is known of the core time of one job besides its rows. Nanoseconds."""

    times: ScopeTimes
    cores: float
    """n; the mean where that changed."""
    ready_ns: float
    """For how long its working threads had no CPU."""
    excess_ns: float
    """Of that what is no core's: there were more of them than cores."""
    level_ns: tuple[float, ...]
    """For how long n_w was 0, 1, 2, ...: as `times` says, or where that stood still, as samples do."""
    ticked: bool
    """Context switches were not followed all the time."""
    unfollowed_ns: float = 0.0
    """For how long they were not, at most."""

    @classmethod
    def of(
        cls,
        times: ScopeTimes,
        cores: float,
        ready_ns: float,
        facts: Mapping[SampleKey, Count],
        frequency_hz: int,
        *,
        ticked: bool,
        unfollowed_ns: float | None = None,
    ) -> JobTime:
        """``facts``: the samples of that time, those of other jobs among them. ``unfollowed_ns``: ``None``: not known,
        it may be all of the time."""
        period_ns = 1e9 / frequency_hz
        return cls(
            times,
            cores,
            ready_ns,
            _excess_ns(times, cores, facts, period_ns),
            _levels_ns(times, facts, period_ns, ready_ns, ticked=ticked),
            ticked,
            (times.elapsed_ns if unfollowed_ns is None else unfollowed_ns) if ticked else 0.0,
        )

    def joined(self, later: JobTime) -> JobTime:
        """The same of this time and that behind it."""
        cores = self.cores
        if later.cores != cores:  # else exactly n, which is compared with whole numbers
            took_ns, then_ns = self.times.elapsed_ns, later.times.elapsed_ns
            whole_ns = took_ns + then_ns
            cores = (
                (cores * took_ns + later.cores * then_ns) / whole_ns if whole_ns else max(cores, later.cores)
            )
        return JobTime(
            self.times.joined(later.times),
            cores,
            self.ready_ns + later.ready_ns,
            self.excess_ns + later.excess_ns,
            tuple(map(sum, zip_longest(self.level_ns, later.level_ns, fillvalue=0.0))),
            self.ticked or later.ticked,
            self.unfollowed_ns + later.unfollowed_ns,
        )


def complete(measured: Measurement, rows: RowMaker, samples: list[PathSample]) -> Accounting | None:
    """Add to the rows what is known of the whole alone, and draw up the account of the main process's scope.

    That is time in which working threads had no CPU, which is shared out by work, and what `settle` adds. None: nothing
    is known of the scope's time.
    """
    charge_ready(measured, samples)
    main = measured.images[measured.main]
    times = next((scope for scope in measured.scopes if measured.main in scope.images), None)
    if times is None or not times.elapsed_ns:
        return None
    drain, counted = measured.drain, measured.kernel.statistics()
    known = JobTime.of(
        times,
        rows.mean_cores(main),
        sum(_ready_ns(measured, times.images)),
        drain.facts,
        drain.frequency_hz,
        ticked=bool(counted["ticks"]),
        unfollowed_ns=1e3 * counted["unfollowed_us"] if "unfollowed_us" in counted else None,
    )
    images = set(times.images)
    mine = [sample for sample in samples if sample.origin.image in images]
    spun = [
        (row, number * 1e9 / drain.frequency_hz)
        for row, number in rows.spun_alone()
        if row.origin.image in images
    ]
    there = {id(row) for row in mine}
    glimpsed = Glimpsed(
        [(row, seen) for row, seen in rows.glimpsed() if id(row) in there],
        counted.get("glimpses", 0),
        1e3 * counted.get("unglimpsed_us", 0),
    )
    origin = Origin(main.process.pid, main.process.comm, "", main.runtime, "", measured.main)
    accounting, more = settle(known, mine, spun, origin, glimpsed)
    samples += more
    return accounting


def settle(
    known: JobTime,
    mine: Sequence[PathSample],
    spun: Spun,
    origin: Origin,
    glimpsed: Glimpsed = _NO_GLIMPSES,
) -> tuple[Accounting, list[PathSample]]:
    """Let the rows of a job have all of its core time: its account, and the rows that are to be added to its own.

    They get stall in which all threads spun, by their spinning then, and what glimpses have of it, as far as there is
    room; what belongs to no call path are further rows. ``origin``: of what belongs to no thread.
    """
    times, cores, more = known.times, known.cores, list[PathSample]()
    _fit_waits(glimpsed, mine, times.elapsed_ns)
    stolen_stall_ns = min(float(times.stall_away_ns), cores * times.idle_ns)
    ready_ns = max(known.ready_ns - known.excess_ns, 0.0)
    if not times.exact:
        ready_ns = _fit(times, cores, ready_ns, mine)
        # by their leaves nobody works now and then, though somebody does
        sampled_ns = sum(_sum(mine, one) for one in (WORK, PROFILING, IDLENESS, STOLEN))
        room_ns = max(cores * times.elapsed_ns - sampled_ns - ready_ns, 0.0)
        stolen_stall_ns = min(stolen_stall_ns, room_ns)
    unseen_ns = stolen_stall_ns + _unseen_stolen_ns(known, ready_ns, mine)
    if unseen_ns:
        more.append(PathSample(OTHERS, Metrics.of({STOLEN: unseen_ns}), origin))
    charged_ns = sum(_sum([*mine, *more], one) for one in (WORK, PROFILING, IDLENESS, STOLEN))
    stall_ns, away_ns = _stall_and_away_ns(known, stolen_stall_ns, charged_ns + ready_ns)
    nobodys_ns, others_ns = _settle_stall(known, stall_ns, away_ns, mine, spun, glimpsed)
    if not (times.exact or known.ticked):
        found_ns = nobodys_ns + others_ns + sum(_sum(mine, one) for one in (STALL, OUTSIDE))
        others_ns += _unseen_guessed_ns(times, cores, ready_ns, charged_ns + ready_ns + found_ns)
    for path, metric, ns in ((NOBODY, STALL, nobodys_ns), (OTHERS, STOLEN, others_ns)):
        if ns:
            more.append(PathSample(path, Metrics.of({metric: ns}), origin))
    rows = [*mine, *more]
    return Accounting(
        cores=cores,
        elapsed_s=times.elapsed_ns / 1e9,
        work_s=(_sum(rows, WORK) + _sum(rows, PROFILING)) / 1e9,
        ready_s=ready_ns / 1e9,
        stolen_s=_sum(rows, STOLEN) / 1e9,
        idleness_s=_sum(rows, IDLENESS) / 1e9,
        stall_s=(_sum(rows, STALL) + _sum(rows, OUTSIDE)) / 1e9,
        counted_idleness_s=times.idleness_ns(cores) / 1e9 if times.exact else None,
        level_s=tuple(round(took_ns / 1e9, 9) for took_ns in known.level_ns),
    ), more


def _levels_ns(
    times: ScopeTimes,
    facts: Mapping[SampleKey, Count],
    period_ns: float,
    ready_ns: float,
    *,
    ticked: bool,
) -> tuple[float, ...]:
    """For how long each number of threads worked at once, from none on, in nanoseconds.

    What the programs count stands still while context switches are not followed. Then samples tell: k threads that
    work at once are sampled k times as often as one; and as much less as they wait for CPUs, ``ready_ns`` in all.
    """
    if times.exact or not ticked:
        return times.level_ns
    found: Counter[int] = Counter()
    in_scope = set(times.images)
    for key, count in facts.items():
        if key.event == 0 and key.state is ThreadState.WORKING and key.image in in_scope:
            found[max(key.n_working, 1)] += count.samples
    levels = [0.0] + [found[level] * period_ns / level for level in range(1, max(found, default=0) + 1)]
    if any(levels):
        sampled_ns = sum(found.values()) * period_ns
        fit = min((sampled_ns + ready_ns) / sampled_ns, times.elapsed_ns / sum(levels))
        levels = [took_ns * fit for took_ns in levels]
    levels[0] = times.elapsed_ns - sum(levels)
    return tuple(levels)


def disagreements(measured: Measurement, rows: RowMaker, samples: Sequence[PathSample]) -> list[str]:
    """Scopes of which sampled idleness is not what each change of n_w says; before anything is added to the rows."""
    out = []
    for times in measured.scopes:
        images = [measured.images[image] for image in times.images if image in measured.images]
        if not times.exact or not images:
            continue
        main = next((one for one in images if one is measured.images[measured.main]), images[0])
        in_scope = set(times.images)
        mine = [sample for sample in samples if sample.origin.image in in_scope]
        sampled = {sample.origin.image for sample in mine}
        cores = rows.usual_cores(main)
        if any(rows.mean_cores(image) != cores for image in images if image.image in sampled):
            continue  # n has changed, for all or from one process to the next
        sampled_s = (_sum(mine, IDLENESS) + _sum(mine, STOLEN)) / 1e9
        most = max(cores - 1, 0.0)
        # while a thread is in our own programs its cores stand idle no less, but that is not the code's
        unseen_ns = sum(_ready_ns(measured, times.images)) + _sum(mine, PROFILING)
        unseen_s = most * unseen_ns / 1e9
        step_s = most / measured.drain.frequency_hz
        found = TwoWays(times.idleness_ns(cores) / 1e9, sampled_s, unseen_s, step_s)
        if not found.agree:
            of = f"process {main.process.pid}: " if len(measured.scopes) > 1 else ""
            out.append(of + found.told())
    return out


def _sum(samples: Iterable[PathSample], metric: Metric) -> float:
    return sum(sample.metrics[metric] for sample in samples)


def _ready_ns(measured: Measurement, images: Collection[int]) -> list[float]:
    return [measured.images[image].ready_ns for image in images if image in measured.images]


def charge_ready(measured: Measurement, samples: Sequence[PathSample]) -> None:
    """Charge rows with the time for which working threads had no CPU.

    Processes so short that none of their work was sampled are stood for by those of the same program that were, as
    in work; where there are none, by all of the job.
    """
    by_image: dict[int, list[PathSample]] = defaultdict(list)
    for sample in samples:
        by_image[sample.origin.image].append(sample)
    unsampled = {
        number: rest_ns
        for number, image in measured.images.items()
        if (rest_ns := share_ready(image.ready_ns, by_image[number]))
    }
    for scope in measured.scopes:
        theirs = [sample for number in scope.images for sample in by_image[number]]
        by_program: dict[str, float] = defaultdict(float)
        for number in scope.images:
            if number in unsampled:
                by_program[measured.images[number].process.comm] += unsampled[number]
        for program, rest_ns in by_program.items():
            same = [sample for sample in theirs if sample.origin.comm == program]
            share_ready(share_ready(rest_ns, same), theirs)


def _excess_ns(times: ScopeTimes, cores: float, facts: Mapping[SampleKey, Count], period_ns: float) -> float:
    """Of the time in which working threads had no CPU that which is no core's: there were more of them than cores.

    Counted at each change of n_w, or as the samples say, each of which was taken while min(n_w, n) threads ran.
    """
    if times.exact:
        return max(times.working_ns - times.busy_ns(cores), 0.0)
    in_scope = set(times.images)
    return sum(
        count.samples * (key.n_working - cores) / cores * period_ns
        for key, count in facts.items()
        if key.event == 0
        and key.state is ThreadState.WORKING
        and key.n_working > cores
        and key.image in in_scope
    )


def _fit(times: ScopeTimes, cores: float, ready_ns: float, mine: Sequence[PathSample]) -> float:
    """No more idleness and time without a CPU than there is room for beside what threads did; the latter.

    Where n_w is what runs on the CPUs at a sample, a thread that is just waking up is missed, and one of another
    process that has no CPU: n_w comes out too low, and idleness by up to a third too high in programs that switch all
    the time.
    """
    idleness_ns = _sum(mine, IDLENESS)
    room_ns = max(cores * times.elapsed_ns - sum(_sum(mine, one) for one in (WORK, PROFILING, STOLEN)), 0.0)
    share = min(room_ns / (idleness_ns + ready_ns), 1.0) if idleness_ns + ready_ns else 1.0
    for sample in mine:
        sample.metrics[IDLENESS] *= share
    return ready_ns * share


def _unseen_stolen_ns(known: JobTime, ready_ns: float, mine: Sequence[PathSample]) -> float:
    """What no sample could be charged with: while all threads that work had no CPU there was none of them.

    Where the state of some is only known at their samples, it is no more than there is room for beside what is known.
    Where switches were not followed, nobody counted for how long n_w was what. ``ready_ns``: of that time.
    """
    times, cores = known.times, known.cores
    if known.ticked and not times.exact:
        return 0.0
    charged_ns = _sum(mine, IDLENESS) + _sum(mine, STOLEN)
    unseen_ns = min(times.idleness_ns(cores) - charged_ns, (cores - 1) * known.ready_ns)
    if not times.exact:
        worked_ns = _sum(mine, WORK) + _sum(mine, PROFILING)
        while_working_ns = cores * (times.elapsed_ns - times.idle_ns)
        unseen_ns = min(unseen_ns, while_working_ns - worked_ns - ready_ns - charged_ns)
    return max(unseen_ns, 0.0)


def _unseen_guessed_ns(times: ScopeTimes, cores: float, ready_ns: float, known_ns: float) -> float:
    """The same where n_w is known at samples only: what is left, as far as threads that work had no CPU meanwhile."""
    left_ns = max(cores * times.elapsed_ns - known_ns, 0.0)
    unseen_ns = min(left_ns, (cores - 1) * ready_ns)
    return unseen_ns if unseen_ns > _NEGLIGIBLE * cores * times.elapsed_ns else 0.0


def _stall_and_away_ns(known: JobTime, stolen_ns: float, charged_ns: float) -> tuple[float, float]:
    """How much stall there was, and what more there is of cores that others had.

    Where threads' states are only known at their samples, n_w is 0 now and then though somebody works: no more of that
    counts as there is room for beside what was sampled. While switches were not followed nobody knows when threads
    slept: it is all that there is room for. While they were, it is no more than n_w was 0 then; what is left beyond
    that is of threads that worked, and had no CPU.
    """
    times, cores = known.times, known.cores
    room_ns = max(cores * times.elapsed_ns - charged_ns, 0.0)
    counted_ns = cores * times.idle_ns - stolen_ns
    if times.exact:
        return counted_ns, 0.0
    if not known.ticked:
        return min(counted_ns, room_ns), 0.0
    stall_ns = min(counted_ns + cores * known.unfollowed_ns, room_ns)
    return stall_ns, min(room_ns - stall_ns, cores * known.ready_ns)


def _settle_stall(
    known: JobTime,
    stall_ns: float,
    others_ns: float,
    mine: Sequence[PathSample],
    spun: Spun,
    glimpsed: Glimpsed,
) -> tuple[float, float]:
    """Let the stall of call paths be all there was of it, ``stall_ns``; what belongs to none, and all of cores that
    others had, ``others_ns`` so far.

    What glimpses have of it tells where, and that in what is left for which they stand somebody worked, and had no CPU,
    as far as threads were seen to wait for one.
    """
    times, cores = known.times, known.cores
    unglimpsed_ns = cores * glimpsed.unseen_ns
    _fit_glimpsed(glimpsed, stall_ns - unglimpsed_ns, mine)
    found_ns = _sum(mine, STALL) + _sum(mine, OUTSIDE)
    negligible_ns = _NEGLIGIBLE * cores * times.elapsed_ns
    rest_ns = stall_ns - found_ns
    if rest_ns < 0 < found_ns:
        for sample in mine:
            for metric in (STALL, OUTSIDE):
                sample.metrics[metric] *= stall_ns / found_ns
    if rest_ns <= negligible_ns:
        rest_ns = 0.0
    whole_ns = sum(took_ns for _, took_ns in spun)
    spun_ns = min(rest_ns, _AS_SAMPLED * cores * whole_ns)
    if spun_ns:
        those = _who_waits(spun)
        whole_ns = sum(took_ns for _, took_ns in those)
        for sample, took_ns in those:
            sample.metrics[STALL] += spun_ns * took_ns / whole_ns
    rest_ns -= spun_ns
    if glimpsed.number:
        waited_ns = max(cores * known.ready_ns - others_ns, 0.0)
        away_ns = min(max(rest_ns - unglimpsed_ns, 0.0), waited_ns)
        others_ns += away_ns
        rest_ns -= away_ns
    return (
        rest_ns if rest_ns > negligible_ns else 0.0,
        others_ns if others_ns > negligible_ns else 0.0,
    )


def _fit_waits(glimpsed: Glimpsed, mine: Sequence[PathSample], elapsed_ns: float) -> None:
    """Let no thread have waited for longer than there was time beside its work, as estimates from glimpses may say."""
    estimated: dict[_ThreadKey, list[tuple[PathSample, Metrics]]] = defaultdict(list)
    for sample, seen in glimpsed.rows:
        if seen[WAIT] and sample.origin.tid != SEVERAL_THREADS:
            estimated[_thread_of(sample)].append((sample, seen))
    spent_ns: dict[_ThreadKey, float] = defaultdict(float)
    for sample in mine if estimated else ():
        spent_ns[_thread_of(sample)] += sample.metrics[WAIT] + sample.metrics.cpu_ns
    for thread, those in estimated.items():
        excess_ns = spent_ns[thread] - elapsed_ns
        estimated_ns = sum(seen[WAIT] for _, seen in those)
        if excess_ns <= 0:
            continue
        left = max(1 - excess_ns / estimated_ns, 0.0)
        for sample, seen in those:
            sample.metrics[WAIT] -= (1 - left) * seen[WAIT]
            seen[WAIT] *= left


def _thread_of(sample: PathSample) -> _ThreadKey:
    return sample.origin.image, sample.origin.tid


def _who_waits(spun: Spun) -> Spun:
    """Those that spun for something. A library's worker that looks for work does so whatever keeps the others: it is
    left out where these are considerable."""
    others = [(row, took_ns) for row, took_ns in spun if not (row.path and is_idle_worker(row.path[0].name))]
    least_ns = _LEAST_OTHERS * sum(took_ns for _, took_ns in spun)
    return others if sum(took_ns for _, took_ns in others) > least_ns else spun


def _fit_glimpsed(glimpsed: Glimpsed, all_ns: float, mine: Sequence[PathSample]) -> None:
    """Let what glimpses have seen of stall be all that is left beside what was seen all the time, of ``all_ns``."""
    estimated_ns = sum(seen[STALL] + seen[OUTSIDE] for _, seen in glimpsed.rows)
    if not estimated_ns:
        return
    followed_ns = _sum(mine, STALL) + _sum(mine, OUTSIDE) - estimated_ns
    factor = min(max(all_ns - followed_ns, 0.0) / estimated_ns, _AS_GLIMPSED)
    for sample, seen in glimpsed.rows:
        for metric in (STALL, OUTSIDE):
            sample.metrics[metric] += (factor - 1) * seen[metric]
            seen[metric] *= factor
