# SPDX-License-Identifier: Apache-2.0
"""What parprofd says when it starts: what takes its time, and what will take it again. What it reads again later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
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


def test_a_token_is_read_again_at_a_reload(tmp_path: Path) -> None:
    """A wrong one changes nothing, and is told."""
    file, tokens = tmp_path / "token", ("first-0123456789abcdef", "second-0123456789abcdef")

    def write(text: str) -> None:
        file.write_text(text)
        file.chmod(0o600)

    def status(token: str) -> int:
        asked = urllib.request.Request(
            f"http://{daemon.address}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=dp.WAIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    write(tokens[0])
    http = {"http": {"listen": "127.0.0.1:0", "token_file": str(file)}}
    with dp.running(tmp_path / "parprofd", http) as daemon:
        assert [status(token) for token in tokens] == [200, 401]
        write(tokens[1])
        daemon.reload(http)
        assert [status(token) for token in tokens] == [401, 200]
        write("short")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait("a complaint", lambda: "reloaded: " in daemon.log() and "openssl rand" in daemon.log())
        assert [status(token) for token in tokens] == [401, 200]
