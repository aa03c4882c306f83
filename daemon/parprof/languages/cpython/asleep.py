"""The Python frames of a thread that sleeps, read from the process's memory.

Who runs is walked in the kernel (bpf/python.bpf.c); of who has slept since before we came, and goes on sleeping,
nothing comes from there. What is found is in the same form, and what the functions are is looked up in the same way.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from parprof.kernel.stacks import PYTHON_ENDS, PYTHON_ENTRY
from parprof.languages.cpython.functions import PythonFrame, code_tag
from parprof.languages.cpython.layouts import (
    CODE_SIZE,
    ENTRY_FLAG,
    ENTRY_OWNER,
    EVERY_FRAME,
    NOT_THERE,
    OWNED_BY_C_STACK,
)
from parprof.languages.cpython.memory import Objects
from parprof.languages.cpython.process import CPython

_MAX_FRAMES = 256
"""As MAX_PYTHON_FRAMES."""
_MAX_INTERPRETERS, _MAX_THREADS = 64, 1 << 12
_FRESH_SECONDS = 0.1
_THREAD_IDS = (0x2D0, 0x30)
"""Where glibc, and musl, keep the kernel's number of a thread, behind what `pthread_self` returns."""
_ENDS = frozenset(("join", "_join", "_shutdown", "_wait_for_tstate_lock"))
"""Functions of `threading` in which a thread waits for the end of others."""
_COMPLETE, _UNREADABLE, _TOO_DEEP, _NO_STATE = map(
    PYTHON_ENDS.index, ("complete", "unreadable", "too_deep", "no_state")
)


class Sleeping:
    """Threads of one process image that sleep."""

    def __init__(self, python: CPython, memory: Objects) -> None:
        """Nothing is read yet."""
        self._python = python
        self._memory = memory
        self._states: dict[int, list[int]] = {}
        """By the thread's number: with subinterpreters it has several."""
        self._read_s = -math.inf

    def frames(self, tid: int) -> tuple[bytes, int]:
        """The frames of a thread, innermost first, and how their walk ended: as in `parprof.kernel.stacks.RawStack`.

        ``tid``: as in the process's own PID namespace. Of several states the first one that has frames is taken.
        """
        now_s = time.monotonic()
        if now_s - self._read_s > _FRESH_SECONDS:  # one look serves all threads that are asked for in a row
            self._states = self._read()
            self._read_s = now_s
        found = b"", _NO_STATE
        for state in self._states.get(tid, ()):
            found = _walked(self._python, self._memory, state)
            if found[0]:
                break
        return found

    def _read(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        for state in islice(_states(self._python, self._memory), _MAX_THREADS):
            pthread = _word(self._memory, state + self._python.layout.thread_id)
            for at in _THREAD_IDS:
                if raw := self._memory.read(pthread + at, 4):
                    out.setdefault(int.from_bytes(raw, "little"), []).append(state)
        return out


def awaits_end(frames: Iterable[PythonFrame]) -> bool:
    """Whether a thread with these frames, innermost first, waits for the end of others."""
    for frame, _ in frames:
        if frame is not None:
            if not frame.file.endswith("/threading.py"):
                return False
            if frame.name.rpartition(".")[2] in _ENDS:
                return True
    return False


def _states(python: CPython, memory: Objects) -> Iterator[int]:
    """The states of all threads of all interpreters."""
    layout = python.layout
    interpreters = _list(
        memory,
        _word(memory, python.runtime + layout.interpreters),
        layout.next_interpreter,
        _MAX_INTERPRETERS,
    )
    for interpreter in interpreters:
        first = _word(memory, interpreter + layout.threads)
        yield from _list(memory, first, layout.next_thread, _MAX_THREADS)


def _list(memory: Objects, at: int, following: int, most: int) -> Iterator[int]:
    for _ in range(most):
        if not at:
            return
        yield at
        at = _word(memory, at + following)


def _walked(python: CPython, memory: Objects, state: int) -> tuple[bytes, int]:
    layout = python.layout
    at = _word(memory, state + layout.thread_frame)
    if at and layout.cframe != NOT_THERE:
        at = _word(memory, at + layout.cframe)
    out: list[bytes] = []
    while at:
        if len(out) >= _MAX_FRAMES:
            return b"".join(out), _TOO_DEEP
        raw = memory.read(at, max(layout.frame_size, layout.entry + 1))
        frame = _frame(python, memory, raw) if raw else None
        if frame is None:
            return b"".join(out), _UNREADABLE
        out.append(frame)
        (at,) = struct.unpack_from("<Q", raw, layout.previous)
    return b"".join(out), _COMPLETE


def _frame(python: CPython, memory: Objects, raw: bytes) -> bytes | None:
    """Two words; None if its code object cannot be read."""
    layout = python.layout
    (code,), (place,) = (struct.unpack_from("<Q", raw, at) for at in (layout.code, layout.instruction))
    kind, mark = layout.entry_kind, raw[layout.entry]
    if kind == ENTRY_OWNER and mark == OWNED_BY_C_STACK:
        return struct.pack("<QQ", PYTHON_ENTRY, 0)
    object_ = memory.read(code, CODE_SIZE)
    if not object_:
        return None
    if layout.code_start:
        place -= code + layout.code_start
    is_entry = kind == EVERY_FRAME or (kind == ENTRY_FLAG and mark != 0)
    place = (place & 0xFFFFFFFF) | code_tag(object_, layout) << 32
    return struct.pack("<QQ", code | (PYTHON_ENTRY if is_entry else 0), place)


def _word(memory: Objects, address: int) -> int:
    """0 where nothing can be read."""
    return int.from_bytes(memory.read(address, 8), "little")
