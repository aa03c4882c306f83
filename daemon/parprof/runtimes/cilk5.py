"""MIT Cilk-5.4.6 (libcilk.so.0).

Its compiler makes two functions of each procedure: a fast one, called like C, and ``_cilk_X_slow``, in which a thief
goes on with a frame from the heap. The scheduler calls slow functions and they return to it, so they may be probed on
return; a slow function's callers are on no stack but in a chain of closures.
"""

from __future__ import annotations

from parprof.files.dso import Dso
from parprof.patterns import regex
from parprof.plans import ClosureChain, Edge, Hook, Memory, MemoryPlan, Root, UnknownLayout, WorkerArray
from parprof.runtimes import Agent, hook
from parprof.values import dataclass

_WS_STACK, _WS_SELF, _WS_CONTEXT = 24, 96, 376
_CONTEXT_RO = 0
_RO_ACTIVE_SIZE = 32
_FRAME_ENTRY, _FRAME_SIGNATURE, _SIGNATURE_INLET = 0, 16, 16
_RUNNING = 42


@dataclass(frozen=True, slots=True)
class Cilk5Layout:
    """Offsets in bytes that differ between the builds of the library, as their DWARF has them."""

    ro_deques: int
    deque_size: int
    deque_bottom: int
    closure_status: int
    closure_parent: int
    closure_frame: int

    def chain(self) -> ClosureChain:
        """Where this library keeps the ancestors of stolen frames."""
        return ClosureChain(
            argument=1,
            ws_self=_WS_SELF,
            ws_stack=_WS_STACK,
            ws_context=_WS_CONTEXT,
            context_ro=_CONTEXT_RO,
            ro_deques=self.ro_deques,
            deque_size=self.deque_size,
            deque_bottom=self.deque_bottom,
            parent=self.closure_parent,
            frame=self.closure_frame,
            entry=_FRAME_ENTRY,
            signature=_FRAME_SIGNATURE,
            inlet=_SIGNATURE_INLET,
        )


_FLAGS = "Cilk_flags_are_wrong_{}_please_recompile"
_LAYOUTS = {
    _FLAGS.format("NODEBUG_NOTIMING_NOSTATS"): Cilk5Layout(56, 120, 48, 44, 80, 88),
    _FLAGS.format("DEBUG_NOTIMING_NOSTATS"): Cilk5Layout(56, 128, 56, 48, 88, 96),
    _FLAGS.format("NODEBUG_TIMING_STATS"): Cilk5Layout(80, 120, 48, 44, 80, 88),
    _FLAGS.format("DEBUG_TIMING_STATS"): Cilk5Layout(80, 128, 56, 48, 88, 96),
}
"""By the variable by which each library tells what it is, whatever its file is called: the default one, that of
``cilkc -cilk-debug`` (libcilk.g.so), of ``-cilk-profile`` (libcilk.p.so), and of both."""


class Cilk5(Agent):
    """Agent for MIT Cilk-5."""

    name = "cilk5"
    library = regex(r"libcilk(?:\.g)?(?:\.p)?\.so")
    marker = "Cilk_scheduler"
    imports = regex(r"Cilk_")
    outlined = regex(r"_cilk_\w+_slow")
    copies = outlined
    functions = regex(
        r"Cilk_|_cilk_\w+_import\Z|(?:invoke_main_slow|finish_promote|promote_child|do_what_it_says|CILK_MB|"
        r"Closure_(?:steal|return|lock|unlock|trylock|suspend|make_ready|at_top_of_stack))\Z"
    )
    create = regex(r"Cilk_(?:cilk2c_)?(?:init_frame|before_spawn|push_frame)")
    synchronize = regex(r".*(?:sync|after_spawn|pop_check|exception_handler|set_result|wakeup)")
    schedule = regex(r".*(?:schedul|steal|promote|do_what_it_says|Closure_return|child_main)")
    has_closures = True
    is_inlined = True
    first_work = regex(r"invoke_main_slow\Z")
    hooks: tuple[Hook, ...] = (
        hook(
            "invoke_main_slow",
            Edge.WORK,
            "the scheduler runs the first procedure (cilk-5.4.6 invoke-main.c)",
            root_argument=1,
        ),
        hook("Cilk_child_main", Edge.END, "a worker thread begins, without work (cilk-5.4.6 sched.c)"),
        hook(
            "Cilk_scheduler",
            Edge.END,
            "a worker looks for work, once in a Cilk_start (cilk-5.4.6 sched.c)",
            root_argument=1,
        ),
        hook("finish_promote", Edge.STEAL, "a thief takes a frame, or an inlet aborts (cilk-5.4.6 sched.c)"),
    )
    outlined_root = 1
    _slow = regex(r"_cilk_(\w+)_slow")

    def outlined_instance(self, name: str) -> int:
        """None: a slow function's context is in the closures."""
        return 0

    def author_name(self, name: str) -> str:
        """The procedure, for its slow version.

        >>> Cilk5().author_name("_cilk_sort_slow")
        'sort'
        """
        match = self._slow.fullmatch(name)
        return match[1] if match else name

    def memory(self, dso: Dso, process: Memory, code_layout: tuple[int, ...] = ()) -> MemoryPlan | None:
        """Who runs a closure works. Nothing leads there but a worker's state, which its scheduler is called with."""
        if not process.symbol("Cilk_scheduler"):
            return None
        layout = next((layout for name, layout in _LAYOUTS.items() if process.symbol(name)), None)
        if layout is None:
            raise UnknownLayout(f"{dso.name}: a library of Cilk-5 that does not tell how it was built")
        return WorkerArray(
            Root.LEARNED,
            0,
            (_WS_CONTEXT, _CONTEXT_RO),
            count=_RO_ACTIVE_SIZE,
            array=layout.ro_deques,
            stride=layout.deque_size,
            pointers=False,
            worker_hops=(layout.deque_bottom,),
            value=layout.closure_status,
            size=4,
            equals=_RUNNING,
            closures=layout.chain(),
        )
