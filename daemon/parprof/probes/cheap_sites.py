"""Where in a function's machine code a uprobe is cheap (x86-64).

The kernel *emulates* a few instructions under a uprobe, about 1 us a hit, and single-steps all others out
of line, 12 to 30 us (reference/openmp-tbb-pthreads.md sec. 5.1). So we look for an emulated instruction
through which every call passes exactly once. A return probe replaces the word at the stack pointer, so that
must still be the return address: only instructions up to the first that moves the stack pointer will do (that
one itself included: the probe fires before it).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

from parprof.files.disassembler import disassembler
from parprof.files.elf import EM_X86_64, ElfFile
from parprof.patterns import regex
from parprof.values import dataclass

ENDBR64 = b"\xf3\x0f\x1e\xfa"
_MAX_PREFIX = 512
"""Bytes of code in front of a probe site that are looked at."""
_MAX_FUNCTION = 1 << 16
_LONGEST_DETOUR = 64
"""Instructions: the registers of all arguments are saved around the call."""
_ARGUMENTS = frozenset(
    f"{form}" for name in ("di", "si", "dx", "cx") for form in (f"r{name}", f"e{name}", name, f"{name[0]}l")
) | frozenset(("ch", "dh", "dil", "sil", "r8", "r8d", "r8w", "r8b", "r9", "r9d", "r9w", "r9b"))
_STACK_POINTER = frozenset(("rsp", "esp", "sp", "spl"))
_COMPARING = ("cmp", "test")
_BRANCHES = ("j", "ljmp", "loop", "xbegin")
_LEAVING = ("ret", "iret", "sys", "call", "lcall", "int", "ud", "hlt", "xabort")
_IMMEDIATE = regex(r"(?:0x[0-9a-f]+|\d+)\Z")
_GOT_SLOT = regex(r"(?:\w+ ptr )?\[rip [+-] (?:0x[0-9a-f]+|\d+)\]\Z")


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """Where to put a uprobe for a function's entry, and a return probe on the same address.

    ``vaddr`` is an ELF virtual address; ``cheap`` says whether the kernel emulates the instruction there.
    """

    vaddr: int
    cheap: bool
    why: str
    arguments_intact: bool = True
    """Whether the registers of the first six arguments still hold them there."""


def is_emulated(code: bytes) -> bool:
    """Whether the kernel emulates the instruction at the start of ``code`` (arch/x86/kernel/uprobes.c)."""
    if not code:
        return False
    first, second = code[0], code[1] if len(code) > 1 else 0
    if first == 0x41:
        return 0x50 <= second <= 0x57  # push %r8 to %r15
    if first == 0x0F:
        return 0x80 <= second <= 0x8F  # jcc rel32
    return 0x50 <= first <= 0x57 or 0x70 <= first <= 0x7F or first in (0x90, 0xE8, 0xE9, 0xEB)


def _is_push(code: bytes) -> bool:
    return len(code) > 1 and (0x50 <= code[0] <= 0x57 or (code[0] == 0x41 and 0x50 <= code[1] <= 0x57))


def cheap_probe_site(elf: ElfFile, vaddr: int, size: int) -> ProbeSite:
    """The cheapest place for the entry probe of the function at ``vaddr``, ``size`` bytes long (0 = unknown).

    Falls back to the function's first instruction, which is always right.

    Raises:
        ElfError: the file cannot be read.
    """
    code = elf.read(vaddr, min(size, _MAX_FUNCTION) if size else _MAX_PREFIX)
    skipped = len(ENDBR64) if code.startswith(ENDBR64) else 0
    if _is_push(code[skipped:]):
        return ProbeSite(vaddr + skipped, True, "a push")
    if elf.machine != EM_X86_64:
        return ProbeSite(vaddr, False, "not x86-64 code")
    if not code or not size or size > _MAX_FUNCTION or len(code) < size:
        return ProbeSite(vaddr, False, "its code is missing, very long or of unknown length")
    reader = disassembler(detail=True)
    if reader is None:
        return ProbeSite(vaddr, False, "no push at the entry; with the package capstone more would be known")
    intact, site, start = True, 0, vaddr
    detours = set[int]()
    why = "nothing is emulated near the entry"
    for instruction in reader.disasm(code[skipped:_MAX_PREFIX], vaddr + skipped):
        if _is_branch(instruction) and (back := _way_back(code, vaddr, _target(instruction))):
            detours.add(back)
            start = instruction.address + instruction.size
            continue
        if is_emulated(bytes(instruction.bytes)):
            site, why = instruction.address, f"{instruction.mnemonic} on every way in"
            break
        written = _written(instruction)
        if written & _STACK_POINTER or _leaves(instruction) or _is_branch(instruction):
            why = f"{instruction.mnemonic} comes before anything that is emulated"
            break
        intact = intact and not written & _ARGUMENTS
    if not site and not detours:
        return ProbeSite(vaddr, False, why)
    targets = _branch_targets(code, vaddr, detours)
    if targets is None:
        return ProbeSite(vaddr, False, "its branches cannot all be followed")
    if any(vaddr <= target <= (site or start) for target in targets):
        return ProbeSite(vaddr, False, "a loop passes the only place that is emulated")
    return ProbeSite(site or start, bool(site), why, intact)


def turns_at_entry(elf: ElfFile, vaddr: int, size: int) -> bool:
    """Whether a loop of the function goes back to its first instruction: a probe there is hit by each turn.

    Raises:
        ElfError: the file cannot be read.
    """
    reader = disassembler()
    if elf.machine != EM_X86_64 or reader is None or not 0 < size <= _MAX_FUNCTION:
        return False
    code = elf.read(vaddr, size)
    detours, backs = set[int](), set[int]()
    for address, length, mnemonic, operands in reader.disasm_lite(code, vaddr):
        if mnemonic.startswith(_BRANCHES) and _IMMEDIATE.match(operands):
            target = int(operands, 0)
            if target == vaddr:
                backs.add(address)
            elif address + length - vaddr <= _MAX_PREFIX:
                detours.add(_way_back(code, vaddr, target))
    return bool(backs - detours)


def _way_back(code: bytes, vaddr: int, target: int | None) -> int:
    """The jump back to where the function begins, at the end of a way that does nothing but call; 0: it is another way.

    So each function of Go gets itself a larger stack when it has been called, and is called anew, so to speak.
    """
    reader = disassembler()
    if reader is None or target is None or not vaddr < target < vaddr + len(code):
        return 0
    has_called = False
    for address, _, mnemonic, operands in islice(
        reader.disasm_lite(code[target - vaddr :], target), _LONGEST_DETOUR
    ):
        if mnemonic == "jmp" and has_called and operands == hex(vaddr):
            return int(address)
        if mnemonic == "call":
            has_called = True
        elif mnemonic.startswith((*_BRANCHES, *_LEAVING)):
            return 0
    return 0


def tail_jump_site(elf: ElfFile, vaddr: int, size: int) -> ProbeSite | None:
    """The one jump to another function, for stubs that else just return; None for any other function.

    That jump is the slow path of locks and the like: a probe there costs nothing on the fast path. The stack
    pointer is as at entry, so a return probe there fires when the slow path returns to the stub's caller.

    Raises:
        ElfError: the file cannot be read.
    """
    if not 0 < size <= _MAX_PREFIX or elf.machine != EM_X86_64:
        return None
    code = elf.read(vaddr, size)
    reader = disassembler(detail=True)
    if reader is None or len(code) < size:
        return None
    jumps = []
    returns = 0
    intact = True
    end = vaddr
    for instruction in reader.disasm(code, vaddr):
        end = instruction.address + instruction.size
        if instruction.mnemonic.endswith("ret") and not instruction.op_str:
            returns += 1
            continue
        written = _written(instruction)
        if written & _STACK_POINTER:
            return None
        intact = intact and not written & _ARGUMENTS
        if not _leaves(instruction) and not _is_branch(instruction):
            continue
        target = _target(instruction)
        if target is None:
            return None
        if not vaddr <= target < vaddr + size:
            if instruction.mnemonic != "jmp" or not is_emulated(bytes(instruction.bytes)):
                return None
            jumps.append(instruction.address)
    if end != vaddr + size or len(jumps) != 1 or not returns:
        return None
    return ProbeSite(jumps[0], True, "the jump to the slow path", intact)


def _written(instruction: Any) -> set[str]:
    """Names of the registers that an instruction may write."""
    names = {instruction.reg_name(register) for register in instruction.regs_access()[1]}
    first = instruction.op_str.partition(",")[0]
    if first in _STACK_POINTER and instruction.mnemonic not in _COMPARING:
        names.add(first)  # this one matters too much to trust capstone alone
    return names


def _is_branch(instruction: Any) -> bool:
    return bool(instruction.mnemonic.rpartition(" ")[2].startswith(_BRANCHES))


def _leaves(instruction: Any) -> bool:
    """Whether execution does not simply go on at the next instruction; branches aside."""
    return bool(instruction.mnemonic.rpartition(" ")[2].startswith(_LEAVING))


def _target(instruction: Any) -> int | None:
    """Address that a direct branch goes to; None if that is not written in the instruction."""
    return int(instruction.op_str, 0) if _IMMEDIATE.match(instruction.op_str) else None


def _branch_targets(code: bytes, vaddr: int, left_out: Collection[int]) -> set[int] | None:
    """Where the branches of a function go; None if some target is unknown or some bytes are no code.

    ``left_out``: addresses of branches that do not matter.
    """
    reader = disassembler(detail=False)
    if reader is None:
        return None
    out = set()
    end = vaddr
    for address, length, mnemonic, operands in reader.disasm_lite(code, vaddr):
        end = address + length
        if not mnemonic.rpartition(" ")[2].startswith(_BRANCHES) or address in left_out:
            continue
        if _IMMEDIATE.match(operands):
            out.add(int(operands, 0))
        elif not _GOT_SLOT.match(operands):  # a jump through the GOT leaves the function
            return None
    return out if end == vaddr + len(code) else None
