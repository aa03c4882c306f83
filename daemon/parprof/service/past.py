"""How the machine did in the last quarter of an hour, in few points: for the charts of the status page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from parprof.attribution.effort import Effort
from parprof.metrics import UNUSED, Metrics
from parprof.service.model import MachinePoint, MachineSpan

SECONDS = 900.0
_STEP_SECONDS = 5.0
"""Points are no closer, however often there is one."""


class Past:
    """Keeps points for `SECONDS`. For one thread."""

    def __init__(self) -> None:
        """There is none yet."""
        self._points: deque[MachinePoint] = deque()

    def add(self, point: MachinePoint) -> None:
        """The newest."""
        points = self._points
        if len(points) > 1 and points[-1].clock_s - points[-2].clock_s < _STEP_SECONDS:
            points.pop()
        points.append(point)
        while len(points) > 1 and points[1].clock_s <= point.clock_s - SECONDS:
            points.popleft()

    def points(self) -> tuple[MachinePoint, ...]:
        """The oldest first."""
        return tuple(self._points)


def point_of(clock_s: float, total: Metrics, idle_s: float, cost_s: float, lost: int) -> MachinePoint:
    """All that there was until then. ``total``: of all processes, ended ones too."""
    effort = Effort.of_machine(total)
    return MachinePoint(
        clock_s, effort.useful_ns / 1e9, effort.total_ns / 1e9, total[UNUSED] / 1e9, idle_s, cost_s, lost
    )


def spans(points: Sequence[MachinePoint]) -> list[MachineSpan]:
    """What was between one point and the next."""
    out = []
    for before, after in pairwise(points):
        seconds = after.clock_s - before.clock_s
        effort_s = after.effort_s - before.effort_s
        useful_s = after.useful_s - before.useful_s
        out.append(
            MachineSpan(
                before.clock_s,
                after.clock_s,
                min(max(useful_s / effort_s, 0.0), 1.0) if effort_s > 0 else None,
                max(after.unused_s - before.unused_s, 0.0) / seconds,
                max(after.idle_s - before.idle_s, 0.0) / seconds,
                max(after.cost_s - before.cost_s, 0.0) / seconds,
                max(after.lost - before.lost, 0) / seconds,
            )
        )
    return out
