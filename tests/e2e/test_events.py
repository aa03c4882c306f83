"""Samples by resource, not time (froyd-2005 section 2.1): page faults, context switches, by call path. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from parprof.exporters import pprof

ROOT = Path(__file__).resolve().parents[2]


def test_page_faults_and_context_switches_are_counted_by_call_path(tmp_path: Path) -> None:
    """One innermost function, called by two: 24,000 and 8,000 faults, 3,000 and 1,000 naps. On one CPU with a program
    that takes turns with it: every second switch there is the other's."""
    program = ROOT / "tests/workloads/build/events"
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as burner:
        try:
            os.sched_setaffinity(burner.pid, {cpu})
            done = subprocess.run(
                [sys.executable, "-m", "parprof", "record", "-q", "--no-report", "-e", "page-faults",
                 "-e", "context-switches", "-o", str(tmp_path / "out"), "--", "taskset", "-c", str(cpu), str(program)],
                capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
            )  # fmt: skip
        finally:
            burner.kill()
    assert done.returncode == 0, done.stderr
    truth = {
        (function, event): int(count) for function, event, count in map(str.split, done.stdout.splitlines())
    }
    assert len(truth) == 4
    found: Counter[tuple[str, str]] = Counter()
    for sample in pprof.read(str(tmp_path / "out")).samples:
        names = [frame.name for frame in sample.path]
        for function in {function for function, _ in truth} & set(names):
            assert names[0] == "main"
            for event, count in sample.metrics.events.items():
                found[function, event] += count
    for key, count in truth.items():
        margin = 0.01 if key[1] == "page-faults" else 0.1  # each 32nd, and each 7th of all on that CPU
        assert found[key] == pytest.approx(count, rel=margin), key
