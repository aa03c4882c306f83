"""The child process that finds loops in machine code: ``python -m parprof.loops.worker FD``.

It answers requests on a socket, each with a descriptor of an ELF file: ``{"file": name, "start": ELF virtual address,
"size": bytes}`` with ``{"nest": {...}, "seconds": CPU time}`` (`parprof.loops.nest_json`), or ``{"problem": text}``.
It ends with the socket. What it disassembles is hostile: so it gives up its privileges first, and memory and time are
limited.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any, NamedTuple

from parprof.files.elf import ElfError, ElfFile
from parprof.loops.nest import find_loops
from parprof.loops.nest_json import to_json
from parprof.loops.noreturn import ReturningCalls
from parprof.workers import protocol
from parprof.workers.serving import run

MEMORY_LIMIT = 2 << 30
"""Bytes of addresses that the child may use."""
_MAX_FILES = 16
_MAX_TEXT = 500


class _File(NamedTuple):
    fd: int
    elf: ElfFile
    calls: ReturningCalls


class LoopWorker:
    """Answers requests; keeps what it knows of the files that were used last."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        self._files: OrderedDict[str, _File] = OrderedDict()

    def answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """The reply to a request; takes over the descriptor of a file that it has not met."""
        try:
            file = self._file(str(request["file"]), fds)
            began_s = time.process_time()
            nest = find_loops(file.elf, int(request["start"]), int(request["size"]), file.calls)
            return {"nest": to_json(nest), "seconds": time.process_time() - began_s}
        except (ElfError, OSError, ValueError, TypeError, KeyError) as error:
            return {"problem": str(error)[:_MAX_TEXT]}
        except MemoryError:
            return {"problem": "its code takes too much memory"}

    def _file(self, name: str, fds: list[int]) -> _File:
        file = self._files.pop(name, None)
        if file is None:
            (source,) = fds
            source = fds[0] = protocol.borrowed(source)
            elf = ElfFile(
                lambda offset, size: os.pread(source, size, offset), os.fstat(source).st_size, "file"
            )
            file = _File(source, elf, ReturningCalls(elf))
            fds.clear()  # it is the file's now
        self._files[name] = file
        while len(self._files) > _MAX_FILES:
            os.close(self._files.popitem(last=False)[1].fd)
        return file


if __name__ == "__main__":
    with suppress(ImportError):
        import capstone  # noqa: F401
    run(LoopWorker().answer, MEMORY_LIMIT)
