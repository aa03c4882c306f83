"""Where libgomp keeps what tells n_w, found in its machine code: no debug information, no symbol that strip removes.

Every thread has a ``gomp_thread`` in its thread-local storage, with pointers to its team and its task; the team's
barrier counts down those that have yet to arrive (gcc libgomp/libgomp.h, config/linux/bar.h). Four short functions
carry all offsets: ``omp_get_num_threads`` loads the team, ``omp_in_final`` the task, ``GOMP_barrier`` adds the
barrier's place in the team and jumps to the wait that counts down, and the wait at a region's end lies near that
one. The code is read from the file (in the process's copy there may be probes), once and without privileges, the
thread-local offset from the process. What does not look as expected is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from parprof.files.disassembler import disassembler
from parprof.files.elf import EM_X86_64, ElfError, ElfFile
from parprof.patterns import regex
from parprof.plans import Memory, TeamBarrier, UnknownLayout
from parprof.values import dataclass

_MAX_CODE = 96
"""Bytes of a function that are looked at: all these functions begin with what we want."""
_NEARBY = 4096
"""How far from the team's wait the one at a region's end may be: they stand in one source file."""
_TEAM_IN_THREAD = 0x10
"""After the thread's function and its data; so since gcc 4.4."""
_TASK_IN_THREAD = range(0x40, 0xA0, 8)
_BARRIER_IN_TEAM = range(0x40, 0x200, 0x40)
_GENERATION, _AWAITED, _AWAITED_FINAL = 0x4, 0x40, 0x44
"""In the barrier: beside ``total``, and on the next cache line. So from gcc 4.4 to 15."""
_OUTER_TEAM = 0x8
"""In the team: ``prev_ts.team``, behind ``nthreads`` and ``work_share_chunk``."""
_GENERATION_STEP = 8
"""Its lower bits are flags (``BAR_INCR`` in config/linux/bar.h)."""
_MAX_TLS = 1 << 24
_NOT_READ = "n_w is not read from it"
_STATIC_END, _STATIC_WAIT = "gomp_team_end", "gomp_team_barrier_wait"
_KNOWN = {"4.7": 0x48, "4.9": 0x50, "6": 0x50, "9": 0x50, "11": 0x58, "12": 0x58}
"""Offset of the task in the thread in versions of gcc whose library was looked at; the barrier was at 0x80 in all."""
_SINCE = (
    ("13", "omp_in_explicit_task"),
    ("12", "GOMP_scope_start"),
    ("11", "GOMP_alloc"),
    ("9", "GOMP_taskwait_depend"),
    ("6", "GOMP_doacross_wait"),
    ("4.9", "GOMP_parallel"),
    ("4.7", "omp_in_final"),
)
"""The first gcc whose libgomp has a function."""
_FINAL_WAIT = regex(
    rb"\xf0(?:\x83\x6f\x44\x01|\x83\x47\x44\xff|\x0f\xc1[\x47\x4f\x57\x5f\x77]\x44|\xff\x4f\x44)"
)
"""``lock`` sub, add, xadd or dec of ``awaited_final`` of the barrier in %rdi."""
_RESET = regex(rb"\x8b([\x07\x0f\x17\x37])[\0-\xff]{0,6}?\x89([\x47\x4f\x57\x77])\x44")
"""``mov (%rdi), R`` and ``mov R, 0x44(%rdi)``: the last to arrive sets the count to the total again."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A pointer of the thread's: where gomp_thread begins is in a slot, or the linker has added it up."""

    register: int
    """Where the code has loaded it."""
    slot: int
    """Virtual address of a slot of the global offset table; 0 in a static program."""
    offset: int
    """From the start of gomp_thread; from fsbase in a static program."""


def release(elf: ElfFile) -> str:
    """The gcc that the library is of, or the oldest that it may be of, as ``gcc 12``. For texts."""
    found = elf.lookup(name for _, name in _SINCE)
    return next((f"gcc {version}" for version, name in _SINCE if name in found), "gcc before 4.7")


class TeamLayout(NamedTuple):
    """What the machine code of a file tells; the rest is in each process."""

    slot: int
    """Virtual address of the slot of the global offset table with the thread-local offset; 0 in a static program."""
    tls: int
    """The thread-local offset in a static program, else 0."""
    team: int
    task: int
    barrier: int
    awaited_final: int
    """In the barrier."""


def team_layout(elf: ElfFile) -> TeamLayout:
    """Where threads, teams and barriers have what tells n_w, by the code of this file. For the child that parses.

    Raises:
        UnknownLayout: this library is not built as we know it.
    """
    try:
        if elf.machine != EM_X86_64:
            raise UnknownLayout("not x86-64")
        return _derive(elf)
    except (UnknownLayout, ElfError, OSError) as error:
        raise UnknownLayout(f"libgomp of {_release_or_not(elf)}: {error}; {_NOT_READ}") from error


