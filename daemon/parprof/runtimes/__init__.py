"""Runtime agents: all that is known of one parallel runtime lives in one file of this folder.

An agent recognises its runtime among the files that a process maps and says, as plain data, where the
runtime acquires and releases work. It knows no kernel: `parprof.probes.plan` turns the data into probe sites.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from parprof.files.dso import Dso
from parprof.files.elf import ElfFile
from parprof.patterns import regex
from parprof.plans import Edge, Hook, Memory, MemoryPlan
from parprof.runtimes.others import brought

_NEVER = regex(r"(?!)")
_CREATE = regex(r"(?!)")
_SYNCHRONIZE = regex(r".*(barrier|lock|critical|taskwait|ordered|atomic|wait|reduce|sync)")
_SCHEDULE = regex(r".*(loop|dispatch|for_static|sections|single|steal|schedul)")


class Agent:
    """One parallel runtime: what differs from these defaults is all that a runtime's file has to say."""

    name = ""
    """Label value, such as ``libgomp``."""
    library: re.Pattern[str] = _NEVER
    """Matches the base name of the runtime's shared library."""
    marker = ""
    """A function that the runtime defines: tells it where it is linked into a file, or in a library of another name."""
    sign = b""
    """A text among the constants of each build of the runtime, short or not: where it is not, it is not looked for."""
    messages: re.Pattern[bytes] = regex(rb"(?!)")
    """Matches how texts begin that the runtime's own code uses, in several of its source files, but not while it is
    loaded: tells its code in a stripped file. See `parprof.probes.hidden_runtime`."""
    is_imitated = False
    """Other runtimes define its marker, too."""
    hooks: tuple[Hook, ...] = ()
    lock_hooks: tuple[Hook, ...] = ()
    """Probed only where the user asks who holds the locks that others wait for: LOCK and UNLOCK."""
    outlined: re.Pattern[str] = _NEVER
    """Matches the names that compilers give to outlined region and task bodies of this runtime."""
    source: str = "exact"
    """The n_w source to start with."""
    lets_go = False
    """A thread that waits at a barrier (`Hook.is_barrier`), at the end of a region or for the next one goes on only
    after another thread of the process has met a hook, or the body of a region or task."""
    polls: re.Pattern[str] = _NEVER
    """Matches the base names of those of its libraries in whose code threads poll for what others do. Such a runtime
    has no work edges: whatever the source of n_w, a thread that is found in that code spins."""
    poll_functions: tuple[str, ...] = ()
    """Functions in its other libraries that poll, too, as linkers know them: their own code alone."""
    pauses = False
    """All of its loops that wait have the instruction ``pause``: see `parprof.probes.wait_code`."""
    return_probes = True
    """False where work moves between threads in mid-function: a return probe would kill the target."""
    imports: re.Pattern[str] = _NEVER
    """Matches the functions that a program's own files import from this runtime."""
    functions: re.Pattern[str] = _NEVER
    """Matches the names of the runtime's own functions, for programs that it is linked into."""
    copies: re.Pattern[str] = _NEVER
    """Matches whole-function copies that only the runtime calls: two in a row are two calls of the function."""
    joins = False
    """Who hands out work takes part in it, in the same function: work of which nobody knows who created it is that of
    those who are seen in that function."""
    is_inlined = False
    """Compilers inline its fast paths into programs, where line information alone tells them from the author's code."""
    cactus = False
    """Whether a caller's frame may lie on another stack than its callee's, above it or below (work stealing)."""
    has_closures = False
    """The ancestors of stolen work are on no stack: the runtime keeps them in closures. See `WorkerArray.closures`."""
    first_work: re.Pattern[str] = _NEVER
    """Matches the function of the runtime's in which a program's first piece of work begins: none came before it."""
    create = _CREATE
    synchronize = _SYNCHRONIZE
    schedule = _SCHEDULE
    """Match names of runtime functions: the kinds of overhead (tallent-2009 sec. 2.2); the rest is ``other``."""

    outlined_root = 0
    """Argument of an outlined function that holds the runtime's state; 0 = none."""

    @property
    def is_polling(self) -> bool:
        """Whether its threads wait by polling, and no edges are known: see `polls`."""
        return self.polls is not _NEVER

    @property
    def tells_imports(self) -> bool:
        """Whether it is known which functions programs have from it: see `imports`."""
        return self.imports is not _NEVER

    def outlined_instance(self, name: str) -> int:
        """Argument of an outlined function that tells two pieces of the same work apart; ``name`` may be empty."""
        return 1

    def code_layout(self, elf: ElfFile) -> tuple[int, ...]:
        """What `memory` has to know of the machine code of a file that is this runtime, or has it inside: integers.

        Called in the child that parses files, which has no privileges; the answer is kept with its facts.

        Raises:
            UnknownLayout: the text says which version was found, and why it is not trusted.
        """
        return ()

    def memory(self, dso: Dso, process: Memory, code_layout: tuple[int, ...] = ()) -> MemoryPlan | None:
        """How to read n_w out of this process at each sample; None where that cannot be told.

        ``code_layout``: what `code_layout` said of the file, in a child: look at it before you trust it.

        Raises:
            UnknownLayout: the text says which version was found, and why it is not trusted.
        """
        return None

    def memory_spoilt_by(self, imported: set[str] | None, environment: Mapping[str, str]) -> str:
        """What makes n_w from memory wrong for a program with these imports and this environment; empty: nothing.

        ``imported`` is None for a static program, which does not say what it uses of the runtime.
        """
        return ""

    def owns(self, name: str, module: str, file: str = "") -> bool:
        """Whether a frame is the runtime's plumbing rather than the author's code. ``module``: base name."""
        return bool(self.library.match(module) or self.functions.match(name))

    def author_name(self, name: str) -> str:
        """The function that the author wrote, for one that a compiler made of it; ``name`` itself if it is none.

        For a whole function's copy (a slow clone), or a helper that its function calls itself. See `encloser`.
        """
        return name

    def encloser(self, name: str) -> str | None:
        """The function that a compiler took this part out of, to hand it to the runtime: a region's or task's body.

        Empty where the part's name does not tell; None for a function that is no such part.
        """
        return None

    def overhead(self, name: str) -> str:
        """Kind of overhead of a function of the runtime: create, sync, schedule or other."""
        for pattern, category in (
            (self.create, "create"),
            (self.synchronize, "sync"),
            (self.schedule, "schedule"),
        ):
            if pattern.match(name):
                return category
        return "other"


