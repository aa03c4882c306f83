"""Losses in interpreters and emulators whose functions are not known: no place of the program's can be named, but how
its threads share the time can be told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import ge

from parprof.attribution.effort import lost_ns
from parprof.causes.diagnosis import Diagnosis, Kind, Setting
from parprof.causes.evidence import Evidence
from parprof.causes.nameless import MOSTLY_NAMELESS, how_to_name, knows_how_to_name, nameless_share
from parprof.causes.ownership import interpreter
from parprof.causes.processes import lone_process, metrics_of_processes, name_of
from parprof.causes.shares import leading, many_processes, one_at_a_time
from parprof.causes.sites import LossSite, alone, effort_ns, is_single, knows_threads, workers
from parprof.causes.stalls import elapsed_of, wait_of, waited_for
from parprof.causes.tallies import Tally
from parprof.causes.waiting import waits_of
from parprof.metrics import STALL, WAIT
from parprof.model import PathSample

_LEAST = 0.1
"""Of all effort: what is lost there is named from here on."""
_MOSTLY = 0.8
_FIRST = 0.6
"""Of the idleness: as much while one of several threads works is that one's, as beside V8's, which help it at times."""
_OFTEN = 0.25
"""Of its time: a thread that is alone for less loses in another way."""
_NEVER_TWO = 0.9
"""Of their time: so far threads are alone that one lock lets run one at a time; it is given away for some calls."""
_RARELY_TWO = 0.75
"""The same where all of them sleep for most of what the others work: on a busy machine one that has given the lock away
has no core for a while, in which to go to sleep."""
_WAITS_FOR_OTHERS = 0.5
"""Of their work."""
_SLEEP = "sleep"
"""Libraries nap, too, as MPI does while it starts: that is told of interpreters alone, which do it for a program."""
_BY_ITSELF = frozenset({_SLEEP, "child", "pipe", "network"})
"""What a thread that waits so waits for is no other thread."""
_BY_EACH_OTHER = frozenset({"condition", "lock"})
"""How an interpreter's own threads, as schedulers of routines, wait for something to do: from each other, or by the
clock, which one of them keeps."""
_LOCKS = (
    (r"ruby[\d.]*", "the GVL", "use processes (fork), or Ractors"),
    (r"(?:python|pypy)[\d.]*", "the GIL", "use processes (multiprocessing, concurrent.futures)"),
)
"""Interpreters that let one thread at a time run."""


def of_interpreter(
    evidence: Evidence, setting: Setting, samples: Sequence[PathSample]
) -> tuple[LossSite, Diagnosis] | None:
    """What is lost where nothing of the program's was seen, and what can be said of it; ``None``: nothing."""
    lost = lost_ns(evidence.unnamed.metrics) - evidence.unnamed.metrics.stall_ns
    if lost < _LEAST * effort_ns(setting.total):
        return None
    site = LossSite(evidence.root, evidence.unnamed, None, whole=False)
    name = interpreter(setting.program)
    if not name:
        stage = _stage(evidence, setting)
        return (site, stage) if stage is not None else None
    remedy = _names(setting, samples) or _of_itself(name)
    found = (
        lone_process(site, setting)
        or _alone(site, setting, name, remedy)
        or _turns(site, setting, name, remedy)
        or _unequal(site, setting, name, remedy)
    )
    return (site, found) if found is not None else None


def _stage(evidence: Evidence, setting: Setting) -> Diagnosis | None:
    """Of several programs that something else started, as a shell does the stages of a pipeline, one is an interpreter
    and has most of what is lost in no function that is known."""
    by_process = metrics_of_processes(evidence.unnamed)
    several = many_processes(evidence.root.all)
    pid = max(by_process, key=lambda one: by_process[one].idleness_ns, default=0)
    known = setting.processes.get(pid)
    if several < 2 or known is None or not interpreter(known.program):
        return None
    mine, by_itself = by_process[pid], alone(by_process[pid], setting.cores)
    if mine.idleness_ns < _MOSTLY * evidence.unnamed.metrics.idleness_ns or by_itself < _OFTEN:
        return None
    who = f"one of {several} processes, {name_of(evidence.unnamed, pid)},"
    return Diagnosis(
        Kind.SERIAL,
        f"{who} works, {100 * by_itself:.0f} % of that time alone: the others wait for it, or have nothing to do",
        "have several of them at work, each with a part of the input (xargs -P, split), or do less in it",
    )


