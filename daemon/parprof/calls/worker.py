"""The child process that looks for functions in files: ``python -m parprof.calls.worker FD``.

It answers requests on a socket, each with a descriptor of an ELF file: ``{"patterns": [...], "addresses": [...],
"nop5": bool, "times": bool}`` with ``{"found": ...}`` (`parprof.calls.search.Found`), and ``{"list": true}`` with
``{"functions": [...]}``.
It ends with the socket. What it reads is hostile: so it gives up its privileges first, and memory and time are limited.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from parprof.calls.search import list_functions, search
from parprof.files.elf import ElfError, ElfFile
from parprof.symbols.names import readable
from parprof.workers import protocol
from parprof.workers.serving import run

MEMORY_LIMIT = 2 << 30
"""Bytes of addresses that the child may use."""


def answer(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request."""
    try:
        (source,) = fds
        source = fds[0] = protocol.borrowed(source)
        elf = ElfFile(lambda offset, size: os.pread(source, size, offset), os.fstat(source).st_size, "file")
        if request.get("list"):
            return {"functions": list_functions(elf)}
        patterns = [str(one) for one in request.get("patterns", ())]
        addresses = [int(one) for one in request.get("addresses", ())]
        options = {"nop5_is_cheap": bool(request.get("nop5")), "times": bool(request.get("times"))}
        return {"found": search(elf, patterns, addresses, **options)}
    except (ElfError, OSError, ValueError) as error:
        return {"problem": str(error)[:500]}
    except MemoryError:
        return {"problem": "its symbols take too much memory"}


if __name__ == "__main__":
    readable("_Z1fv")  # loads the C++ library
    with suppress(ImportError):
        import capstone  # noqa: F401
    run(answer, MEMORY_LIMIT)
