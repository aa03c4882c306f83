# SPDX-License-Identifier: Apache-2.0
"""What parprofd says when it starts: what takes its time, and what will take it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import daemon_process as dp

pytestmark = pytest.mark.beside

COMPILING = "compiling the BPF programs for this kernel"


def test_the_first_start_says_what_it_waits_for(tmp_path: Path) -> None:
    for is_first in (True, False):
        environment = {"PARPROF_CACHE": str(tmp_path / "cache")}
        with dp.running(tmp_path / "parprofd", environment=environment) as daemon:
            log = daemon.log()
        assert (COMPILING in log) == is_first
        assert not is_first or log.index(COMPILING) < log.index(": sampling ")
        assert "s after the start" in log and "made anew" not in log


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_a_full_cache_disk_is_told_at_the_start(tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "parprof-test", disk], check=True)
    try:
        with dp.running(tmp_path / "parprofd", environment={"PARPROF_CACHE": str(disk)}) as daemon:
            log = daemon.log()
        (said,) = [line for line in log.splitlines() if "made anew at each start" in line]
        assert str(disk) in said and "No space left" in said
    finally:
        subprocess.run(["umount", disk], check=True)


def test_told_to_stop_while_it_compiles_it_stops_at_once(tmp_path: Path) -> None:
    """A machine that shuts down does not wait for a compiler."""
    daemon = dp.DaemonProcess(tmp_path / "parprofd", environment={"PARPROF_CACHE": str(tmp_path / "cache")})
    try:
        compilers = daemon.wait(
            "a compiler", lambda: dp.children(daemon.process.pid, "parprof.kernel.compiler")
        )
        daemon.stop()
        log = daemon.log()
        assert "stopped before the first sample" in log and ": sampling " not in log
        assert not any(Path(f"/proc/{pid}").exists() for pid in compilers)
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()
