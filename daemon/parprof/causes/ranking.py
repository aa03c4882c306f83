"""From samples to a ranked list of causes, with their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parprof.attribution.effort import lost_ns
from parprof.attribution.gain import gain_bound
from parprof.attribution.interval import share_interval
from parprof.causes.diagnosis import Diagnosis, Kind, Setting, runtime_in_use
from parprof.causes.evidence import Evidence, Place, Tally
from parprof.causes.interpreters import of_interpreter, stall_of_interpreter
from parprof.causes.kinds import diagnose
from parprof.causes.nameless import MOSTLY_NAMELESS, how_to_name, nameless_share
from parprof.causes.ownership import Owner
from parprof.causes.processes import ranks_of
from parprof.causes.ranks import TOGETHER, is_one_rank, waiting_rank
from parprof.causes.shares import program_is_serial
from parprof.causes.sites import (
    LossSite,
    SiteSearch,
    effort_ns,
    is_counted,
    is_single,
    mostly_in,
    sample_ns,
    together,
)
from parprof.causes.spinning import where_spun
from parprof.causes.stalls import elapsed_of, loading_waits, while_read_in
from parprof.causes.tools import is_of_brief, of_tools
from parprof.causes.waiting import (
    asleep_for_requests_ns,
    is_lock,
    lets_go,
    task_waits,
    thread_waits,
    tidies_up,
)
from parprof.cct.tree import hottest
from parprof.metrics import IDLENESS, OUTSIDE, OVERHEAD, STALL, WAIT, Metrics
from parprof.model import NOBODY, Interval, PathSample, ProcessInfo, Profile
from parprof.values import dataclass

MAX_CAUSES = 5
LEAST_SAMPLES = 50
"""Nothing is said on fewer samples."""

_LARGE_PART = 0.2
"""Of what a function loses: a calling context with so much of it is judged by itself."""

LEAST_PERCENT = 1.0
"""What loses less than this of the cores' time is not worth a word, nor what may as well be nothing."""

_LEAST_OWN_SHARE = 0.1
"""Where less than this of a site's own effort is lost, it is effectively parallel (tallent-2009 sec. 5.4)."""

_WEIGHTS = {Owner.PROGRAM: 1.0, Owner.LIBRARY: 0.3, Owner.SYSTEM: 0.0}
"""The program's own code comes first, as it can be changed."""

_UNLIKELY = 0.2
"""What may as well not be the program's fault comes after what is."""

_MOST_OF_LOCK = 0.8
"""Of all waiting for locks at a site: a function with so much of it is the one to name."""
_MOST_OF_FUNCTION = 0.85
"""Of what a function loses: a place in it with so much is what the function is."""
_LEAST_BELOW = 0.3
"""Of what is lost for locks or overhead: a callee with less is a part of its caller."""

_MOST_BESIDE_OVERHEAD = 5
"""So many times the overhead is lost at most for the same reason, that pieces of work are too fine."""

_MOSTLY_ONE = 0.6
"""Of the work of processes: that of a program which has so much of it is named."""

_LOCK_SHARE = 0.02
"""Of the work at a site: as much for locks is where to look."""

_BUDGET_REMEDY = "a higher budget lets more be seen (--budget 20)"
_BEFORE_REMEDY = (
    "nothing was left out: who began to sleep before we came, and woke up meanwhile, was not seen there; measure for "
    "longer"
)
_REQUESTS = 0.9
"""Of the time that threads waited: so much for requests, and a server has nothing else to wait for."""

_MOSTLY_OUTSIDE = 0.75
"""Of the time in which nobody works and it is known where threads wait: so much outside, and the rest may be, too."""

