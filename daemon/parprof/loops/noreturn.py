"""Calls that never return. What lies behind one would look like part of a loop if the call returned."""

from __future__ import annotations

from functools import cached_property

from parprof.files.elf import ElfFile
from parprof.loops.imports import slot, slots_of
from parprof.loops.machinecode import Code, Flow, decode, flow_of, target_of
from parprof.patterns import regex
from parprof.remembered import Remembered

_NAMES = frozenset(
    (
        "abort", "exit", "_exit", "_Exit", "quick_exit", "pthread_exit", "thrd_exit", "longjmp", "_longjmp",
        "siglongjmp", "__longjmp_chk", "__assert_fail", "__assert_perror_fail", "__stack_chk_fail", "__chk_fail",
        "__fortify_fail", "err", "errx", "verr", "verrx", "_Unwind_Resume", "__cxa_throw", "__cxa_rethrow",
        "__cxa_bad_cast", "__cxa_bad_typeid", "__cxa_throw_bad_array_new_length", "_ZSt9terminatev",
        "_gfortran_stop_string", "_gfortran_stop_numeric", "_gfortran_error_stop_string", "_gfortran_os_error_at",
        "_gfortran_runtime_error", "_gfortran_runtime_error_at", "Py_FatalError", "_Py_FatalErrorFunc", "Py_Exit",
    )
)  # fmt: skip
_THROW = regex(rb"_ZSt\d+__throw_")
_MAX_SYMBOLS = 1 << 17
_MAX_STEPS = 20_000
"""Instructions of callees that are looked at for one function."""
_MAX_OWN_STEPS = 400
_MAX_DEPTH = 4
_MAX_REMEMBERED = 1 << 16
_PIECE = 128


class ReturningCalls:
    """Knows which functions that one file calls return. For one thread."""

    def __init__(self, elf: ElfFile) -> None:
        """Nothing is read yet."""
        self._elf = elf
        self._known = Remembered[int, bool](_MAX_REMEMBERED)
        self._steps = 0

    def without_return(self, code: Code) -> set[int]:
        """Indexes of the calls in ``code`` that surely do not return.

        Raises:
            CodeError: there is nothing to decode code with.
            ElfError: the file cannot be read.
        """
        self._steps = _MAX_STEPS
        out = set()
        for index, mnemonic in enumerate(code.mnemonics):
            if mnemonic.endswith("call") and not self._call_returns(
                code.operands[index], code.following(index), _MAX_DEPTH
            ):
                out.add(index)
        return out

    def _call_returns(self, operands: str, following: int, depth: int) -> bool:
        target = target_of(operands)
        if target < 0:
            return slot(operands, following) not in self._slots
        if target not in self._known:
            self._known[target] = True  # while it is looked at: if it calls itself, that decides nothing
            self._known[target] = target not in self._named and self._returns(target, depth)
        return self._known[target]

    def _returns(self, function: int, depth: int) -> bool:
        """Whether a way through a function may lead back to the caller; what it does not follow does."""
        pending, seen = [function], set()
        while pending:
            at = pending.pop()
            raw = b"" if at in seen else self._elf.read(at, _PIECE)
            if at not in seen and not raw:
                return True
            for address, size, mnemonic, operands in decode(raw, at, _PIECE):
                self._steps -= 1
                if address in seen:
                    break
                seen.add(address)
                flow = flow_of(mnemonic)
                if depth <= 0 or self._steps < 0 or len(seen) > _MAX_OWN_STEPS or flow is Flow.RETURN:
                    return True
                target = target_of(operands)
                if flow is Flow.JUMP and target < 0:
                    if slot(operands, address + size) not in self._slots:
                        return True
                    break
                if flow in (Flow.JUMP, Flow.BRANCH):
                    pending.append(target)
                if flow in (Flow.JUMP, Flow.TRAP):
                    break
                if mnemonic.endswith("call") and not self._call_returns(operands, address + size, depth - 1):
                    break
                at = address + size
            else:
                if raw:
                    pending.append(at)
        return False

    @cached_property
    def _named(self) -> frozenset[int]:
        """Addresses of functions of the file that are known by name not to return."""
        if sum(table.count for table in self._elf.symbol_tables) > _MAX_SYMBOLS:
            return frozenset()
        return frozenset(symbol.value for found in self._elf.lookup(_NAMES).values() for symbol in found)

    @cached_property
    def _slots(self) -> frozenset[int]:
        """Slots of the GOT that the dynamic linker fills with functions that do not return."""
        names = {name.encode() for name in _NAMES}
        return slots_of(self._elf, lambda name: name in names or _THROW.match(name) is not None)
