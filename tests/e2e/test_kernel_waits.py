# SPDX-License-Identifier: Apache-2.0
"""Each way to wait in the kernel is told by its kind, for as long as it took: tests/workloads/kernel_waits.c, held
against its own clock. And all of the time adds up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parprof.attribution.waiting import WaitKind
from profiling import BUILD
from reports import record_command, report_of

pytestmark = pytest.mark.beside

KINDS = {
    "flock": WaitKind.LOCK,
    "fcntl": WaitKind.LOCK,
    "semop": WaitKind.LOCK,
    "shared_mutex": WaitKind.LOCK,
    "futex_waitv": WaitKind.LOCK,
    "splice": WaitKind.PIPE,
    "vmsplice": WaitKind.PIPE,
    "write": WaitKind.PIPE,
    "recv": WaitKind.PIPE,
    "open": WaitKind.PIPE,
    "msgsnd": WaitKind.PIPE,
    "mq_send": WaitKind.PIPE,
    "msgrcv": WaitKind.REQUESTS,
    "mq_receive": WaitKind.REQUESTS,
    "eventfd": WaitKind.CONDITION,
    "vfork": WaitKind.CHILD,
    "waitid": WaitKind.CHILD,
    "inotify": WaitKind.REQUESTS,
    "sigwait": WaitKind.REQUESTS,
    "signalfd": WaitKind.REQUESTS,
    "pause": WaitKind.REQUESTS,
    "stop": WaitKind.STOPPED,
}


def test_each_way_to_wait_has_its_kind_and_its_time(tmp_path: Path) -> None:
    profile = tmp_path / "kernel_waits.pb.gz"
    command = [*record_command(profile), str(BUILD / "kernel_waits")]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    took = {name.removeprefix("waits_by_"): float(s) for name, s in map(str.split, output.splitlines())}
    assert took.keys() == KINDS.keys()
    report = report_of(profile)
    waited: dict[str, dict[str, float]] = {}
    kept: dict[str, float] = {}
    for path in report["paths"]:
        for name in {frame for frame in path["frames"] if frame.startswith("waits_by_")}:
            way, kind = name.removeprefix("waits_by_"), path["frames"][-1]
            if "nap" in path["frames"]:
                continue  # the child of vfork is on the same stack
            kinds = waited.setdefault(way, {})
            kinds[kind] = kinds.get(kind, 0.0) + path["wait_s"]
            kept[way] = kept.get(way, 0.0) + path["stall_s"]
    for way, kind in KINDS.items():
        main = max(waited[way], key=lambda one: waited[way][one])
        assert main == kind.frame_name, (way, waited[way])
        assert waited[way][main] == pytest.approx(took[way], abs=0.01), (way, waited[way])
        if kind.is_outside:
            assert kept[way] < 0.02, way
    assert report["totals"]["accounted"] == pytest.approx(1, abs=0.05)
    assert sum(report["concurrency"]) == pytest.approx(report["elapsed_s"], abs=0.001)


RINGS = {
    "ring_for_time": WaitKind.SLEEP,
    "ring_for_pipe": WaitKind.PIPE,
    "ring_for_socket": WaitKind.REQUESTS,
    "ring_for_file": WaitKind.FILE,
    "aio_for_file": WaitKind.FILE,
}


def test_what_is_asked_for_and_waited_for_in_two_calls_is_told_apart(tmp_path: Path) -> None:
    """Who waits in io_uring, or in io_getevents, waits for what was asked for there: tests/workloads/rings.c.

    A disk that answers within microseconds has so many waits that they are too dear: then there may be none in the last
    second of which it was seen what it was for.
    """
    profile = tmp_path / "rings.pb.gz"
    command = [*record_command(profile, "--budget", 100), str(BUILD / "rings")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    if done.returncode == 77:
        pytest.skip("no io_uring here, or no file that can be read past the cache")
    took = {name.removeprefix("waits_by_"): float(s) for name, s in map(str.split, done.stdout.splitlines())}
    report = report_of(profile)
    for way, kind in RINGS.items():
        waited: dict[str, float] = {}
        for path in report["paths"]:
            if f"waits_by_{way}" in path["frames"] and path["wait_s"]:
                name = path["frames"][-1]
                waited[name] = waited.get(name, 0.0) + path["wait_s"]
        main = max(waited, key=lambda one: waited[one])
        assert main == kind.frame_name, (way, waited)
        if "file" not in way:  # those wait some thousand times, for less than a millisecond each
            assert waited[main] == pytest.approx(took[way], abs=0.02), way
