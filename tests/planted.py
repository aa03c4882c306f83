# SPDX-License-Identifier: Apache-2.0
"""Programs with problems that were planted in them, and what a good answer to each says.

`bench/answers.py` runs them and judges the answers; their recordings (tests/recordings/planted) are judged by
tests/unit/test_planted.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parprof.causes.cause import Cause
from parprof.causes.diagnosis import Kind

TESTS = Path(__file__).resolve().parent
BUILD = TESTS / "workloads/build/planted"
RECORDINGS = TESTS / "recordings/planted"

INNOCENT = frozenset({"sweep", "share", "smooth", "pack", "main", "small_section", "burn", "in_threads"})
"""Functions that run in parallel as they should, or only call others."""


@dataclass(frozen=True)
class Problem:
    """What is wrong in one function."""

    function: str
    """A part of its name. Empty: the whole program."""
    kinds: frozenset[Kind]
    """What it may be called."""

    def is_named_by(self, cause: Cause) -> bool:
        """Whether a cause says so."""
        right = self.function in cause.function if self.function else not cause.function
        return right and cause.kind in self.kinds


def problem(function: str, *kinds: Kind) -> Problem:
    """A problem of one of these kinds."""
    return Problem(function, frozenset(kinds))


OPENMP = {
    "serial": problem("sum_serially", Kind.SERIAL),
    "imbalance": problem("triangle", Kind.IMBALANCE),
    "critical": problem("guarded_total", Kind.LOCK),
    "lock": problem("locked_list", Kind.LOCK),
    "tasks": problem("crumbs", Kind.OVERHEAD),
    "regions": problem("tiny_regions", Kind.OVERHEAD),
    "chunks": problem("tiny_chunks", Kind.OVERHEAD),
    "single": problem("set_up_once", Kind.SERIAL),
    "sections": problem("big_section", Kind.IMBALANCE),
    "chain": problem("chained_tasks", Kind.SERIAL, Kind.STARVED),
    "sort": problem("sort_keys", Kind.SERIAL),
    "format": problem("format_rows", Kind.SERIAL),
    "read": problem("read_slowly", Kind.STALL, Kind.STARVED),
    "crowd": problem("crowd", Kind.OVERSUBSCRIBED),
}
THREADS = {
    "serial": problem("prepare", Kind.SERIAL),
    "mutex": problem("update_table", Kind.LOCK),
    "hot_mutex": problem("count", Kind.LOCK),
    "imbalance": problem("uneven", Kind.IMBALANCE),
    "pipeline": problem("p", Kind.STARVED),
    "spawn": problem("spawn_often", Kind.OVERHEAD),
    "sleep": problem("sleep_often", Kind.STALL),
}


STAGES = {
    "pipeline": problem("enrich", Kind.STARVED),
    "rotating": problem("operator()", Kind.IMBALANCE),
    "logging": problem("Log::write", Kind.LOCK),
    "tickets": problem("bump_totals", Kind.LOCK),
    "sessions": problem("round_trip", Kind.STALL),
}


@dataclass(frozen=True)
class Program:
    """A command, and all that is wrong with it."""

    name: str
    """Of its recording."""
    command: tuple[str, ...]
    problems: tuple[Problem, ...]

    def is_answered(self, causes: Sequence[Cause]) -> bool:
        """Whether the first cause is right; of several problems, whether all are among the causes, and no other."""
        named = [any(each.is_named_by(cause) for cause in causes) for each in self.problems]
        first = bool(causes) and any(each.is_named_by(causes[0]) for each in self.problems)
        return first and all(named) and not self.wronged(causes)

    @staticmethod
    def wronged(causes: Sequence[Cause]) -> list[str]:
        """The innocent functions that are named."""
        return [cause.function for cause in causes if _plain(cause.function) in INNOCENT]


def _plain(name: str) -> str:
    return name.partition("(int)")[0].rpartition("::")[2].removeprefix("__work_MOD_")


def _openmp(*names: str) -> Program:
    command = (str(BUILD / "openmp"), *names)
    return Program("_".join(("openmp", *names)), command, tuple(OPENMP[name] for name in names))


def _threads(*names: str) -> Program:
    command = (str(BUILD / "threads"), *names)
    return Program("_".join(("threads", *names)), command, tuple(THREADS[name] for name in names))


def _stages(name: str) -> Program:
    return Program(f"stages_{name}", (str(BUILD / "stages"), name), (STAGES[name],))


def _one(name: str, command: tuple[str, ...], function: str, *kinds: Kind) -> Program:
    return Program(name, command, (problem(function, *kinds),))


_PYTHON = ("/usr/bin/python3", "-S", str(TESTS / "workloads/planted/gil.py"))

SINGLE = (
    *(_openmp(name) for name in OPENMP),
    *(_threads(name) for name in THREADS),
    *(_stages(name) for name in STAGES),
    _one("threads_none", (str(BUILD / "threads"),), "", Kind.SERIAL_PROGRAM),
    _one("lambdas_serial", (str(BUILD / "lambdas"), "serial"), "serial_merge", Kind.SERIAL),
    _one("lambdas_mutex", (str(BUILD / "lambdas"), "mutex"), "deposit", Kind.LOCK),
    _one("lambdas_imbalance", (str(BUILD / "lambdas"), "imbalance"), "uneven_part", Kind.IMBALANCE),
    _one("fortran_serial", (str(BUILD / "serial_part"), "once"), "assemble_matrix", Kind.SERIAL),
    _one("rust_serial", (str(BUILD / "scoped"), "serial"), "serial_merge", Kind.SERIAL),
    _one("rust_mutex", (str(BUILD / "scoped"), "mutex"), "add_up", Kind.LOCK),
    _one("rust_channel", (str(BUILD / "scoped"), "channel"), "tokenize", Kind.SERIAL, Kind.STARVED),
    _one("python_threads", (*_PYTHON, "threads"), "count_words", Kind.LOCK),
    _one("python_serial", (*_PYTHON, "serial"), "tokenize", Kind.SERIAL),
    _one("python_alone", (*_PYTHON, "alone"), "", Kind.SERIAL_PROGRAM),
)
COMBINED = (
    _openmp("serial", "imbalance"),
    _openmp("sort", "critical"),
    _openmp("imbalance", "lock", "format"),
    _openmp("sections", "chunks", "serial"),
    _openmp("serial", "imbalance", "critical", "single"),
    _openmp("sort", "sections", "lock", "tasks", "chain"),
    _threads("serial", "mutex"),
    _threads("imbalance", "pipeline", "serial"),
    _threads("serial", "mutex", "imbalance", "spawn"),
)
