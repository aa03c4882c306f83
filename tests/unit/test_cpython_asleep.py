# SPDX-License-Identifier: Apache-2.0
"""The memory of a process is hostile: whatever is there, the walk of a thread that sleeps ends, and says how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel.stacks import PYTHON_ENDS
from parprof.languages.cpython.asleep import Sleeping, awaits_end
from parprof.languages.cpython.layouts import LAYOUTS
from parprof.languages.cpython.memory import Objects
from parprof.languages.cpython.process import CPython
from parprof.model import Frame

TID = 77
PLACES = 8
"""Everything points to one of so many places: there are cycles, and objects in each other."""


class Wild(Objects):
    """Memory in which each word is one of few addresses, or a thread's number."""

    def __init__(self, choices: bytes) -> None:
        self.choices = choices
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        if not 0x1000 <= address < 0x1000 + (PLACES << 16):
            return b""
        out = b""
        while len(out) < size:
            which = self.choices[(address + len(out)) // 8 % len(self.choices)] % (PLACES + 2)
            value = TID if which > PLACES else which and 0x1000 + (which - 1 << 16)
            out += value.to_bytes(8, "little")
        return out[:size]


@pytest.mark.parametrize("minor", LAYOUTS)
@given(choices=st.binary(min_size=1, max_size=64))
def test_any_memory(minor: int, choices: bytes) -> None:
    python = CPython(LAYOUTS[minor], 0x1000, 0, (), frozenset(), 0)
    memory = Wild(choices)
    words, end = Sleeping(python, memory).frames(TID)
    assert len(words) % 16 == 0 and len(words) <= 16 * 256 and PYTHON_ENDS[end]
    assert memory.reads < 2_000_000


def test_who_waits_for_the_end_of_a_thread() -> None:
    def frame(name: str, file: str) -> tuple[Frame | None, bool]:
        return Frame(name, file, module="python"), False

    own, theirs = "/home/u/run.py", "/usr/lib/python3.11/threading.py"
    waiting = [frame("_wait_for_tstate_lock", theirs), frame("Thread.join", theirs), frame("main", own)]
    assert awaits_end(waiting) and awaits_end([(None, True), *waiting])
    assert not awaits_end(
        [frame("Condition.wait", theirs), frame("get", "/usr/lib/python3.11/queue.py"), *waiting]
    )
    assert not awaits_end([frame("join", own)]) and not awaits_end([])
