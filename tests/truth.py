# SPDX-License-Identifier: Apache-2.0
"""What a truth program really did: the reader of the log that workloads/truth.h writes.

As a command it prints the true work and idleness of each function::

    $ PARPROF_TRUTH=log build/omp_truth.gomp skewed && python tests/truth.py log --cores 2
"""

from __future__ import annotations

import argparse
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Interval:
    """One stay of a thread in a work function, from enter_ns up to but not including exit_ns.

    enter_ns and exit_ns are CLOCK_MONOTONIC; cpu_ns is the thread's CPU time in between, less
    than the wall time where the thread was preempted.
    """

    function: str
    tid: int
    enter_ns: int
    exit_ns: int
    cpu_ns: int

    @property
    def wall_ns(self) -> int:
        """Wall time of the stay."""
        return self.exit_ns - self.enter_ns


class Truth:
    """All intervals of one process, sorted by their start.

    >>> truth = Truth([Interval("f", 1, 0, 40, 40), Interval("g", 2, 0, 10, 10)])
    >>> truth.working_at(5), truth.working_at(10), truth.function_at(1, 10)
    (2, 1, 'f')
    >>> truth.expected(cores=2)
    {'f': (40.0, 30.0), 'g': (10.0, 0.0)}
    """

    def __init__(self, intervals: Iterable[Interval], pid: int = 0, dropped: int = 0) -> None:
        """Index the intervals, which may come in any order."""
        self.intervals = sorted(intervals, key=lambda i: (i.enter_ns, i.tid))
        self.pid = pid
        self.dropped = dropped
        self._enters = [i.enter_ns for i in self.intervals]
        self._exits = sorted(i.exit_ns for i in self.intervals)
        self._edges = sorted(self._enters + self._exits)
        self._of_thread: dict[int, list[Interval]] = defaultdict(list)
        for interval in self.intervals:
            self._of_thread[interval.tid].append(interval)
        self._enters_of_thread = {
            tid: [i.enter_ns for i in intervals] for tid, intervals in self._of_thread.items()
        }

    @classmethod
    def read(cls, path: str | Path) -> Truth:
        """Read the log of a program that has ended.

        Raises: ValueError if it is no whole log, OSError if it cannot be read.
        """
        return cls.parse(Path(path).read_text(encoding="ascii"))

    @classmethod
    def parse(cls, text: str) -> Truth:
        """Read a log from its text.

        Raises: ValueError, with the line number, if it is no log or was cut short.
        """
        lines = text.splitlines()
        if not lines or lines[0] != "parprof-truth 1":
            raise ValueError("not a truth log of version 1 (has its program ended?)")
        names: dict[int, str] = {}
        intervals: list[Interval] = []
        pid = dropped = 0
        end: int | None = None
        for number, line in enumerate(lines[1:], start=2):
            try:
                match line.split(" "):
                    case ["interval", function, tid, enter, exit_, cpu]:
                        name = names[int(function)]
                        intervals.append(Interval(name, int(tid), int(enter), int(exit_), int(cpu)))
                    case ["function", id_, name]:
                        names[int(id_)] = name
                    case ["pid", value]:
                        pid = int(value)
                    case ["dropped", value]:
                        dropped = int(value)
                    case ["end", value]:
                        end = int(value)
                    case _:
                        raise ValueError("unknown record")
            except (ValueError, KeyError) as error:
                raise ValueError(f"truth log, line {number}: {line!r}: {error}") from error
        if end != len(intervals):
            raise ValueError(f"truth log was cut short: {len(intervals)} intervals, end {end}")
        return cls(intervals, pid, dropped)

    @property
    def threads(self) -> list[int]:
        """Ids of the threads that ever worked."""
        return sorted(self._of_thread)

    @property
    def start_ns(self) -> int:
        """The first edge, on CLOCK_MONOTONIC; 0 if there is no interval."""
        return self._edges[0] if self._edges else 0

    @property
    def end_ns(self) -> int:
        """The last edge, on CLOCK_MONOTONIC; 0 if there is no interval."""
        return self._edges[-1] if self._edges else 0

    def working_at(self, t_ns: int) -> int:
        """Count the threads that are in a work function at t_ns (CLOCK_MONOTONIC)."""
        return bisect_right(self._enters, t_ns) - bisect_right(self._exits, t_ns)

    def near_edge(self, t_ns: int, margin_ns: int) -> bool:
        """Tell whether some thread enters or leaves a work function within margin_ns of t_ns."""
        return bisect_left(self._edges, t_ns - margin_ns) < bisect_right(self._edges, t_ns + margin_ns)

    def function_at(self, tid: int, t_ns: int) -> str | None:
        """Name the work function that thread tid is in at t_ns, None if in none."""
        index = bisect_right(self._enters_of_thread.get(tid, []), t_ns) - 1
        if index < 0:
            return None
        interval = self._of_thread[tid][index]
        return interval.function if t_ns < interval.exit_ns else None

    def expected(self, cores: int) -> dict[str, tuple[float, float]]:
        """Compute the true (work_ns, idleness_ns) of each function on so many cores.

        With W threads inside work functions, w = min(W, cores), a thread's work of x goes with
        an idleness of x * (cores - w) / w (tallent-2009 sec. 2). An interval's CPU time counts
        as evenly spread over its wall time, which is exact unless the thread was preempted.
        """
        work: dict[str, float] = defaultdict(float)
        idleness: dict[str, float] = defaultdict(float)
        inside: set[int] = set()
        edges = [(i.enter_ns, n) for n, i in enumerate(self.intervals) if i.wall_ns > 0]
        edges += [(i.exit_ns, n) for n, i in enumerate(self.intervals) if i.wall_ns > 0]
        last_ns = 0
        for t_ns, group in groupby(sorted(edges), key=lambda edge: edge[0]):
            if inside:
                working = min(len(inside), cores)
                for n in inside:
                    interval = self.intervals[n]
                    part = (t_ns - last_ns) * interval.cpu_ns / interval.wall_ns
                    work[interval.function] += part
                    idleness[interval.function] += part * (cores - working) / working
            inside ^= {n for _, n in group}
            last_ns = t_ns
        order = dict.fromkeys(interval.function for interval in self.intervals)
        return {function: (work[function], idleness[function]) for function in order}


def main() -> None:
    """Print the truth of a log as a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    truth = Truth.read(args.log)
    walls: dict[str, list[int]] = defaultdict(list)
    for interval in truth.intervals:
        walls[interval.function].append(interval.wall_ns)
    print(f"pid {truth.pid}, {len(truth.threads)} threads, {len(truth.intervals)} intervals", end="")
    print(f", {truth.dropped} dropped, {(truth.end_ns - truth.start_ns) / 1e9:.3f} s")
    print(f"{'function':24}{'calls':>6}{'min ms':>8}{'work ms':>10}{'idle ms':>10}{'ratio':>7}")
    for function, (work, idleness) in truth.expected(args.cores).items():
        print(
            f"{function:24}{len(walls[function]):6}{min(walls[function]) / 1e6:8.2f}"
            f"{work / 1e6:10.1f}{idleness / 1e6:10.1f}{idleness / (work or 1):7.3f}"
        )


if __name__ == "__main__":
    main()
