"""From frames in the code that HotSpot made to their callers', from outside of the process: as bpf/hotspot.bpf.c.

Who walks so looks at threads that sleep, which is never at the beginning or the end of a function that was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parprof.kernel.stacks import INTERRUPTED, MAX_BYTECODES, METHOD, METHOD_BITS
from parprof.model import CallerStep

_HOPS, _FREE = 16, 0xFF
_MOST_WORDS = 1 << 14
_BYTECODE, _METHOD, _SENDER = -64, -24, -8
"""In an interpreter's frame, from rbp on."""
_STACK = 64 << 20

JvmFacts = Mapping[str, int | tuple[int, ...]]


def step(
    facts: JvmFacts, pc: int, sp: int, rbp: int | None, read_word: Callable[[int], int]
) -> CallerStep | None:
    """From a frame to its caller's; None if that cannot be found.

    ``facts``: as `parprof.languages.hotspot.layout.FACTS`. Raises OSError as ``read_word`` does.
    """
    if 0 <= pc - _number(facts, "interpreter") < _number(facts, "interpreter_size"):
        return _interpreted(facts, pc, sp, rbp, read_word)
    words = _frame_words(facts, pc - 1, read_word)
    if words is None:
        return None
    if words:
        cfa = sp + 8 * words
        return CallerStep(pc, read_word(cfa - 8), cfa, read_word(cfa - 16))
    if rbp is None or not sp <= rbp < sp + _STACK:  # a stub: most of them keep a frame pointer
        return None
    return CallerStep(pc, read_word(rbp + 8), rbp + 16, read_word(rbp))


def _interpreted(
    facts: JvmFacts, pc: int, sp: int, rbp: int | None, read_word: Callable[[int], int]
) -> CallerStep | None:
    if rbp is None or not sp <= rbp < sp + _STACK:
        return None
    method, bytecode, sender = (read_word(rbp + at) for at in (_METHOD, _BYTECODE, _SENDER))
    word = pc
    if not method & 7 and method < 1 << METHOD_BITS:
        place = bytecode - read_word(method + _number(facts, "const_method")) - _number(facts, "bytecodes")
        place = place if 0 <= place < MAX_BYTECODES else MAX_BYTECODES
        word = INTERRUPTED | METHOD | place << METHOD_BITS | method
    is_sender = not sender & 7 and rbp + 16 <= sender < rbp + _STACK
    return CallerStep(word, read_word(rbp + 8), sender if is_sender else rbp + 16, read_word(rbp))


def _frame_words(facts: JvmFacts, address: int, read_word: Callable[[int], int]) -> int | None:
    """How large the frame of the code at an address is; None if there is none, 0 if it does not say."""
    heaps = (facts[name] for name in ("heap", "heap_size", "segments"))
    starts, sizes, maps = (heap for heap in heaps if isinstance(heap, tuple))
    shift = _number(facts, "segment_shift")
    for start, size, segments in zip(starts, sizes, maps, strict=True):
        if 0 <= address - start < size:
            segment = address - start >> shift
            for _ in range(_HOPS):
                back = read_word(segments + segment) & 0xFF
                if not back:
                    at = start + (segment << shift) + _number(facts, "frame_words")
                    words = read_word(at) & 0xFFFFFFFF
                    return words if words < _MOST_WORDS else 0
                if back == _FREE or back > segment:
                    return 0
                segment -= back
            return 0
    return None


def _number(facts: JvmFacts, name: str) -> int:
    value = facts[name]
    assert isinstance(value, int)
    return value
