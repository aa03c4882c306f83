# SPDX-License-Identifier: Apache-2.0
"""What is too large for the programs' tables is counted, and said."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.exporters.table import render
from parprof.exporters.views import View
from parprof.kernel import bpf, settings
from parprof.kernel.cpus import possible_cpus
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import RECORD_FORK
from parprof.model import ThreadState
from parprof.profile.assemble import make_profile
from parprof.profile.naming import FileNamer
from parprof.session.session import Session
from parprof.session.sources import Source
from parprof.symbols.symbolizer import Symbolizer

pytestmark = pytest.mark.beside

FORKS = """
import os, time
input()
if not os.fork():
    time.sleep(20)
print("forked", flush=True)
input()
if not os.fork():
    time.sleep(20)
print("forked", flush=True)
input()
"""
_STAT_IMAGES = 22


@pytest.fixture(scope="module")
def kernel() -> Iterator[BpfKernel]:
    with BpfKernel(["cpu-clock"], 199, sizes={"edge_walks": 2, "walk_claims": 2}) as kernel:
        yield kernel


@pytest.mark.skipif(possible_cpus() < 2 or 1 not in os.sched_getaffinity(0), reason="there is no second CPU")
@pytest.mark.parametrize("cpu", [0, 1])
def test_walks_of_a_cpu_without_a_slot_are_counted(kernel: BpfKernel, cpu: int, tmp_path: Path) -> None:
    """Stacks that create regions are walked in two slots for each CPU: here only the first has them."""
    session = Session(kernel, wanted_source=Source.EXACT)
    regions = [profiling.BUILD / "omp_truth.gomp", "balanced", "--forever"]
    process = subprocess.Popen(["taskset", "-c", str(cpu), *regions], stdout=subprocess.DEVNULL,
                               env=profiling.truth_environment(tmp_path / "log"))  # fmt: skip
    before, walked = kernel.lost().get("contexts", 0), kernel.statistics()["contexts"]
    try:
        time.sleep(0.3)
        session.watch(process.pid)
        end = time.monotonic() + 10
        while time.monotonic() < end and not kernel.lost().get("contexts", 0) > before:
            session.step()
            if cpu == 0 and kernel.statistics()["contexts"] > walked + 20:
                break
        assert (kernel.lost().get("contexts", 0) > before) == (cpu == 1)
    finally:
        process.kill()
        process.wait()
        session.finish()
        session.close()


def test_cpus_beyond_those_that_are_looked_at_are_counted(
    kernel: BpfKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where context switches are not followed, n_w is what runs on as many CPUs as the programs were compiled for."""
    session = Session(kernel)
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    before = kernel.lost().get("cpus", 0), kernel.statistics()["ticks"]  # a first try of this test
    try:
        session.watch(process.pid)
        kernel._settings.write(ticks=True)
        session.drain()
        time.sleep(0.3)
        session.drain()
        assert kernel.statistics()["ticks"] > before[1]
        assert kernel.lost().get("cpus", 0) == before[0]
        monkeypatch.setattr(settings, "online_cpus", lambda: list(range(300)))
        session.drain()
        time.sleep(0.3)
        session.drain()
        assert kernel.lost()["cpus"] > before[0]
    finally:
        kernel._settings.write(ticks=False)
        process.kill()
        process.wait()
        session.finish()
        session.close()


def test_waits_that_find_no_room_are_counted_and_told() -> None:
    """Five hundred threads sleep, and wake up at once: a row for each, where there is room for 64."""
    sizes = {"counts": 64}
    with BpfKernel(["cpu-clock"], 49, waits=True, sizes=sizes, budget=profiling.UNLIMITED) as kernel:
        kernel.await_programs()
        session = Session(kernel)
        child = Child([str(profiling.BUILD / "sleepers"), "500", "0.2", "0.2"])
        try:
            session.watch(child.pid, follow=True, stop=True)
            child.release()
            profiling.run_until(session, lambda: child.poll() is not None)
            session.finish()
            main = next(target for target in session.targets.values() if target.pid == child.pid)
            measured = session.measurement(main)
            kept = sum(
                count.samples
                for key, count in measured.drain.facts.items()
                if key.state in (ThreadState.BLOCKED, ThreadState.STALLED)
            )
            lost = kernel.lost()["waits"]
            assert lost > 200
            # all that began are there or lost; so are some times in which nobody worked
            assert 0 <= kept + lost - kernel.statistics()["waits"] < 300
            with Symbolizer() as symbolizer, FileNamer(symbolizer) as namer:
                profile = make_profile(measured, namer)
        finally:
            session.close()
    assert profile.lost["waits"] == lost
    out = io.StringIO()
    render(profile, View(details=True), out)
    assert f"{lost:,} waits" in out.getvalue()


def test_process_images_stay_apart_for_a_long_time(kernel: BpfKernel) -> None:
    """The daemon of a machine that starts thousands of processes a second gives out millions of ids."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        preexec_fn=lambda: os.sched_setaffinity(0, {0}), start_new_session=True,
    )  # fmt: skip
    session = Session(kernel)
    try:
        assert process.stdin and process.stdout
        target = session.watch(process.pid, follow=True)
        images = []
        for given_out in (0, 1 << 19):
            value = struct.pack(f"<{possible_cpus()}Q", *[given_out] * possible_cpus())
            bpf.map_update(kernel._object.maps["counters"], struct.pack("<I", _STAT_IMAGES), value)
            process.stdin.write(b"\n")
            assert process.stdout.readline() == b"forked\n"
            images += [record.image for record in kernel.control_records() if record.kind == RECORD_FORK]
        assert len(set(images)) == 2, images
        assert all(image >= 1 << 31 for image in images) and target.image not in images
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its children hold its output open
        process.communicate()
        session.finish()
        session.close()
