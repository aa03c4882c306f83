"""Where a function is left: its ``ret`` instructions, and its jumps to other functions.

Probes there tell how long calls take, and change nothing in the target: a return probe would put an address of its own
on the stack, which ends programs that throw through it.

Each exit must be known, and each must be an instruction beyond doubt. Where that is not so the function is not timed,
and it is said why. Foreign bytes are disassembled here: in a child process without privileges.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from parprof.files.elf import ElfFile, Symbol
from parprof.loops.extents import function_at
from parprof.loops.jumptables import JumpTables
from parprof.loops.machinecode import Code, CodeError, Flow, read_code
from parprof.patterns import regex
from parprof.symbols.names import without_clone_suffixes

MAX_EXITS = 64
MAX_LANDINGS = 1 << 10
_MOST_PARTS = 8
PART = ".part."
"""In the name of a function's rest, whose beginning is inlined into who calls it."""
ONE_INSTRUCTION = "it is entered and left at one instruction"
GOROUTINES = "goroutines go on in other threads"
_STUB = regex(rb"(?:\xf3\x0f\x1e\xfa)?\xf2?\xff\x25", re.DOTALL)
"""The beginning of an entry of a procedure linkage table."""
_CATCH = "__cxa_begin_catch"
_RUST_CATCHES = regex("__rust_panic_cleanup$|3std9panicking(?:12catch_unwind|3try)(?:7cleanup|8do_catch)")
"""What Rust's `catch_unwind` calls first when a panic has come, by whatever scheme its name is mangled: one of them, or
each from the one before it. The last is left of a program that is optimised as a whole, ``do_catch`` is of those that
are not optimised at all."""
_OCAML_RAISES = frozenset(("caml_raise_exn", "caml_raise_exception"))
"""Return into the frame that catches, with its stack pointer."""
_LONGJMP = frozenset(("longjmp", "_longjmp", "siglongjmp"))
_LAST_OF_LONGJMP = regex(rb"\x4c\x89\xc4\x4c\x89\xcd\x90?\x3e?\xff\xe2", re.DOTALL)
"""glibc: ``mov %r8,%rsp; mov %r9,%rbp; jmp *%rdx``: the stack pointer is that of the target at the jump."""
_SIZE_OF_JUMP = 2


class Exits(NamedTuple):
    """The instructions through which a function is left, ELF virtual addresses."""

    vaddrs: tuple[int, ...] = ()
    untimed: str = ""
    """Why its calls cannot be timed; empty: they can."""


class _Unclear(Exception):
    """Not all exits are known; the text says why."""


def find_exits(elf: ElfFile, symbol: Symbol, site: int, symbols: Collection[Symbol]) -> Exits:
    """The exits of a function that is probed at ``site`` when it is entered. ``symbols``: all of the file.

    Raises:
        ElfError: the file cannot be read.
    """
    try:
        starts = {one.value for one in symbols}
        parts = [read_code(elf, vaddr, size) for vaddr, size in _ranges(symbol, symbols)]
        _add_rests(elf, parts, symbol, symbols)
        _add_nameless(elf, parts, starts)
        found = sorted({exit for part in parts for exit in _exits(elf, part, parts, site, starts)})
    except (CodeError, _Unclear) as error:
        return Exits(untimed=str(error))
    if len(found) > MAX_EXITS:
        return Exits(untimed=f"it returns at {len(found)} places")
    if site in found:
        return Exits(untimed=ONE_INSTRUCTION)
    return Exits(tuple(found))


def _ranges(symbol: Symbol, symbols: Iterable[Symbol]) -> Iterator[tuple[int, int]]:
    """The function, and what compilers have moved out of it because it hardly ever runs."""
    yield symbol.value, symbol.size
    cold = f"{symbol.name}.cold"
    yield from {(one.value, one.size) for one in symbols if one.name == cold}


def _add_rests(elf: ElfFile, parts: list[Code], symbol: Symbol, symbols: Iterable[Symbol]) -> None:
    """Add what compilers have moved out of it so that its beginning can be inlined, if it jumps there.

    Where others call that, they have not entered the function, and no call of it ends.
    """
    name = without_clone_suffixes(symbol.name)
    rests = {
        one.value: one
        for one in symbols
        if one.name.startswith(name) and PART in one.name and without_clone_suffixes(one.name) == name
    }
    for part in parts:  # it grows
        for target in _direct_targets(part):
            if (rest := rests.pop(target, None)) is not None and rest.value != symbol.value:
                parts += [read_code(elf, vaddr, size) for vaddr, size in _ranges(rest, symbols)]


