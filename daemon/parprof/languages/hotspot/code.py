"""Addresses in the code that HotSpot made: which method runs there, and which others were inlined into it."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import OrderedDict

from parprof.languages.hotspot.layout import Heap, JvmLayout
from parprof.languages.hotspot.memory import JvmMemory, Unreadable
from parprof.languages.hotspot.methods import JavaMethods, JavaRow
from parprof.languages.hotspot.numbers import CompressedNumbers
from parprof.untrusted import visible
from parprof.values import dataclass

INTERPRETER = "Interpreter"
"""Its code, whichever method that runs."""
_HOPS = 1 << 10
_FREE = 0xFF
_MOST_CODE = 1 << 26
_MOST_PCS, _MOST_SCOPES = 1 << 19, 1 << 20
"""Bytes of a compiled method's descriptions of places, and of what is inlined there."""
_MOST_INLINED = 64
_KEPT = 256
_NO_SCOPE = 0
_BEFORE_BYTECODE = -1
"""What is added to places in the bytecode: a method's entry is before the first."""


@dataclass(slots=True)
class _Compiled:
    """A compiled method. ``identity``: what is at its address, for another one may be there some time."""

    identity: bytes
    code: int
    """Where its code begins."""
    method: int
    places: list[int]
    """Where what it does is described, from its code's beginning on, in order."""
    scopes: list[int]
    """For each of them, where in ``data``."""
    data: bytes
    metadata: int


class JvmCode:
    """The heaps of code of one JVM."""

    def __init__(self, memory: JvmMemory, layout: JvmLayout, methods: JavaMethods) -> None:
        """Nothing is read yet."""
        self._memory = memory
        self._layout = layout
        self._methods = methods
        self._known: OrderedDict[int, _Compiled] = OrderedDict()

    def at(self, address: int) -> list[JavaRow]:
        """What runs at an address, the innermost inlined function first. A return address is that itself.

        Raises:
            Unreadable: no code is there (any more).
        """
        layout = self._layout
        start, end = layout.interpreter
        if start <= address < end:
            return [(INTERPRETER, "", 0, 0)]
        heap = layout.heap_of(address)
        if heap is None:
            raise Unreadable(f"{address:#x} is in no heap")
        blob = self._block(heap, address) + layout.block_header
        size = self._memory.number(blob + layout.blob_size, 4)
        if not 0 <= address - blob <= min(size, _MOST_CODE):
            raise Unreadable(f"{address:#x} is not in its block")
        name = self._memory.text(self._memory.number(blob + layout.blob_name))
        if name not in ("nmethod", "native nmethod"):
            return [(f"[{visible(name)}]", "", 0, 0)]
        compiled = self._compiled(blob)
        try:
            return self._inlined(compiled, address - compiled.code)
        except Unreadable:
            return [self._methods.at(compiled.method).at(-1)]

    def _block(self, heap: Heap, address: int) -> int:
        segment = address - heap.start >> heap.shift
        for _ in range(_HOPS):
            back = self._memory.number(heap.segments + segment, 1)
            if not back:
                return heap.start + (segment << heap.shift)
            if back == _FREE or back > segment:
                break
            segment -= back
        raise Unreadable(f"{address:#x} is in no block")

    def _compiled(self, blob: int) -> _Compiled:
        layout, number = self._layout, self._memory.number
        identity = self._memory.read(blob, layout.nmethod_method + 8)
        known = self._known.get(blob)
        if known is None or known.identity != identity:
            code = (
                number(blob + layout.blob_code_begin)
                if layout.blob_code_begin
                else blob + number(blob + layout.blob_code_offset, 4)
            )
            known = _Compiled(identity, code, number(blob + layout.nmethod_method), [], [], b"", 0)
            try:
                self._describe(known, blob)
            except Unreadable:  # then the method alone is known
                known.places = []
            self._known[blob] = known
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known

    def _describe(self, compiled: _Compiled, blob: int) -> None:
        layout, memory = self._layout, self._memory
        if layout.nmethod_immutable and layout.blob_mutable:
            base = memory.number(blob + layout.nmethod_immutable)
            scopes = base + memory.number(blob + layout.nmethod_scopes_data, 4)
            compiled.metadata = memory.number(blob + layout.blob_mutable)
            compiled.metadata += memory.number(blob + layout.blob_relocations, 4)
        elif layout.nmethod_metadata and not layout.nmethod_immutable:
            base = blob
            scopes = memory.number(blob + layout.nmethod_scopes_data)
            compiled.metadata = blob + memory.number(blob + layout.nmethod_metadata, 4)
        else:
            raise Unreadable("no table of methods")
        start = base + memory.number(blob + layout.nmethod_scopes_pcs, 4)
        end = base + memory.number(blob + layout.nmethod_pcs_end, 4)
        length = start - scopes if scopes < start else _MOST_SCOPES
        if not 0 < end - start <= _MOST_PCS:
            raise Unreadable("no descriptions of places")
        raw = memory.read(start, end - start)
        for at in range(0, len(raw) - layout.pc_desc_size + 1, layout.pc_desc_size):
            place, scope = struct.unpack_from("<ii", raw, at)
            compiled.places.append(place)
            compiled.scopes.append(scope)
        if sorted(compiled.places) != compiled.places:
            raise Unreadable("places out of order")
        compiled.data = self._scopes(scopes, min(length, _MOST_SCOPES), max(compiled.scopes, default=0))

    def _scopes(self, start: int, length: int, last: int) -> bytes:
        """The stream that scopes are in: as far as any begins, and some bytes more."""
        return self._memory.read(start, max(0, min(length, last + _MOST_INLINED)))

    def _inlined(self, compiled: _Compiled, place: int) -> list[JavaRow]:
        at = bisect_left(compiled.places, place)
        if at >= len(compiled.places):
            raise Unreadable("behind all that is described")
        scope = compiled.scopes[at]
        out: list[JavaRow] = []
        while scope != _NO_SCOPE and len(out) < _MOST_INLINED:
            numbers = CompressedNumbers(compiled.data, without_zero=self._layout.without_zero, at=scope)
            sender, index, bytecode = numbers.next(), numbers.next(), numbers.next() + _BEFORE_BYTECODE
            if not index or sender >= scope:  # who calls was written before
                raise Unreadable("no scope")
            method = self._memory.number(compiled.metadata + 8 * (index - 1))
            out.append(self._methods.at(method).at(bytecode))
            scope = sender
        if not out:
            raise Unreadable("nothing is described there")
        return out
