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
    quietly = ("record", "-q", "--no-report", *options, "-o", profile, "--")
    return [sys.executable, "-m", "parprof", *map(str, quietly)]


def report_of(profile: Path) -> dict[str, Any]:
    """What `parprof report --json` says."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["report", "--json", str(profile)]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


QUIET_SHARE = 0.05
"""Of the cores' time: what others may have of it where threads wait for each other and that is judged."""


def of_a_quiet_run(record: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The report of a run in which others had next to nothing of the cores, of three at most; else of the quietest.

    Who waits for a thread that has no core waits for the machine, and the report rightly says so. ``record``: runs the
    program, and returns its report.
    """
    quietest, least = {}, float("inf")
    for _ in range(3):
        withheld_s = _stolen_s()
        report = record()
        totals = report["totals"]
        withheld_s = _stolen_s() - withheld_s + totals["ready_s"] + totals["stolen_s"]
        share = withheld_s / (report["process"]["cores"] * report["elapsed_s"])
        if share < least:
            quietest, least = report, share
        if least < QUIET_SHARE:
            break
    return quietest


def _stolen_s() -> float:
    """Core time that the machine's host has given to others so far."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