def _add_nameless(elf: ElfFile, parts: list[Code], starts: Collection[int]) -> None:
    """Add the same of a file that is stripped: code without a name that has call frame information of its own.

    It is a part of the function if that jumps into its middle, or if it jumps into the middle of the function: calls of
    others, by a jump or not, lead to their beginning.
    """
    named = len(parts)
    for part in parts:  # it grows
        for target in _direct_targets(part):
            if target in starts or any(one.start <= target < one.end for one in parts):
                continue
            extent = None if _is_stub(elf, target) else function_at(elf, target)
            if extent is None or any(extent[0] <= start < sum(extent) for start in starts):
                continue
            if len(parts) - named >= _MOST_PARTS:
                raise _Unclear("it has too many parts")
            code = read_code(elf, *extent)
            comes_back = any(one.start < back < one.end for back in _direct_targets(code) for one in parts)
            if target != extent[0] or comes_back:
                parts.append(code)


def _is_stub(elf: ElfFile, vaddr: int) -> bool:
    """Whether a function of another file is called by a jump there."""
    return _STUB.match(elf.read(vaddr, 12)) is not None


def _direct_targets(code: Code) -> Iterator[int]:
    """Where its jumps lead that say so."""
    for index in range(len(code.addresses)):
        if code.flow(index) in (Flow.JUMP, Flow.BRANCH) and (target := code.target(index)) >= 0:
            yield target


def _exits(elf: ElfFile, code: Code, parts: list[Code], site: int, starts: set[int]) -> Iterator[int]:
    if ".byte" in code.mnemonics:
        raise _Unclear("its code cannot be disassembled")
    instructions = {address for part in parts for address in part.addresses}
    entry = parts[0].start
    tables = JumpTables(elf, code)

    def is_own(target: int) -> bool:
        if entry <= target <= site:
            raise _Unclear("a loop goes back to where it is entered")
        if not any(part.start <= target < part.end for part in parts):
            return False
        if target not in instructions:
            raise _Unclear("its code cannot be disassembled")
        return True

    for index, address in enumerate(code.addresses):
        flow = code.flow(index)
        if flow is Flow.RETURN:
            yield address
        elif flow is Flow.BRANCH:
            if not is_own(code.target(index)):
                raise _Unclear("a conditional jump leaves it")
        elif flow is Flow.JUMP and code.target(index) < 0:
            table = tables.find(index)
            if table is None:
                yield address
            elif not table.targets:
                raise _Unclear("it has a jump that cannot be followed")
        elif flow is Flow.JUMP and not is_own(target := code.target(index)):
            if target not in starts and not _is_stub(elf, target):
                raise _Unclear("it jumps to code without a name")
            yield address


def _returns(elf: ElfFile, symbol: Symbol) -> Iterator[int]:
    """The function's ``ret`` instructions; none if its code is not clear."""
    with suppress(CodeError):
        code = read_code(elf, symbol.value, symbol.size)
        yield from (at for index, at in enumerate(code.addresses) if code.flow(index) is Flow.RETURN)


def find_landings(elf: ElfFile, symbols: Iterable[Symbol]) -> tuple[int, ...]:
    """Where threads of C, C++, OCaml and Rust go on after an exception, a panic or longjmp: ELF addresses.

    Raises:
        ElfError: the file cannot be read.
    """
    found = set()
    has_longjmp = False
    for one in symbols:
        has_longjmp = has_longjmp or one.name in _LONGJMP
        if one.name == _CATCH or _RUST_CATCHES.search(one.name):
            found.add(one.value)
        elif one.name in _OCAML_RAISES:
            found |= set(_returns(elf, one))
    if has_longjmp:
        for segment in elf.code:
            code = elf.read_at(segment.offset, segment.file_size)
            found |= {
                segment.vaddr + match.end() - _SIZE_OF_JUMP - (code[match.end() - 3] == 0x3E)
                for match in _LAST_OF_LONGJMP.finditer(code)
            }
    return tuple(sorted(found)[:MAX_LANDINGS])
