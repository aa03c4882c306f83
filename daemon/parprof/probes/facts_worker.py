"""The child process that finds what planning has to know of files: ``python -m parprof.probes.facts_worker FD``.

It answers requests on a socket, each with a descriptor of an ELF file: ``{"file": path}`` with ``{"facts": {...}}``,
see `parprof.probes.file_facts`; with more than the file:

- ``"address"`` (an ELF virtual address): ``{"spins": [start, end], "in": name, "also": [...]}``, the loop there if it
  only waits for other threads, the function around it, and the other such loops in that; else
  ``{"spins": [], "none": [start, end]}``, the function if it has no such loop at all;
- ``"waits"`` (a regular expression): ``{"waits": [...]}``, functions of such names (`parprof.probes.wait_functions`);
- ``"near"`` (likewise): ``{"near": [...]}``, names that are nearly such;
- ``"function"`` (such an address, and bytes): ``{"function": ...}``, where that is to be probed.

It ends with the socket. What it reads and disassembles is hostile: so it gives up its privileges first, and memory and
time are limited.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from parprof.files.elf import ElfError, ElfFile
from parprof.loops.extents import function_at
from parprof.loops.spins import spin_loops
from parprof.probes.file_facts import find_facts, look_at, rules, to_json
from parprof.probes.named_functions import find_wait_functions, near_names
from parprof.symbols.names import readable
from parprof.symbols.table import find_functions
from parprof.workers import protocol
from parprof.workers.serving import run

MEMORY_LIMIT = 2 << 30
"""Bytes of addresses that the child may use."""
_MAX_LABEL = 4096


def answer(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request."""
    try:
        (source,) = fds
        source = fds[0] = protocol.borrowed(source)
        size = os.fstat(source).st_size
        label = str(request.get("file"))[:_MAX_LABEL]
        elf = ElfFile(lambda offset, size: os.pread(source, size, offset), size, label)
        if "address" in request:
            return about_loop_at(elf, int(request["address"]))
        if "waits" in request:
            return {"waits": find_wait_functions(elf, str(request["waits"]))}
        if "near" in request:
            return {"near": near_names(elf, str(request["near"]))}
        if "function" in request:
            vaddr, length = request["function"]
            return {"function": look_at(elf, int(vaddr), int(length))}
        return {"facts": to_json(find_facts(elf, label.rpartition("/")[2]))}
    except (ElfError, OSError, ValueError, TypeError) as error:
        return {"problem": str(error)[:500]}
    except MemoryError:
        return {"problem": "its symbols take too much memory"}


def about_loop_at(elf: ElfFile, address: int) -> dict[str, Any]:
    """The answer about the loop around an ELF virtual address.

    Raises:
        ElfError: the file cannot be read.
    """
    extent = function_at(elf, address)
    loops = spin_loops(elf, *extent) if extent is not None else []
    around = next(((start, end) for start, end in loops if start <= address < end), None)
    if around is not None:
        also = [loop for loop in loops if loop != around]
        return {"spins": around, "in": function_name(elf, address), "also": also}
    has_none = extent is not None and not loops
    return {"spins": [], "none": (extent[0], sum(extent)) if extent is not None and has_none else []}


def function_name(elf: ElfFile, address: int) -> str:
    """The name of the function at an ELF virtual address, for people; empty if the file has none.

    Raises:
        ElfError: the file cannot be read.
    """
    symbol = find_functions(elf, [address]).get(address)
    return readable(symbol.name) if symbol is not None else ""


if __name__ == "__main__":
    rules()  # loads the agents, those of other packages too
    readable("_Z1fv")  # and the C++ library
    with suppress(ImportError):
        import capstone  # noqa: F401
    run(answer, MEMORY_LIMIT)
