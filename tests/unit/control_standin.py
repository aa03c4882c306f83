# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the daemon behind the control socket, and processes of several users to ask about."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from parprof.errors import TargetError
from parprof.metrics import Metrics
from parprof.model import Profile
from parprof.service.control.server import ControlServer
from parprof.service.losses import LOST_MEANWHILE
from parprof.service.model import Labels, ProcessSnapshot, ProfileEntry, Snapshot
from profiles import heat

NOBODY = 65534


def process(pid: int, uid: int = 0, comm: str = "heat", **changes: Any) -> ProcessSnapshot:
    """A watched process with round numbers."""
    one = ProcessSnapshot(
        pid=pid,
        labels=Labels(comm=comm, uid=uid),
        command=f"./{comm} --secret",
        runtime="libgomp",
        n_w_source="exact",
        cores=4,
        started_s=1e9,
        begun_s=5000.0,
        threads={"working": 3, "spinning": 1, "blocked": 0},
        n_working=3,
        totals=Metrics(1000, 3e9, 1e9, 5e8, 2.5e8, unused_ns=1e9),
        functions=(),
        cost_ratio=0.002,
        frequency_hz=99,
    )
    return replace(one, **changes)


def taken(lost: str = "") -> Profile:
    """What the stand-in measures, as it comes from the control socket."""
    profile = heat()
    return replace(profile, extra={**profile.extra, LOST_MEANWHILE: lost})


class StandInService:
    """Answers as the daemon would, from what a test puts in."""

    def __init__(self, *processes: ProcessSnapshot) -> None:
        self.processes = {one.pid: one for one in processes}
        self.calls: list[tuple[str, int]] = []
        self.looked: list[tuple[int, bool]] = []
        self.looks_into_files = 0
        """So often it has yet to look into files before it watches a process."""
        self.cuts = 0
        self.lost = {"counts_full": 7}
        self.rates: list[int] = []
        self.seconds = 0.0
        self.profiles_taken: list[Future[Profile]] = []
        self.delay_profile = False
        self.fail: Exception | None = None
        self.time_s, self.clock_s = 1e9 + 60, 5060.0

    def snapshot(self) -> Snapshot:
        if self.fail:
            raise self.fail
        return Snapshot(
            time_s=self.time_s,
            started_s=1e9,
            clock_s=self.clock_s,
            begun_s=5000.0,
            processes=tuple(self.processes.values()),
            frequency_hz=99,
            samples=12345,
            lost={"map-full": 2},
            probe_hits={},
            attach_failures={("libomp", "stripped"): 1},
            governor_transitions={("exact", "sampled"): 4},
            budget_ratio=0.01,
            cost_ratio=0.003,
            drain_seconds=0.004,
            notes=("/home/alice/secret: no unwind table",),
            protection=("CAP_SYS_ADMIN is given up",),
        )

    def profiles(self) -> tuple[ProfileEntry, ...]:
        return ()

    def profile(self, pid: int, seconds: float) -> Future[Profile]:
        self.seconds = seconds
        future: Future[Profile] = Future()
        self.profiles_taken.append(future)
        if pid not in self.processes:
            future.set_exception(TargetError(f"process {pid} is not watched"))
        elif not self.delay_profile:
            future.set_result(heat())
        return future

    def history(self, pid: int, seconds: float, only: tuple[int, int] | None = None) -> Future[Profile]:
        return self.profile(pid, seconds)

    def watch(self, pid: int) -> Future[bool]:
        self.calls.append(("watch", pid))
        out: Future[bool] = Future()
        out.set_result(not self.looks_into_files)
        if self.looks_into_files:
            self.looks_into_files -= 1
        else:
            self.processes[pid] = process(pid)
        return out

    def unwatch(self, pid: int) -> Future[None]:
        self.calls.append(("unwatch", pid))
        if self.processes.pop(pid, None) is None:
            future: Future[None] = Future()
            future.set_exception(TargetError(f"process {pid} is not watched"))
            return future
        return _done()

    def refresh(self) -> Future[None]:
        return _done()

    def sample_at(self, frequency_hz: int) -> Future[None]:
        self.rates.append(frequency_hz)
        return _done()

    def losses(self) -> Future[dict[str, int]]:
        future: Future[dict[str, int]] = Future()
        future.set_result(dict(self.lost))
        return future

    def cut(self, pid: int) -> Future[float]:
        self.cuts += 1
        future: Future[float] = Future()
        future.set_result(time.monotonic())
        return future

    def find_waits(self, pid: int, wanted: bool) -> Future[None]:
        self.looked.append((pid, wanted))
        return _done()

    def is_healthy(self) -> str:
        return ""

    def is_ready(self) -> str:
        return "no programs yet"


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


@contextmanager
def serving(service: StandInService, directory: Path) -> Iterator[str]:
    """A server on a real Unix socket, whose path this gives."""
    path = str(directory / "control.sock")
    server = ControlServer(service, path)
    server.start()
    try:
        yield path
    finally:
        server.stop()


@contextmanager
def sleeping(uid: int = -1, gid: int = -1, wrapper: tuple[str, ...] = ()) -> Iterator[int]:
    """A process that sleeps as some user; gives its PID once it has begun to."""
    ids = {"user": uid, "group": gid, "extra_groups": []} if uid >= 0 else {}
    child = subprocess.Popen([*wrapper, "sleep", "600"], **ids)  # type: ignore[call-overload]
    try:
        until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        yield child.pid
    finally:
        child.kill()
        child.wait()


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for something that is bound to happen; the limit is for when it is broken."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def as_user(uid: int, gid: int, what: Callable[[], Any]) -> Any:
    """What a function returns, as JSON can hold it, in a child process that has become another user."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            try:
                answer = {"value": what()}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            os.write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = json.loads(file.read())
    os.waitpid(pid, 0)
    return answer["value"] if "value" in answer else answer["error"]