def team_barrier(layout: TeamLayout, process: Memory) -> TeamBarrier | None:
    """Where the threads of this process have n_w. None while ld.so has yet to relocate the library: ask again.

    Raises:
        UnknownLayout: the process does not look as its file does.
    """
    tls = _word(process, layout.slot) if layout.slot else layout.tls
    if not tls:
        return None
    if not -_MAX_TLS < tls < 0 or tls % 8:
        raise UnknownLayout(f"libgomp: a thread-local offset of {tls} makes no sense; {_NOT_READ}")
    return TeamBarrier(
        tls,
        layout.team,
        layout.task,
        layout.barrier,
        layout.barrier + _AWAITED,
        layout.barrier + layout.awaited_final,
        _OUTER_TEAM,
        _GENERATION_STEP,
    )


def _release_or_not(elf: ElfFile) -> str:
    try:
        return release(elf)
    except ElfError:
        return "an unknown gcc"


def _derive(elf: ElfFile) -> TeamLayout:
    team, _ = _loaded_field(elf, "omp_get_num_threads")
    task, _ = _loaded_field(elf, "omp_in_final")
    if team.slot != task.slot:
        raise UnknownLayout("omp_get_num_threads and omp_in_final do not agree on the thread")
    barrier, wait = _barrier(elf, team)
    _check_wait(elf, wait)
    final = _AWAITED_FINAL if _has_final_wait(elf, wait) else _AWAITED
    start = 0 if team.slot else team.offset - _TEAM_IN_THREAD
    out = TeamLayout(team.slot, start, team.offset - start, task.offset - start, barrier, final)
    _check(out, release(elf))
    return out


def _check(found: TeamLayout, version: str) -> None:
    """Compare with what is known of gomp_thread and gomp_team."""
    expected = _KNOWN.get(version.removeprefix("gcc "))
    if found.team != _TEAM_IN_THREAD or found.task not in _TASK_IN_THREAD:
        raise UnknownLayout(f"team at {found.team:#x} and task at {found.task:#x} of the thread are new")
    if expected is not None and found.task < expected:
        raise UnknownLayout(f"the task is at {found.task:#x} of the thread instead of {expected:#x}")
    if found.barrier not in _BARRIER_IN_TEAM:
        raise UnknownLayout(f"a barrier at {found.barrier:#x} of the team is new")


def _word(process: Memory, vaddr: int) -> int:
    """A signed word of the process; 0 in a global offset table that ld.so has not filled in yet."""
    address = process.address(vaddr)
    raw = process.read(address, 8) if address else b""
    if len(raw) != 8:
        raise UnknownLayout(f"libgomp: its global offset table cannot be read; {_NOT_READ}")
    return int.from_bytes(raw, "little", signed=True)


# the code


@cache
def _x86() -> Any:
    from capstone import x86

    return x86


def _code_of(elf: ElfFile, vaddr: int) -> list[Any]:
    """The first instructions at an address."""
    code = elf.read(vaddr, _MAX_CODE)
    reader = disassembler(detail=True)
    if reader is None:
        raise UnknownLayout("the Python package capstone is not installed")
    return [i for i in reader.disasm(code, vaddr) if i.mnemonic not in ("endbr64", "nop")]


def _function(elf: ElfFile, name: str) -> int:
    symbols = elf.lookup([name]).get(name)
    if not symbols:
        raise UnknownLayout(f"it has no {name}")
    return symbols[0].value


def _loaded_field(elf: ElfFile, name: str) -> tuple[_Field, Iterator[Any]]:
    """The first pointer of the thread that a function loads, and the instructions that follow."""
    instructions = iter(_code_of(elf, _function(elf, name)))
    known: dict[int, tuple[int, int]] = {}
    """Registers that hold the thread-local offset: the slot that it came from, or the offset itself."""
    for instruction in instructions:
        operands = instruction.operands
        if instruction.mnemonic in ("push", "sub") and name == _STATIC_END:
            continue
        if (
            instruction.mnemonic not in ("mov", "movabs")
            or len(operands) != 2
            or not _is_register(operands[0])
        ):
            break
        target, source = operands
        if _is_immediate(source):
            known[target.reg] = (0, int(source.imm))
            continue
        if not _is_memory(source) or source.mem.index or target.size != 8:
            break
        base, offset = source.mem.base, int(source.mem.disp)
        if instruction.reg_name(source.mem.segment) == "fs":
            if base and base not in known:
                break
            slot, constant = known[base] if base else (0, 0)
            return _Field(target.reg, slot, constant + offset), instructions
        if instruction.reg_name(base) != "rip":
            break
        known[target.reg] = (instruction.address + instruction.size + offset, 0)
    raise UnknownLayout(f"{name} does not load from the thread as expected")


