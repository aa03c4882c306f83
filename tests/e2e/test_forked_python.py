# SPDX-License-Identifier: Apache-2.0
"""Children that a Python program forks and that sleep at once, before anybody has looked into them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reports import record_command, report_of

pytestmark = pytest.mark.beside

PROGRAM = """import os, time
def child_sleeps():
    time.sleep(0.7)
def compute():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
compute()
if not os.fork():
    child_sleeps()
    os._exit(0)
os.wait()
os.execvp("sleep", ["sleep", "0.3"])
"""


def test_where_a_forked_child_sleeps_is_told_in_python(tmp_path: Path) -> None:
    """And of what its parent becomes by exec nothing is."""
    profile, program = tmp_path / "forked.pb.gz", tmp_path / "forked.py"
    program.write_text(PROGRAM)
    subprocess.run([*record_command(profile), "/usr/bin/python3", "-S", program], check=True)
    report = report_of(profile)
    slept = [
        path for path in report["paths"] if path["frames"][-1] == "[waits: sleep]" and path["wait_s"] > 0.1
    ]
    waited = {path["frames"][1] if "<module>" in path["frames"] else "": path["wait_s"] for path in slept}
    assert waited.keys() == {"child_sleeps", ""}, [path["frames"] for path in slept]
    assert waited["child_sleeps"] == pytest.approx(0.7, abs=0.02)
    assert waited[""] == pytest.approx(0.3, abs=0.02)
