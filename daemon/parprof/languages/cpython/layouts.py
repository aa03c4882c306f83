"""Where each minor version of CPython keeps its frames and code objects.

The numbers are those of the versions' own headers (``offsetof`` with Py_BUILD_CORE); tests/kernel/test_cpython.py
checks them on real interpreters. 3.13 and later say most of them at the start of ``_PyRuntime``.
"""

from __future__ import annotations

import struct
from dataclasses import fields, replace

from parprof.values import dataclass

NOT_THERE = 0xFFFF
EVERY_FRAME, ENTRY_FLAG, ENTRY_OWNER = 0, 1, 2
"""Which frames begin a C activation of the interpreter loop (``enum python_entry``)."""
OWNED_BY_C_STACK = 3
_MAX_OFFSET = 1 << 15
CODE_SIZE = 160
"""Bytes of a code object that hold all that is read of it: CODE_BYTES of the programs."""
_FROM_FILE_TO_LINES = range(0, 32, 8)
"""Bytes between these two in a code object: the kernel reads them at once."""
_COOKIE = b"xdebugpy"
DEBUG_OFFSETS_SIZE = 584


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes; all but those of a code object's type and first line, and of lists of threads, are in
    ``struct interpreter``."""

    minor: int
    tss_key: int
    """In ``_PyRuntime``, as the next."""
    current: int
    thread_id: int
    thread_frame: int
    cframe: int
    previous: int
    code: int
    instruction: int
    frame_size: int
    entry: int
    entry_kind: int
    code_start: int
    lines: int
    first_line: int
    """In a code object, as the next two."""
    name: int
    file: int
    gil: int
    """In ``_PyRuntime``; 0: each interpreter has a pointer to its own."""
    interpreter_gil: int
    """In the state of an interpreter."""
    ascii_size: int
    """Bytes of a string object before the text, when that is ASCII; others have ``wide_size``."""
    wide_size: int
    interpreters: int
    """In ``_PyRuntime``: the first of all interpreters."""
    threads: int
    """In the state of an interpreter: the first of its threads; and the next interpreter."""
    next_interpreter: int = 0
    next_thread: int = 8
    """In the state of a thread."""
    type: int = 8
    """In every object."""
    thread_interpreter: int = 16
    """In the state of a thread."""
    gil_holder: int = 8
    """In a GIL (``struct _gil_runtime_state``), as the next."""
    gil_locked: int = 16
    gil_size: int = 208
    length: int = 16
    """In a string, as the next."""
    state: int = 32
    bytes_size: int = 16
    """In a bytes object, as the next."""
    bytes_text: int = 32


_V39 = Layout(
    minor=9, tss_key=584, current=568, thread_id=176, thread_frame=24, cframe=NOT_THERE, previous=24, code=32,
    instruction=104, frame_size=112, entry=0, entry_kind=EVERY_FRAME, code_start=0, first_line=40, name=112,
    file=104, lines=120, gil=352, interpreter_gil=0, ascii_size=48, wide_size=72,
    interpreters=32, threads=8,
)  # fmt: skip
_V311 = Layout(
    minor=11, tss_key=592, current=576, thread_id=152, thread_frame=56, cframe=8, previous=48, code=32,
    instruction=56, frame_size=80, entry=68, entry_kind=ENTRY_FLAG, code_start=184, first_line=72, name=128,
    file=112, lines=136, gil=360, interpreter_gil=0, ascii_size=48, wide_size=72,
    interpreters=40, threads=16,
)  # fmt: skip
_V312 = Layout(
    minor=12, tss_key=1544, current=0, thread_id=136, thread_frame=56, cframe=0, previous=8, code=0,
    instruction=56, frame_size=80, entry=70, entry_kind=ENTRY_OWNER, code_start=192, first_line=68, name=128,
    file=112, lines=136, gil=0, interpreter_gil=384, ascii_size=40, wide_size=56,
    interpreters=40, threads=72,
)  # fmt: skip
LAYOUTS = {
    9: _V39,
    10: replace(_V39, minor=10, instruction=96, frame_size=104),
    11: _V311,
    12: _V312,
    13: replace(
        _V312,
        minor=13,
        tss_key=2160,
        thread_id=152,
        thread_frame=72,
        cframe=NOT_THERE,
        code_start=200,
        interpreter_gil=16,
        interpreters=632,
        threads=7344,
        next_interpreter=7264,
    ),
}


def is_free_threaded(raw: bytes) -> bool:
    """Whether the interpreter says of itself that it has no GIL. ``raw``: the first bytes of ``_PyRuntime``.

    Its objects begin otherwise and its ``_PyRuntime`` has another size: of both ``_Py_DebugOffsets`` says too little.
    """
    return raw[:8] == _COOKIE and any(raw[16:24])


def debug_layout(base: Layout, raw: bytes) -> Layout | None:
    """``base`` corrected by what the interpreter says of itself; None if it says nothing that can be true.

    ``raw``: the first DEBUG_OFFSETS_SIZE bytes of ``_PyRuntime``, a ``_Py_DebugOffsets`` of 3.13.
    """
    if len(raw) < DEBUG_OFFSETS_SIZE or raw[:8] != _COOKIE or is_free_threaded(raw):
        return None
    version = int.from_bytes(raw[8:16], "little")
    if version >> 16 != 0x300 + base.minor:
        return None
    words = struct.unpack(f"<{DEBUG_OFFSETS_SIZE // 8}Q", raw[:DEBUG_OFFSETS_SIZE])
    own_gil, thread, frame, code = words[14], words[19:28], words[28:34], words[34:44]
    size_bytes, text = words[64:67], words[67:71]
    lists = words[5], words[8], words[9]
    used = (own_gil, *lists, *thread[:6], *frame, *code, words[45], *size_bytes, *text)
    if any(value > _MAX_OFFSET for value in used) or code[4] - code[1] not in _FROM_FILE_TO_LINES:
        return None
    in_code = code[1], code[3], code[4], code[5], words[45]
    if any(value + 8 > CODE_SIZE for value in in_code) or size_bytes[1] + 8 > size_bytes[2]:
        return None
    return replace(
        base,
        interpreter_gil=own_gil,
        interpreters=lists[0],
        next_interpreter=lists[1],
        threads=lists[2],
        next_thread=thread[2],
        thread_interpreter=thread[3],
        thread_frame=thread[4],
        thread_id=thread[5],
        previous=frame[1],
        code=frame[2],
        instruction=frame[3],
        entry=frame[5],
        frame_size=min(frame[0], 120),
        file=code[1],
        name=code[3],
        lines=code[4],
        first_line=code[5],
        code_start=code[9],
        type=words[45],
        bytes_size=size_bytes[1],
        bytes_text=size_bytes[2],
        state=text[1],
        length=text[2],
        ascii_size=text[3],
        wide_size=text[3] + 16,
    )


_FOR_PYTHON = ("minor", "first_line", "type", "interpreters", "threads", "next_interpreter", "next_thread")
"""Fields of a layout that the programs need not know."""


def kernel_facts(layout: Layout, runtime: int, thread_slots: int) -> dict[str, int]:
    """The fields of ``struct interpreter`` for an interpreter whose ``_PyRuntime`` is at an address."""
    known = {
        one.name: int(getattr(layout, one.name)) for one in fields(layout) if one.name not in _FOR_PYTHON
    }
    return {
        **known,
        "tss_key": runtime + layout.tss_key,
        "current": runtime + layout.current if layout.current else 0,
        "gil": runtime + layout.gil if layout.gil else 0,
        "thread_slots": thread_slots,
        "entry_value": OWNED_BY_C_STACK,
    }
