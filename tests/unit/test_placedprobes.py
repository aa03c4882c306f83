# SPDX-License-Identifier: Apache-2.0
"""Each site is attached once, and goes with what it costs."""

from __future__ import annotations

from typing import cast

import pytest

from parprof.errors import ProbeAttachError
from parprof.kernel.engine import BpfKernel
from parprof.kernel.records import Cost
from parprof.kernel.uprobes import ProbeSet, Site
from parprof.probes.placed import PlacedProbes

ONE, TWO, THREE = (Site("/lib/x", offset, 1) for offset in (1, 2, 3))


class Attacher:
    """A stand-in for the kernel: notes what is attached."""

    def __init__(self) -> None:
        self.attached: list[Site] = []
        self.refuses = False

    def attach_probes(self, pid: int, sites: list[Site], cost: Cost | None) -> ProbeSet:
        if self.refuses:
            raise ProbeAttachError("refused")
        self.attached += sites
        return cast(ProbeSet, Attached(self, sites))


class Attached:
    def __init__(self, attacher: Attacher, sites: list[Site]) -> None:
        self.attacher, self.sites = attacher, sites

    def close(self) -> None:
        for site in self.sites:
            self.attacher.attached.remove(site)


@pytest.fixture
def attacher() -> Attacher:
    return Attacher()


@pytest.fixture
def placed(attacher: Attacher) -> PlacedProbes:
    return PlacedProbes(cast(BpfKernel, attacher), 7)


def test_each_once(attacher: Attacher, placed: PlacedProbes) -> None:
    placed.attach([ONE, TWO], Cost.PROBE)
    placed.attach([TWO, THREE], Cost.PROBE)
    assert attacher.attached == [ONE, TWO, THREE]


def test_what_is_cut_off_goes_and_may_come_again(attacher: Attacher, placed: PlacedProbes) -> None:
    placed.attach([ONE], Cost.PROBE)
    placed.attach([TWO], Cost.LOCK)
    placed.attach([THREE], None)
    placed.detach(Cost.PROBE, Cost.LOCK, Cost.CREATE)
    assert attacher.attached == [THREE]
    placed.attach([ONE, TWO], Cost.PROBE)
    assert attacher.attached == [THREE, ONE, TWO]
    placed.close()
    assert attacher.attached == []


def test_what_was_refused_is_tried_again(attacher: Attacher, placed: PlacedProbes) -> None:
    attacher.refuses = True
    with pytest.raises(ProbeAttachError):
        placed.attach([ONE], Cost.PROBE)
    attacher.refuses = False
    placed.attach([ONE], Cost.PROBE)
    assert attacher.attached == [ONE]
