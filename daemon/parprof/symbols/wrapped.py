"""Functions of the C library without a name of their own, that an exported one ends in.

``pthread_join`` and ``sem_wait`` jump to what they have in common with others of their kind, and leave no frame: a
stripped library has no name for where their threads wait.
"""

from __future__ import annotations

from parprof.files.elf import ElfFile

WRAPPERS = ("pthread_join", "pthread_timedjoin_np", "sem_wait", "sem_timedwait", "sem_clockwait")
"""Of two that end in the same function the first gives it its name. None of these functions is called otherwise."""
_MOST_CODE = 256
_JUMP = b"\xe9"
_JUMP_BYTES = 5


def wrapped_functions(elf: ElfFile) -> dict[int, str]:
    """Names by the ELF virtual address that one of `WRAPPERS` jumps to; none in a file that lacks them.

    Bytes within an instruction may look like a jump, so only addresses are to be asked for at which a function begins.

    Raises:
        ElfError: the file cannot be read.
    """
    out: dict[int, str] = {}
    found = elf.lookup(WRAPPERS)
    for name in WRAPPERS:
        for symbol in found.get(name, ()):
            code = elf.read(symbol.value, min(symbol.size, _MOST_CODE))
            at = code.find(_JUMP)
            while 0 <= at <= len(code) - _JUMP_BYTES:
                distance = int.from_bytes(code[at + 1 : at + _JUMP_BYTES], "little", signed=True)
                out.setdefault(symbol.value + at + _JUMP_BYTES + distance, name)
                at = code.find(_JUMP, at + 1)
    return out
