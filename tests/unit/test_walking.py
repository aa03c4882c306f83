# SPDX-License-Identifier: Apache-2.0
"""Walks over stacks from outside: parprof.unwind.walking; and where functions of the kernel are."""

from __future__ import annotations

import pytest

from parprof.model import CallerStep
from parprof.unwind.rows import PT_REGS, RuleType, pack, pack_return
from parprof.unwind.walking import MAX_DEPTH, Walked, walk

LEAF, CALLER, MAIN, START = 0x1000, 0x2000, 0x3000, 0x4000
STACK = 0x7000


def walked(rules: dict[int, int], words: dict[int, int]) -> Walked:
    """``rules`` by page of code."""

    def read_word(address: int) -> int:
        if address not in words:
            raise OSError(14, "unmapped")
        return words[address]

    return walk(LEAF + 5, STACK, lambda address: rules.get(address & ~0xFFF), read_word)


def test_a_whole_stack() -> None:
    """The caller's frame goes by rbp, which the leaf's has saved."""
    rules = {
        LEAF: pack(RuleType.RSP, 24, 2),
        CALLER: pack(RuleType.RBP, 16),
        START: pack(RuleType.END),
    }
    words = {STACK + 8: STACK + 0x100, STACK + 16: CALLER + 9, STACK + 0x108: START + 7}
    assert walked(rules, words) == Walked((LEAF + 5, CALLER + 9, START + 7), "complete")


def test_a_return_address_in_a_register() -> None:
    """As of vfork: the register has an argument of the system call to those who look from outside."""
    rules = {LEAF: pack_return(PT_REGS["rdi"], 8), START: pack(RuleType.END)}

    def walked_with(arguments: list[int]) -> Walked:
        def rule_at(address: int) -> int | None:
            return rules.get(address & ~0xFFF)

        return walk(LEAF + 5, STACK, rule_at, {}.__getitem__, arguments=arguments)

    assert walked_with([START + 1, 0, 0, 0, 0, 0]) == Walked((LEAF + 5, START + 1), "complete")
    assert walked_with([]) == Walked((LEAF + 5,), "bad_row")


def test_return_addresses_belong_to_the_call_before_them() -> None:
    """It may be the last instruction of its function; the leaf's may be the first."""
    rules = {CALLER: pack(RuleType.RSP, 8), LEAF: pack(RuleType.RSP, 8), START: pack(RuleType.END)}
    words = {STACK: CALLER + 0x1000, STACK + 8: START + 1}
    assert walked(rules, words).addresses == (LEAF + 5, CALLER + 0x1000, START + 1)


def called_from(words: dict[int, int], back: int, function: int) -> None:
    """Before that return address there is a call of the function."""
    code = b"\x90\x90\x90\xe8" + (function - back).to_bytes(4, "little", signed=True)
    words[back - 8] = int.from_bytes(code, "little")


@pytest.mark.parametrize("calls", [CALLER, CALLER + 0x40, MAIN])
def test_a_frame_pointer_that_nobody_saved_is_found_by_the_call(calls: int) -> None:
    """The leaf's frame is of a library without frame pointers, as libc's are; on the caller's is left what a function
    had there before that it had called. WHEN the return address is behind a call of another one THEN it is no frame."""
    frame, outer = STACK + 0x40, STACK + 0x90
    rules = {LEAF: pack(RuleType.RSP, 16), CALLER: pack(RuleType.RBP, 16, 2), MAIN: pack(RuleType.RBP, 16, 2)}
    rules[START] = pack(RuleType.END)
    words = dict.fromkeys(range(STACK, STACK + 0x200, 8), 0)
    words.update({STACK + 8: CALLER + 0x59, STACK + 0x28: frame, STACK + 0x30: CALLER + 0x39})
    words.update({frame: outer, frame + 8: MAIN + 0x29, outer: 1, outer + 8: START + 7})
    called_from(words, CALLER + 0x39, LEAF)
    called_from(words, MAIN + 0x29, calls)

    def rule_at(address: int) -> int | None:
        begin = address & ~0xFFF
        return pack(RuleType.RSP, 8) if address in (CALLER, MAIN) else rules.get(begin)

    found = walk(LEAF + 5, STACK, rule_at, lambda address: word(words, address))
    whole = (LEAF + 5, CALLER + 0x59, MAIN + 0x29, START + 7)
    assert found == (Walked(whole, "complete") if calls == CALLER else Walked(whole[:2], "bad_row"))


def word(words: dict[int, int], address: int) -> int:
    if address not in words:
        raise OSError(14, "unmapped")
    return words[address]


@pytest.mark.parametrize(
    ("rules", "words", "end"),
    [
        ({LEAF: pack(RuleType.RBP, 16)}, {}, "bad_row"),  # nobody knows rbp
        ({LEAF: pack(RuleType.RSP, 0)}, {}, "bad_row"),
        ({LEAF: pack(RuleType.RSP, 1 << 20)}, {}, "unreadable"),
        ({LEAF: 15 << 28}, {}, "bad_row"),
        ({}, {}, "no_table"),
        ({LEAF: pack(RuleType.RSP, 8)}, {}, "unreadable"),
        ({LEAF: pack(RuleType.RSP, 8)}, {STACK: 0}, "zero"),
    ],
)
def test_what_cannot_be_crossed(rules: dict[int, int], words: dict[int, int], end: str) -> None:
    assert walked(rules, words) == Walked((LEAF + 5,), end)


def test_a_stack_without_an_end() -> None:
    forever = walk(LEAF, STACK, lambda _: pack(RuleType.RSP, 8), lambda _: LEAF)
    assert forever.end == "too_deep" and len(forever.addresses) == MAX_DEPTH


def test_code_of_a_language() -> None:
    """What has no table may be a language's: then that says where the caller is, and what stands for the frame."""
    rules = {LEAF: pack(RuleType.RSP, 8), START: pack(RuleType.END)}
    words = {STACK: CALLER + 9}

    def step(pc: int, sp: int, rbp: int | None) -> CallerStep | None:
        return CallerStep(7 << 60, START + 7, sp + 24, rbp) if pc == CALLER + 9 else None

    def read_word(address: int) -> int:
        return words[address]

    found = walk(LEAF + 5, STACK, lambda at: rules.get(at & ~0xFFF), read_word, step)
    assert found == Walked((LEAF + 5, 7 << 60, START + 7), "complete")


@pytest.mark.parametrize(
    ("step", "end"),
    [(CallerStep(1, LEAF, STACK, None), "bad_row"), (None, "no_table"), (OSError, "unreadable")],
)
def test_a_language_that_does_not_know_its_code(step: CallerStep | type[OSError] | None, end: str) -> None:
    def language(pc: int, sp: int, rbp: int | None) -> CallerStep | None:
        if step is OSError:
            raise OSError(14, "unmapped")
        assert step is None or isinstance(step, CallerStep)
        return step

    assert walk(LEAF, STACK, lambda at: None, lambda at: 0, language) == Walked((LEAF,), end)
