"""Code without call frame information whose prologue says where the caller is: functions written in assembly.

The kernels of BLAS libraries are such code: all of a numerical program's time may be spent in them. They call nothing,
so they are the innermost frame, where all registers are known. Each function is followed by its symbol and from its
first instruction for some way: what it pushes, how far it moves the stack pointer, and the register in which it keeps
that before it aligns the stack. The rule that holds then is taken to hold to the function's end: of its epilogue, some
instructions before the end, it is wrong. Where it keeps a frame pointer, that says it all: V8's built-in functions have
one, call others, and push as many arguments as there are. What cannot be followed so, or has no symbol, is followed
from its end: see `parprof.unwind.returns`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise

from parprof.files.elf import ElfFile
from parprof.loops.machinecode import CodeError, Flow, decode, flow_of
from parprof.loops.registers import WHOLE_REGISTER
from parprof.patterns import regex
from parprof.unwind.rows import pack_offset

_LEAST_GAP = 65
"""Bytes; shorter ones are padding, or in `parprof.unwind.gaps`."""
_MAX_FUNCTIONS = 1 << 14
_LOOKED_AT = 512
"""Bytes at the beginning of a function."""
_INSTRUCTIONS = 64
_SLOT = regex(r"qword ptr \[rsp(?: \+ (\w+))?\]")
_SUM = regex(r"\[rsp(?: ([+-]) (\w+))?\]")


def add_prologues(table: array[int], elf: ElfFile) -> array[int]:
    """A table of ``pc, rule, ...`` with rows where it has none for the code of functions.

    Raises:
        ElfError: the file cannot be read.
    """
    gaps = [
        at
        for at in range(0, len(table) - 2, 2)
        if not table[at + 1] and table[at + 2] - table[at] >= _LEAST_GAP
    ]
    if not gaps:
        return table
    starts = sorted({symbol.value for symbol in elf.symbols()})
    out = array("I")
    done = functions = 0
    for at in gaps:
        begin, end = table[at], table[at + 2]
        inside = starts[bisect_left(starts, begin) : bisect_left(starts, end)]
        functions += len(inside)
        if not inside or functions > _MAX_FUNCTIONS:
            continue
        out += table[done : at if inside[0] == begin else at + 2]
        for start, after in pairwise([*inside, end]):
            for row in prologue_rows(elf.read(start, min(after - start, _LOOKED_AT)), start) or [(start, 0)]:
                out.extend(row)
        done = at + 2
    return out + table[done:]


def prologue_rows(code: bytes, vaddr: int) -> list[tuple[int, int]]:
    """Rows ``(pc, rule)`` for a function that begins with this code; rule 0 from where it cannot be followed."""
    frame = _Frame()
    rows: list[tuple[int, int]] = []
    try:
        instructions = list(decode(code, vaddr, _INSTRUCTIONS))
    except CodeError:
        return []
    for address, _, mnemonic, operands in instructions:
        rule = frame.rule()
        if not rows or rows[-1][1] != rule:
            rows.append((address, rule))
        flow = flow_of(mnemonic)
        if not rule or flow in (Flow.RETURN, Flow.JUMP, Flow.TRAP) or mnemonic.endswith("call"):
            break
        frame.step(mnemonic, operands)
    return rows


class _Frame:
    """Where the caller's frame is, from instruction to instruction."""

    def __init__(self) -> None:
        self._known = True
        self._base = "rsp"
        self._offset = 8
        """From the base to the CFA."""
        self._rbp = 0
        """Where rbp was saved, as in a row."""
        self._kept: dict[str, int] = {}
        """Registers that hold a stack pointer, and how far that is from the CFA."""
        self._has_pointer = False
        """Whether rbp is a frame pointer, as far as it goes: it says where the caller is, whatever is pushed then."""

    def rule(self) -> int:
        """As a row has it; 0 if it is not known."""
        if self._has_pointer:
            return pack_offset("rbp", self._kept["rbp"], self._kept["rbp"] // 8)
        return pack_offset(self._base, self._offset, self._rbp) if self._known else 0

    def step(self, mnemonic: str, text: str) -> None:
        """An instruction is executed."""
        operands = [part.strip() for part in text.split(",")]
        target = operands[0]
        if mnemonic in ("push", "pop"):
            self._push(target, 8 if mnemonic == "push" else -8)
        elif target == "rsp":
            self._move(mnemonic, operands)
        elif mnemonic == "mov" and operands[1:] == ["rbp"] and (slot := _SLOT.fullmatch(target)):
            if self._base == "rsp":
                self._rbp = (self._offset - int(slot.group(1) or "0", 0)) // 8
        elif mnemonic == "mov" and operands[1:] == ["rsp"]:
            self._write(target)
            if self._base == "rsp":
                self._kept[target] = self._offset
                self._has_pointer |= target == "rbp" and self._rbp == self._offset // 8
        elif mnemonic == "lea" and self._base == "rsp" and (found := _SUM.fullmatch(operands[1])):
            self._write(target)
            distance = int(found.group(2) or "0", 0)
            self._kept[target] = self._offset + (distance if found.group(1) == "-" else -distance)
        elif mnemonic not in ("cmp", "test"):
            self._write(target)

    def _push(self, register: str, size: int) -> None:
        if size < 0:
            self._write(register)
        if self._base != "rsp":
            return
        self._offset += size
        if register == "rbp":
            self._rbp = self._offset // 8 if size > 0 else 0

    def _move(self, mnemonic: str, operands: list[str]) -> None:
        """The stack pointer is written."""
        if self._base != "rsp":
            return
        amount = operands[1] if len(operands) > 1 else ""
        if mnemonic in ("sub", "add") and amount.lstrip("-")[:1].isdigit():
            self._offset += int(amount, 0) * (1 if mnemonic == "sub" else -1)
        elif mnemonic == "lea" and (found := _SUM.fullmatch(amount)):
            distance = int(found.group(2) or "0", 0)
            self._offset += distance if found.group(1) == "-" else -distance
        elif mnemonic == "and" and self._kept:  # aligned: from now on by a register that holds where it was
            self._base, self._offset = next(iter(self._kept.items()))
        else:
            self._known = False

    def _write(self, register: str) -> None:
        """A register, or a part of one, gets another value."""
        register = WHOLE_REGISTER.get(register, register)
        self._kept.pop(register, None)
        self._has_pointer &= register != "rbp"
        if register == self._base:
            self._known = False
