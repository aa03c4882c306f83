# SPDX-License-Identifier: Apache-2.0
"""How the kernel is called: what that leaves behind."""

from __future__ import annotations

import ctypes
import gc
import struct
from typing import Any

import pytest

from parprof.kernel import bpf

OF_ONE = ctypes.c_char * 1


def array_classes() -> int:
    """How many classes of arrays ctypes has made: one for each length, which only the collector of cycles removes."""
    return sum(type(one) is type(OF_ONE) for one in gc.get_objects())


def test_deleting_any_number_of_keys_leaves_no_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon does it with each drain, each time with another number: its memory crept."""
    deleted: list[bytes] = []

    def syscall(number: int, command: int, buffer: Any, size: int) -> int:
        address, count = struct.unpack_from("<16xQ8xI", buffer.raw)
        deleted.append(ctypes.string_at(address, 8 * count))
        return 0

    monkeypatch.setattr(bpf, "_syscall", syscall)
    keys = [struct.pack("<Q", number) for number in range(300)]
    gc.disable()
    try:
        bpf.map_delete_batch(7, keys)
        before = array_classes()
        for count in range(1, 300):
            bpf.map_delete_batch(7, keys[:count])
        assert array_classes() == before
    finally:
        gc.enable()
    assert deleted[0] == b"".join(keys) and deleted[-1] == b"".join(keys[:299])
