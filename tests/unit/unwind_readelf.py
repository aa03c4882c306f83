# SPDX-License-Identifier: Apache-2.0
"""What ``readelf --debug-dump=frames-interp`` says of a file, compared with our unwind table."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from parprof.loops.registers import DWARF_REGISTERS
from parprof.unwind.rows import REGISTER_OFFSETS, REGISTER_SHIFT, RuleType, unpack
from parprof.unwind.table import UnwindTable

_CIE = re.compile(r'^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE "(.*?)" cf=(\d+) df=(-?\d+) ra=(\d+)')
_FDE = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_REGISTER = re.compile(r" \(\w+\)")  # as in "r10 (r10)"
_ROW = re.compile(r"^[0-9a-f]{16} ")


@dataclass(frozen=True, slots=True)
class Expected:
    """One row: from ``start`` up to ``stop``. ``cfa`` and the registers as readelf prints them."""

    start: int
    stop: int
    cfa: str
    rbp: str
    ra: str
    signal: bool


def readelf_rows(path: Path | str) -> Iterator[Expected]:
    """All rows that describe code, in readelf's order."""
    command = ["readelf", "--wide", "--debug-dump=frames-interp", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as readelf:
        assert readelf.stdout is not None
        signals: dict[str, bool] = {}
        columns: list[str] = []
        pending: list[list[str]] = []
        stop, signal = 0, False
        for line in chain(readelf.stdout, [""]):
            if _ROW.match(line):
                if stop:
                    pending.append(_REGISTER.sub("", line).split())
            elif line.startswith("   LOC"):
                columns = line.split()
            elif (is_cie := _CIE.match(line)) or (is_fde := _FDE.match(line)) or not line:
                yield from _rows(pending, columns, stop, signal)
                pending, columns, stop = [], [], 0
                if is_cie:
                    signals[is_cie[1]] = "S" in is_cie[2]
                elif line:
                    assert is_fde
                    stop, signal = int(is_fde[3], 16), signals[is_fde[1]]


def _rows(pending: list[list[str]], columns: list[str], stop: int, signal: bool) -> Iterator[Expected]:
    starts = [int(row[0], 16) for row in pending]
    for row, start, following in zip(pending, starts, [*starts[1:], stop], strict=False):
        values = dict(zip(columns, row, strict=True))
        if start < following <= stop:
            yield Expected(
                start, following, values["CFA"], values.get("rbp", "u"), values.get("ra", "u"), signal
            )


PT_REGS = (
    "r15",
    "r14",
    "r13",
    "r12",
    "rbp",
    "rbx",
    "r11",
    "r10",
    "r9",
    "r8",
    "rax",
    "rcx",
    "rdx",
    "rsi",
    "rdi",
)
"""As the kernel's ``struct pt_regs`` has them."""


def problem_of(expected: Expected, rule: int) -> str:
    """Why a packed rule is not what readelf says; empty if it is, or if no row can say that."""
    kind, rbp, cfa = unpack(rule)
    if expected.ra == "u":
        return "" if kind is RuleType.END else "the return address is undefined"
    if register := re.fullmatch(r"r(\d+)", expected.ra):
        name = DWARF_REGISTERS[int(register[1])]
        place, offset = divmod(cfa >> 3, 1 << REGISTER_SHIFT)
        if kind is RuleType.RETURN and (PT_REGS[place], f"rsp+{8 * offset}") == (name, expected.cfa):
            return ""
        expressible = expected.cfa.startswith("rsp+") and expected.rbp == "u"
        return "" if kind is RuleType.NONE and not expressible else f"the return address is in {name}"
    if expected.cfa == "exp":
        if expected.signal:
            return "" if kind is RuleType.SIGNAL else "this is a signal frame"
        kinds = (RuleType.NONE, RuleType.PLT, RuleType.RBP_DEREF, RuleType.RSP_DEREF)
        return "" if kind in kinds else "the CFA is an expression"
    base, sign, offset = re.fullmatch(r"(\w+)([+-])(\d+)", expected.cfa).groups()
    number = int(sign + offset)
    types = {"rsp": RuleType.RSP, "rbp": RuleType.RBP, "r10": RuleType.R10}
    expressible = (
        (base in types or base in PT_REGS) and number % 8 == 0 and 0 <= number < 1 << 21 and expected.ra == "c-8"
        and (expected.rbp in ("u", "s", "exp") or re.fullmatch(r"c-\d+", expected.rbp))
    )  # fmt: skip
    if not expressible:
        return "" if kind is RuleType.NONE else f"a row cannot express CFA {expected.cfa}, ra {expected.ra}"
    if expected.rbp == "exp" and kind is RuleType.NONE:
        return ""
    if base not in types:
        if kind is not RuleType.REGISTER:
            return f"CFA {expected.cfa}"
        place, cfa = cfa >> 3 + REGISTER_SHIFT, cfa & (REGISTER_OFFSETS - 1) << 3
        if (PT_REGS[place], cfa) != (base, number):
            return f"CFA {expected.cfa}"
    elif (kind, cfa) != (types[base], number):
        return f"CFA {expected.cfa}"
    if expected.rbp in ("u", "s"):
        return "" if rbp == 0 else "rbp is unchanged"
    if expected.rbp == "exp":
        restored = base == "rsp" and number <= 16  # gcc's epilogue after realigning the stack
        return "" if (rbp == 0) is restored else "rbp is an expression"
    return "" if rbp * 8 == -int(expected.rbp[1:]) else f"rbp at {expected.rbp}"


def compare(path: Path | str, table: UnwindTable) -> tuple[int, list[str]]:
    """How many addresses were compared (both ends of each row), and what differs."""
    points, problems = 0, []
    for expected in readelf_rows(path):
        for address in {expected.start, expected.stop - 1}:
            points += 1
            rule = table.rule(address)
            if problem := problem_of(expected, rule):
                problems.append(f"{address:#x}: {problem}; we have {unpack(rule)}")
    return points, problems
