"""What the agents say about function names."""

from __future__ import annotations

import re

import pytest

from parprof import runtimes
from parprof.plans import Edge
from parprof.runtimes import Agent, agent_for_library, others
from parprof.runtimes.libgomp import Libgomp
from parprof.runtimes.libomp import Libiomp5, Libomp
from parprof.runtimes.pools import POOLS, Pool, pools


def edge(agent: Agent, name: str) -> Edge | None:
    return next((hook.edge for hook in agent.hooks if hook.pattern.fullmatch(name)), None)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("libgomp.so.1", "libgomp"), ("libgomp-24e2ab19.so.1.0.0", "libgomp"), ("libomp.so.5", "libomp"),
        ("libomp-14.so.5", "libomp"), ("libiomp5.so", "libiomp5"), ("libc.so.6", None), ("my.libgomp.so", None),
        ("program.gomp", None), ("libomptarget.so", None),
    ],
)  # fmt: skip
def test_recognised_by_base_name(library: str, name: str | None) -> None:
    agent = agent_for_library(library)
    assert (agent.name if agent else None) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GOMP_parallel", Edge.REGION), ("GOMP_parallel_loop_nonmonotonic_dynamic", Edge.REGION),
        ("GOMP_parallel_start", Edge.LEARN), ("GOMP_parallel_loop_static_start", Edge.LEARN),
        ("GOMP_parallel_end", Edge.WAIT), ("GOMP_barrier", Edge.WAIT), ("GOMP_loop_end_nowait", None),
        ("GOMP_task", Edge.CREATE_TASK), ("GOMP_taskwait", Edge.WAIT), ("omp_set_lock", Edge.WAIT),
        ("GOMP_critical_end", None), ("omp_get_num_threads", None),
        ("GOMP_target_ext", Edge.CREATE_TASK), ("GOMP_target_data_ext", None),
    ],
)  # fmt: skip
def test_libgomp_edges(name: str, expected: Edge | None) -> None:
    assert edge(Libgomp(), name) == expected


def test_libomp_edges() -> None:
    for agent in (Libomp(), Libiomp5()):
        assert edge(agent, "__kmp_invoke_microtask") is Edge.WORK
        assert edge(agent, "__kmpc_fork_call") is Edge.REGION
        assert edge(agent, "GOMP_parallel") is Edge.REGION
        assert edge(agent, "__kmpc_omp_task_alloc") is Edge.LEARN
        assert edge(agent, "__kmp_wait_64") is None


def test_outlined_names() -> None:
    assert Libgomp.outlined.fullmatch("solve._omp_fn.0")
    assert not Libgomp.outlined.fullmatch("solve._omp_fn.0.cold")
    assert Libomp.outlined.fullmatch(".omp_task_entry..5")
    assert not Libomp.outlined.fullmatch(".omp_outlined.")


def test_every_hook_says_why() -> None:
    for agent in (Libgomp(), Libomp(), Libiomp5()):
        assert all(len(hook.why) > 10 for hook in agent.hooks)


class _Entry:
    """Stands in for an entry point of an installed package."""

    def __init__(self, value: str, loaded: object) -> None:
        self.value, self._loaded = value, loaded

    def load(self) -> object:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


def test_agents_of_other_packages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Mine(Agent):
        name = "mine"
        library = re.compile(r"libmine\.")

    entries = [_Entry("a:Mine", Mine), _Entry("b:None", ImportError("no such module")), _Entry("c:str", str)]
    monkeypatch.setattr(others, "_entry_points", lambda group: entries)
    runtimes.agents.cache_clear()
    try:
        assert [agent.name for agent in runtimes.agents()][-1] == "mine"
        found = agent_for_library("libmine.so.1")
        assert found is not None and found.name == "mine"
        assert "b:None is left out: ImportError" in caplog.text
        assert "c:str is left out: TypeError" in caplog.text
    finally:
        runtimes.agents.cache_clear()


def test_pools_of_other_packages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    mine = Pool("mine", re.compile(r"libmine"), re.compile("serve"), re.compile("hand_out"))
    entries = [
        _Entry("a:MINE", mine),
        _Entry("b:None", ImportError("no such module")),
        _Entry("c:Pool", Pool),
    ]
    monkeypatch.setattr(others, "_entry_points", lambda group: entries if group == "parprof.pools" else [])
    pools.cache_clear()
    try:
        assert pools() == (*POOLS, mine)
        assert "pool b:None is left out: ImportError" in caplog.text
        assert "pool c:Pool is left out: TypeError" in caplog.text
    finally:
        pools.cache_clear()