_LEAST_UNLIKELY_PERCENT = 10.0
"""And it is not named at all below this: other programs on the machine cost as much."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing to act on."""

    kind: Kind
    path: tuple[str, ...]
    """Functions of the program from its entry to this one."""
    function: str
    file: str
    module: str
    line: int
    metrics: Metrics
    """Of the samples that it is about."""
    lost_ns: float
    lost_percent: float
    """Of all effort: of the time that all cores had."""
    interval_percent: tuple[float, float]
    """That share lies between these, with 95 % probability, as far as sampling goes."""
    gain_bound: float
    """The program runs at best so many times as fast without this loss."""
    what: str
    remedy: str


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
    is_serial = program_is_serial(evidence.root.all, cores) and not is_of_brief(evidence.root.all, setting)
    rank = waiting_rank(evidence, setting) if is_sampled and is_one_rank(evidence, setting) else None
    rest = rank is None or setting.is_openmp  # with a team of its own, what that loses is to be told, too
    found = [] if rank is None else [_cause(*rank, setting)]
    is_alone = is_serial and not (setting.is_mpi and len(ranks_of(evidence.root)) > 1)
    if cores < 2 or not rest:
        pass  # no core could be idle
    elif is_alone and not is_blocked:
        found.append((_serial_program(evidence, total, setting), 1.0))
    else:
        judged = [found for those in SiteSearch(evidence, cores).sites() for found in _judged(those, setting)]
        if is_alone:  # where it waits is told site by site, of its work that it is one thread's
            judged = [(site, diagnosis) for site, diagnosis in judged if diagnosis.kind is Kind.STALL]
        loading = [site for site, diagnosis in judged if diagnosis.is_loading]
        judged = [(site, diagnosis) for site, diagnosis in judged if not diagnosis.is_loading]
        # what is lost there while somebody works is so as well when all is in memory
        judged += [(rest, diagnose(rest, setting)) for rest in map(_when_loaded, loading)]
        in_turn = [site.tally for site, diagnosis in judged if diagnosis.is_in_turn]
        if len(in_turn) > 1:
            judged = [(site, diagnosis) for site, diagnosis in judged if not diagnosis.is_in_turn]
            found.append((_in_turn(in_turn, setting), 1.0))
        crowded = [one for one in judged if one[1].is_of_processes]
        if len(crowded) > 1:
            judged = [one for one in judged if not one[1].is_of_processes]
            found.append((_too_many_processes(crowded, setting), 1.0))
        judged, tools = of_tools(judged, evidence.root.all, setting)
        for tool in tools:
            about = tool.diagnosis
            cause = _without_place(about.kind, tool.tally.metrics, setting, about.what, about.remedy)
            found.append((cause, 1.0))
        found += [_cause(site, diagnosis, setting) for site, diagnosis in _joined(judged)]
        nowhere = _nowhere(evidence, setting, samples, loading)
        if is_alone:
            nowhere = [cause for cause in nowhere if cause.kind is Kind.STALL]
            nowhere.append(_serial_program(evidence, _while_working(total), setting))
        found += [(cause, 1.0) for cause in (*_unseen(samples, setting, left_out=left_out), *nowhere)]
    weighed = [
        (one.lost_ns * weight, one)
        for one, weight in found
        if _is_certain(one) and (weight > _UNLIKELY or one.lost_percent >= _LEAST_UNLIKELY_PERCENT)
    ]
    weighed.sort(key=lambda pair: (-pair[0], pair[1].path))
    return [one for weight, one in weighed if weight > 0][:MAX_CAUSES]


def _judged(sites: Sequence[LossSite], setting: Setting) -> list[tuple[LossSite, Diagnosis]]:
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


def _is_sampled(site: LossSite) -> bool:
    return site.tally.metrics.samples >= LEAST_SAMPLES or is_counted(site.tally.metrics)


def _joined(judged: list[tuple[LossSite, Diagnosis]]) -> list[tuple[LossSite, Diagnosis]]:
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
            is_held = _locks_ns(site.place.own) > 0 and not _locks_ns(inner.place.all)
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


def _is_certain(cause: Cause) -> bool:
    metrics = cause.metrics
    return (
        (metrics.samples >= LEAST_SAMPLES or is_counted(metrics))
        and cause.lost_percent >= LEAST_PERCENT
        and cause.interval_percent[0] > LEAST_PERCENT / 2
        and cause.lost_ns >= _LEAST_OWN_SHARE * effort_ns(metrics)
    )


def _where_locked(site: LossSite) -> Place:
    """The function that takes the lock, where that is clear: at or below a site, or beside it, where what runs at the
    site merely happens to be alone. What works below a function that takes the lock is where it is held: the site."""
    around = site.place
    while around.parent is not None and _locks_ns(around.all) < _LOCK_SHARE * site.tally.metrics.work_ns:
        around = around.parent
    if around.parent is None:
        return where_spun(site)
    taker = mostly_in(around, lambda tally: _locks_ns(tally, is_taken=True), _MOST_OF_LOCK)
    if taker is None:
        return site.place
    holders = {place.function.procedure for place in site.place.chain()}
    return site.place if taker.function.procedure in holders else taker


