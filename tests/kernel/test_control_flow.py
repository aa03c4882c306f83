"""The programs' control flow as the verifiers of older kernels want it, checked on any kernel."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator

import pytest

from parprof.errors import KernelUnsupported
from parprof.kernel.bpf import program_code, verified_instructions
from parprof.kernel.objects import LoadedObject, get_object
from parprof.logical.ourselves import is_handler
from parprof.model import Frame
from parprof.symbols.kallsyms import KALLSYMS

pytestmark = pytest.mark.beside

Instruction = tuple[int, int, int, int]
"""Code, registers, offset, immediate."""
CALL, EXIT, JUMP = 0x85, 0x95, 0x05
JUMP_CLASSES = (5, 6)
PROGRAMS = get_object()["programs"]


def decode(code: bytes) -> list[Instruction]:
    return [struct.unpack_from("<BBhi", code, at) for at in range(0, len(code), 8)]


def following(program: list[Instruction], at: int) -> Iterator[tuple[int, bool]]:
    """Where an instruction leads, in the order of the kernel's check_cfg(), and whether a loop may be closed so."""
    code, registers, offset, immediate = program[at]
    if code == EXIT:
        return
    if code == JUMP:
        yield at + 1 + offset, True
    elif code == CALL:
        yield at + 1, False
        if registers >> 4 == 1:
            yield at + 1 + immediate, False
    elif code & 7 in JUMP_CLASSES:
        yield at + 1, True
        yield at + 1 + offset, True
    else:
        yield at + 1, False


def back_edges(program: list[Instruction]) -> list[tuple[int, int]]:
    """Loops that are closed by falling into their beginning, depth first as Linux before 6.6 looks for them."""
    open_nodes, done, found = {0}, set(), []
    way = [(0, following(program, 0))]
    while way:
        at, rest = way[-1]
        for target, may_close in rest:
            if target in open_nodes and not may_close:
                found.append((at, target))
            elif target not in open_nodes and target not in done:
                open_nodes.add(target)
                way.append((target, following(program, target)))
                break
        else:
            way.pop()
            open_nodes.discard(at)
            done.add(at)
    return found


def test_a_loop_that_is_entered_in_its_middle_is_found() -> None:
    add, back = (0x07, 0, 0, 1), (0x55, 0, -4, 0)  # r0 += 1; if r0 != 0 goto -4
    entered_on_top = [add, add, add, back, (EXIT, 0, 0, 0)]
    assert back_edges(entered_on_top) == []
    entered_inside = [(JUMP, 0, 1, 0), *entered_on_top]
    assert back_edges(entered_inside) == [(1, 2)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_loop_is_closed_by_falling_into_it(name: str) -> None:
    """Linux 6.1 refuses such: "back-edge from insn ..."."""
    program = decode(base64.b64decode(PROGRAMS[name]["code"]))
    assert len(program) > 30
    assert back_edges(program) == []


MOST_STACK_BYTES = 512
STACK_STEP = 32
STACK_POINTER = 10
COPY, ADD = 0xBF, 0x07


def stack_bytes(function: list[Instruction]) -> int:
    """How far a function goes down its stack: by the offsets of what it reads and writes there, and of addresses."""
    deepest = 0
    copies: set[int] = set()
    for code, registers, offset, immediate in function:
        to, of = registers & 15, registers >> 4
        if (code & 7 == 1 and of == STACK_POINTER) or (code & 7 in (2, 3) and to == STACK_POINTER):
            deepest = max(deepest, -offset)
        if code == ADD and to in copies:
            deepest = max(deepest, -immediate)
        if code & 7 != 3:  # a store leaves its registers as they are
            copies.discard(to)
        if code == COPY and of == STACK_POINTER:
            copies.add(to)
    return deepest


def combined_stack_bytes(program: list[Instruction], starts: list[int]) -> int:
    """Of the first function and the deepest of what it calls: Linux 6.1's check_max_stack_depth()."""
    ends = [*starts[1:], len(program)]
    parts = {start: program[start:end] for start, end in zip(starts, ends, strict=True)}

    def deepest(start: int) -> int:
        part = parts[start]
        called = [
            start + at + 1 + one[3] for at, one in enumerate(part) if one[0] == CALL and one[1] >> 4 == 1
        ]
        own = max(stack_bytes(part), 1)
        return own + -own % STACK_STEP + max(map(deepest, called), default=0)

    return deepest(starts[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_stack_has_room_for_all_that_a_program_calls(name: str) -> None:
    """Newer kernels give each function a stack of its own."""
    program = decode(base64.b64decode(PROGRAMS[name]["code"]))
    starts = [at for _, at in PROGRAMS[name]["functions"]]
    assert starts[0] == 0 and starts == sorted(starts)
    assert 0 < combined_stack_bytes(program, starts) <= MOST_STACK_BYTES


MOST_VERIFIED = 60_000
"""For each program; some 1.5 million take a second. Before functions were shared (parprof/kernel/linking.py) four
programs took 126,000 to 164,000 each, and before loops had what they repeat in a function of its own, two 70,000."""


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "on_call"])
def test_a_start_waits_for_no_verifier(name: str) -> None:
    """`on_call` is loaded only where calls are counted."""
    loaded = LoadedObject(get_object(), {})
    try:
        assert 40 < verified_instructions(loaded.program(name)) < MOST_VERIFIED
    finally:
        loaded.close()


def test_we_know_where_our_programs_are() -> None:
    """As the kernel's own list says, which takes long to read."""
    loaded = LoadedObject(get_object(), {})
    try:
        for name in ("on_switch", "on_fork"):
            fd = loaded.program(name)
            tag, places = program_code(fd)
            listed = [
                int(line.split()[0], 16)
                for line in KALLSYMS.read_text().splitlines()
                if line.endswith("\t[bpf]")
            ]
            starts = [start for start, _ in places]
            assert len(starts) > 1 and set(starts) <= set(listed)
            assert all(0 < size < 1 << 20 for _, size in places)
            program, offset = loaded.our_code.find(starts[1] + 5) or (Frame("none"), 0)
            assert offset == 5 and program.name == f"bpf_prog_{tag}_{name}" and is_handler(program.name)
            assert f"{starts[0]:016x} t {program.name}\t[bpf]" in KALLSYMS.read_text()
    finally:
        loaded.close()


def test_what_the_verifier_does_not_like_is_told_in_its_words() -> None:
    """It says EACCES, which is no want of a permission. The program returns what nobody has set."""
    refused = {
        **PROGRAMS["on_fork"],
        "code": base64.b64encode(struct.pack("<BBhi", EXIT, 0, 0, 0)).decode(),
        "relocations": [],
        "functions": [("on_fork", 0)],
    }
    compiled = get_object()
    loaded = LoadedObject({**compiled, "programs": {**compiled["programs"], "on_fork": refused}}, {})
    try:
        with pytest.raises(KernelUnsupported, match=r"refused BPF program on_fork: .*R0 !read_ok"):
            loaded.program("on_fork")
    finally:
        loaded.close()
