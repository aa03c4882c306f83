# SPDX-License-Identifier: Apache-2.0
"""What the daemon says that it costs, against what others measure of it: psutil, and the kernel's BPF statistics."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import daemon_process as dp
from parprof.exporters import pprof_reader
from parprof.kernel import bpf
from parprof.service.watching import NOT_FOLLOWED

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]

SECONDS = 10.0
NEAR = 1.5
"""Within such a factor."""
_PROG_GET_FD_BY_ID = 13
_NAME_AT, _NAME_BYTES = 64, 16
"""In ``struct bpf_prog_info``."""


def cpu_s(pid: int) -> float:
    """CPU time of a process and of all children that it ever had."""
    process = psutil.Process(pid)
    out = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            out += sum(child.cpu_times()[:4])
    return out


def ran_s(pid: int) -> dict[str, float]:
    """How long the BPF programs of a process ran while statistics were on, by their names."""
    out = defaultdict[str, float](float)
    for number in dp.bpf_ids(pid)[0]:
        fd = bpf._bpf(_PROG_GET_FD_BY_ID, struct.pack("<III", number, 0, 0))[0]
        try:
            info = ctypes.create_string_buffer(232)
            bpf._bpf(bpf.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
            name = info.raw[_NAME_AT : _NAME_AT + _NAME_BYTES].partition(b"\0")[0].decode()
            out[name] += bpf.program_run_stats(fd)[0] / 1e9
        finally:
            os.close(fd)
    return out


@contextmanager
def statistics() -> Iterator[None]:
    fd = bpf.enable_stats()
    try:
        yield
    finally:
        os.close(fd)


@pytest.fixture
def ping_pong(tmp_path: Path) -> Path:
    """Switches as often as it can."""
    path = tmp_path / (dp.PREFIX + "pingpong")
    source = dp.ROOT / "bench/programs/ping_pong.c"
    subprocess.run(["gcc", "-O2", "-g", "-pthread", source, "-o", path], check=True)
    return path


def test_the_daemon_costs_what_it_says(ping_pong: Path, tmp_path: Path) -> None:
    """Its own CPU time with that of its children, and its programs' in what they run in."""
    tables = {"budget": {"target_percent": 100.0}}  # else switches are soon followed no more
    with (
        dp.running(tmp_path / "parprofd", tables) as daemon,
        dp.started(ping_pong, "--seconds", "600") as target,
        dp.openmp(tmp_path, "costomp"),
        statistics(),
    ):
        daemon.sampled(target.pid, 0.5)
        pid = daemon.process.pid
        before, cpu_before_s, ran_before_s = daemon.fresh(), cpu_s(pid), ran_s(pid)
        end_s, number = time.monotonic() + SECONDS, 0
        while time.monotonic() < end_s:  # symbols are read by children: of what is new to the daemon
            number += 1
            with dp.started(dp.build(tmp_path, f"new{number}", f"burn{number}")) as new:
                daemon.sampled(new.pid)
                assert (
                    daemon.parprof("attach", new.pid, "-d", "1", "-q", "-o", tmp_path / "out").returncode == 0
                )
        after, cpu_after_s, ran_after_s = daemon.fresh(), cpu_s(pid), ran_s(pid)

        def more(name: str, **labels: str) -> float:
            return after.value(name, **labels) - before.value(name, **labels)

        said_s = more("process_cpu_seconds_total") + more("parprofd_children_cpu_seconds_total")
        children_s = more("parprofd_children_cpu_seconds_total")
        measured_s = cpu_after_s - cpu_before_s
        ran = {
            name: ran_after_s[name] - ran_before_s[name] for name in ("on_sample", "on_switch", "on_wakeup")
        }
        samples_s = more("parprofd_cost_seconds_total", kind="samples")
        switches_s = more("parprofd_cost_seconds_total", kind="context switches")
        follows = after.value("parprofd_switches_followed")
    assert children_s > 0, f"{number} new programs were looked into"
    assert measured_s / NEAR < said_s < NEAR * measured_s
    assert follows == 1
    assert ran["on_sample"] / NEAR < samples_s < NEAR * ran["on_sample"]
    hooks_s = ran["on_switch"] + ran["on_wakeup"]
    assert hooks_s > 0.1, "there was something to measure"
    assert hooks_s / NEAR < switches_s < NEAR * hooks_s


def test_attach_is_told_that_switches_are_not_followed(ping_pong: Path, tmp_path: Path) -> None:
    """They cost more than this budget: its reader must know what he does not see then."""
    with (
        dp.running(tmp_path / "parprofd", {"budget": {"target_percent": 0.1}}) as daemon,
        dp.started(ping_pong, "--seconds", "600") as target,
    ):
        daemon.page_when("too dear", lambda page: page.value("parprofd_switches_followed") == 0)
        out = tmp_path / "told.pb.gz"
        done = daemon.parprof("attach", target.pid, "-d", "2", "-q", "-o", out)
    assert done.returncode == 0, done.stderr
    assert NOT_FOLLOWED in pprof_reader.read(out).notes
