"""With no more capabilities than the unit file leaves, the daemon can end its children."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from booted import REPO
from parprof.exporters import pprof

pytestmark = pytest.mark.beside

UNIT = (REPO / "systemd/parprofd.service").read_text()
ENDS_A_WORKER = """
import time
from pathlib import Path
from parprof.workers.client import end_child, start_child

def is_nobody(pid):
    users = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("Uid:"))
    return set(users.split()[1:]) == {"65534"}

child, connection = start_child("parprof.unwind.worker")
deadline = time.monotonic() + 30
while not is_nobody(child.pid):
    assert child.poll() is None and time.monotonic() < deadline
    time.sleep(0.02)
end_child(child)  # the connection is open: it does not end by itself
print(child.returncode)
connection.close()
child.wait(30)
"""


def capabilities() -> set[str]:
    lines = re.findall(r"(?m)^CapabilityBoundingSet=(.*)", UNIT)
    return {name.removeprefix("CAP_").lower() for line in lines for name in line.split()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
@pytest.mark.parametrize(("without", "said"), [(set(), "-9"), ({"kill"}, "None")], ids=["unit", "no KILL"])
def test_children_that_became_nobody_can_be_ended(without: set[str], said: str) -> None:
    bounds = ",".join(["-all", *(f"+{name}" for name in sorted(capabilities() - without))])
    done = subprocess.run(
        ["setpriv", f"--bounding-set={bounds}", sys.executable, "-c", ENDS_A_WORKER],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": str(REPO / "daemon")},
    )
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
def test_two_capabilities_are_enough_for_programs_of_ones_own(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["setpriv", "--bounding-set=-all,+bpf,+perfmon", sys.executable, "-m", "parprof", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(REPO / "daemon")},
        )

    check = run("check")
    assert check.returncode == 0, check.stdout
    said = " ".join(check.stdout.split())
    assert "enough for record, and for attach to processes of one's own" in said
    assert "parprofd: CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH too" in said
    profile = tmp_path / "profile.pb.gz"
    burn = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    record = run("record", "-o", str(profile), "--", sys.executable, "-S", "-c", burn)
    assert record.returncode == 0, record.stderr
    assert pprof.read(str(profile)).total().samples > 100
