"""What the run could gain at best if a loss were gone."""

from __future__ import annotations

import math

from parprof.metrics import Metrics

MOST = 1e9
"""In place of infinity, where numbers have to be finite: of what is all that there is."""


def gain_bound(lost_ns: float, total: Metrics) -> float:
    """How many times as fast the program could be, at best, without a loss.

    With n cores and an elapsed time T, the cores had ``n T`` together: the effort E. What is lost at one place, L, is
    ``L / n`` of the elapsed time if all cores share it: without it T becomes ``T - L / n``, and T over that is
    ``E / (E - L)``. It is an upper bound: nothing else then takes its place, and the work that was done while cores
    were idle is divided evenly over all of them. With n more than there are (``--cores``) it is that of n cores, for
    this place alone: what the others then waste is in E.

    >>> gain_bound(4e9, Metrics(work_ns=6e9, idleness_ns=4e9))
    1.6666666666666667
    """
    rest = total.effort_ns - lost_ns
    return total.effort_ns / rest if rest > 0 else math.inf


def row_gain(part: Metrics, total: Metrics) -> float:
    """The same of a row of a report: if nothing stood idle while it worked, and nobody waited where it sleeps.

    Its overhead stays: without it there would be other work to do.

    >>> row_gain(Metrics(work_ns=3e9, overhead_ns=1e9, idleness_ns=1e9), Metrics(work_ns=9e9, idleness_ns=1e9))
    1.1111111111111112
    """
    return gain_bound(part.idleness_ns + part.stall_ns, total) if total.effort_ns else 1.0


def gain_text(bound: float) -> str:
    """A bound in no more than five characters.

    >>> gain_text(1.666), gain_text(123.4), gain_text(math.inf)
    ('1.67', '123', '>9999')
    """
    if bound < 99.995:
        return f"{bound:.2f}"
    return f"{bound:.0f}" if bound < 9999.5 else ">9999"
