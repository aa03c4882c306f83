"""Call frame instructions (``DW_CFA_*``), all of them, run one after the other.

This is the exact interpreter; `parprof.unwind.emit` has a faster one for the instructions that most functions
get along with. Registers have their DWARF numbers: 6 is rbp, 7 is rsp, 10 is r10, 16 the return address.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from operator import length_hint
from typing import NamedTuple

from parprof.unwind.pointers import Refused, read_pointer, sleb, uleb

REG_RBP, REG_RSP, REG_R10, REG_RA = 6, 7, 10, 16
MAX_REMEMBERED = 64
"""States that a function may remember at once."""
_ADVANCE_SIZES = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}


class How(Enum):
    """In which way a register's value in the caller is known."""

    SAME = "same"
    OFFSET = "offset"
    EXPRESSION = "expression"
    REGISTER = "register"
    UNDEFINED = "undefined"
    ELSEWHERE = "elsewhere"


class SavedRegister(NamedTuple):
    """Where the value is: at CFA + ``offset``, at the address that ``expression`` yields, or in a register,
    the one with the number ``offset``."""

    how: How
    offset: int = 0
    expression: bytes = b""


SAME, UNDEFINED, ELSEWHERE = (
    SavedRegister(How.SAME),
    SavedRegister(How.UNDEFINED),
    SavedRegister(How.ELSEWHERE),
)
AT_CALL = SavedRegister(How.OFFSET, -8)


class CfiRow(NamedTuple):
    """What is known at an instruction: the CFA (``register`` + ``offset``, or ``expression``), rbp and ip.

    Nothing is known where there is a ``problem``, which names the kind.
    """

    register: int = -1
    offset: int = 0
    expression: bytes = b""
    rbp: SavedRegister = SAME
    ra: SavedRegister = SAME
    problem: str = ""


class Factors(NamedTuple):
    """What a CIE says about the instructions of its functions."""

    code: int
    data: int
    encoding: int


def run(
    program: bytes, factors: Factors, initial: CfiRow, location: int, address: int
) -> Iterator[tuple[int, CfiRow]]:
    """Where each state begins and the state, in order; at least one. A later one replaces one at its place.

    ``initial`` is what ``DW_CFA_restore`` goes back to, ``address`` the virtual address of ``program``. An
    instruction that is unknown or damaged ends it with a frame that has a ``problem``.
    """
    frame = initial
    remembered: list[CfiRow] = []
    source = iter(program)
    try:
        for op in source:
            if 0x40 <= op < 0x80 or op in _ADVANCE_SIZES:
                yield location, frame
                location += factors.code * (op & 0x3F if op >= 0x40 else _fixed(source, _ADVANCE_SIZES[op]))
            elif op == 0x01:  # set_loc
                yield location, frame
                at = len(program) - length_hint(source)
                target, end = read_pointer(program, at, factors.encoding, address)
                if target < location:
                    raise Refused("instruction")
                location = target
                _block(source, end - at)
            elif op == 0x0A:  # remember_state
                if len(remembered) == MAX_REMEMBERED:
                    raise Refused("instruction")
                remembered.append(frame)
            elif op == 0x0B:  # restore_state
                if not remembered:
                    raise Refused("instruction")
                frame = remembered.pop()
            elif op >= 0xC0 or op == 0x06:  # restore, restore_extended
                register = op & 0x3F if op >= 0xC0 else uleb(source)
                if register == REG_RBP:
                    frame = frame._replace(rbp=initial.rbp)
                elif register == REG_RA:
                    frame = frame._replace(ra=initial.ra)
            elif 0x0C <= op <= 0x0F or op in (0x12, 0x13):
                frame = _with_cfa(frame, op, source, factors.data)
            elif op not in (0x00, 0x2E):  # nop, GNU_args_size
                frame = _with_register(frame, op, source, factors.data)
            elif op == 0x2E:
                uleb(source)
    except Refused as error:
        frame = CfiRow(problem=str(error))
    except StopIteration:
        frame = CfiRow(problem="truncated")
    yield location, frame


def _fixed(source: Iterator[int], size: int) -> int:
    return int.from_bytes(_block(source, size), "little")


def _block(source: Iterator[int], size: int) -> bytes:
    if size > length_hint(source):
        raise Refused("truncated")
    return bytes(islice(source, size))


def _with_cfa(frame: CfiRow, op: int, source: Iterator[int], factor: int) -> CfiRow:
    if op == 0x0F:  # def_cfa_expression
        return frame._replace(register=-1, offset=0, expression=_block(source, uleb(source)))
    register = uleb(source) if op in (0x0C, 0x0D, 0x12) else frame.register
    if register < 0:
        raise Refused("instruction")  # an offset, but no register is in force
    offset = frame.offset
    if op in (0x0C, 0x0E):  # def_cfa, def_cfa_offset
        offset = uleb(source)
    elif op in (0x12, 0x13):  # def_cfa_sf, def_cfa_offset_sf
        offset = sleb(source) * factor
    return frame._replace(register=register, offset=offset, expression=b"")


def _with_register(frame: CfiRow, op: int, source: Iterator[int], factor: int) -> CfiRow:
    register = op & 0x3F if op >= 0x80 else uleb(source)
    if op >= 0x80 or op == 0x05:  # offset, offset_extended
        saved = SavedRegister(How.OFFSET, uleb(source) * factor)
    elif op == 0x11:  # offset_extended_sf
        saved = SavedRegister(How.OFFSET, sleb(source) * factor)
    elif op == 0x2F:  # GNU_negative_offset_extended
        saved = SavedRegister(How.OFFSET, -uleb(source) * factor)
    elif op == 0x07:  # undefined
        saved = UNDEFINED
    elif op == 0x08:  # same_value
        saved = SAME
    elif op == 0x09:  # register
        saved = SavedRegister(How.REGISTER, uleb(source))
    elif op == 0x14:  # val_offset
        uleb(source)
        saved = ELSEWHERE
    elif op == 0x15:  # val_offset_sf
        sleb(source)
        saved = ELSEWHERE
    elif op in (0x10, 0x16):  # expression, val_expression
        expression = _block(source, uleb(source))
        saved = SavedRegister(How.EXPRESSION, expression=expression) if op == 0x10 else ELSEWHERE
    else:
        raise Refused("instruction")
    if register == REG_RBP:
        return frame._replace(rbp=saved)
    if register == REG_RA:
        return frame._replace(ra=saved)
    return frame
