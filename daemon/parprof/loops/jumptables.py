"""Where the indirect jumps of a function go: the tables that compilers make of ``switch`` and computed goto.

What a table is, is guessed from the shape of the jump and confirmed by the contents: its entries must be
instructions of the same function. Such jumps come in two shapes (gcc 12, clang 14, all optimization levels)::

    jmp *TABLE(,%rcx,8)                                             addresses of 8 bytes
    lea TABLE(%rip),%rdx; movslq (%rdx,%rcx,4),%rax; add %rdx,%rax; jmp *%rax     distances from the table
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from parprof.files.elf import ElfFile
from parprof.loops.machinecode import Code, Flow
from parprof.patterns import regex
from parprof.values import dataclass

MAX_ENTRIES = 4096
MAX_JUMPS, MAX_READ = 4096, 1 << 16
"""Beyond these numbers of indirect jumps, or of entries, of one function no tables are looked for."""
_LOOK_BACK = 16
"""Instructions in front of a jump in which its parts are looked for."""
_NEAR, _MAX_BASES = 128, 4
"""Loads of addresses that are looked through for a jump, and how many of them are tried."""
_RIP = regex(r"(\w+), \[rip ([+-]) (0x[0-9a-f]+|\d+)\]\Z")
_REGISTER = regex(r"r\w+\Z")
_SCALED = regex(r"\[(?:(r\w+) \+ )?r\w+\*([48])(?: \+ (0x[0-9a-f]+|\d+))?\]")
_PLAIN_SUM = regex(r"\w+, dword ptr \[r\w+ \+ r\w+\]\Z")
_LIMIT = regex(r"[^,]+, (0x[0-9a-f]+|\d+)\Z")
_UNSIGNED = frozenset(("ja", "jae", "jb", "jbe"))


@dataclass(frozen=True, slots=True)
class JumpTable:
    """A table: its address, and addresses in the function that it holds; none if they could not be read."""

    address: int
    targets: tuple[int, ...]


class JumpTables:
    """Finds the tables of one function."""

    def __init__(self, elf: ElfFile, code: Code) -> None:
        """Look through the function for addresses of tables."""
        self._elf = elf
        self._code = code
        self._bases: list[tuple[int, str, int]] = []
        """(index of the instruction, register, address) of what loads an address."""
        starts = set()
        for index, operands in enumerate(code.operands):
            if "[rip" in operands and code.mnemonics[index] == "lea" and (found := _RIP.match(operands)):
                address = code.following(index) + int(found[2] + found[3], 0)
                self._bases.append((index, found[1], address))
                starts.add(address)
            elif "*8 + 0x" in operands and (found := _SCALED.search(operands)):
                starts.add(int(found[3], 0))
        self._starts = sorted(starts)
        self._known: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._left, self._unread = MAX_JUMPS, MAX_READ

    def find(self, jump: int) -> JumpTable | None:
        """The table of the indirect jump at an index; None if it has none, as jumps to other functions.

        Raises:
            ElfError: the file cannot be read.
        """
        self._left -= 1
        if self._left < 0 or self._unread <= 0:
            return None
        text = self._code.operands[jump]
        if found := _SCALED.search(text):
            return self._addresses(jump, jump, found)
        if not _REGISTER.match(text):
            return None
        for index in range(jump - 1, max(jump - _LOOK_BACK, 0) - 1, -1):
            mnemonic, operands = self._code.mnemonics[index], self._code.operands[index]
            if self._code.flow(index) is not Flow.ON:
                break
            found = _SCALED.search(operands)
            if mnemonic == "movsxd" and found and found[2] == "4" and found[1]:
                return self._distances(jump, index, found[1])
            if mnemonic == "mov" and _PLAIN_SUM.match(operands):  # gcc -O0
                return self._distances(jump, index, "")
            if mnemonic == "mov" and found and found[2] == "8" and operands.startswith(f"{text}, "):
                return self._addresses(jump, index, found)
        return None

    def _near(self, index: int, register: str) -> list[int]:
        """Addresses that the register may hold at an instruction, the likeliest first; "" = any register."""
        at = bisect_right(self._bases, (index, "", 0))
        before = self._bases[max(at - _NEAR, 0) : at]
        before.reverse()
        behind = self._bases[at : at + _NEAR] if register else []
        found = (address for _, name, address in (*before, *behind) if register in ("", name))
        return list(dict.fromkeys(found))[:_MAX_BASES]

    def _distances(self, jump: int, index: int, register: str) -> JumpTable | None:
        for base in self._near(index, register):
            if len(targets := self._read(base, 4, base, jump)) > 1:
                return JumpTable(base, targets)
        return None

    def _addresses(self, jump: int, index: int, found: re.Match[str]) -> JumpTable | None:
        if found[2] != "8":
            return None
        displacement = int(found[3], 0) if found[3] else 0
        bases = [0] if not found[1] else self._near(index, found[1])
        tables = [base + displacement for base in bases]
        for table in tables:
            if targets := self._read(table, 8, 0, jump):
                return JumpTable(table, targets)
        return JumpTable(tables[0], ()) if tables else None  # filled in by the dynamic linker

    def _read(self, table: int, width: int, origin: int, jump: int) -> tuple[int, ...]:
        """The entries up to the first that is none, or as many as a comparison in front of the jump allows."""
        limit = self._limit(jump)
        key = (table, width, limit)
        if key not in self._known:
            following = bisect_right(self._starts, table)
            count = min(limit or MAX_ENTRIES, MAX_ENTRIES)
            if following < len(self._starts):
                count = min(count, (self._starts[following] - table) // width)
            raw = self._elf.read(table, count * width)
            self._unread -= len(raw) // width
            out = []
            for (entry,) in struct.iter_unpack(
                "<i" if width == 4 else "<Q", raw[: len(raw) - len(raw) % width]
            ):
                target = origin + entry
                index = self._code.index(target)
                if index >= 0 and self._code.addresses[index] == target:
                    out.append(target)
                elif not (limit or width == 8) or not self._elf.code_end(target):
                    break  # other code may be the cold part of the function
            self._known[key] = tuple(sorted(set(out)))
        return self._known[key]

    def _limit(self, jump: int) -> int:
        """Number of entries by the comparison in front of a jump; 0 if there is none."""
        code = self._code
        for index in range(jump - 1, max(jump - _LOOK_BACK, 1) - 1, -1):
            if code.mnemonics[index] in _UNSIGNED and code.mnemonics[index - 1] == "cmp":
                found = _LIMIT.match(code.operands[index - 1])
                if found is None:
                    return 0
                return int(found[1], 0) + (code.mnemonics[index] in ("ja", "jbe"))
            if code.flow(index) not in (Flow.ON, Flow.BRANCH):
                break
        return 0
