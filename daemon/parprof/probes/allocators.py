"""The functions by which programs allocate, and where they are probed in a process that runs already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from parprof.errors import ProbeAttachError
from parprof.files.dso import Dso
from parprof.files.libc import is_libc
from parprof.kernel.allocation_probe import PRELOADED, AllocationProbe

if TYPE_CHECKING:
    from parprof.probes.file_facts import FileFacts

_LOADER = ("ld-", "ld.so")
"""It has a malloc of its own, for the time before there is another."""


class Allocator(NamedTuple):
    """Which arguments say how much a function allocates."""

    bytes_argument: int
    times_argument: int = 0
    is_outer: bool = False
    """In some libraries it calls another one of these."""
    in_libc: bool = True
    """Else it counts only in the file of an allocator that brings it: that of the C++ library calls malloc."""


ALLOCATORS = {
    "malloc": Allocator(1),
    "calloc": Allocator(2, 1, is_outer=True),
    "realloc": Allocator(2, is_outer=True),
    "aligned_alloc": Allocator(2, is_outer=True),
    "memalign": Allocator(2, is_outer=True),
    "posix_memalign": Allocator(3, is_outer=True),
    "valloc": Allocator(1, is_outer=True),
    "pvalloc": Allocator(1, is_outer=True),
    **{
        f"{new}{how}": Allocator(1, is_outer=True, in_libc=False)
        for new in ("_Znwm", "_Znam")
        for how in ("", "RKSt9nothrow_t", "St11align_val_t", "St11align_val_tRKSt9nothrow_t")
    },
}


def unseen_new(dsos: Sequence[Dso], facts: Callable[[Dso], FileFacts]) -> str:
    """The allocator whose ``new`` our preloaded library does not see, as it calls no malloc; empty: there is none."""
    if not any(dso.name.startswith(PRELOADED) for dso in dsos):
        return ""
    for dso in dsos:
        defined = {one.name for one in facts(dso).functions}
        if {"malloc", "_Znwm"} <= defined:
            return dso.name
    return ""


def allocation_probes(dsos: Sequence[Dso], facts: Callable[[Dso], FileFacts]) -> tuple[AllocationProbe, ...]:
    """Where the allocations of a process are probed. ``dsos``: what it maps, the program first.

    Raises:
        ProbeAttachError: nobody knows where it allocates, or several files may do it; the text says so.
    """
    having = {dso: facts(dso) for dso in dsos if not dso.name.startswith((*_LOADER, PRELOADED))}
    having = {
        dso: known for dso, known in having.items() if any(one.name == "malloc" for one in known.functions)
    }
    program = dsos[0] if dsos and dsos[0] in having else None
    others = [dso for dso in having if not is_libc(dso.name)]
    if program is None and len(others) > 1:
        names = ", ".join(sorted(dso.name for dso in others))
        raise ProbeAttachError(f"several allocators are there ({names}): which one is called is not known")
    chosen = program or (others[0] if others else next(iter(having), None))
    if chosen is None:
        raise ProbeAttachError(
            "no malloc is to be found in it: it is stripped, or has an allocator of another name"
        )
    out = []
    for function in having[chosen].functions:
        kind = ALLOCATORS.get(function.name)
        if kind is None or not (kind.in_libc or chosen in others or chosen is program):
            continue
        place = function.whole if function.whole.arguments_intact else function.first
        offset = chosen.elf.file_offset(place.vaddr) if chosen.elf is not None else None
        if offset is not None:
            arguments = kind.bytes_argument, kind.times_argument
            path = f"/proc/self/fd/{chosen.fd()}"  # the very file that is mapped
            out.append(AllocationProbe(path, offset, *arguments, kind.is_outer, dear=not place.cheap))
    return tuple({(one.path, one.offset): one for one in out}.values())
