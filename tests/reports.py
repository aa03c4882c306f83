# SPDX-License-Identifier: Apache-2.0
"""Programs that are recorded for what is said of them, and reports in this process: one of their own would take a
second to start."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
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


QUIET_SHARE = 0.05
"""Of the cores' time: what others may have of it where threads wait for each other and that is judged."""
_MOST_RUNS = 3


def judge(record: Callable[[], dict[str, Any]], check: Callable[[dict[str, Any]], None]) -> None:
    """Check the report of a run; if it is not as it should be, and others had some of the cores, that of another run.

    Who waits for a thread that has no core waits for the machine, and the report rightly says so. ``record``: runs the
    program, and returns its report.
    """
    for run in range(_MOST_RUNS):
        stolen_s = _stolen_s()
        report = record()
        totals, cores = report["totals"], report["process"]["cores"]
        withheld_s = totals["ready_s"] + totals["stolen_s"] + _stolen_s() - stolen_s
        try:
            return check(report)
        except AssertionError:
            if run == _MOST_RUNS - 1 or withheld_s < QUIET_SHARE * cores * report["elapsed_s"]:
                raise


def _stolen_s() -> float:
    """Core time that the machine's host has given to others so far."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
