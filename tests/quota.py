# SPDX-License-Identifier: Apache-2.0
"""CPU quotas for tests and benchmarks, by control groups of whatever version is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parprof.process.cgroups import CGROUP_ROOT


class NoQuota(Exception):
    """No group can be made here."""


@contextmanager
def quota_group(cores: float) -> Iterator[Path]:
    """The ``cgroup.procs`` of a group that may use so many cores. It must be empty in the end.

    Raises:
        NoQuota: it cannot be made here.
    """
    version_1 = (CGROUP_ROOT / "cpu/cpu.shares").exists()
    group = CGROUP_ROOT / ("cpu" if version_1 else "") / f"parprof-test-{os.getpid()}"
    try:
        group.mkdir()
        try:
            if version_1:
                (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
            else:
                (group / "cpu.max").write_text(f"{int(cores * 100_000)} 100000")
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        raise NoQuota(f"no control group with a CPU quota can be made here: {error}") from None
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


@contextmanager
def quota(pid: int, cores: float) -> Iterator[None]:
    """A process in such a group for as long as the block lasts.

    Raises:
        NoQuota: there is none.
    """
    with quota_group(cores) as procs:
        version_1 = (CGROUP_ROOT / "cpu/cpu.shares").exists()
        before = next(
            line.split(":", 2)[2]
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if (":cpu:" in line if version_1 else line.startswith("0::"))
        )
        procs.write_text(str(pid))
        try:
            yield
        finally:
            (procs.parents[1] / before[1:] / "cgroup.procs").write_text(str(pid))
