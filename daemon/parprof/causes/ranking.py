"""From samples to a ranked list of causes, with their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from parprof.causes.cause import LEAST_SAMPLES, UNLIKELY, Cause, is_certain, weighed_cause, without_place
from parprof.causes.diagnosis import Judged, Kind, Setting, Told, runtime_in_use
from parprof.causes.evidence import Evidence
from parprof.causes.kinds import diagnose
from parprof.causes.lock_places import locks_ns
from parprof.causes.nameless import MOSTLY_NAMELESS, how_to_name, nameless_share
from parprof.causes.placeless import (
    in_turn,
    nowhere,
    serial_program,
    too_many_processes,
    unseen,
    while_working,
)
from parprof.causes.processes import ranks_of
from parprof.causes.ranks import is_one_rank, waiting_rank
from parprof.causes.shares import program_is_serial
from parprof.causes.sites import (
    LossSite,
    SiteSearch,
    is_counted,
    together,
    unused_ns,
)
from parprof.causes.tallies import Tally
from parprof.causes.tools import is_of_brief, of_tools
from parprof.causes.waiting import (
    tidies_up,
)
from parprof.metrics import OUTSIDE, STALL
from parprof.model import Interval, PathSample, ProcessInfo, Profile

MAX_CAUSES = 5

_LARGE_PART = 0.2
"""Of what a function loses: a calling context with so much of it is judged by itself."""
_MOST_OF_FUNCTION = 0.85
"""Of what a function loses: a place in it with so much is what the function is."""
_LEAST_BELOW = 0.3
"""Of what is lost for locks or overhead: a callee with less is a part of its caller."""

_MOST_BESIDE_OVERHEAD = 5
"""So many times the overhead is lost at most for the same reason, that pieces of work are too fine."""

_LEAST_UNLIKELY_PERCENT = 10.0
"""What may as well not be the program's fault is not named at all below this: other programs on the machine cost as
much."""

_SERVES = 0.75
"""Of all core time: a program that has nothing to do for so much of it is a server without requests."""

_MOSTLY_PREPARES = 0.5

_TOLD_TOGETHER = {Told.IN_TURN: in_turn, Told.CROWDED: too_many_processes}
"""What makes one cause of several sites."""


def find_causes(profile: Profile) -> list[Cause]:
    """What to act on in a profile, the worst first."""
    process, account = profile.process, profile.accounting
    found = causes_of(
        profile.samples,
        process.cores,
        process.runtime,
        profile.elapsed_s,
        process.program,
        withheld_s=math.inf if account is None else account.withheld_s,
        intervals=profile.intervals,
        left_out=_may_be_left_out(profile),
        processes=profile.processes,
    )
    return [_with_names(cause, profile.samples, process.program) for cause in found]


def _may_be_left_out(profile: Profile) -> bool:
    """Whether some of what threads waited for may not have been looked at for what that costs: older files tell
    nothing of it, nor what was merged."""
    counted = [profile.extra.get(name, "1") for name in ("ticks", "placeless_waits")]
    return counted != ["0", "0"]


def _with_names(cause: Cause, samples: Sequence[PathSample], program: str) -> Cause:
    """A cause whose code a JIT compiler made and gave no names is named after what calls it: to have names helps.

    A function of a known source file, as of a script that calls numba, tells its reader enough.
    """
    if not cause.function or cause.file:
        return cause
    below = [one for one in samples if any(frame.name == cause.function for frame in one.path)]
    if nameless_share(below) < MOSTLY_NAMELESS:
        return cause
    what = f"{cause.what}; most of it in code that was made at run time and has no names"
    return replace(cause, what=what, remedy=how_to_name(program))


def causes_of(
    samples: Sequence[PathSample],
    cores: int,
    runtime: str,
    elapsed_s: float = 0.0,
    program: str = "",
    *,
    withheld_s: float = math.inf,
    intervals: Sequence[Interval] = (),
    left_out: bool = True,
    processes: Sequence[ProcessInfo] = (),
) -> list[Cause]:
    """The same from samples alone. ``cores``: n. ``runtime``: in whose words remedies are told. ``elapsed_s``: how long
    the program ran; 0: not known. ``program``: what was run, by its path or name. ``withheld_s``: core time that it
    was not given. ``intervals``: what of the samples was when, if that is known. ``left_out``: whether waits may have
    been too dear to look at. ``processes``: of the job, as far as they are known."""
    evidence = Evidence(samples, cores, intervals)
    total = evidence.root.all.metrics
    is_blocked = is_counted(total) and total.stall_ns > total[OUTSIDE]
    is_sampled = total.samples >= LEAST_SAMPLES and total.work_ns > 0
    hangs = is_blocked and not tidies_up(samples)
    if not (is_sampled or hangs):
        return []
    setting = Setting(
        cores,
        runtime_in_use(runtime, samples),
        total,
        evidence.scripts,
        elapsed_s,
        program,
        withheld_s,
        evidence.is_stripped,
        evidence.company,
        evidence.sleeps,
        {one.pid: one for one in reversed(processes)},
    )
    found: list[tuple[Cause, float]] = []
    if (
        is_sampled
        and is_one_rank(evidence, setting)
        and (rank := waiting_rank(evidence, setting)) is not None
    ):
        found.append(weighed_cause(*rank, setting))
    is_serial = program_is_serial(evidence.root.all, cores) and not is_of_brief(evidence.root.all, setting)
    is_alone = is_serial and not (setting.is_mpi and len(ranks_of(evidence.root)) > 1)
    if cores < 2 or (found and not setting.is_openmp):
        pass  # no core could be idle, or a rank has no team of its own that could lose something, too
    elif is_alone and not is_blocked:
        found.append((serial_program(evidence, total, setting), 1.0))
    else:
        found += _by_site(evidence, samples, setting, is_alone=is_alone, left_out=left_out)
    return _worst_first(found)


def _by_site(
    evidence: Evidence, samples: Sequence[PathSample], setting: Setting, *, is_alone: bool, left_out: bool
) -> Iterator[tuple[Cause, float]]:
    """What is told of each place where something is lost, and of what is at none, with its weight. ``is_alone``: one
    thread does all the work."""
    sites = SiteSearch(evidence, setting.cores).sites()
    total = setting.total
    judged = [one for those in sites for one in _judged(those, setting)]
    if is_alone:  # where it waits is told site by site, of its work that it is one thread's
        judged = [(site, diagnosis) for site, diagnosis in judged if diagnosis.kind is Kind.STALL]
    if total[OUTSIDE] >= _SERVES * (total.effort_ns + total[OUTSIDE]):  # nobody waits for a server to begin
        judged = [(site, diagnosis) for site, diagnosis in judged if not _mostly_prepares(site.tally)]
    loading = [site for site, diagnosis in judged if diagnosis.is_loading]
    judged = [(site, diagnosis) for site, diagnosis in judged if not diagnosis.is_loading]
    # what is lost there while somebody works is so as well when all is in memory
    judged += [(rest, diagnose(rest, setting)) for rest in map(_when_loaded, loading)]
    for told, tell in _TOLD_TOGETHER.items():
        those = [one for one in judged if one[1].told is told]
        if len(those) > 1:
            judged = [one for one in judged if one[1].told is not told]
            yield tell(those, setting), 1.0
    judged, tools = of_tools(judged, evidence.root.all, setting)
    for tool in tools:
        about = tool.diagnosis
        yield without_place(about.kind, tool.tally.metrics, setting, about.what, about.remedy), 1.0
    for site, diagnosis in _joined(judged):
        yield weighed_cause(site, diagnosis, setting)
    yield from unseen(samples, setting, left_out=left_out)
    for cause in nowhere(evidence, setting, samples, loading):
        if not is_alone or cause.kind is Kind.STALL:
            yield cause, 1.0
    if is_alone:
        yield serial_program(evidence, while_working(setting.total), setting), 1.0


def _worst_first(found: Iterable[tuple[Cause, float]]) -> list[Cause]:
    """Those that are worth a word. Each comes with its weight."""
    weighed = [
        (one.lost_ns * weight, one)
        for one, weight in found
        if is_certain(one) and (weight > UNLIKELY or one.lost_percent >= _LEAST_UNLIKELY_PERCENT)
    ]
    weighed.sort(key=lambda pair: (-pair[0], pair[1].path))
    return [one for weight, one in weighed if weight > 0][:MAX_CAUSES]


def _judged(sites: Sequence[LossSite], setting: Setting) -> list[Judged]:
    """What the sites of one function are: one thing, but where it is called in ways that lose each for another reason,
    as by threads that are started one by one, and by others that have unequal shares."""
    whole = together(sites)
    if len(sites) == 1:
        return [(whole, diagnose(whole, setting))]
    first = max(sites, key=lambda site: site.lost_ns)
    if first.lost_ns >= _MOST_OF_FUNCTION * whole.lost_ns and _is_sampled(first):
        return [(whole, diagnose(first, setting))]  # what else is lost in it may be other threads'
    large = [site for site in sites if site.lost_ns >= _LARGE_PART * whole.lost_ns and _is_sampled(site)]
    kinds: dict[tuple[Kind, bool], list[LossSite]] = {}
    for site in large:
        found = diagnose(site, setting)
        if found.is_likely:
            kinds.setdefault((found.kind, found.is_creators), []).append(site)
    if len(kinds) < 2:
        return [(whole, diagnose(whole, setting))]
    most = max(kinds.values(), key=lambda those: sum(site.lost_ns for site in those))
    told = {id(site) for those in kinds.values() for site in those}
    most += [site for site in sites if id(site) not in told]
    apart = [together(those) for those in kinds.values()]
    return [(site, diagnose(site, setting)) for site in apart]


def _mostly_prepares(tally: Tally) -> bool:
    """Whether most of what is lost at a place is so while something is imported, or compiled."""
    return sum(tally.prepares.values()) >= _MOSTLY_PREPARES * unused_ns(tally.metrics) > 0


def _is_sampled(site: LossSite) -> bool:
    return site.tally.metrics.samples >= LEAST_SAMPLES or is_counted(site.tally.metrics)


def _joined(judged: list[Judged]) -> list[Judged]:
    """Without sites that are one thing with another one.

    Locks and overhead of a function and of one that it calls are named after the callee, if it has a considerable part
    of that; but a lock that it takes itself, after itself: what it calls meanwhile does not know of it. What threads
    wait for each other in pieces of work that are too fine is a part of that.
    """
    diagnoses = {id(site.place): (site, diagnosis) for site, diagnosis in judged}
    gone: set[int] = set()
    for site, diagnosis in judged:
        if site.whole or diagnosis.kind not in (Kind.LOCK, Kind.OVERHEAD):
            continue
        for place in site.place.walk():
            inner, found = diagnoses.get(id(place), (site, diagnosis))
            if inner is site or id(inner) in gone:
                continue
            is_held = locks_ns(site.place.own) > 0 and not locks_ns(inner.place.all)
            if found.kind is diagnosis.kind and (is_held or inner.lost_ns < _LEAST_BELOW * site.lost_ns):
                site.tally.merge(inner.tally)
                gone.add(id(inner))
                continue
            if found.kind is diagnosis.kind:
                inner.tally.merge(site.tally)
                gone.add(id(site))
                break
            is_part = inner.lost_ns <= _MOST_BESIDE_OVERHEAD * site.lost_ns
            if diagnosis.kind is Kind.OVERHEAD and found.kind in (Kind.IMBALANCE, Kind.STARVED) and is_part:
                site.tally.merge(inner.tally)
                gone.add(id(inner))
    return [(site, diagnosis) for site, diagnosis in judged if id(site) not in gone]


def _when_loaded(site: LossSite) -> LossSite:
    """The same without what nobody worked for."""
    tally = Tally()
    tally.merge(site.tally)
    tally.metrics[STALL] = 0
    return replace(site, tally=tally)
