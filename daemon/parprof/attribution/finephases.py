"""n_w where phases are too short for it to be read at each sample.

A sample tells what its own thread did at the instant of the interrupt. What the others do is read some 10 us later,
and by then more of them have reached the barrier: idleness (tallent-2009 sec. 2.1) comes out too high. There is a
second way to it: with W samples of threads that work and S of threads of the same team that spin, there are S/W idle
cores for each working thread on average. That is too high by the time in which nobody works, between two regions.
The lower of the two is nearer to the truth.
"""

from __future__ import annotations

from collections.abc import Iterable

from parprof.model import ThreadState


def mean_n_working(samples: Iterable[tuple[ThreadState, int, int]], team: int) -> float:
    """n_w over samples (state, n_w as it was read, count) of such phases of a team; 0 where no thread worked.

    >>> mean_n_working([(ThreadState.WORKING, 1, 30), (ThreadState.SPINNING, 0, 10)], 4)
    3.0
    """
    working = spinning = 0
    idle = 0.0
    for state, n_working, count in samples:
        if state is ThreadState.WORKING:
            n_w = min(max(n_working, 1), team)
            working += count
            idle += count * (team - n_w) / n_w
        else:
            spinning += count
    if not working:
        return 0.0
    return team * working / (working + min(spinning, idle))
