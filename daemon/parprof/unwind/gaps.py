"""Code that no FDE covers, but of which we know how it stands on the stack.

The C library leaves two such gaps on purpose, and stacks that end there are whole:

* ``_start`` of glibc's dynamic loader: nobody called it.
* The system call in ``clone`` and ``clone3`` and what follows, up to where parent and child go their own ways:
  no FDE can be right for both. For the parent the return address is on top of the stack; for the child, in
  which the system call returned 0, there is no caller.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from parprof.files.elf import ElfFile
from parprof.unwind.rows import RuleType, pack

_FORK = b"\x0f\x05\x48\x85\xc0"
"""``syscall; test %rax, %rax``: parent or child?"""
_MAX_GAP = 64
"""Bytes of code from the system call on; more are something else."""
_MAX_LOOKED_AT = 1 << 14
"""Gaps of a file whose code is read."""
_END, _CLONE = pack(RuleType.END), pack(RuleType.CLONE)


def fill_gaps(table: array[int], elf: ElfFile) -> None:
    """Give the rows of rule 0 in a table of ``pc, rule, ...`` a rule where we know it.

    Raises:
        ElfError: the file cannot be read.
    """
    starts, rules = table[::2], table[1::2]
    looked_at = 0
    for index in range(len(starts) - 1):
        if rules[index] or not 0 < starts[index + 1] - starts[index] <= _MAX_GAP:
            continue
        looked_at += 1
        if looked_at > _MAX_LOOKED_AT:
            break
        # the gap begins at the system call, or behind it
        if elf.read(starts[index] - 2, 2 + len(_FORK)).find(_FORK) in (0, 2):
            table[2 * index + 1] = _CLONE
    _end_at_entry(table, starts, rules, elf.entry)


def _end_at_entry(table: array[int], starts: array[int], rules: array[int], entry: int) -> None:
    """Where no FDE covers the file's entry it is the outermost frame, up to the next FDE."""
    at = bisect_right(starts, entry) - 1
    if not starts or not entry or entry > starts[-1] or (at >= 0 and rules[at]):
        return
    if at >= 0 and starts[at] == entry:
        table[2 * at + 1] = _END
    else:
        table[2 * at + 2 : 2 * at + 2] = array("I", (entry, _END))