def _where_held(site: LossSite) -> Place:
    """The function below a site that takes the lock, where what is lost is lost in there."""
    taker = _where_locked(site)
    is_below = any(place is site.place for place in taker.chain())
    return taker if is_below and lost_ns(taker.all.metrics) >= _MOST_OF_LOCK * site.lost_ns else site.place


def _locks_ns(tally: Tally, *, is_taken: bool = False) -> float:
    """How long threads slept for locks, or spent on them. ``is_taken``: on getting them alone."""
    functions = ((name.partition(":")[2], metrics) for name, metrics in tally.runtime.items())
    return sum(
        metrics[WAIT] + metrics.spin_ns + metrics.overhead_ns
        for function, metrics in functions
        if is_lock(function) and not (is_taken and lets_go(function))
    )


def _cause(site: LossSite, diagnosis: Diagnosis, setting: Setting) -> tuple[Cause, float]:
    if diagnosis.kind is Kind.LOCK and site.region is not None and not is_single(site.tally, setting.cores):
        site.move(_where_locked(site))
    elif diagnosis.kind is Kind.LOCK:
        site.move(_where_held(site))
    elif diagnosis.is_creators:
        site.move(task_waits(site.region and site.region.parent) or thread_waits(site) or site.place)
    function = site.function
    metrics = site.tally.metrics
    path = tuple(place.procedure.name for place in function.chain() if not place.procedure.is_loop)
    lost = site.lost_ns
    return (
        Cause(
            diagnosis.kind,
            path,
            function.procedure.name,
            function.procedure.file,
            function.procedure.module,
            _line(site),
            metrics,
            lost,
            100 * lost / effort_ns(setting.total),
            interval_percent(metrics, setting.total, setting.cores),
            gain_bound(lost, setting.total),
            diagnosis.what,
            diagnosis.remedy,
        ),
        _WEIGHTS[site.place.owner] * (1.0 if diagnosis.is_likely else _UNLIKELY),
    )


def _line(site: LossSite) -> int:
    """The line of the function that loses most: of a loop, in it, as what else the function does may lose more."""
    by_line = site.by_line or site.place.by_line
    lines = {line: tally.metrics for line, tally in by_line.items() if not site.lines or line in site.lines}
    whole = site.tally.metrics
    metric = max((IDLENESS, OVERHEAD, STALL), key=lambda one: whole[one])
    return hottest(lines, metric) or site.function.start_line


def _while_working(metrics: Metrics) -> Metrics:
    """The same without the time in which nobody worked."""
    rest = metrics.copy()
    rest[STALL] = 0
    return rest


def _serial_program(evidence: Evidence, metrics: Metrics, setting: Setting) -> Cause:
    idle = setting.cores - 1
    return _without_place(
        Kind.SERIAL_PROGRAM,
        metrics,
        setting,
        f"one thread does all the work; {idle} of {setting.cores} cores {'is' if idle == 1 else 'are'} idle",
        f"if this is one rank of several, {TOGETHER}"
        if is_one_rank(evidence, setting)
        else "nothing here runs in parallel, by design or by mistake: see where its time goes with --sort work",
    )


def _in_turn(tallies: Iterable[Tally], setting: Setting) -> Cause:
    """Processes that run one after the other, whatever they do: of a compiler that ``make`` runs its reader can change
    no function."""
    whole = Tally()
    for tally in tallies:
        whole.merge(tally)
    works: dict[str, float] = {}
    for (_, _, name), metrics in whole.threads.items():
        works[name] = works.get(name, 0.0) + metrics.work_ns
    name = max(works, key=lambda name: works[name], default="")
    told = "processes run one after the other"
    if works and works[name] >= _MOSTLY_ONE * whole.metrics.work_ns:
        told += f", {name} most of that time"
    return _without_place(
        Kind.SERIAL, whole.metrics, setting, told, "run several of them at a time (make -j, xargs -P)"
    )


def _too_many_processes(crowded: Sequence[tuple[LossSite, Diagnosis]], setting: Setting) -> Cause:
    """Processes that lack cores in several functions: none of these is why."""
    whole = Tally()
    for site, _ in crowded:
        whole.merge(site.tally)
    _, about = max(crowded, key=lambda one: one[0].lost_ns)
    return _without_place(about.kind, whole.metrics, setting, about.what, about.remedy)


