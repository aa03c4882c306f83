# SPDX-License-Identifier: Apache-2.0
"""The FUSE file system of hanging_fuse.py, for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVER = Path(__file__).parent / "hanging_fuse.py"


@contextmanager
def served(directory: Path, *files: Path) -> Iterator[subprocess.Popen[str]]:
    """The files in a FUSE file system at ``directory``."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(directory), *map(str, files)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    try:
        if server.stdout.readline() != "ready\n":
            pytest.skip("FUSE file systems cannot be mounted here")
        yield server
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(20)


def tell(server: subprocess.Popen[str], what: str) -> None:
    """Have it hang, or answer again."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(what + "\n")
    server.stdin.flush()
    assert server.stdout.readline() == "done\n"
