"""What a real parprofd tells of command lines, which may hold secrets. Needs root."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemon_process as dp

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]
SECRET = "--password=hunter2"


def places(daemon: dp.DaemonProcess, pid: int) -> Iterator[tuple[str, str]]:
    """Everything that tells something of a process."""
    yield "metrics", daemon.get("/metrics")[1].decode()
    yield "status page", daemon.get("/")[1].decode()
    yield "profiles", daemon.get("/profiles")[1].decode()
    yield "html", daemon.get(f"/profiles/{pid}.html?seconds=30")[1].decode()
    yield (
        "pprof",
        gzip.decompress(daemon.get(f"/profiles/{pid}.pb.gz?seconds=30")[1]).decode(errors="replace"),
    )
    yield "control socket", daemon.parprof("top", "--once", "--json").stdout
    yield "log", daemon.log()


@pytest.mark.parametrize("shown", [False, True], ids=["by default", "if asked for"])
def test_arguments_are_told_only_if_the_administrator_asks_for_that(tmp_path: Path, shown: bool) -> None:
    tables = {"shown": {"arguments": True}} if shown else {}
    program = dp.build(tmp_path, "spinner")
    found = {}
    with dp.running(tmp_path / "parprofd", tables) as daemon, dp.started(program, "spin", SECRET) as target:
        daemon.sampled(target.pid, 0.2)
        found = {place: SECRET in text for place, text in places(daemon, target.pid)}
        known = {place for place, text in places(daemon, target.pid) if str(program) in text}
        assert {"status page", "html", "pprof", "control socket"} <= known, "the program itself is"
        if not shown:
            done = daemon.parprof("attach", target.pid, "-d", "1", "-o", tmp_path / "out.pb.gz")
            assert done.returncode == 0, done.stderr
            told = json.loads(dp.parprof("report", tmp_path / "out.pb.gz", "--json").stdout)
            assert SECRET in told["process"]["command"], (
                "who may look into the process sees its command anyway"
            )
            daemon.reload({"shown": {"arguments": True}})
            daemon.page_when("a page", lambda _: SECRET in daemon.get("/")[1].decode())
    told_in = {place for place, is_told in found.items() if is_told}
    assert told_in == ({"status page", "html", "pprof", "control socket"} if shown else set())
