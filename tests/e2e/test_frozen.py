# SPDX-License-Identifier: Apache-2.0
"""Programs whose container is paused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freezer import VERSIONS, NoFreezer, freezer, pid_in
from reports import record_command, report_of

pytestmark = pytest.mark.beside

BUSY_S, FROZEN_S = 1.0, 1.0
PROGRAM = f"""
import os, sys, threading, time
open(sys.argv[1], "w").write(f"{{os.getpid()}}\\n")
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
while time.process_time() < {BUSY_S}:
    pass
os._exit(0)
"""
"""One thread computes, another one sleeps all the time."""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frozen_program_does_not_stall(version: int, tmp_path: Path) -> None:
    """It is as one that a signal has stopped: nothing in its code is to blame."""
    try:
        with freezer(version) as group:
            run = subprocess.Popen(
                [
                    *record_command(tmp_path / "it.pb.gz"),
                    sys.executable,
                    "-S",
                    "-c",
                    PROGRAM,
                    str(tmp_path / "pid"),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            with run:
                group.procs.write_text(str(pid_in(tmp_path / "pid")))
                time.sleep(0.3)
                with group.frozen():
                    time.sleep(FROZEN_S)
                assert run.wait(60) == 0
    except NoFreezer as error:
        pytest.skip(str(error))
    found = report_of(tmp_path / "it.pb.gz")
    totals, cores = found["totals"], found["process"]["cores"]
    assert totals["stall_s"] < 0.1 * FROZEN_S * cores
    assert totals["accounted"] == pytest.approx(1, abs=0.05)
    assert not [cause for cause in found["causes"] if cause["kind"] == "blocked"]
    assert found["elapsed_s"] < BUSY_S + totals["ready_s"] + 0.5 * FROZEN_S, "it is none of its time"
