"""The interpreter of one process: its functions, found while they are in memory, and put into native stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parprof.kernel.stacks import CodeAt, Stack
from parprof.languages import Instance, Merge, Row
from parprof.languages.cpython.functions import PythonStacks
from parprof.languages.cpython.merge import Native, merge
from parprof.languages.cpython.process import CPython
from parprof.model import Frame


class CPythonInstance(Instance):
    """CPython in one process image."""

    COUNTERS = ("python_unnamed", "python_mismatched")
    """Frames whose function could not be read any more; stacks that did not match the native ones."""

    def __init__(self, pid: int, python: CPython, stacks: PythonStacks | None = None) -> None:
        """The image that is process ``pid`` now. ``stacks``: what is known of its functions already."""
        self.python = python
        self._stacks = stacks or PythonStacks(pid, python)
        self._mismatched: set[int] = set()
        """Stacks whose activations of the interpreter loop were not those of the Python frames."""

    def kernel_facts(self) -> Mapping[str, int]:
        """What the programs in the kernel must know."""
        return self.python.kernel_facts()

    def for_child(self, pid: int) -> CPythonInstance:
        """The same for a forked child."""
        return CPythonInstance(pid, self.python, self._stacks.for_child(pid))

    def resolve(self, stacks: Iterable[tuple[int, tuple[CodeAt, ...]]]) -> None:
        """Look up the functions of stacks that came just now."""
        self._stacks.resolve(stacks)

    def merge(self, digest: int, stack: Stack) -> Merge | None:
        """How to merge one stack; None when it has no Python frames that were resolved."""
        python = self._stacks.stack(digest) if stack.python else None
        if python is None or all(frame is None for frame, _ in python):
            return None

        def merge_rows(rows: list[Row], whole: bool) -> tuple[list[Frame], bool]:
            native = [
                Native(frames, self.python.is_loop(address, is_return)) for address, is_return, frames in rows
            ]
            cut = stack.python_end != "complete"
            out, matched = merge(native, python, self.python.modules, whole=whole, cut=cut)
            if not matched and whole and not cut:
                self._mismatched.add(digest)
            return out, whole or not cut

        return merge_rows

    def counts(self) -> Mapping[str, int]:
        """By `COUNTERS`."""
        return dict(zip(self.COUNTERS, (self._stacks.unresolved, len(self._mismatched)), strict=True))

    @property
    def is_open(self) -> bool:
        """Whether `close` is still to be called."""
        return self._stacks.is_open

    def close(self) -> None:
        """Close the process's memory; what was resolved stays."""
        self._stacks.close()
