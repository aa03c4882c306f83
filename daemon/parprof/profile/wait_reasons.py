"""What threads wait for: as the kernel's stack and the futex tell, and the functions of the process beyond that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from parprof.attribution.waiting import KIND_AWAITED, WaitKind, polled_kind, thread_wait_kind, wait_kind
from parprof.kernel.stacks import StackTable
from parprof.logical import Located
from parprof.model import NOT_LOOKED_AT, Frame, Path, SampleKey, ThreadState
from parprof.symbols.kernel import KERNEL

_TOLD_BY = {WaitKind.LOCK: thread_wait_kind, WaitKind.REQUESTS: polled_kind}
"""Which kinds of waits the functions of the process tell more of."""
_WAITS = {kind: (Frame(kind.frame_name, module=KERNEL),) for kind in WaitKind}


class WaitReasons:
    """Finds them, and remembers those of places until `clear`."""

    def __init__(self, kernel_frames: Callable[[int, bool], Iterable[Frame]]) -> None:
        """``kernel_frames``: the functions at an address of the kernel."""
        self._kernel_frames = kernel_frames
        self._kinds: dict[int, WaitKind] = {}
        """By id of the kernel stack."""
        self._at: dict[tuple[int, WaitKind], tuple[Located, WaitKind]] = {}
        """By the identity of the place, which is kept here so that no other one gets it."""

    def told(self, stacks: StackTable, key: SampleKey) -> WaitKind:
        """What a thread waits for, as far as the kernel's stack and the futex tell: `LOCK` is any wait for threads."""
        known = KIND_AWAITED.get(key.awaits)
        if known is not None and (known is not WaitKind.GIL or key.state is ThreadState.BLOCKED):
            return known
        kernel = key.kernel
        kind = self._kinds.get(kernel)
        if kind is None:
            frames = stacks.get(kernel).frames if kernel else ()
            names = (one.name for place in frames for one in self._kernel_frames(*place))
            kind = self._kinds[kernel] = wait_kind(names)
        return kind

    def at(self, kind: WaitKind, located: Located) -> WaitKind:
        """The same at a place, where the functions of the process tell more: for other threads, but for what of theirs;
        in a poll, but for none of the events that it tells of."""
        if kind not in _TOLD_BY:
            return kind
        known = self._at.get((id(located), kind))
        if known is None:
            names = (frame.name for frame in reversed(located.physical) if not frame.is_loop)
            known = self._at[id(located), kind] = located, _TOLD_BY[kind](names)
        return known[1]

    def below(self, key: SampleKey, kind: WaitKind, located: Located) -> Path:
        """What stands below the place where a thread sleeps: for what. ``kind``: see `told`."""
        return _WAITS[self.at(kind, located)] if key.user else NOT_LOOKED_AT

    def clear(self) -> None:
        """Forget them: ids of stacks and places are others' from now on."""
        self._kinds.clear()
        self._at.clear()
