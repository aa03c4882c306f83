"""The concurrency view: how many threads worked at once, as bars; then the columns of a table of functions."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from parprof.attribution.concurrency import AtWork, groups_up_to, range_name
from parprof.cct.tree import Procedure
from parprof.exporters.concurrency import (
    FunctionLevels,
    Level,
    by_function,
    by_process,
    job_histogram,
    what_is_missing,
    whole,
)
from parprof.exporters.screen import Screen, elided
from parprof.model import Levels, Profile
from parprof.untrusted import printable
from parprof.values import dataclass

_BAR_WIDTH = 32
_SECONDS_WIDTH = 7
_SHARE_WIDTH = 5
_NAME_WIDTH = 22
"""Names get so much at least."""
_MOST_GROUPS = 12
_MOST_PROCESSES = 10
_UNKNOWN_JOB = (
    "For how long so many threads worked at once is not known of this profile: those that were merged, "
    "of the daemon and of older versions do not have it."
)


@dataclass(frozen=True, slots=True)
class LevelColumn:
    """A column of the table of functions."""

    heading: str
    width: int
    cell: Callable[[FunctionLevels], str]


class ConcurrencyTable:
    """What the view shows of one profile."""

    def __init__(self, profile: Profile, screen: Screen) -> None:
        """Of a profile whose paths are as they are to be shown."""
        self._profile = profile
        self._screen = screen
        self._functions = by_function(profile.samples)
        self._all = whole(profile.samples)
        self._groups = groups_up_to(profile.process.cores, self._most_groups())

    @property
    def has_functions(self) -> bool:
        """Whether anything is known of functions."""
        return bool(self._functions)

    def _most_groups(self) -> int:
        if not self._screen.is_limited:
            return _MOST_GROUPS
        room = self._screen.width - _NAME_WIDTH - 4 * (_SECONDS_WIDTH + 1)
        return min(max(room // (_SHARE_WIDTH + 1), 3), _MOST_GROUPS)

    def print_job(self) -> None:
        """The histogram of the whole job, what is not known, and a table of its processes if they are several."""
        account = self._profile.accounting
        if account is None or not any(account.level_s):
            self._screen.fact("", _UNKNOWN_JOB)
        else:
            cores = self._profile.process.cores
            levels = job_histogram(account.level_s, cores)
            how = "each change seen" if account.counted_idleness_s is not None else "known at samples only"
            busy = sum(at * took for at, took in enumerate(account.level_s)) / sum(account.level_s)
            self._screen.fact(
                "",
                f"Threads at work at once (n_w) in {sum(account.level_s):.2f} s, {busy:.2f} on average; {how}:",
            )
            self._print_bars(levels, cores)
        self._screen.line("")
        missing = what_is_missing(self._profile)
        if missing:
            self._screen.fact("", missing)
        if self.has_functions:
            self._print_processes()

    def _print_bars(self, levels: list[Level], cores: int) -> None:
        total = sum(level.seconds for level in levels)
        names = [range_name(level.first, level.last) for level in levels]
        width = max(map(len, names))
        for name, level in zip(names, levels, strict=True):
            share = level.seconds / total if total else 0.0
            bar = self._screen.bar_of * round(_BAR_WIDTH * share)
            numbers = f"{name:>{width}} {level.seconds:9.2f} s {100 * share:5.1f} %"
            self._screen.line(f"{numbers}  {bar:{_BAR_WIDTH}}{_remark(level, cores)}")

    def _print_processes(self) -> None:
        processes = by_process(self._profile.samples)
        if len(processes) < 2:
            return
        names = {one.pid: f"{one.comm} ({one.number})" for one in self._profile.processes}
        busiest = sorted(processes, key=lambda pid: (-processes[pid][0], pid))
        columns = self.columns()
        headings = [*((column.heading, column.width) for column in columns), ("\nprocess", 0)]
        width = self._screen.last_width(headings)
        rows = [("all", self._all)]
        rows += [(names.get(pid, f"({pid})"), processes[pid]) for pid in busiest[:_MOST_PROCESSES]]
        self._screen.table(
            headings,
            (
                (
                    [column.cell(FunctionLevels(levels, levels)) for column in columns],
                    Text(elided(printable(name), width)),
                )
                for name, levels in rows
            ),
        )
        if len(busiest) > _MOST_PROCESSES:
            self._screen.line(f"And {len(busiest) - _MOST_PROCESSES} more processes.")
        self._screen.line("")

    def columns(self) -> list[LevelColumn]:
        """All columns but the last, those that can be spared last. Recursion counts once."""
        return [
            _seconds("elapsed", "s incl.", lambda levels: AtWork.of(levels).elapsed_ns),
            _seconds("seq.", "s incl.", lambda levels: AtWork.of(levels).sequential_ns),
            _seconds("conc.", "s incl.", lambda levels: AtWork.of(levels).concurrent_ns),
            *(self._share(at, group) for at, group in enumerate(self._groups)),
            LevelColumn(
                "elapsed\ns excl.", _SECONDS_WIDTH, lambda one: _amount(AtWork.of(one.exclusive).elapsed_ns)
            ),
        ]

    def _share(self, at: int, group: tuple[int, int | None]) -> LevelColumn:
        return LevelColumn(
            f"% at\n{range_name(*group)}",
            _SHARE_WIDTH,
            lambda one: f"{100 * AtWork.of(one.inclusive).shares(self._groups)[at]:.1f}",
        )

    def of(self, procedure: Procedure) -> FunctionLevels:
        """What is known of a function."""
        return self._functions.get(procedure, FunctionLevels())

    def elapsed_share(self, procedure: Procedure) -> float:
        """How much of the time in which anybody worked is a function's, with its callees: 0 to 1."""
        mine = self.of(procedure).inclusive
        return mine[0] / self._all[0] if mine and self._all[0] else 0.0


def _seconds(heading: str, below: str, value: Callable[[Levels], float]) -> LevelColumn:
    return LevelColumn(f"{heading}\n{below}", _SECONDS_WIDTH, lambda one: _amount(value(one.inclusive)))


def _amount(value_ns: float) -> str:
    return f"{value_ns / 1e9:.2f}"


def _remark(level: Level, cores: int) -> str:
    if level.first == 0:
        return "  nobody"
    if level.first == level.last == cores:
        return "  all cores"
    return "  more than cores" if level.first > cores else ""
