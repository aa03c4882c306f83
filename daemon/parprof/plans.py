"""What runtimes say to the kernel, as plain data: which functions are edges of work, and where n_w lies in memory.

The only words between `parprof.runtimes` and `parprof.kernel`, which do not know each other. A `MemoryPlan` says how
n_w is read out of a runtime's own memory at each sample: it costs no probe, survives ``strip`` and is right from the
first sample on a running process. All reads are bounded and may fail: a structure that makes no sense counts as
unreadable and is never followed further. Offsets are in bytes.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Protocol

from parprof.values import dataclass

MAX_WORKERS = 64
"""Workers whose state is read at a sample; where a pool has more, n_w cannot be read from memory."""
MAX_HOPS = 3


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
    BEGIN = 7
    """The thread works from here on, until its next END: for runtimes that move work between stacks."""
    END = 8
    """The thread waits from here on, until its next BEGIN."""
    CREATE_TASK = 9
    """Work is created that may run later, on any thread: its call path is kept."""
    STEAL = 10
    """Only counted."""
    LOCK = 11
    """As WAIT; when it returns, the thread holds the lock that ``instance_argument`` names."""
    UNLOCK = 12


@dataclass(frozen=True, slots=True)
class Hook:
    """Functions of a library that mean ``edge``, by exported name."""

    pattern: re.Pattern[str]
    """Matched against the whole name."""
    edge: Edge
    why: str
    """A sentence for those who must trust it."""
    learn_argument: int = 0
    """1-based argument that holds an outlined function, to probe if it is not yet; 0 = none."""
    function_argument: int = 0
    """REGION, CREATE_TASK and WORK: the argument that names the work, if it is not ``learn_argument``. 0 = none
    (for WORK: the probed function itself). The call path of a creation is found again under this and the next."""
    instance_argument: int = 0
    """REGION, CREATE_TASK and WORK: the argument that tells two pieces of the same work apart (a pointer to its
    data); 0 = none."""
    function_word: int = 0
    """CREATE_TASK: the instance's word that points to the function; 0 = none."""
    root_argument: int = 0
    """BEGIN and WORK: the argument that holds the runtime's state, where `WorkerArray.root` is LEARNED."""
    slow_path: bool = False
    """The function returns at once unless it has to wait; probe the waiting path alone where it can be told."""
    is_barrier: bool = False
    """WAIT: no thread of the team goes on before all are there."""


class UnknownLayout(Exception):
    """A runtime whose structures we do not know: the text says which, and why."""


def check_pool(workers: int, label: str) -> None:
    """Refuse to read n_w from the memory of a pool that is too large for it.

    Raises:
        UnknownLayout: says so.
    """
    if workers > MAX_WORKERS:
        raise UnknownLayout(
            f"{label}: a pool of {workers} workers; {MAX_WORKERS} can be looked at in a sample"
        )


class Memory(Protocol):
    """The memory of the process that an agent looks at."""

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at an address. Raises OSError."""

    def symbol(self, name: str) -> int:
        """Address of a symbol of the file in question, in the process; 0 if it has none."""

    def address(self, vaddr: int) -> int:
        """Address in the process of an ELF virtual address of the file in question; 0 if it is not mapped."""


class Root(IntEnum):
    """Where the way to the workers begins."""

    POINTER = 1
    """At the pointer variable at the address ``WorkerArray.root``."""
    THREAD_LOCAL = 2
    """At the pointer ``root`` bytes from the sampled thread's fsbase."""
    LEARNED = 3
    """At the value of the argument that `Hook.root_argument` names, seen last in the process."""


@dataclass(frozen=True, slots=True)
class TeamBarrier:
    """libgomp: the thread's team counts down those that have yet to reach its barrier.

    ``tls`` is from fsbase to the thread's ``gomp_thread``; ``team`` and ``task`` are pointers in that, the others
    are u32 in the team. n_w = max(1, min(awaited, awaited_final)) with a team, else 1. The u32 behind ``total`` is the
    barrier's generation, which grows by ``generation_step`` each time that all have arrived. At ``outer_team`` a team
    has a pointer to the one around it.
    """

    tls: int
    team: int
    task: int
    total: int
    awaited: int
    awaited_final: int
    outer_team: int
    generation_step: int


@dataclass(frozen=True, slots=True)
class ClosureChain:
    """Cilk-5: where the ancestors of a stolen frame are. See cilk-runtimes.md sec. 5.2.

    ``argument`` of the WORK hook is the worker state ws (1-based). At ``ws_self`` (u32) is its index, at ``ws_stack``
    a pointer to its array of frames, the first of which it went on with, at ``ws_context`` a pointer to the context,
    there at ``context_ro`` a pointer to the read-only part, there at ``ro_deques`` the array of deques of
    ``deque_size`` bytes each, and in the one of that index at ``deque_bottom`` the closure that runs. A closure has
    its ``parent`` and its ``frame``; a frame has the u32 ordinal ``entry`` of its outstanding spawn or sync, and at
    ``signature`` a pointer to a record with the slow function's address at ``inlet``.
    """

    argument: int
    ws_self: int
    ws_stack: int
    ws_context: int
    context_ro: int
    ro_deques: int
    deque_size: int
    deque_bottom: int
    parent: int
    frame: int
    entry: int
    signature: int
    inlet: int


@dataclass(frozen=True, slots=True)
class WorkerArray:
    """An array of workers, each with a word that says whether it works.

    From the root, a pointer is read at each of ``hops`` in turn; in the structure reached, the u32 at ``count`` is
    the number of workers and the pointer at ``array`` their array. An entry is a pointer (``stride`` 8 and
    ``pointers``) or a structure of ``stride`` bytes. From the entry a pointer is read at each of ``worker_hops``
    (a null one: it does not work); then the unsigned of ``size`` bytes at ``value`` is compared: the worker works
    if it equals ``equals``, or with ``equals`` None if it is not 0.
    """

    root_kind: Root
    root: int
    hops: tuple[int, ...]
    count: int
    array: int
    stride: int
    pointers: bool
    worker_hops: tuple[int, ...]
    value: int
    size: int
    equals: int | None
    closures: ClosureChain | None = None
    """Where the same structures lead to the ancestors of stolen work."""


MemoryPlan = TeamBarrier | WorkerArray
