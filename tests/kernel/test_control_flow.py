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
