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
