"""Work, idleness and spin of samples (tallent-2009 sec. 2.1)."""

from __future__ import annotations

from parprof.metrics import IDLENESS, OVERHEAD, SAMPLES, SPIN, STOLEN, WORK, Metrics
from parprof.model import ThreadState


def attribute(
    count: int,
    period_ns: float,
    n_working: float,
    cores: int,
    state: ThreadState,
    *,
    overhead: bool = False,
    away: int = 0,
) -> Metrics:
    """Charge ``count`` samples that one thread took while ``n_working`` threads of its process worked.

    A working thread is charged its own time as work, and as idleness its share of the idle cores,
    ``period * (n - n_w) / n_w``. n_w is clamped to [1, n]: the thread itself works, and more threads than
    cores keep no more than n cores busy (sec. 2.1, the variant for n_T <> n). A spinning thread does no work
    and causes no idleness of its own. ``overhead`` says that the leaf is parallelization overhead (sec. 2.2).
    ``away``: so many cores others had, which threads of this program waited for: these are not idle because of the
    program.

    >>> attribute(3, 1e6, 3, 4, ThreadState.WORKING).idleness_ns
    1000000.0
    """
    elapsed = count * period_ns
    if state is not ThreadState.WORKING:
        return Metrics.of({SAMPLES: count, SPIN: elapsed})
    n = max(cores, 1)
    n_w = min(max(n_working, 1), n)
    stolen = min(away, n - n_w)
    return Metrics.of(
        {
            SAMPLES: count,
            WORK: elapsed,
            IDLENESS: elapsed * (n - n_w - stolen) / n_w,
            STOLEN: elapsed * stolen / n_w,
            OVERHEAD: elapsed if overhead else 0.0,
        }
    )
