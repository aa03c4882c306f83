"""Functions without a name of their own, of the C library and of libgomp, that threads wait in: found by the exported
functions that end in them.

These jump to what they have in common with others of their kind, and leave no frame: stripped libraries have no name
for where their threads wait.
"""

from __future__ import annotations

from typing import NamedTuple

from parprof.files.elf import ElfFile


class _Wrapped(NamedTuple):
    name: str
    """What it goes by: its own name in the sources, or that of the function which all that call it are kinds of."""
    wrappers: tuple[str, ...]
    """Names, exported or of this table, of functions that end in a jump to it."""


_WRAPPED = (
    _Wrapped("pthread_join", ("pthread_join", "pthread_timedjoin_np")),
    _Wrapped("sem_wait", ("sem_wait",)),
    _Wrapped("sem_timedwait", ("sem_timedwait", "sem_clockwait")),
    _Wrapped("gomp_mutex_lock_slow", ("omp_set_lock", "GOMP_critical_start")),
    _Wrapped("gomp_team_barrier_wait", ("GOMP_barrier",)),
    _Wrapped("gomp_team_barrier_wait_end", ("gomp_team_barrier_wait",)),
)
"""In order: what one is wrapped by stands before it."""
_MOST_CODE = 256
_JUMPS = {0xE9: 4, 0xEB: 1}
"""By the first byte of the instruction how long the distance is."""


def wrapped_functions(elf: ElfFile) -> dict[int, str]:
    """Names by the ELF virtual address that a wrapper jumps to; none in a file that lacks them.

    Bytes within an instruction may look like a jump, so only addresses are to be asked for at which a function begins.

    Raises:
        ElfError: the file cannot be read.
    """
    exported = elf.lookup(name for one in _WRAPPED for name in one.wrappers)
    places = {name: [(symbol.value, symbol.size) for symbol in symbols] for name, symbols in exported.items()}
    out: dict[int, str] = {}
    for one in _WRAPPED:
        targets = [
            target
            for wrapper in one.wrappers
            for begin, size in places.get(wrapper, ())
            for target in _jumps(elf, begin, size)
        ]
        for target in targets:
            out.setdefault(target, one.name)
        places.setdefault(one.name, [(target, _MOST_CODE // 4) for target in targets])
    return out


def _jumps(elf: ElfFile, begin: int, size: int) -> list[int]:
    """Where the code of a function may jump to."""
    code = elf.read(begin, min(size, _MOST_CODE))
    out = []
    for at, byte in enumerate(code):
        end = at + 1 + _JUMPS.get(byte, len(code))
        if end <= len(code):
            out.append(begin + end + int.from_bytes(code[at + 1 : end], "little", signed=True))
    return out
