"""Runtime agents: all that is known of one parallel runtime lives in one file of this folder.

An agent recognises its runtime among the files that a process maps and says, as plain data, where the
runtime acquires and releases work. It knows no kernel: `parprof.probing` turns the data into probe sites.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Edge(IntEnum):
    """What entering a function means for its thread. Values are those of ``enum edge_kind`` in bpf/wire.h."""

    WORK = 1
    """User work begins; it ends when the function returns."""
    WAIT = 2
    """Waiting begins: a barrier, lock or taskwait."""
    REGION = 3
    """As WAIT, and the caller starts a parallel region."""
    LEARN = 4
    """Only a place where outlined functions pass by as arguments."""
    CREATE_THREAD = 5
    LOAD_MAP = 6


@dataclass(frozen=True, slots=True)
class Hook:
    """Functions of a library that mean ``edge``, by exported name."""

    pattern: re.Pattern[str]
    """Matched against the whole name."""
    edge: Edge
    why: str
    """A sentence for those who must trust it."""
    learn_argument: int = 0
    """1-based argument that holds an outlined function; 0 = none."""
    slow_path: bool = False
    """The function returns at once unless it has to wait; probe the waiting path alone where it can be told."""


class RuntimeAgent(Protocol):
    """One parallel runtime."""

    name: str
    """Label value, such as ``libgomp``."""
    library: re.Pattern[str]
    """Matches the base name of the runtime's shared library."""
    marker: str
    """A function that the runtime defines: tells it in a static program."""
    hooks: tuple[Hook, ...]
    outlined: re.Pattern[str]
    """Matches the names that compilers give to outlined region and task bodies of this runtime."""
    return_probes: bool
    """False where work moves between threads in mid-function: a return probe would kill the target."""


def hook(names: str, edge: Edge, why: str, *, learn_argument: int = 0, slow_path: bool = False) -> Hook:
    """A Hook for a blank-separated list of names; ``*`` stands for any word characters."""
    pattern = "|".join(re.escape(name).replace(r"\*", r"\w*") for name in names.split())
    return Hook(re.compile(f"(?:{pattern})"), edge, why, learn_argument, slow_path)


def agents() -> tuple[RuntimeAgent, ...]:
    """All agents, the most specific first."""
    from parprof.runtimes.libgomp import Libgomp
    from parprof.runtimes.libomp import Libiomp5, Libomp

    return (Libgomp(), Libiomp5(), Libomp())


def agent_for_library(base_name: str) -> RuntimeAgent | None:
    """The agent that knows a shared library by this base name."""
    return next((agent for agent in agents() if agent.library.match(base_name)), None)
