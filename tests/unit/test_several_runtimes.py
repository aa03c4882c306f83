# SPDX-License-Identifier: Apache-2.0
"""Several runtimes in one process, in whatever order they come: n_w has a source that tells of all of them."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from parprof.kernel.uprobes import Site
from parprof.plans import Edge
from parprof.probes.plan import Plan
from parprof.probes.wait_functions import DEFAULT_RULES
from parprof.runtimes import Agent
from parprof.runtimes.libgomp import Libgomp
from parprof.runtimes.libomp import Libomp
from parprof.runtimes.onetbb import OneTbb
from parprof.session import probing
from parprof.session.probing import Probing
from parprof.session.sources import MemoryChoice, Source

WORK = Site("/x", 16, int(Edge.WORK), True)


class Loading:
    """A process image that loads one runtime after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: Source | None = None) -> None:
        self.agents: list[Agent] = []
        monkeypatch.setattr(probing, "make_plan", lambda *_: Plan(list(self.agents), sites=[WORK]))
        monkeypatch.setattr(probing, "look_for_memory", lambda *_: MemoryChoice())
        kernel: Any = SimpleNamespace(forget_learned=lambda _: None)
        probed: Any = SimpleNamespace(configure=lambda: None)
        self.probing = Probing(
            kernel, 1, 1, probed=probed, wanted_source=wanted, blame_locks=False, spares_plain=False,
            spin_rules=DEFAULT_RULES,
        )  # fmt: skip

    def load(self, agent: Agent) -> Source:
        self.agents.append(agent)
        load_map: Any = SimpleNamespace()
        self.probing._make_plan(load_map)
        return self.probing.source


def test_a_runtime_without_probes_that_comes_late_takes_none_away(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Loading(monkeypatch)
    assert process.load(Libgomp()) is Source.EXACT
    assert process.load(OneTbb()) is Source.EXACT and process.probing.switches == []


def test_a_runtime_with_probes_that_comes_late_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Loading(monkeypatch)
    assert process.load(OneTbb()) is Source.SAMPLED
    assert process.load(Libgomp()) is Source.EXACT
    assert process.probing.switches == ["n_w source sampled -> exact: libgomp came, which is probed"]
    assert process.probing.take_transitions() == [("sampled", "exact")]


@pytest.mark.parametrize("order", list(permutations((Libgomp, OneTbb, Libomp))))
def test_the_order_makes_no_difference(
    order: tuple[type[Agent], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Loading(monkeypatch)
    assert [process.load(agent()) for agent in order][-1] is Source.EXACT


def test_two_with_probes_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Loading(monkeypatch)
    assert [process.load(agent) for agent in (Libgomp(), Libomp())] == [Source.EXACT] * 2
    assert process.probing.switches == []


def test_what_the_user_wants_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Loading(monkeypatch, Source.EXACT)
    assert [process.load(agent) for agent in (Libgomp(), OneTbb())] == [Source.EXACT] * 2


@pytest.mark.parametrize("wanted", [Source.EXACT, Source.MEMORY, Source.SAMPLED])
def test_what_the_user_wants_and_cannot_have_is_told(wanted: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Loading(monkeypatch, wanted)
    assert process.probing.unmet_wish() == (
        f"n_w source {wanted} was asked for, and is scheduler: no parallel runtime was found in it"
    )
    process.load(Libgomp())
    assert not process.probing.unmet_wish()


@pytest.mark.parametrize("wanted", [None, Source.SCHEDULER])
def test_where_nothing_else_was_wanted_nothing_is_told(
    wanted: Source | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Loading(monkeypatch, wanted).probing.unmet_wish()


def test_a_source_that_probes_were_given_up_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Loading(monkeypatch)
    process.load(Libgomp())
    process.probing.source = Source.SAMPLED
    assert process.load(Libomp()) is Source.SAMPLED
