"""JavaMethods of a JVM: their names, files and lines."""

from __future__ import annotations

import re
from collections import OrderedDict

from parprof.languages.hotspot.layout import JvmLayout
from parprof.languages.hotspot.memory import JvmMemory, Unreadable
from parprof.languages.hotspot.numbers import JavaLines
from parprof.patterns import regex
from parprof.untrusted import visible
from parprof.values import dataclass

_MOST_NAME = 512
_MOST_TABLE = 1 << 15
_KEPT = 1 << 13
_HAS_LINES = 1
"""In the flags of a ConstMethod."""
_HIDDEN = regex(r"(\$\$(?:Lambda|\w*Invoker|\w*Holder|LambdaForm\w*)?(?:\$\d+)?)[/+.]0x[0-9a-f]+")
"""Classes that are made at run time: each run calls them something else."""

JavaRow = tuple[str, str, int, int]
"""Name, file, line and first line of a function."""


@dataclass(slots=True)
class JavaMethod:
    """A method. ``identity``: what lies at its address, for it may be another one some time."""

    identity: bytes
    name: str
    file: str
    lines: JavaLines

    def at(self, place: int) -> JavaRow:
        """The method at a byte of its bytecode; -1: where it begins."""
        first = self.lines.first
        return self.name, self.file, self.lines.line(place) if place >= 0 else first, first


class JavaMethods:
    """Those that were asked for, by the address of what HotSpot calls ``Method``."""

    def __init__(self, memory: JvmMemory, layout: JvmLayout) -> None:
        """Nothing is read yet."""
        self._memory = memory
        self._layout = layout
        self._known: OrderedDict[int, JavaMethod] = OrderedDict()

    def at(self, address: int) -> JavaMethod:
        """The method that is there now.

        Raises:
            Unreadable: there is none.
        """
        memory, layout = self._memory, self._layout
        head = memory.number(address + layout.method_const)
        identity = head.to_bytes(8, "little") + memory.read(head, layout.const_size)
        known = self._known.get(address)
        if known is None or known.identity != identity:
            known = self._known[address] = self._made(head, identity)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known

    def _made(self, head: int, identity: bytes) -> JavaMethod:
        memory, layout = self._memory, self._layout
        pool = memory.number(head + layout.const_constants)
        holder = memory.number(pool + layout.pool_holder)
        type_name = self._symbol(memory.number(holder + layout.klass_name))
        name = self._symbol_in(pool, memory.number(head + layout.const_name, 2))
        file = self._file(pool, holder, type_name)
        size = memory.number(head + layout.const_code_size, 2)
        table = b""
        if memory.number(head + layout.const_flags, 2) & _HAS_LINES:
            table = self._some(head + layout.const_size + size)
        return JavaMethod(
            identity,
            f"{_readable(type_name)}.{name}",
            file,
            JavaLines(table, without_zero=layout.without_zero),
        )

    def _some(self, address: int) -> bytes:
        """As much of a table as there may be: where it ends only the table itself tells."""
        for size in (256, 4096, _MOST_TABLE):
            data = self._memory.read(address, size)
            if 0 in data or size == _MOST_TABLE:
                return data
        return b""

    def _file(self, pool: int, holder: int, type_name: str) -> str:
        layout = self._layout
        try:
            if layout.pool_file:
                index = self._memory.number(pool + layout.pool_file, 2)
            else:
                index = self._memory.number(holder + layout.klass_file, 2)
            file = self._symbol_in(pool, index) if index else ""
        except Unreadable:
            return ""
        folder = type_name.rpartition("/")[0]
        return f"{folder}/{file}" if folder and file and "/" not in file else file

    def _symbol_in(self, pool: int, index: int) -> str:
        if not index:
            raise Unreadable("no name")
        return self._symbol(self._memory.number(pool + self._layout.pool_size + 8 * index))

    def _symbol(self, address: int) -> str:
        length = self._memory.number(address + self._layout.symbol_length, 2)
        if not length:
            raise Unreadable("an empty name")
        text = self._memory.read(address + self._layout.symbol_body, min(length, _MOST_NAME))
        return visible(text.decode("utf-8", "replace"))


def _readable(type_name: str) -> str:
    """A class's name as Java has it.

    >>> _readable("java/util/Map$Entry"), _readable("Work$$Lambda$14+0x00007f0001000a00")
    ('java.util.Map$Entry', 'Work$$Lambda')
    """
    name = _HIDDEN.sub(r"\1", type_name)
    name = re.sub(r"\$\$Lambda\$\d+", "$$Lambda", name) if "$$Lambda$" in name else name
    return name.replace("/", ".")
