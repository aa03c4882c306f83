"""Numbers as DWARF and exception handling tables store them. All reading is within the given bytes."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint

PE_ABSPTR, PE_ULEB, PE_UDATA2, PE_UDATA4, PE_UDATA8 = 0x00, 0x01, 0x02, 0x03, 0x04
PE_SLEB, PE_SDATA2, PE_SDATA4, PE_SDATA8 = 0x09, 0x0A, 0x0B, 0x0C
PE_PCREL, PE_DATAREL, PE_ALIGNED, PE_INDIRECT, PE_OMIT = 0x10, 0x30, 0x50, 0x80, 0xFF
_FIXED = {
    PE_ABSPTR: (8, False), PE_UDATA2: (2, False), PE_UDATA4: (4, False), PE_UDATA8: (8, False),
    PE_SDATA2: (2, True), PE_SDATA4: (4, True), PE_SDATA8: (8, True),
}  # fmt: skip
_MASK = (1 << 64) - 1
_MAX_LEB = 10
"""Bytes of a number of 64 bits."""


class Refused(Exception):
    """A piece of call frame information cannot be used; the argument is the kind of reason, for counting."""


def uleb(source: Iterator[int]) -> int:
    """An unsigned LEB128 number of at most 10 bytes.

    Raises:
        Refused: it is longer.
        StopIteration: the bytes end within it.

    >>> uleb(iter(bytes([0xE5, 0x8E, 0x26])))
    624485
    """
    value = shift = 0
    while shift < 7 * _MAX_LEB:
        byte = next(source)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise Refused("number")


def sleb(source: Iterator[int]) -> int:
    """A signed LEB128 number of at most 10 bytes.

    Raises:
        Refused: it is longer.
        StopIteration: the bytes end within it.

    >>> sleb(iter(bytes([0x78])))
    -8
    """
    value = shift = 0
    while shift < 7 * _MAX_LEB:
        byte = next(source)
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value - (1 << shift) if byte & 0x40 else value
    raise Refused("number")


def read_leb(data: bytes, at: int, signed: bool = False) -> tuple[int, int]:
    """A LEB128 number at an index, and the index behind it.

    Raises:
        Refused: it is too long or the bytes end within it.
    """
    piece = data[at : at + _MAX_LEB]
    source = iter(piece)
    try:
        value = (sleb if signed else uleb)(source)
    except StopIteration:
        raise Refused("truncated") from None
    return value, at + len(piece) - length_hint(source)


def read_pointer(
    data: bytes, at: int, encoding: int, address: int = 0, base: int | None = None
) -> tuple[int, int]:
    """A pointer in an encoding ``DW_EH_PE_*`` at an index of ``data``, and the index behind it.

    ``address`` is the virtual address of the first byte of ``data``, ``base`` what ``DW_EH_PE_datarel`` adds.

    Raises:
        Refused: the encoding is unknown or indirect, or the bytes end within the pointer.
    """
    form, relative = encoding & 0x0F, encoding & 0xF0
    end = at
    if form in _FIXED:
        size, signed = _FIXED[form]
        end = at + size
        if end > len(data):
            raise Refused("truncated")
        value = int.from_bytes(data[at:end], "little", signed=signed)
    elif form in (PE_ULEB, PE_SLEB):
        value, end = read_leb(data, at, form == PE_SLEB)
    else:
        raise Refused("pointer encoding")
    if relative == PE_PCREL:
        value += address + at
    elif relative == PE_DATAREL and base is not None:
        value += base
    elif relative:
        raise Refused("pointer encoding")
    return value & _MASK, end


def skip_pointer(data: bytes, at: int, encoding: int) -> int:
    """The index behind a pointer whose value does not matter.

    Raises:
        Refused: the encoding is unknown, or the bytes end within the pointer.
    """
    if encoding == PE_OMIT:
        return at
    if encoding & 0x70 == PE_ALIGNED:
        raise Refused("pointer encoding")
    return read_pointer(data, at, encoding & 0x0F)[1]
