# SPDX-License-Identifier: Apache-2.0
"""Slots for the walks of probes: one that nobody will give back is taken again, one that is in use is not."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

import profiling
from parprof.commands.spawn import Child
from parprof.kernel import bpf

pytestmark = pytest.mark.beside


@pytest.mark.parametrize(("age_s", "lost"), [(3600, False), (0, True)])
def test_slots_of_threads_that_were_forgotten_in_mid_walk(age_s: int, lost: bool, tmp_path: Path) -> None:
    """As when a process is unwatched while its probes walk stacks: their claims stay behind."""
    with profiling.traced_session() as session:
        claims = session.kernel._object.maps["walk_claims"]
        definition = session.kernel._object.definitions["walk_claims"]
        size, slots = definition["value_size"], definition["max_entries"]
        claimed = (time.monotonic_ns() - age_s * 10**9).to_bytes(8, "little")[:size]
        for slot in range(slots):
            bpf.map_update(claims, struct.pack("<I", slot), claimed)
        child = Child(
            ["env", f"PARPROF_TRUTH={tmp_path / 'log'}", str(profiling.BUILD / "omp_truth.gomp"), "balanced"]
        )
        session.watch(child.pid, follow=True, stop=True)
        child.release()
        profiling.run_until(session, lambda: child.poll() is not None)
        session.finish()
        assert child.poll() == 0
        found = session.kernel.lost().get("contexts", 0)
        kept = session.kernel.statistics()["contexts"]
    assert (found > 0, kept > 0) == (lost, not lost), (found, kept)