def stall_of_interpreter(
    evidence: Evidence, setting: Setting, samples: Sequence[PathSample]
) -> tuple[LossSite, Diagnosis] | None:
    """What is waited for where nothing of the program's was seen, while nobody works; ``None``: nothing to speak of, or
    other threads of what is no interpreter. So it is in languages with a scheduler of their own, too."""
    name = interpreter(setting.program)
    kinds = _BY_ITSELF | _BY_EACH_OTHER if name else _BY_ITSELF - {_SLEEP}
    tally = Tally()
    for innermost, metrics in evidence.unnamed.runtime.items():
        if metrics.stall_ns and wait_of(innermost.partition(":")[2])[1] in kinds:
            tally.metrics.add(metrics)
            tally.runtime[innermost] = metrics
    stalled = tally.metrics.stall_ns
    if stalled < _LEAST * effort_ns(setting.total):
        return None
    call, kind = wait_of(leading(tally, by=STALL))
    what, remedy = waited_for(call, kind)
    names, who = _names(setting, samples), f"a thread waits {what}"
    if kind in _BY_EACH_OTHER:
        who = "its threads wait for each other, or for time to pass"
        remedy = "" if names else _of_itself(name)
    where = _where(name) if name else "below no function of the program's (as schedulers of routines do)"
    told = f"nobody works for {elapsed_of(stalled, setting)} while {who}, {where}"
    found = Diagnosis(Kind.STALL, told, "; ".join(filter(None, [remedy, names])))
    return LossSite(evidence.root, tally, None, whole=False), found


def _names(setting: Setting, samples: Sequence[PathSample]) -> str:
    """How the program's functions are given names, if that would tell more; else empty."""
    if knows_how_to_name(setting.program) and nameless_share(samples, setting.program) >= MOSTLY_NAMELESS:
        return f"for names of the program's functions, {how_to_name(setting.program)}"
    return ""


def _of_itself(name: str) -> str:
    return f"--view flat tells the functions of {name}"


def _turns(site: LossSite, setting: Setting, name: str, remedy: str) -> Diagnosis | None:
    threads = len(workers(site.tally))
    if threads < 2 or many_processes(site.tally) > 1:
        return None
    if alone(site.tally.metrics, setting.cores) < _MOSTLY and not one_at_a_time(site, setting):
        return None
    told = f"one thread at a time works, {threads} of them in turn"
    for pattern, lock, advice in _LOCKS:
        if re.fullmatch(pattern, name):
            least = _RARELY_TWO if _all_wait(site.tally) else _NEVER_TWO
            if alone(site.tally.metrics, setting.cores) < least:  # as Ractors have a lock each
                return None
            return Diagnosis(Kind.LOCK, f"{told}: as a rule for the interpreter's own lock ({lock})", advice)
    return Diagnosis(Kind.SERIAL, f"{told}, {_where(name)}", remedy)


def _all_wait(tally: Tally) -> bool:
    """Whether each of several threads sleeps for most of the time in which the others work, and for these."""
    work_ns = tally.metrics.work_ns
    for_others_ns = [
        _WAITS_FOR_OTHERS * (work_ns - tally.threads[thread].work_ns) for thread in workers(tally)
    ]
    slept = [tally.threads[thread][WAIT] for thread in workers(tally)]
    return sum(waits_of(tally).values()) >= sum(for_others_ns) and all(map(ge, slept, for_others_ns))


def _unequal(site: LossSite, setting: Setting, name: str, remedy: str) -> Diagnosis | None:
    """Several threads, or processes, work beside each other, and one alone at times."""
    threads, processes = len(workers(site.tally)), many_processes(site.tally)
    by_itself = alone(site.tally.metrics, setting.cores)
    if threads < 2 or by_itself < _OFTEN:
        return None
    who = f"{processes} processes" if processes > 1 else f"{threads} threads"
    told = f"{who} work {_where(name)}, and {100 * by_itself:.0f} % of that time one alone"
    advice = "what one does alone is serial, or pieces of work are unequal: divide it more evenly"
    return Diagnosis(Kind.IMBALANCE, told, f"{advice}; {remedy}")


def _alone(site: LossSite, setting: Setting, name: str, remedy: str) -> Diagnosis | None:
    tally = site.tally
    first = max(tally.threads.values(), key=lambda metrics: metrics.idleness_ns, default=tally.metrics)
    if not knows_threads(tally) or first.idleness_ns < _FIRST * tally.metrics.idleness_ns:
        first = tally.metrics
        if not is_single(tally, setting.cores):
            return None
    by_itself = alone(first, setting.cores)
    if by_itself < _OFTEN:
        return None
    if by_itself < _MOSTLY:  # as one that makes what others wait for
        told = f"one thread works {_where(name)}, {100 * by_itself:.0f} % of that time alone"
        return Diagnosis(Kind.SERIAL, told, remedy)
    idle = setting.cores - 1
    others = "the other core is idle" if idle == 1 else f"{idle} of {setting.cores} cores are idle"
    return Diagnosis(Kind.SERIAL, f"one thread works {_where(name)}, {others}", remedy)


def _where(name: str) -> str:
    return f"in code of {name} itself, or such that it gives no names"