def _barrier(elf: ElfFile, team: _Field) -> tuple[int, int]:
    """Offset of the barrier in the team, and the address of the wait that it is passed to.

    A program that the runtime is linked into and that has no explicit barrier has no GOMP_barrier, but then it has the
    names of internals.
    """
    static = not elf.lookup(["GOMP_barrier"])
    name = _STATIC_END if static else "GOMP_barrier"
    field, instructions = _loaded_field(elf, name)
    if (field.slot, field.offset) != (team.slot, team.offset):
        raise UnknownLayout(f"omp_get_num_threads and {name} do not agree on the team")
    offset: int | None = None
    for instruction in instructions:
        operands = instruction.operands
        if instruction.mnemonic in ("test", "je"):
            continue
        if instruction.mnemonic in ("jmp", "call"):
            if offset is None or not _is_immediate(operands[0]):
                break
            return offset, _function(elf, _STATIC_WAIT) if static else int(operands[0].imm)
        if offset is not None and static and instruction.mnemonic == "mov":
            continue
        if offset is not None or len(operands) != 2 or not _is_register(operands[0]):
            break
        if instruction.mnemonic == "lea" and operands[1].mem.base == field.register:
            offset = int(operands[1].mem.disp)
        elif operands[0].reg == field.register and _is_immediate(operands[1]):
            sign = {"add": 1, "sub": -1}.get(instruction.mnemonic, 0)
            offset = sign * int(operands[1].imm)
        else:
            break
    raise UnknownLayout(f"{name} does not pass on the team's barrier as expected")


def _check_wait(elf: ElfFile, vaddr: int) -> None:
    """Whether the wait reads the generation and takes one off the count where we think it does."""
    generation = False
    for instruction in _code_of(elf, vaddr):
        operands = instruction.operands
        memory = next((o for o in operands if _is_memory(o)), None)
        if memory is not None and instruction.reg_name(memory.mem.base) == "rdi" and memory.size == 4:
            if instruction.mnemonic == "mov" and memory.mem.disp == _GENERATION:
                generation = True
            if instruction.mnemonic.startswith("lock "):
                if instruction.mnemonic.split()[1] not in ("xadd", "sub", "dec", "add"):
                    break
                if memory.mem.disp != _AWAITED or not generation:
                    break
                return
        if instruction.mnemonic.startswith(("j", "call", "ret")):
            break
    raise UnknownLayout("the barrier's wait does not count down as expected")


def _has_final_wait(elf: ElfFile, wait: int) -> bool:
    """Whether threads count down elsewhere at a region's end; not before gcc 4.9.

    Raises:
        UnknownLayout: they should, but that was not found.
    """
    start = max(wait - _NEARBY, 0)
    while start < wait and not elf.read(start, 1):  # the segment may begin in between
        start += 64
    code = elf.read(start, wait - start + _NEARBY)
    for match in _FINAL_WAIT.finditer(code):
        reset = _RESET.search(code, match.end(), match.end() + 48)
        if reset and reset[1][0] >> 3 & 7 == reset[2][0] >> 3 & 7:
            return True
    if "GOMP_parallel" in elf.lookup(["GOMP_parallel"]):
        raise UnknownLayout("the wait at a region's end was not found")
    return False


def _is_register(operand: Any) -> bool:
    return bool(operand.type == _x86().X86_OP_REG)


def _is_immediate(operand: Any) -> bool:
    return bool(operand.type == _x86().X86_OP_IMM)


def _is_memory(operand: Any) -> bool:
    return bool(operand.type == _x86().X86_OP_MEM)


# when it is right

_NESTED = "nested teams: a thread's own team is not all that works"
_SPOILERS = (
    ("GOMP_critical_start GOMP_critical_name_start", "waits in critical sections are not at the barrier"),
    ("omp_set_lock omp_set_nest_lock omp_set_lock_ omp_set_nest_lock_", "waits for locks are not at the barrier"),
    ("GOMP_ordered_start GOMP_doacross_wait GOMP_doacross_ull_wait", "ordered iterations wait for each other"),
    ("GOMP_task GOMP_taskloop GOMP_taskloop_ull GOMP_target_ext", "threads at the barrier run tasks"),
    ("GOMP_cancel", "a cancelled barrier stays half counted"),
    ("omp_set_nested omp_set_nested_ omp_set_max_active_levels omp_set_max_active_levels_",
     _NESTED),
)  # fmt: skip


def holds_for(imported: set[str], environment: Mapping[str, str] | None = None) -> str:
    """Empty where the team's barrier tells n_w of a program, else which function makes it wrong, and why.

    ``imported`` are the functions that the program's files import; ``environment`` is the program's.
    """
    for names, why in _SPOILERS:
        used = sorted(imported.intersection(names.split()))
        if used:
            return f"{used[0]}: {why}"
    for name, value in (environment or {}).items():
        value = value.strip().lower()
        if (
            (name == "OMP_NESTED" and value in ("true", "1", "yes"))
            or (name == "OMP_MAX_ACTIVE_LEVELS" and value not in ("", "0", "1"))
            or (name == "OMP_NUM_THREADS" and "," in value)
        ):
            return f"{name}: {_NESTED}"
    return ""
