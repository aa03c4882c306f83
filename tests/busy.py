# SPDX-License-Identifier: Apache-2.0
"""Others on the machine, for tests of what is right beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """So many programs that want a core all the time, of those that this thread may have."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