def hook(
    names: str,
    edge: Edge,
    why: str,
    *,
    learn_argument: int = 0,
    function_argument: int = 0,
    instance_argument: int = 0,
    function_word: int = 0,
    root_argument: int = 0,
    slow_path: bool = False,
    is_barrier: bool = False,
) -> Hook:
    """A Hook for a blank-separated list of names; ``*`` stands for any word characters."""
    pattern = "|".join(re.escape(name).replace(r"\*", r"\w*") for name in names.split())
    return Hook(
        re.compile(f"(?:{pattern})"),
        edge,
        why,
        learn_argument,
        function_argument,
        instance_argument,
        function_word,
        root_argument,
        slow_path,
        is_barrier,
    )


@cache
def agents() -> tuple[Agent, ...]:
    """All agents, the most specific first; those of other packages (entry points ``parprof.runtimes``) behind ours."""
    from parprof.runtimes.cilk5 import Cilk5
    from parprof.runtimes.cilkplus import CilkPlus
    from parprof.runtimes.libgomp import Libgomp
    from parprof.runtimes.libomp import Libiomp5, Libomp
    from parprof.runtimes.mpi import Mpi
    from parprof.runtimes.onetbb import OneTbb
    from parprof.runtimes.opencilk import OpenCilk

    ours: list[Agent] = [Libgomp(), Libiomp5(), Libomp(), OneTbb(), OpenCilk(), CilkPlus(), Cilk5(), Mpi()]
    return (*ours, *brought("parprof.runtimes", "runtime agent", _foreign))


def _foreign(loaded: object) -> Agent:
    agent = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(agent, Agent) or not agent.name:
        raise TypeError("not a parprof.runtimes.Agent with a name")
    return agent


def agent_for_library(base_name: str) -> Agent | None:
    """The agent that knows a shared library by this base name."""
    return next((agent for agent in agents() if agent.library.match(base_name)), None)
