"""A real parprofd works without CAP_SYS_ADMIN, and says so. Needs root."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

import daemon_process as dp

pytestmark = [pytest.mark.beside, pytest.mark.skipif(os.geteuid() != 0, reason="needs root and real BPF")]
SYS_ADMIN = 1 << 21


def effective_powers(pid: int) -> list[int]:
    """Those of each thread; some end while one looks."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            (held,) = re.findall(r"CapEff:\s*(\w+)", (task / "status").read_text())
            found.append(int(held, 16))
    return found


def test_it_disassembles_nothing(tmp_path: Path) -> None:
    """Prices, sites and loops are a child's: the library is not even there. A new cache: nothing is known before."""
    tables = {"symbols": {"loops": True}}
    environment = {"PARPROF_CACHE": str(tmp_path / "cache")}
    dp.keep_compiled(tmp_path / "cache")
    with dp.running(tmp_path / "parprofd", tables, environment=environment) as daemon:
        with dp.openmp(tmp_path, "omp") as target:
            daemon.page_when("probes", lambda page: page.info(target.pid).get("n_w_source") == "exact")
            daemon.sampled(target.pid, 0.5)
            pid, prices = daemon.process.pid, tmp_path / "cache/prices"
            # whichever of its threads starts it, once it knows the hot code
            daemon.wait("the child that finds loops", lambda: dp.children(pid, "parprof.loops.worker"))
            daemon.wait("prices", lambda: prices.is_dir() and list(prices.iterdir()))
            assert "capstone" not in Path(f"/proc/{pid}/maps").read_text()


def test_it_gives_up_what_it_does_not_need_and_profiles_all_the_same(tmp_path: Path) -> None:
    with dp.running(tmp_path / "parprofd") as daemon, dp.openmp(tmp_path, "omp") as target:
        assert "CAP_SYS_ADMIN is given up" in daemon.parprof("status").stdout, "from the start on"
        daemon.page_when("probes", lambda page: page.info(target.pid).get("n_w_source") == "exact")
        daemon.sampled(target.pid, 0.2)
        held = effective_powers(daemon.process.pid)
        assert len(held) > 2
        assert not any(powers & SYS_ADMIN for powers in held)
        status = daemon.parprof("status").stdout
        assert "CAP_SYS_ADMIN is given up" in " ".join(status.split())
        assert "those that read foreign files are nobody, with few system calls" in " ".join(status.split())
