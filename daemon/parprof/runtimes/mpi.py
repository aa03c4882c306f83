"""MPI on one machine: Open MPI, MPICH and what is made of it (Intel MPI, MVAPICH).

Its processes wait for messages by polling, in code that calls much else, so that no loop of it is known by its machine
code. Which libraries poll is known. No probe is needed, nor possible at this price: a message in shared memory takes
less time than a breakpoint.
"""

from __future__ import annotations

from parprof.patterns import regex
from parprof.runtimes import Agent

_POLLS = (
    r"libopen-pal\b|libuc[pst]\b|libpsm2?\b|libfabric\b|mca_(?:btl|pml|mtl|bml)_\w+|mca_coll_libnbc\b|libmpich\b|"
    r"libmpi\.so\.12"
)
_OF_UCX = r"libuc[mpst](?:_\w+)?\.so"
"""Its parts for one kind of transport, too: what they do is mostly to copy."""


class Mpi(Agent):
    """Agent for MPI libraries."""

    name = "mpi"
    library = regex(
        rf"{_POLLS}|{_OF_UCX}|libinfinipath\b|libmpi(?:_\w+|cxx|fort)?\.so|libopen-rte|libprrte|libpmix|(?:pmix_|lib)?mca_\w+|"
        r"libmpi(?:ch)?(?:f\d*|cxx)\w*\.so"
    )
    polls = regex(_POLLS)
    """Of Open MPI not libmpi itself: reductions are computed there, and in modules of the kinds op and coll. Of these
    libnbc, whose progress is asked for in every wait once a program has had a collective that does not block, has them
    computed by others."""
    poll_functions = tuple(f"ompi_request_default_wait{of}" for of in ("", "_any", "_all", "_some"))
    functions = regex(r"(?:P?MPI_[A-Z]\w+|p?mpi_[a-z]\w*_)\Z")
    synchronize = regex(r"(?i)p?mpi_(?!init|finalize|comm_|type_|file_|win_(?:create|allocate))")
    schedule = regex(r"(?!)")
