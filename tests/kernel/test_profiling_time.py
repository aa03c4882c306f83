# SPDX-License-Identifier: Apache-2.0
"""Samples that hit our own handlers, in a program that hits many probes."""

from __future__ import annotations

import subprocess
import time

import pytest

import profiling
from parprof.logical.ourselves import PROFILING, is_handler, is_slot
from parprof.metrics import Metrics
from parprof.model import PathSample
from parprof.session.sources import Source

pytestmark = pytest.mark.beside

SECONDS = 2.0


def regions_of_ten_microseconds() -> tuple[list[PathSample], float, float]:
    """The rows of a program with tens of thousands of probe hits a second; its CPU seconds then: at least, at most."""
    command = [str(profiling.BUILD / "regions"), "--threads", "1", "--work-us", "10", "--seconds", "20"]
    with (
        profiling.traced_session(999, source=Source.EXACT) as session,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            time.sleep(0.2)
            first = profiling.cpu_seconds(process.pid)
            session.watch(process.pid)
            before, end = profiling.cpu_seconds(process.pid), time.monotonic() + SECONDS
            profiling.run_until(session, lambda: time.monotonic() > end)
            least = profiling.cpu_seconds(process.pid) - before
            session.finish()
            most = profiling.cpu_seconds(process.pid) - first
        finally:
            process.kill()
        rows, _ = profiling.rows_of(session)
        return rows, least, most


def test_our_handlers_are_no_work() -> None:
    rows, least, most = regions_of_ten_microseconds()
    total = Metrics()
    for row in rows:
        total.add(row.metrics)
    assert total.profiling_ns > 0
    for row in rows:
        for path in (row.path, row.physical):
            assert not any(is_handler(frame.name) for frame in path), path
            assert not (path and is_slot(path[-1])), path
        metrics = row.metrics
        others = (
            metrics.work_ns + metrics.idleness_ns + metrics.overhead_ns + metrics.spin_ns + metrics.blame_ns
        )
        assert (row.path[-1] is PROFILING) == (metrics.profiling_ns > 0) == (others == 0), row
        assert not (row.origin.overhead and metrics.profiling_ns)
    seconds = (total.work_ns + total.spin_ns + total.profiling_ns) / 1e9
    assert 0.95 * least - 0.05 < seconds < 1.05 * most + 0.05, (least, most)
