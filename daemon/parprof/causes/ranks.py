"""A profile of one rank of an MPI program, of which the others are not seen.

Where a rank polls for messages it waits for others; who is late only a profile of all of them tells. That it does not
use the other cores is no fault of its: they are the other ranks'.
"""

from __future__ import annotations

from parprof.causes.diagnosis import Diagnosis, Kind, Setting
from parprof.causes.evidence import Evidence, Place
from parprof.causes.sites import LossSite
from parprof.causes.tallies import Tally
from parprof.metrics import Metrics

_WAITS = 0.1
"""Of its CPU time: so long at least a rank waits, if that is what to say of it."""
_MOST = 0.6
"""Of its waiting: the innermost place with so much of it is the one to name."""
TOGETHER = "profile all ranks together: attach to mpirun with --children"


def is_one_rank(evidence: Evidence, setting: Setting) -> bool:
    """Whether all samples are of one process that may be a rank of several."""
    return setting.is_mpi and len({pid for pid, _, _ in evidence.root.all.threads}) == 1


def waiting_rank(evidence: Evidence, setting: Setting) -> tuple[LossSite, Diagnosis] | None:
    """Where the one rank waits for others, and for how much of its time; None: hardly, or at no place of its code."""
    total = setting.total
    cpu_ns = total.work_ns + total.spin_ns
    if not cpu_ns or total.spin_ns < _WAITS * cpu_ns:
        return None
    place = evidence.root
    while (inner := _waits_most(place)) is not None:
        place = inner
    if place.parent is None:
        return None
    waits = place.all.metrics
    tally = Tally(Metrics(samples=waits.samples, spin_ns=waits.spin_ns, stall_ns=waits.stall_ns))
    told = (
        f"this is one rank of an MPI program, which waits for messages of others for"
        f" {100 * total.spin_ns / cpu_ns:.0f} % of its CPU time"
    )
    return LossSite(place, tally, None), Diagnosis(Kind.IMBALANCE, told, f"to see who is late, {TOGETHER}")


def _waits_most(place: Place) -> Place | None:
    """The callee in which most of a place's waiting is."""
    least = _MOST * place.all.metrics.spin_ns
    return next((kid for kid in place.children.values() if kid.all.metrics.spin_ns >= least > 0), None)
