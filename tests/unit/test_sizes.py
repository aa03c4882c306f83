# SPDX-License-Identifier: Apache-2.0
"""Maps grow with the machine, up to a bound."""

from __future__ import annotations

import pytest

from parprof.kernel.sizes import map_sizes


def test_a_small_machine_pays_for_no_more_than_it_has() -> None:
    small = map_sizes(2, 499)
    assert (small["edge_walks"], small["walk_claims"]) == (4, 4)
    assert (small["threads"], small["counts"], small["stacks"]) == (16384, 65536, 4 << 20)


@pytest.mark.parametrize("cpus", [1, 2, 48, 64, 256, 1024, 8192])
def test_room_for_what_a_drain_finds_and_bounded(cpus: int) -> None:
    sizes = map_sizes(cpus, 499)
    assert sizes["edge_walks"] == sizes["walk_claims"] == 2 * cpus
    if cpus <= 256:
        assert sizes["counts"] >= 2 * 499 * cpus, (
            "a drain a second, each sample a row of its own, and as much again"
        )
        assert sizes["threads"] >= 64 * cpus
    assert sizes["counts"] <= 1 << 19
    assert sizes["threads"] <= 1 << 16
    assert sizes["stacks"] <= 32 << 20
    for name in ("counts", "stacks"):
        assert sizes[name] & (sizes[name] - 1) == 0, "the kernel takes powers of two"
