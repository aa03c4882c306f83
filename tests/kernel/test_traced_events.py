# SPDX-License-Identifier: Apache-2.0
"""Uprobes as events of tracefs: where they are, in which processes, and that nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import profiling
from parprof.kernel import traced_events
from parprof.kernel.traced_events import TRACEFS
from parprof.kernel.uprobes import Prober, ProbeSet
from probed import INT3, PROGRAM, Target, running_target, within

pytestmark = pytest.mark.beside

GONE_S = 1.0
LONGEST_END_S = 60
"""A definition's last perf event waits for a grace period, one after the other."""


@pytest.fixture
def tracefs() -> Path:
    for path in TRACEFS:
        if (path / "uprobe_events").exists():
            return path
    pytest.skip("there is no tracefs here")


@pytest.fixture
def prober(tracefs: Path) -> Iterator[Prober]:
    with profiling.prober("traced") as prober:
        yield prober
    within(LONGEST_END_S, lambda: not ours(tracefs))


def ours(tracefs: Path, pid: int = 0) -> list[str]:
    """The definitions of a process, by default this one."""
    lines = (tracefs / "uprobe_events").read_text().splitlines()
    return [line for line in lines if f":parprof_{pid or os.getpid()}_" in line]


def attach(prober: Prober, target: Target, count: int = 8) -> ProbeSet:
    probes = prober.attach(target.sites(count), target.process.pid)
    probed = target.code()
    assert set(probed[:count]) == {INT3} and probed[count:] == target.plain[count:]
    return probes


def test_two_processes_share_what_is_defined(prober: Prober, tracefs: Path) -> None:
    with running_target() as one, running_target() as other:
        of_one = attach(prober, one)
        assert other.is_plain()
        assert prober._traced["on_edge"].defined == 2  # entry and return of all eight
        assert len(ours(tracefs)) == 16
        of_other = attach(prober, other)
        assert prober._traced["on_edge"].defined == 2
        of_one.close()
        within(GONE_S, one.is_plain)
        assert set(other.code()[:8]) == {INT3}
        of_other.close()
        within(GONE_S, other.is_plain)
        again = attach(prober, one)
        assert prober._traced["on_edge"].defined == 2
        again.close()
        within(GONE_S, one.is_plain)


def test_they_hold_few_descriptors(prober: Prober) -> None:
    with running_target() as target:
        attach(prober, target, 1).close()
        before = len(os.listdir("/proc/self/fd"))
        probes = attach(prober, target, 1)
        assert len(os.listdir("/proc/self/fd")) == before + 2
        probes.close()


def test_all_processes(prober: Prober) -> None:
    with running_target() as one, running_target() as other:
        probes = prober.attach(one.sites(4), 0)
        for target in (one, other):
            assert set(target.code()[:4]) == {INT3}
        probes.close()
        for target in (one, other):
            within(GONE_S, target.is_plain)


def test_another_file_of_the_same_name(prober: Prober, tmp_path: Path) -> None:
    """A library is replaced: what was defined for the old one is not for the new one."""
    copy = tmp_path / "program with a space"
    for _ in range(2):
        copy.unlink(missing_ok=True)
        copy.write_bytes(PROGRAM.read_bytes())
        copy.chmod(0o755)
        with running_target(copy) as target:
            probes = attach(prober, target, 4)
            probes.close()
            within(GONE_S, target.is_plain)
    assert prober._traced["on_edge"].defined == 4


def test_what_nobody_uses_is_removed(prober: Prober, tracefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_events, "MAX_IDLE", 2)
    with running_target() as target:
        for count in range(1, 5):
            attach(prober, target, count).close()
            within(GONE_S, target.is_plain)
        assert prober._traced["on_edge"].defined == 2
        within(LONGEST_END_S, lambda: len({line.split()[0] for line in ours(tracefs)}) == 2)


def test_the_name_of_another_tracer_s_group(prober: Prober, tracefs: Path) -> None:
    theirs = f"parprof_{os.getpid()}_0/theirs"
    control = os.open(tracefs / "uprobe_events", os.O_WRONLY | os.O_APPEND)
    os.write(control, f"p:{theirs} {PROGRAM}:{target_offset():#x}\n".encode())
    try:
        with running_target() as target:
            probes = attach(prober, target, 4)
            assert {line.split()[0].partition(":")[2].partition("/")[0] for line in ours(tracefs)} == {
                f"parprof_{os.getpid()}_0", f"parprof_{os.getpid()}_1"
            }  # fmt: skip
            probes.close()
    finally:
        os.write(control, f"-:{theirs}\n".encode())
        os.close(control)


def target_offset() -> int:
    with running_target() as target:
        return target.offsets[0]


CHILD = """
import os, signal, sys
from parprof.kernel.objects import LoadedObject, get_object
from parprof.kernel.detacher import detacher
from parprof.kernel.uprobes import Prober, Site
prober = Prober(LoadedObject(get_object()))
prober._mechanisms = ["traced"]
probes = prober.attach([Site(sys.argv[1], int(sys.argv[2]), 0, returns=True)], int(sys.argv[3]))
print("attached", flush=True)
signal.pause()
"""


def test_a_killed_profiler_leaves_names_alone_and_the_next_removes_them(
    prober: Prober, tracefs: Path
) -> None:
    with running_target() as target:
        arguments = [str(PROGRAM), str(target.offsets[0]), str(target.process.pid)]
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
        assert child.stdout and child.stdout.readline() == b"attached\n"
        assert not target.is_plain()
        assert len(ours(tracefs, child.pid)) == 2
        child.kill()
        child.communicate()
        within(LONGEST_END_S, target.is_plain)
        assert len(ours(tracefs, child.pid)) == 2
        attach(prober, target, 1).close()
        assert not ours(tracefs, child.pid)


def test_without_tracefs_single_events_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_events, "TRACEFS", (tmp_path,))
    with profiling.prober("traced", "single") as prober, running_target() as target:
        probes = attach(prober, target, 2)
        assert prober.mechanism == "single"
        probes.close()
        within(2, target.is_plain)
