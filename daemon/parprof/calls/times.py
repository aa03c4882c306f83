"""Measured times, joined with the routines that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from parprof.calls.counting import CountedSite
from parprof.calls.function import Function
from parprof.kernel.call_times import ArcTime, RoutineTime


class Times(NamedTuple):
    """As the programs added them up."""

    by_routine: Mapping[int, RoutineTime]
    """By number: `CountedSite.timed_as`."""
    by_caller: Mapping[tuple[int, ...], tuple[ArcTime, ArcTime]]

    def of_routines(
        self, sites: Mapping[int, CountedSite], name: Callable[[CountedSite], Function]
    ) -> dict[Function, RoutineTime]:
        """By routine: what they took in all process images, one after the other."""
        functions = {site.timed_as: name(site) for site in sites.values() if site.timed_as is not None}
        out: dict[Function, RoutineTime] = {}
        for number, function in functions.items():
            found = self.by_routine.get(number, RoutineTime())
            out[function] = out[function].plus(found) if function in out else found
        return out
