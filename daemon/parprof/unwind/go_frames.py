"""Call frame information of Go programs that have none: made of what Go keeps for its own tracebacks.

Go's linker makes ``.debug_frame`` of the same tables (``cmd/link/internal/ld/dwarf.go``, writeframes); a stripped
program has only these. Rules of other sections come first: C code that is linked in has its own.
"""

from __future__ import annotations

import struct

from parprof.files.elf import ElfFile
from parprof.files.go_functions import GoFunction, GoFunctions, go_functions
from parprof.unwind.frames import MAX_FRAME_BYTES, FrameSection

_CIE = bytes((
    20, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 3, 0, 1, 0x78, 16,  # version 3; units of 1 and -8; the return address is 16
    0x0C, 7, 8,  # DW_CFA_def_cfa: rsp + 8
    0x80 | 16, 1,  # DW_CFA_offset: the return address is at CFA - 8
    0, 0, 0, 0, 0, 0,
))  # fmt: skip
_FDE = struct.Struct("<IIQQ")
_RETURN_ADDRESS_UNDEFINED = bytes((0x07, 16))
_DEF_CFA_OFFSET, _ADVANCE = 0x0E, 0x40
_ADVANCES = ((0x02, 1), (0x03, 2), (0x04, 4))


def go_frames(elf: ElfFile) -> FrameSection | None:
    """What ``.debug_frame`` would be; None for what is no Go program, or of a version that we do not know.

    Raises:
        ElfError: the file cannot be read.
    """
    known = go_functions(elf)
    if known is None:
        return None
    parts, size = [_CIE], len(_CIE)
    for function in known.functions:
        program = _program(known, function)
        program += bytes(-(len(program) + _FDE.size) % 8)
        size += _FDE.size + len(program)
        if size > MAX_FRAME_BYTES:
            break
        parts.append(
            _FDE.pack(_FDE.size - 4 + len(program), 0, function.start, function.end - function.start)
        )
        parts.append(program)
    return FrameSection(b"".join(parts), 0, is_debug=True)


def _program(known: GoFunctions, function: GoFunction) -> bytes:
    """How the CFA's distance from the stack pointer changes in a function."""
    if known.is_outermost(function):
        return _RETURN_ADDRESS_UNDEFINED
    out = bytearray()
    at, depth = function.start, 0
    for start, _, value in known.stack_depths(function):
        if value == depth or value < 0:
            continue
        out += _advance(start - at)
        out.append(_DEF_CFA_OFFSET)
        out += _uleb(value + 8)
        at, depth = start, value
    return bytes(out)


def _advance(distance: int) -> bytes:
    if distance < _ADVANCE:
        return bytes((_ADVANCE | distance,)) if distance else b""
    code, size = next((code, size) for code, size in _ADVANCES if distance < 1 << 8 * size)
    return bytes((code,)) + distance.to_bytes(size, "little")


def _uleb(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
