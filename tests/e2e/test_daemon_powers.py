"""A real parprofd works without CAP_SYS_ADMIN, and says so. Needs root."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import daemon_process as dp

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]
SYS_ADMIN = 1 << 21


def test_it_disassembles_nothing(tmp_path: Path) -> None:
    """Prices, sites and loops are a child's: the library is not even there. A new cache: nothing is known before."""
    tables = {"symbols": {"loops": True}}
    environment = {"PARPROF_CACHE": str(tmp_path / "cache")}
    dp.keep_compiled(tmp_path / "cache")
    with dp.running(tmp_path / "parprofd", tables, environment=environment) as daemon:
        with dp.openmp(tmp_path, "omp") as target:
            daemon.page_when("probes", lambda page: page.info(target.pid).get("n_w_source") == "exact")
            daemon.sampled(target.pid, 0.5)
            children = (
                Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
            )
            assert "capstone" not in Path(f"/proc/{daemon.process.pid}/maps").read_text()
            commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
        assert any(b"parprof.loops.worker" in command for command in commands)
        assert list((tmp_path / "cache/prices").iterdir())


def test_it_gives_up_what_it_does_not_need_and_profiles_all_the_same(tmp_path: Path) -> None:
    with dp.running(tmp_path / "parprofd") as daemon, dp.openmp(tmp_path, "omp") as target:
        assert "CAP_SYS_ADMIN is given up" in daemon.parprof("status").stdout, "from the start on"
        daemon.page_when("probes", lambda page: page.info(target.pid).get("n_w_source") == "exact")
        daemon.sampled(target.pid, 0.2)
        tasks = list(Path(f"/proc/{daemon.process.pid}/task").iterdir())
        assert len(tasks) > 2
        for task in tasks:
            held = re.search(r"CapEff:\s*(\w+)", (task / "status").read_text())
            assert held and not int(held[1], 16) & SYS_ADMIN
        status = daemon.parprof("status").stdout
        assert "CAP_SYS_ADMIN is given up" in " ".join(status.split())
        assert "those that read foreign files are nobody, with few system calls" in " ".join(status.split())
