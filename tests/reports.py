# SPDX-License-Identifier: Apache-2.0
"""Programs that are recorded for what is said of them, and reports in this process: one of their own would take a
second to start."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from parprof.__main__ import main


def record_command(profile: Path, *options: object) -> list[str]:
    """`parprof record` into a profile, and nothing else; the command to record is to follow."""
    return _quietly("record", *options, "-o", profile, "--")


def attach_command(profile: Path, pid: int, *options: object) -> list[str]:
    """The same of `parprof attach`, to a process."""
    return _quietly("attach", *options, "-o", profile, pid)


def _quietly(command: str, *words: object) -> list[str]:
    return [sys.executable, "-m", "parprof", command, "-q", "--no-report", *map(str, words)]


def report_of(profile: Path) -> dict[str, Any]:
    """What `parprof report --json` says."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["report", "--json", str(profile)]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found
