"""The child process that reads what JIT compilers have registered: ``python -m parprof.jit.worker FD``.

It answers requests on a socket, each with a descriptor of the bytes that it is about, one after the other:

- ``{"objects": [bytes, ...]}``: ``{"objects": [[functions, code, frames], ...]}``, as in `parprof.jit.objects`;
- ``{"frames": [[address, bytes], ...], "code": [[address, bytes], ...], "spans": [[start, end], ...]}`` and a
  descriptor to write the rows to: ``{"rows": [bytes, ...], "problem": text}``, for each span.

It ends with the socket. What it reads is hostile: so it gives up its privileges first, and its memory and time are
limited.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from parprof.jit.objects import look_into
from parprof.jit.registry import MAX_BYTES
from parprof.jit.tables import CodeSection, rows_of
from parprof.unwind.emit import MAX_ROWS
from parprof.unwind.frames import FrameSection, UnwindError
from parprof.unwind.rows import ROW_SIZE
from parprof.workers.serving import run

MEMORY_LIMIT = 1 << 30
"""Bytes of addresses that the child may use."""
_MOST_TEXT = 1 << 23
"""Bytes of functions' names in one answer; of objects that come after there are none."""
_FUNCTION_BYTES = 48
"""In an answer, beside its name."""


def answer(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to a request."""
    try:
        return _objects(request["objects"], fds[0]) if "objects" in request else _tables(request, *fds)
    except (KeyError, IndexError, TypeError, ValueError, OSError, UnwindError) as error:
        return {"problem": str(error)[:500]}
    except MemoryError:
        return {"problem": "it takes too much memory"}


def _pieces(sizes: Iterable[int], fd: int) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        if not 0 <= size <= MAX_BYTES - at:
            raise ValueError("too much")
        yield os.pread(fd, size, at)
        at += size


def _objects(sizes: list[int], fd: int) -> dict[str, Any]:
    out = []
    left = _MOST_TEXT
    for data in _pieces(sizes, fd):
        facts = look_into(data)
        left -= sum(_FUNCTION_BYTES + 6 * len(one.name) for one in facts.functions)
        out.append((facts.functions if left >= 0 else (), facts.code, facts.frames))
    return {"objects": out, "problem": ""}


def _tables(request: dict[str, Any], fd: int, out: int) -> dict[str, Any]:
    described = [(address, size) for address, size in (*request["frames"], *request["code"])]
    data = list(_pieces((size for _, size in described), fd))
    pieces = [(piece, address) for piece, (address, _) in zip(data, described, strict=True)]
    behind = len(request["frames"])
    frames = [FrameSection(piece, address) for piece, address in pieces[:behind]]
    code = [CodeSection(piece, address) for piece, address in pieces[behind:]]
    sizes = []
    at = 0
    for start, end in request["spans"]:
        rows = memoryview(rows_of(frames, code, start, end))
        sizes.append(len(rows))
        while rows:
            written = os.pwrite(out, rows, at)
            rows, at = rows[written:], at + written
    return {"rows": sizes, "problem": ""}


if __name__ == "__main__":
    with suppress(ImportError):
        import capstone  # noqa: F401
    run(answer, MEMORY_LIMIT, MAX_ROWS * ROW_SIZE)
