"""The child process that reads JVMs: ``python -m parprof.languages.hotspot.worker FD``.

It answers requests on a socket: ``{"process", "symbols", "words"}`` and a descriptor of the process's memory, with
``{"facts": what the programs must know, or null, "rows": [[[name, file, line, first line], ...], ...]}``: for each
word the functions there, innermost first, none if they cannot be told. A word is an address in code, as a return
address that itself, or a frame of the interpreter (FRAME_METHOD). ``symbols``: the addresses of what HotSpot says of
itself. No facts: it has not said it yet.

All that it reads is hostile, so it gives up its privileges first, and its memory is limited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from parprof.kernel.stacks import MAX_BYTECODES, METHOD, METHOD_BITS
from parprof.languages.hotspot.code import JvmCode
from parprof.languages.hotspot.layout import JvmLayout
from parprof.languages.hotspot.memory import JvmMemory, Unreadable
from parprof.languages.hotspot.methods import JavaMethods, JavaRow
from parprof.languages.hotspot.structures import VmStructures
from parprof.workers.serving import run

MEMORY_LIMIT = 1 << 30
_MOST_JVMS = 16
_MOST_WORDS = 1 << 14


class Jvm:
    """One JVM, of which what was read is kept."""

    def __init__(self, memory: JvmMemory, symbols: Mapping[str, int]) -> None:
        """Nothing is read yet. ``symbols``: as `parprof.languages.hotspot.structures.SYMBOLS`."""
        self._memory = memory
        self._symbols = symbols
        self._said: VmStructures | None = None
        self._layout: JvmLayout | None = None
        self._methods: JavaMethods | None = None
        self._code: JvmCode | None = None

    def begin(self, fd: int) -> None:
        """Look at its memory anew, by this descriptor."""
        self._memory.begin(fd)

    def facts(self) -> dict[str, Any] | None:
        """What the programs must know; None: it has not begun to run, or is none that we know."""
        try:
            if self._layout is None:
                self._said = self._said or VmStructures.read(self._memory, self._symbols)
                self._layout = JvmLayout.of(self._said, self._memory)
                self._methods = JavaMethods(self._memory, self._layout)
                self._code = JvmCode(self._memory, self._layout, self._methods)
            return self._layout.kernel_facts()
        except Unreadable:
            return None

    def rows(self, word: int) -> list[JavaRow]:
        """The functions at a word; none if they cannot be told."""
        if self._code is None or self._methods is None:
            return []
        try:
            if word & METHOD:
                place = word >> METHOD_BITS & MAX_BYTECODES
                method = self._methods.at(word & (1 << METHOD_BITS) - 1)
                return [method.at(place if place != MAX_BYTECODES else -1)]
            return self._code.at(word)
        except Unreadable:
            return []


class HotSpotWorker:
    """Answers requests about any number of JVMs, of which it remembers the last ones."""

    def __init__(self) -> None:
        self._jvms: OrderedDict[str, Jvm] = OrderedDict()

    def answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """The reply to a request."""
        if not fds:
            return {"facts": None, "rows": []}
        key = str(request["process"])
        jvm = self._jvms.pop(key, None) or Jvm(JvmMemory(fds[0]), request["symbols"])
        self._jvms[key] = jvm
        while len(self._jvms) > _MOST_JVMS:
            self._jvms.popitem(last=False)
        jvm.begin(fds[0])
        return {
            "facts": jvm.facts(),
            "rows": [jvm.rows(int(word)) for word in request["words"][:_MOST_WORDS]],
        }


if __name__ == "__main__":
    run(HotSpotWorker().answer, MEMORY_LIMIT)
