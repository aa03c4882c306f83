"""oneTBB, and the Threading Building Blocks before it.

Each task would cost two probe hits, and neither stealing nor the workers' loop is exported: so there are no probes,
and n_w comes from what threads are found running. The library waits and steals in its own code, the program's code
runs outside of it: that is told by address. But most of TBB is templates, which lie in the program: in call paths
they are told by their names, and where the compiler inlined them by the header that they are from. Whoever calls a
parallel algorithm works on it, too: that tells whose work a worker does.
"""

from __future__ import annotations

from parprof.patterns import regex
from parprof.runtimes import Agent

_OF_TBB = r"tbb::(?:\w+::)*"
_END = r"(?:<|\(|::|\Z)"
"""After a whole name of a C++ function or class."""


class OneTbb(Agent):
    """Agent for oneTBB."""

    name = "onetbb"
    library = regex(r"libtbb(?:\.|_?12|-)")
    imports = regex(r"_ZN3tbb(?:6detail2r\d|8internal|10interface\d)")
    functions = regex(r"(?:(?:non-)?virtual thunk to )?tbb::")
    files = regex(r".*/include/(?:oneapi/)?tbb/[^/]")
    """Headers, and what is inlined of them goes by a name without its namespace."""
    source = "sampled"
    joins = True
    create = regex(
        rf"{_OF_TBB}(?:spawn|submit|enqueue|spawn_and_wait|allocate\w*|small_object_allocator|offer_work\w*){_END}|"
        rf"{_OF_TBB}task_group(?:_base)?::(?:run|prepare_task){_END}"
    )
    synchronize = regex(
        rf"{_OF_TBB}(?:execute_and_wait|wait\w*|\w*waiter|suspend|\w*mutex|\w*lock|\w*monitor|\w*wait_node|"
        rf"prolonged_pause\w*|atomic_backoff|fold_tree|try_acquire\w*|acquire\w*|notify\w*){_END}"
    )
    schedule = regex(
        rf"{_OF_TBB}(?:market|arena|arena_slot|thread_data|task_dispatcher|task_stream|mail\w+|task_proxy|rml|"
        rf"private_worker|private_server|partition\w*|\w+_partition_type|\w+_mode|start_\w+|blocked_range\w*){_END}"
    )

    def owns(self, name: str, module: str, file: str = "") -> bool:
        """The library, and the templates of namespace tbb in the program. ``file``: where the source says it is."""
        return super().owns(name, module) or bool(self.files.match(file))
