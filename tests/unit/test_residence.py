# SPDX-License-Identifier: Apache-2.0
"""Which pages a process has in its page tables: our own, which we touch."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest

from parprof.process.residence import present_pages

PAGE = mmap.PAGESIZE


def test_pages_that_were_touched() -> None:
    memory = mmap.mmap(-1, 200_000 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    touched = [0, 1, 7, 100, *range(65_500, 65_600), 150_000, 199_999]
    for page in touched:
        memory[page * PAGE] = 1
    end = start + len(memory)
    found = [(address - start) // PAGE for address in present_pages(os.getpid(), start, end, PAGE)]
    assert found == touched
    step = 16 * PAGE
    for offset in range(16):  # what is read at once ends anywhere in a step
        begin = start + offset * PAGE
        first: dict[int, int] = {}
        for page in touched:
            if page >= offset:
                first.setdefault((start + page * PAGE) // step, start + page * PAGE)
        assert list(present_pages(os.getpid(), begin, end, step)) == list(first.values())
    assert list(present_pages(os.getpid(), start + 2 * PAGE, start + 7 * PAGE, PAGE)) == []


def test_a_process_that_is_gone() -> None:
    with pytest.raises(OSError, match="No such"):
        list(present_pages(1 << 22, 0, 1 << 20, PAGE))
