# SPDX-License-Identifier: Apache-2.0
"""The daemon says when its own cgroup gives it too little."""

from __future__ import annotations

from pathlib import Path

import pytest

from parprof.process.cgroups import Quota, memory_limit
from parprof.service.own_limits import LEAST_BYTES, QuotaAlarm, too_little_memory


def test_the_least_limit_on_the_way_holds(tmp_path: Path) -> None:
    deep = tmp_path / "a/b"
    deep.mkdir(parents=True)
    assert memory_limit("0::/a/b\n", tmp_path) is None
    (deep / "memory.max").write_text("max\n")
    assert memory_limit("0::/a/b\n", tmp_path) is None
    (tmp_path / "a/memory.max").write_text("104857600\n")
    assert memory_limit("0::/a/b\n", tmp_path) == 100 << 20
    (deep / "memory.max").write_text("1048576\n")
    assert memory_limit("0::/a/b\n", tmp_path) == 1 << 20


def test_version_1_beside_others(tmp_path: Path) -> None:
    group = tmp_path / "memory/jobs"
    group.mkdir(parents=True)
    membership = "5:memory:/jobs\n4:cpu,cpuacct:/other\n0::/u\n"
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(membership, tmp_path) is None
    (group / "memory.limit_in_bytes").write_text("104857600\n")
    assert memory_limit(membership, tmp_path) == 100 << 20


@pytest.mark.parametrize("text", ["", "max", "-1", "0", "9" * 999, "\0\xff"])
def test_a_limit_that_makes_no_sense_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(text)
    assert memory_limit("0::/\n", tmp_path) is None


@pytest.mark.parametrize(("limit", "is_told"), [(LEAST_BYTES - 1, True), (LEAST_BYTES, False)])
def test_a_limit_that_is_too_low_is_told(limit: int, is_told: bool, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(str(limit))
    told = too_little_memory("0::/\n", tmp_path)
    assert bool(told) is is_told and ("268 MB" in told) is is_told and ("MemoryMax" in told) is is_told


def test_a_quota_that_stops_the_daemon_is_told_once(tmp_path: Path) -> None:
    stat = tmp_path / "cpu.stat"
    alarm = QuotaAlarm(lambda: Quota(1, tmp_path))

    def after(seconds: float, stopped_s: float) -> str:
        stat.write_text(f"nr_throttled 3\nthrottled_usec {int(stopped_s * 1e6)}\n")
        return alarm.look(seconds)

    assert after(0, 50) == ""  # of before
    assert after(60, 51) == ""
    assert "75% of the last 60 s" in after(120, 96)
    assert after(180, 150) == ""
    assert "any more" in after(240, 151)
    assert after(300, 152) == ""
    stat.unlink()
    assert alarm.look(360) == "" and after(420, 999) == ""


def test_without_a_quota_nothing_is_told() -> None:
    alarm = QuotaAlarm(lambda: None)
    assert alarm.look(0) == alarm.look(60) == ""
