"""Calls that samples tell apart (froyd-2005 sec. 2.4): from "so many innermost frames are new" to counts by path.

The programs say of each sample how many of its innermost frames were not there at the thread's previous one
(bpf/activations.bpf.c). Each of those frames is an activation of its own: here it is counted under the stack as it was
seen from that frame.
"""

from __future__ import annotations

import hashlib

from parprof.kernel.counts import ByTime
from parprof.kernel.stacks import INTERRUPTED, RawStack, StackTable
from parprof.model import ACTIVATION, Count, Facts, SampleKey, ThreadState

COMPARED_FRAMES = 128
_MOST_STACKS = 1 << 11
"""Stacks that were only seen from within: each is a row, which costs the report half a millisecond. What is new in
others is left out, without a look at them: in a recursion each sample has dozens that nobody has seen."""
_PATIENCE = 8
"""Drains that samples wait for their stack, as `parprof.kernel.counts` has it."""
_WORD = 8
_USER = SampleKey._fields.index("user")


class Activations:
    """Collects what is new in samples, and puts the stacks that frames were called with among the stacks."""

    def __init__(self, stacks: StackTable) -> None:
        """``stacks``: of the session."""
        self._stacks = stacks
        self._waiting: dict[tuple[int, SampleKey], tuple[int, dict[int, int]]] = {}
        """Since which drain; samples by how many of their innermost frames are new."""
        self._seen_from: dict[tuple[int, int], int] = {}
        self._own: set[int] = set()
        self.left_out = 0
        """Activations that are counted nowhere, for lack of room or of their stack."""

    def trim(self) -> None:
        """Know only of stacks that are still there: to be called whenever some were forgotten.

        So there is room again for others, however long there are samples to be compared.
        """
        stacks = self._stacks
        self._own = {digest for digest in self._own if digest in stacks}
        self._seen_from = {
            whole: seen for whole, seen in self._seen_from.items() if whole[0] in stacks and seen in stacks
        }

    def forget(self) -> None:
        """No samples are to be compared any more: those of others, later, have all of the room."""
        self._own.clear()
        self._seen_from.clear()

    def note(self, at_ns: int, key: SampleKey, fresh: int, samples: int, drain: int) -> None:
        """So many samples were counted at a time under a key whose ``fresh`` innermost frames were new."""
        if not key.user:
            return
        base = SampleKey(
            key.image, key.tid, ACTIVATION, ThreadState.WORKING, 0, key.user, 0, key.epoch, key.context
        )
        _, by_fresh = self._waiting.setdefault((at_ns, base), (drain, {}))
        by_fresh[fresh] = by_fresh.get(fresh, 0) + samples

    def ready(self, drain: int) -> ByTime:
        """The activations in those samples whose stack is there: `Count.samples` of them."""
        waiting, self._waiting = self._waiting, {}
        out: ByTime = {}
        for (at_ns, key), (since, by_fresh) in waiting.items():
            stack = self._stacks.raw(key.user)
            if stack is not None:
                self._spread(out.setdefault(at_ns, {}), key, stack, by_fresh)
            elif drain - since < _PATIENCE:
                self._waiting[at_ns, key] = since, by_fresh
            else:
                self.left_out += sum(fresh * samples for fresh, samples in by_fresh.items())
        return out

    def _spread(self, out: Facts, key: SampleKey, stack: RawStack, by_fresh: dict[int, int]) -> None:
        new = sum(by_fresh.values())
        before, behind = key[:_USER], key[_USER + 1 :]  # of a sample it is done dozens of times
        for level in range(min(max(by_fresh), _levels(stack))):
            new -= by_fresh.get(level, 0)
            if not level and _is_trampoline(stack):
                continue
            user = self._seen(key.user, stack, level)
            if not user:
                self.left_out += new
                continue
            seen = SampleKey._make((*before, user, *behind))
            known = out.get(seen)
            if known is None:
                out[seen] = Count(new)
            else:
                known.samples += new

    def _seen(self, digest: int, stack: RawStack, level: int) -> int:
        """The id of a stack without so many of its innermost frames; 0: there is no room for more."""
        if not level:
            return digest
        known = self._seen_from.get((digest, level))
        if known is None:
            if len(self._own) >= _MOST_STACKS:
                return 0
            known = self._put(outer_part(stack, level))
            self._seen_from[digest, level] = known
        return known

    def _put(self, stack: RawStack) -> int:
        text = stack.native + bytes((stack.end, stack.cut & 0xFF, stack.cut >> 8))
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1
        if digest not in self._own:
            self._own.add(digest)
            self._stacks.put(digest, stack)
        return digest


def _is_trampoline(stack: RawStack) -> bool:
    """Whether the innermost frame is where the kernel sent the thread that was in the next one: for a probe there."""
    after = stack.native[_WORD : 2 * _WORD]
    return bool(int.from_bytes(after, "little") & INTERRUPTED)


def _levels(stack: RawStack) -> int:
    """How many of the innermost frames can be told by themselves.

    Frames of an interpreter stand for others, which only the whole stack tells. What lies below the work that another
    thread created has no place of its own in the logical call path.
    """
    if stack.python:
        return 1
    return stack.cut or len(stack.native) // _WORD


def outer_part(stack: RawStack, level: int) -> RawStack:
    """The stack without so many of its innermost frames: as a sample would have been that hit the next one's call.

    >>> outer = outer_part(RawStack(b"".join(n.to_bytes(8, "little") for n in (9, 21, 31)), 0, b"", 0, 2), 1)
    >>> outer.words, outer.cut
    ((20, 31), 1)
    """
    native = stack.native[_WORD * level :]
    leaf = int.from_bytes(native[:_WORD], "little")
    if not leaf & INTERRUPTED:  # a return address: the call is before it
        native = (leaf - 1).to_bytes(_WORD, "little") + native[_WORD:]
    cut = stack.cut - level if stack.cut else 0
    return RawStack(native, stack.end, b"", 0, cut, stack.is_own)
