"""capstone, where it is installed. Only children without privileges disassemble what is read from a target."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capstone import Cs


@cache
def disassembler(*, detail: bool = False, skip_data: bool = False) -> Cs | None:
    """For x86-64; None without capstone.

    ``detail``: tell which registers an instruction reads and writes. ``skip_data``: go on behind bytes that are no
    instruction. Each combination is one object, of which nothing is to be changed.
    """
    try:
        import capstone
    except ImportError:
        return None
    out = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    out.detail = detail
    out.skipdata = skip_data
    return out
