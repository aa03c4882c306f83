"""The callee records of malony-1987 section 3.2, as a view of arcs and states: nothing more is counted for them.

Of a call of C by B, the paper keeps two states: that in which B was entered (S, sequential; C, concurrent), and whether
B itself ran one of its parallel loops when it called (S or C). S-S: nothing else ran. S-C: B made the call from inside
of its own parallel loop. C-S: B was one of several that ran, and called sequentially. C-C was impossible on Cedar; with
nested parallelism it is not, and it is among ``other`` here.
"""

from __future__ import annotations

from collections.abc import Iterable

from parprof.kernel.call_counts import Calls
from parprof.values import dataclass


@dataclass(frozen=True, slots=True)
class CalleeCalls:
    """Calls that a routine made, by the state in which it was entered and that of the call."""

    ss: int = 0
    sc: int = 0
    cs: int = 0
    other: int = 0
    """Those of a routine that was entered in both states, where one cannot tell from which activation a call came."""


def callee_calls(entered: Calls, made: Iterable[Calls]) -> CalleeCalls:
    """The record of a routine. ``entered``: its own calls; ``made``: those of routines that it called, by their states.

    >>> callee_calls(Calls(sequential=1), [Calls(3, 40), Calls(2, 0)])
    CalleeCalls(ss=5, sc=40, cs=0, other=0)
    >>> callee_calls(Calls(concurrent=8), [Calls(0, 40)])
    CalleeCalls(ss=0, sc=0, cs=40, other=0)
    >>> callee_calls(Calls(1, 8), [Calls(3, 40)])
    CalleeCalls(ss=3, sc=0, cs=0, other=40)
    """
    rows = list(made)
    sequential = sum(calls.sequential for calls in rows)
    concurrent = sum(calls.concurrent for calls in rows)
    if entered.sequential and not entered.concurrent:
        return CalleeCalls(ss=sequential, sc=concurrent)
    if entered.concurrent and not entered.sequential:
        return CalleeCalls(
            cs=concurrent, other=sequential
        )  # the others were done before: nobody ran beside it any more
    if entered.all:
        return CalleeCalls(ss=sequential, other=concurrent)
    return CalleeCalls(other=sequential + concurrent)
