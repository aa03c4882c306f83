"""When the runtime's own state is not all that works in a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from parprof.kernel.uprobes import Site
from parprof.plans import Edge, Root, TeamBarrier, WorkerArray
from parprof.probes.file_facts import FileFacts
from parprof.runtimes.cilk5 import Cilk5
from parprof.runtimes.libgomp import Libgomp
from parprof.runtimes.onetbb import OneTbb
from parprof.session import sources
from parprof.session.sources import (
    MemoryChoice,
    Source,
    can_probe_edges,
    first_source,
    look_again,
    root_sites,
    with_root,
)

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
    return look_again(choice, [Libgomp()], load_map)


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


@pytest.mark.parametrize(
    "other", [File("libgomp-24e2ab19.so.1"), File("plugin.so", FileFacts(static_agent=Libgomp()))]
)
def test_another_copy_has_threads_of_its_own(other: File) -> None:
    assert after(PLAIN, File("libgomp.so.1")).holds
    now = after(PLAIN, File("libgomp.so.1"), other)
    assert not now.holds
    assert now.spoilt_by == f"libgomp.so.1 and {other.name} are libgomp each, and one is read"
    assert after(PLAIN, File("libgomp.so.1"), File(other.name, FileFacts(is_namesake=True))).holds
    assert after(PLAIN, File("libgomp.so.1"), File("libmpi.so.40")).holds


def test_a_copy_that_comes_last_is_told_of_before_all_else() -> None:
    before = after(PLAIN, File("late.so", FileFacts(imports=frozenset({"GOMP_task"}))))
    now = after(PLAIN, File("libgomp.so.1"), File("libgomp-24e2ab19.so.1"), before=before)
    assert "GOMP_task" in before.spoilt_by and "one is read" in now.spoilt_by


def test_a_runtime_that_came_later() -> None:
    now = look_again(MemoryChoice(PLAN, agent=Libgomp()), [Libgomp(), OneTbb()], cast(Any, Mapped(PLAIN)))
    assert not now.holds and "those of onetbb" in now.spoilt_by


def test_where_nothing_can_be_read() -> None:
    none = MemoryChoice(problem="an unknown version")
    assert after(File("late.so", FileFacts(creates_threads=True)), before=none) is none


LEARNED = WorkerArray(
    Root.LEARNED, 0, (376,), count=32, array=56, stride=120, pointers=False, worker_hops=(48,), value=44, size=4,
    equals=42,
)  # fmt: skip
SCHEDULER = Site("libcilk", 1, Edge.END, root_argument=1)
INVOKE = Site("libcilk", 2, Edge.WORK, returns=True, root_argument=1)
STEAL = Site("libcilk", 3, Edge.STEAL)


def test_a_root_that_a_probe_must_tell() -> None:
    choice = MemoryChoice(LEARNED, agent=Cilk5())
    assert with_root(choice, [STEAL, SCHEDULER]) is choice
    assert not with_root(choice, [STEAL]).holds and with_root(choice, [STEAL]).problem
    assert with_root(MemoryChoice(PLAN, agent=Libgomp()), []).holds, "needs none"


def test_the_rarest_probe_tells_the_root_and_never_on_return() -> None:
    assert root_sites([INVOKE, SCHEDULER, STEAL]) == [SCHEDULER]
    assert [(site.offset, site.returns) for site in root_sites([INVOKE, STEAL])] == [(2, False)]


@pytest.mark.parametrize(
    ("wanted", "sites", "bodies", "source"),
    [
        (None, [INVOKE, SCHEDULER], 7, Source.EXACT),
        (None, [INVOKE, SCHEDULER], 0, Source.MEMORY),
        (None, [SCHEDULER, STEAL], 0, Source.MEMORY),
        (None, [STEAL], 0, Source.SAMPLED),
        (Source.MEMORY, [INVOKE, SCHEDULER], 7, Source.MEMORY),
        (Source.MEMORY, [STEAL], 0, Source.SAMPLED),
    ],
)
def test_where_n_w_of_cilk5_comes_from(
    wanted: Source | None, sites: list[Site], bodies: int, source: Source
) -> None:
    """``bodies``: slow functions, which a stripped program has no names of."""
    memory = with_root(MemoryChoice(LEARNED, agent=Cilk5()), sites)
    has_edges = can_probe_edges(sites, [Cilk5()], bodies)
    assert first_source([Cilk5()], memory, wanted, has_edges) is source
