# SPDX-License-Identifier: Apache-2.0
"""Which threads have a CPU, and which want one: what the cores of others are told from that nobody wants."""

from __future__ import annotations

import struct
import sys
from typing import Any

import pytest

from profiling import recorded

BUSY = "import time; end = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"


@pytest.mark.beside
def test_an_exec_leaves_no_place_behind() -> None:
    """A shell that becomes another program is one thread all the time, and none in the end."""
    command = f"exec sh -c \"exec '{sys.executable}' -S -c '{BUSY}'\""
    with recorded(["sh", "-c", command]) as (session, target):
        raw: Any = session.kernel._object.get("scopes", struct.pack("<I", target.scope.number), "scope")
        assert raw.level_ns[1] > 0.25e9
        assert raw.places == 0
