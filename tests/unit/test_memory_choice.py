"""When the runtime's own state is not all that works in a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from parprof.plans import TeamBarrier
from parprof.probes.file_facts import FileFacts
from parprof.runtimes.libgomp import Libgomp
from parprof.session import sources
from parprof.session.sources import MemoryChoice, look_again

PLAN = TeamBarrier(
    tls=-8, team=0, task=8, total=0, awaited=64, awaited_final=68, outer_team=8, generation_step=8
)


@dataclass
class File:
    name: str
    facts: FileFacts = field(default_factory=FileFacts)


class Mapped:
    pid = 0

    def __init__(self, *files: File) -> None:
        self._files = files

    def dsos(self) -> tuple[File, ...]:
        return self._files


@pytest.fixture(autouse=True)
def facts_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "file_facts", lambda dso: dso.facts)
    monkeypatch.setattr(sources, "environment_of", lambda pid: {})


def after(*files: File, before: MemoryChoice | None = None) -> MemoryChoice:
    choice = before or MemoryChoice(PLAN, agent=Libgomp())
    load_map: Any = Mapped(*files)
    return look_again(choice, load_map)


PLAIN = File("plain", FileFacts(imports=frozenset({"GOMP_parallel"})))


def test_nothing_new() -> None:
    assert after(PLAIN).holds
    assert after(PLAIN, File("libm.so.6")).holds


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (FileFacts(creates_threads=True), "late.so starts threads of its own"),
        (FileFacts(imports=frozenset({"GOMP_task"})), "GOMP_task"),
        (FileFacts(static_agent=Libgomp(), is_static=True), "a static program"),
    ],
)
def test_a_library_that_came_later(late: FileFacts, said: str) -> None:
    now = after(PLAIN, File("late.so", late))
    assert not now.holds and said in now.spoilt_by and now.plan is PLAN
    assert after(PLAIN, before=now).spoilt_by == now.spoilt_by, "what it did stays done when it is unloaded"


def test_where_nothing_can_be_read() -> None:
    none = MemoryChoice(problem="an unknown version")
    assert after(File("late.so", FileFacts(creates_threads=True)), before=none) is none
