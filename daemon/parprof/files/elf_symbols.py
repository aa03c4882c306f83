"""Symbol tables of ELF files: read in pieces, so that a table of any size costs little memory.

Only numbers and a read function come in, so nothing here can reach outside of the file. A table that ends
early yields what is there.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from parprof.values import dataclass

ReadAt = Callable[[int, int], bytes]
"""(file offset, size) -> bytes, fewer than asked for at the end of the file."""

MAX_SYMBOLS = 1 << 22
"""Symbols beyond this number of one table are left out."""
MAX_NAME = 1 << 14
"""Bytes of a symbol name that are read."""

MAX_TEXT = 1 << 25
"""Bytes that a set of names may take."""

TYPE_NONE, TYPE_OBJECT, TYPE_FUNCTION, TYPE_IFUNC = 0, 1, 2, 10
BIND_LOCAL, BIND_GLOBAL, BIND_WEAK = 0, 1, 2
_ENTRY = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_CHUNK = _ENTRY.size * 4096
_WINDOW_BITS = 16
_WINDOWS = 64
_UNIQUE = 10  # STB_GNU_UNIQUE
_SEARCHED, _MOST_SEARCHED = 1 << 20, 1 << 26
_MOST_PLACES = 1 << 16
_FEW = 1 << 10
"""So many symbols are looked at sooner than their names are searched."""

SymbolEntry = tuple[int, int, int, int, int, int]


class Symbol(NamedTuple):
    """A defined symbol. ``value`` is an ELF virtual address, ``size`` in bytes (0 = unknown).

    The value of a ``TYPE_IFUNC`` is the resolver's, not that of the function that it picks.
    """

    name: str
    value: int
    size: int
    bind: int
    kind: int

    @property
    def is_local(self) -> bool:
        """Whether other files cannot see it."""
        return self.bind not in (BIND_GLOBAL, BIND_WEAK, _UNIQUE)


def _is_function(entry: SymbolEntry) -> bool:
    """Whether it is a function that is defined here."""
    return entry[1] & 15 in (TYPE_FUNCTION, TYPE_IFUNC) and bool(entry[3] and entry[4])


class Strings:
    """A string table, read in windows that are kept for a while (at most 4 MiB)."""

    def __init__(self, read_at: ReadAt, offset: int, size: int) -> None:
        """A table of ``size`` bytes at a file offset."""
        self._read_at = read_at
        self._offset = offset
        self._size = size
        self._windows: OrderedDict[int, bytes] = OrderedDict()

    def get(self, index: int) -> bytes:
        """The string that begins ``index`` bytes into the table; empty when that is outside."""
        if not 0 <= index < self._size:
            return b""
        number = index >> _WINDOW_BITS
        window = self._windows.get(number)
        if window is None:
            start = number << _WINDOW_BITS
            window = self._read_at(self._offset + start, min(1 << _WINDOW_BITS, self._size - start))
            self._windows[number] = window
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        start = index & ((1 << _WINDOW_BITS) - 1)
        end = window.find(b"\0", start)
        if end >= 0:
            return window[start:end]
        return self._read_at(self._offset + index, min(MAX_NAME, self._size - index)).partition(b"\0")[0]

    def places(self, names: Collection[bytes]) -> set[int] | None:
        """Where each of these may be a string here, alone or before an ``@``; None: too much to search, or too many.

        Strings may begin in the middle of others, so what is before does not matter.
        """
        wanted = [name + end for name in names for end in (b"\0", b"@")]
        longest = max(map(len, wanted), default=2) - 1
        if self._size > _MOST_SEARCHED:
            return None
        offset, kept = 0, b""
        out: set[int] = set()
        while offset < self._size:
            chunk = self._read_at(self._offset + offset, min(_SEARCHED, self._size - offset))
            if not chunk:
                break
            text, base = kept + chunk, offset - len(kept)
            for string in wanted:
                at = text.find(string)
                while at >= 0 and len(out) <= _MOST_PLACES:
                    out.add(base + at)
                    at = text.find(string, at + 1)
            offset += len(chunk)
            kept = text[-longest:]
        out |= {offset - len(name) for name in names if kept.endswith(name)}  # the table ends without a NUL
        return out if len(out) <= _MOST_PLACES else None

    def forget(self) -> None:
        """Give back the memory of the windows; they are read again when they are needed."""
        self._windows.clear()


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """Where a table lies: file ``offset``, number of entries, its strings, and versions if it has any."""

    read_at: ReadAt
    offset: int
    count: int
    strings: Strings
    versions: int = 0
    """File offset of the version numbers (two bytes for each symbol), 0 = none."""

    def _chunks(self) -> Iterator[bytes]:
        """Whole entries, many at a time."""
        left = min(self.count, MAX_SYMBOLS) * _ENTRY.size
        offset = self.offset
        while left > 0:
            chunk = self.read_at(offset, min(_CHUNK, left))
            usable = len(chunk) - len(chunk) % _ENTRY.size
            if not usable:
                return
            yield chunk[:usable]
            offset += usable
            left -= usable

    def entries(self) -> Iterator[SymbolEntry]:
        """(name index, info, other, section, value, size) of every entry."""
        for chunk in self._chunks():
            yield from _ENTRY.iter_unpack(chunk)

    def _named(self, places: set[int] | None) -> Iterator[tuple[int, SymbolEntry]]:
        """The entries whose names are at these places, with their numbers; None: all."""
        first = 0
        for chunk in self._chunks():
            count = len(chunk) // _ENTRY.size
            indices = memoryview(chunk).cast("I")[:: _ENTRY.size // 4].tolist() if places else []
            if places is None:
                yield from enumerate(_ENTRY.iter_unpack(chunk), first)
            elif not places.isdisjoint(indices):
                yield from (
                    (first + at, _ENTRY.unpack_from(chunk, at * _ENTRY.size))
                    for at, index in enumerate(indices)
                    if index in places
                )
            first += count

    def functions(self) -> Iterator[SymbolEntry]:
        """The entries of defined functions; see `name` for their names."""
        for entry in self.entries():
            if _is_function(entry):
                yield entry
        self.strings.forget()

    def functions_around(self, addresses: Sequence[int]) -> Iterator[SymbolEntry]:
        """The `functions` that contain one of these ``addresses`` (ascending) or begin next below one; and others.

        What lies elsewhere is left out before it becomes an entry: of half a million that is nearly all.
        """
        if not addresses:
            return
        lowest, highest, begin = addresses[0], addresses[-1], 0
        for chunk in self._chunks():
            numbers = memoryview(chunk).cast("Q")
            values, sizes = numbers[1::3].tolist(), numbers[2::3].tolist()
            for at in range(len(values) - 1, -1, -1):  # from the end: many tables ascend
                value = values[at]
                if value > highest or (value < begin and value + sizes[at] <= lowest):
                    continue
                entry = _ENTRY.unpack_from(chunk, at * _ENTRY.size)
                if _is_function(entry):
                    if value <= lowest:
                        begin = max(begin, value)
                    yield entry
        self.strings.forget()

    def symbol(self, entry: SymbolEntry) -> Symbol:
        """An entry with its name, without the version that some linkers append to it."""
        return Symbol(self.name(entry), entry[4], entry[5], entry[1] >> 4, entry[1] & 15)

    def name(self, entry: SymbolEntry) -> str:
        """The name of an entry."""
        name = self.strings.get(entry[0])
        at = name.find(b"@", 1)
        return (name[:at] if at > 0 else name).decode("utf-8", "replace")

    def undefined(self) -> set[str]:
        """Names that other files have to define; at most `MAX_TEXT` bytes of them."""
        out: set[str] = set()
        left = MAX_TEXT
        for entry in self.entries():
            if entry[3] == 0 and entry[0]:
                name = self.name(entry)
                left -= len(name) + 64
                if left < 0:
                    break
                out.add(name)
        self.strings.forget()
        return out

    def defined(self, names: set[bytes]) -> Iterator[tuple[bool, Symbol]]:
        """(is the default version, symbol) of every definition of ``names`` that has an address."""
        places = self.strings.places(names) if self.count > _FEW else None
        if places is not None and not places:
            return
        for index, entry in self._named(places):
            if entry[3] == 0 or entry[4] == 0 or entry[1] & 15 not in (TYPE_NONE, TYPE_OBJECT, TYPE_FUNCTION):
                continue
            name = self.strings.get(entry[0])
            if name not in names:
                base, at, rest = name.partition(b"@")
                if not at or base not in names:
                    continue
                yield rest.startswith(b"@"), self.symbol(entry)
                continue
            hidden = False
            if self.versions:
                raw = self.read_at(self.versions + 2 * index, 2)
                hidden = len(raw) == 2 and bool(raw[1] & 0x80)
            yield not hidden, self.symbol(entry)
        self.strings.forget()


def count_from_hash(read: ReadAt, address: int) -> int:
    """Number of dynamic symbols that a DT_HASH table at virtual ``address`` is for; 0 = unknown."""
    raw = read(address, 8)
    return int(struct.unpack("<II", raw)[1]) if len(raw) == 8 else 0


def count_from_gnu_hash(read: ReadAt, address: int) -> int:
    """Number of dynamic symbols by a DT_GNU_HASH table; 0 = unknown, as where no symbol is defined."""
    raw = read(address, 16)
    if len(raw) < 16:
        return 0
    buckets, first, bloom_words, _ = struct.unpack("<IIII", raw)
    start = address + 16 + 8 * bloom_words
    last = 0
    left = 4 * min(buckets, MAX_SYMBOLS)
    offset = 0
    while left > 0:
        chunk = read(start + offset, min(left, 1 << 16))
        if len(chunk) < 4:
            break
        usable = len(chunk) & ~3
        last = max(last, *struct.unpack(f"<{usable // 4}I", chunk[:usable]), 0)
        offset += usable
        left -= usable
    if last < first:
        return 0
    chain = start + 4 * buckets + 4 * (last - first)
    while last < MAX_SYMBOLS:
        chunk = read(chain, 256)
        for (value,) in struct.iter_unpack("<I", chunk[: len(chunk) & ~3]):
            last += 1
            if value & 1:
                return last
        if len(chunk) < 256:
            break
        chain += 256
    return 0