def _unseen(samples: Sequence[PathSample], setting: Setting, *, left_out: bool) -> list[Cause]:
    """That nobody works and it is not known where threads sleep, as where context switches were too dear to follow."""
    metrics = Metrics()
    for sample in samples:
        if sample.path == NOBODY:
            metrics.add(sample.metrics)
    lost = lost_ns(metrics)
    if not lost:
        return []
    what = f"nobody works for {elapsed_of(lost, setting)}, and it was not seen where threads wait"
    remedy = _BUDGET_REMEDY if left_out else _BEFORE_REMEDY
    outside = _outside_share(samples)
    seen = ""
    if outside >= _MOSTLY_OUTSIDE:
        seen = f"for {100 * outside:.0f} % of that time there was nothing to do: it waited for requests, events or keys"
    elif _works_for_requests(samples):
        seen = "those that work waited for requests"
    if left_out and seen:
        what += f"; as far as it was, {seen}"
        remedy = f"if that is all, there was nothing to do; {_BUDGET_REMEDY}"
    return [_without_place(Kind.STALL, metrics, setting, what, remedy)]


def _outside_share(samples: Iterable[PathSample]) -> float:
    """Of the time in which nobody works, as far as it is known where threads waited then: so much was outside."""
    known = [one.metrics for one in samples if one.path != NOBODY]
    outside_ns = sum(metrics[OUTSIDE] for metrics in known)
    whole_ns = outside_ns + sum(metrics[STALL] for metrics in known)
    return outside_ns / whole_ns if whole_ns else 0.0


def _works_for_requests(samples: Sequence[PathSample]) -> bool:
    """Whether the threads that work were seen to wait for hardly anything but something to do from outside."""
    worked = {(one.origin.pid, one.origin.tid) for one in samples if one.metrics.work_ns}
    theirs = [one for one in samples if one.metrics[WAIT] and (one.origin.pid, one.origin.tid) in worked]
    return asleep_for_requests_ns(theirs) > _REQUESTS * sum(one.metrics[WAIT] for one in theirs)


def _nowhere(
    evidence: Evidence, setting: Setting, samples: Sequence[PathSample], loading: Iterable[LossSite]
) -> list[Cause]:
    """What an interpreter loses in functions that are not known; else what is lost while a program is loaded.
    ``loading``: of places where that is so."""
    blocked = stall_of_interpreter(evidence, setting, samples)
    found = [(site.tally.metrics, diagnosis) for site, diagnosis in filter(None, [blocked])]
    if (working := of_interpreter(evidence, setting, samples)) is not None:
        site, diagnosis = working
        metrics = site.tally.metrics
        found.append((_while_working(metrics) if blocked else metrics, diagnosis))
    else:
        metrics = loading_waits(evidence.unnamed)
        for site in loading:
            metrics.add(Metrics.of({STALL: site.tally.metrics[STALL]}))
        if metrics.stall_ns:
            found.append((metrics, while_read_in(metrics.stall_ns, setting)))
    return [_without_place(one.kind, metrics, setting, one.what, one.remedy) for metrics, one in found]


def _when_loaded(site: LossSite) -> LossSite:
    """The same without what nobody worked for."""
    tally = Tally()
    tally.merge(site.tally)
    tally.metrics[STALL] = 0
    return replace(site, tally=tally)


def _without_place(kind: Kind, metrics: Metrics, setting: Setting, what: str, remedy: str) -> Cause:
    """A cause that is at no function."""
    lost = lost_ns(metrics)
    return Cause(
        kind,
        (),
        "",
        "",
        "",
        0,
        metrics,
        lost,
        100 * lost / effort_ns(setting.total),
        interval_percent(metrics, setting.total, setting.cores),
        gain_bound(lost, setting.total),
        what,
        remedy,
    )


def interval_percent(part: Metrics, total: Metrics, cores: int) -> tuple[float, float]:
    """The 95 % interval of the share of all effort that a part loses, in percent.

    A sample stands for a period of work and up to n - 1 periods of idleness: see `parprof.attribution.interval`.
    """
    whole = effort_ns(total)
    if not whole:
        return 0.0, 0.0
    if not total.samples:  # all of it is counted
        return (100 * lost_ns(part) / whole,) * 2
    step = cores * sample_ns(total)
    low, high = share_interval(lost_ns(part), whole, step, step)
    return 100 * low, 100 * high
