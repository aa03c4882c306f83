"""What the daemon gives up before it starts. In processes of their own: what is given up does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parprof.service import capabilities

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not capabilities.held().permitted >> 21 & 1, reason="needs CAP_SYS_ADMIN, to lose it"
)
DAEMON = Path(capabilities.__file__).parents[2]
UNIT = DAEMON.parent / "systemd/parprofd.service"
SYS_ADMIN, SYS_MODULE, BPF, SYSLOG = 1 << 21, 1 << 16, 1 << 39, 1 << 34
GIVES_UP = """
import json, subprocess, threading
from pathlib import Path
from parprof.service import capabilities

def has_it():
    return bool(capabilities.held().effective >> 21 & 1)

says = capabilities.give_up(lambda: %s, Path("%s"))
found = []
thread = threading.Thread(target=lambda: found.append(list(capabilities.held())))
thread.start()
thread.join()
child = subprocess.run(["grep", "CapEff", "/proc/self/status"], capture_output=True, text=True).stdout
print(json.dumps({"says": says, "thread": found[0], "child": int(child.split()[1], 16)}))
"""


def give_up(
    tmp_path: Path, refused: str = "False", bounds: str = "+all", paranoid: str = "3"
) -> dict[str, Any]:
    level = tmp_path / "paranoid"
    level.write_text(paranoid)
    done = subprocess.run(
        ["setpriv", f"--bounding-set={bounds}", sys.executable, "-c", GIVES_UP % (refused, level)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(DAEMON)}, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_goes_with_all_that_is_not_needed_for_threads_and_children_too(tmp_path: Path) -> None:
    found = give_up(tmp_path)
    assert found["says"] == "CAP_SYS_ADMIN is given up, and all else that is not needed"
    for held in (*found["thread"][:2], found["child"]):
        assert not held & (SYS_ADMIN | SYS_MODULE) and held & BPF and held & SYSLOG


def test_no_child_gets_it_back_in_the_service(tmp_path: Path) -> None:
    """There the bounds stay, as CAP_SETPCAP is missing: a program that root starts would have all within them."""
    names = (
        "bpf",
        "perfmon",
        "sys_ptrace",
        "checkpoint_restore",
        "dac_read_search",
        "syslog",
        "setuid",
        "setgid",
    )
    found = give_up(tmp_path, bounds="-all," + ",".join(f"+{name}" for name in (*names, "kill", "sys_admin")))
    assert "given up" in found["says"]
    for held in (*found["thread"][:2], found["child"]):
        assert not held & SYS_ADMIN and held & BPF


def test_it_stays_where_the_kernel_wants_it_for_perf_events(tmp_path: Path) -> None:
    found = give_up(tmp_path, refused="not has_it()")
    assert "kept: this kernel wants it for perf events (kernel.perf_event_paranoid is 3)" in found["says"]
    assert "sysctl kernel.perf_event_paranoid=2" in found["says"]
    for held in (*found["thread"][:2], found["child"]):
        assert held & SYS_ADMIN and not held & SYS_MODULE


def test_it_goes_where_it_does_not_help_either(tmp_path: Path) -> None:
    assert "given up" in give_up(tmp_path, refused="True")["says"]


def test_it_stays_where_it_stands_for_a_capability_that_is_missing(tmp_path: Path) -> None:
    found = give_up(tmp_path, bounds="+all,-checkpoint_restore")
    assert "kept: CAP_CHECKPOINT_RESTORE missing" in found["says"] and found["thread"][0] & SYS_ADMIN


def test_without_it_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert give_up(tmp_path, bounds="+all,-sys_admin")["says"] == "CAP_SYS_ADMIN is not held"


def test_what_is_kept_is_what_the_unit_file_gives() -> None:
    lines = [
        one.split("=", 1)[1] for one in UNIT.read_text().splitlines() if one.startswith("CapabilityBounding")
    ]
    numbers = {"CAP_SETUID": 7, "CAP_SETGID": 6, "CAP_KILL": 5, "CAP_SYSLOG": 34}
    numbers |= {name: number for number, name in capabilities.CAPABILITIES.items()}
    given = {numbers[name] for line in lines for name in line.split()}
    assert given == {*capabilities.NEEDED, 21}
    assert {"UMask=0077", "NoNewPrivileges=yes", "ProtectHome=read-only"} <= set(
        UNIT.read_text().splitlines()
    )
