"""What programs lose that another one runs, as make runs compilers, and a script the tools of a trade: who runs them
can change none of their functions, but what each has to do, and when it begins."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from parprof.causes.diagnosis import Diagnosis, Judged, Kind, Setting, Told
from parprof.causes.locks import lock
from parprof.causes.ownership import is_of_stripped
from parprof.causes.processes import in_turn, metrics_of_processes, name_of
from parprof.causes.shares import MOSTLY
from parprof.causes.sites import LossSite, alone, workers
from parprof.causes.tallies import Tally
from parprof.patterns import regex
from parprof.values import dataclass

_ITS_OWN = 0.9
"""Of the idleness at a place: so much of it one process has."""
_STANDS_OUT = 0.6
"""Of what a process loses by itself: a function with so much of it is worth its name."""
_COMM = 15
"""Characters of a process's name."""
_A_FILE = regex(r"[^-].*\w\.(?!so\b)[A-Za-z]\w{0,4}")
_REMEDY = (
    "begin it before others, divide what it does, or see whether it takes a number of threads (-j, -t, -T)"
)


@dataclass(slots=True, eq=False)
class Tool:
    """A program that works alone, and what to say of it."""

    tally: Tally
    diagnosis: Diagnosis


def of_tools(judged: Sequence[Judged], whole: Tally, setting: Setting) -> tuple[list[Judged], list[Tool]]:
    """The sites without those that are one tool's, in whatever functions it works alone; and these tools.

    A tool is a process of a job that is not the program that was run, and has no sources here; and if one function
    with a name has most of its loss, that is told: it may be the reader's, after all. ``whole``: the job.
    """
    if setting.is_mpi:
        return list(judged), []
    several = sum(_processes_of(pid, setting) for pid in {pid for pid, _, _ in workers(whole)})
    own: dict[int, list[Judged]] = defaultdict(list)
    for site, diagnosis in judged:
        if several > 1 and (pid := _tool(site, diagnosis, setting)) is not None:
            own[pid].append((site, diagnosis))
    gone: set[int] = set()
    tools: list[Tool] = []
    for pid, those in own.items():
        sites = [site for site, _ in those]
        first = max(sites, key=lambda site: site.lost_ns)
        is_named = not is_of_stripped(first.function.procedure.name, first.function.procedure.file)
        if is_named and first.lost_ns >= _STANDS_OUT * sum(site.lost_ns for site in sites):
            continue
        tally = Tally()
        for site in sites:
            tally.merge(site.tally)
        gone.update(map(id, sites))
        if (brief := brief_processes(replace(first, tally=tally), setting)) is not None:
            tools.append(Tool(tally, brief))
            continue
        told = f"one of {several} processes, {_who(tally, pid, setting)}, works while the others have nothing to do"
        tools.append(Tool(tally, Diagnosis(Kind.SERIAL, told, _REMEDY)))
    for site, diagnosis in judged:
        if id(site) not in gone and (asleep := _asleep(site, diagnosis, setting)) is not None:
            gone.add(id(site))
            tools.append(Tool(site.tally, asleep))
    return [(site, diagnosis) for site, diagnosis in judged if id(site) not in gone], tools


def _asleep(site: LossSite, diagnosis: Diagnosis, setting: Setting) -> Diagnosis | None:
    """Of a tool without names, as ``sleep`` in a script: that it is what waits; where in it is no word to anybody."""
    here = site.function.procedure
    if diagnosis.kind is not Kind.STALL or diagnosis.is_loading or not is_of_stripped(here.name, here.file):
        return None
    slept = {pid: metrics.stall_ns for pid, metrics in metrics_of_processes(site.tally).items()}
    pid = max(slept, key=lambda one: slept[one], default=0)
    if not slept or slept[pid] < _ITS_OWN * sum(slept.values()) or not _is_of_other(site, pid, setting):
        return None
    return replace(
        diagnosis, what=diagnosis.what.replace("while this", f"while {_who(site.tally, pid, setting)}", 1)
    )


def _is_of_other(site: LossSite, pid: int, setting: Setting) -> bool:
    """Whether a process is none of the program that was run, by name."""
    name = name_of(site.tally, pid).partition(" (pid")[0]
    return name != os.path.basename(setting.program)[:_COMM]


def brief_processes(site: LossSite, setting: Setting) -> Diagnosis | None:
    """Of many short processes that are told as one, each with one thread: that they come one after the other, or that
    one is alone at times; it is not one thread, though it looks so."""
    tally = site.tally
    if not is_of_brief(tally, setting) or lock(site, setting) is not None:
        return None
    several = _processes_of(_busiest(tally), setting)
    by_itself = alone(tally.metrics, setting.cores)
    if by_itself >= MOSTLY:
        return in_turn(several)
    return Diagnosis(
        Kind.IMBALANCE,
        f"{several:,} processes run it, {100 * by_itself:.0f} % of that time one alone",
        "begin the longest ones first, or divide what they do; allow as many at a time as there are cores",
    )


def is_of_brief(tally: Tally, setting: Setting) -> bool:
    """Whether most of it was done by many short processes that are told as one."""
    return bool(tally.threads) and _processes_of(_busiest(tally), setting) > 1


def _busiest(tally: Tally) -> int:
    """The process that most of it is told of."""
    by_process = metrics_of_processes(tally)
    return max(by_process, key=lambda pid: by_process[pid].work_ns)


def _processes_of(pid: int, setting: Setting) -> int:
    """How many processes are told as this one."""
    known = setting.processes.get(pid)
    return 1 if known is None else 1 + known.others


def _tool(site: LossSite, diagnosis: Diagnosis, setting: Setting) -> int | None:
    """The process that alone works at a site, if it may be a tool's."""
    if diagnosis.kind is not Kind.SERIAL and not is_of_brief(site.tally, setting):
        return None
    if (
        diagnosis.told is Told.IN_TURN
        or diagnosis.kind not in (Kind.SERIAL, Kind.IMBALANCE)
        or site.region is not None
    ):
        return None
    if any(place.procedure.file for place in site.place.chain()):
        return None
    idle = {pid: metrics.idleness_ns for pid, metrics in metrics_of_processes(site.tally).items()}
    pid = max(idle, key=lambda pid: idle[pid], default=0)
    if not idle or idle[pid] < _ITS_OWN * sum(idle.values()):
        return None
    return pid if _is_of_other(site, pid, setting) else None


def _who(tally: Tally, pid: int, setting: Setting) -> str:
    """A process with the first file that it was called with, as compilers are with what they compile."""
    known = setting.processes.get(pid)
    words = known.command.split() if known is not None else []
    files = (word for before, word in pairwise(words) if before != "-o" and _A_FILE.fullmatch(word))
    file = next(files, "")
    return name_of(tally, pid) + (f" on {os.path.basename(file)}" if file else "")
