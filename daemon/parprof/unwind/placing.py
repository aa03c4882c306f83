"""Puts unwind tables and load maps where the unwinder in the kernel finds them.

A file's table is placed once for all processes that map it, and freed when the last of them is gone.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from itertools import count

from parprof.files.dso import Dso, FileKey
from parprof.kernel.engine import BpfKernel
from parprof.kernel.file_tables import FoundMapping
from parprof.kernel.store import StoreFull
from parprof.process import loadmap
from parprof.process.loadmap import LoadMap
from parprof.resources import trim_heap
from parprof.unwind.builder import TableBuilder
from parprof.unwind.pages import WORD
from parprof.unwind.table import UnwindTable
from parprof.values import dataclass

MAPPING_WORDS = 5
_MAPPING = struct.Struct(f"={MAPPING_WORDS}Q")
"""Start, end, bias, the table's index, its first page."""
_TABLES_SECONDS = 0.01
_USER_END = 1 << 63
"""The search in the kernel compares by subtraction; [vsyscall] lies beyond."""
_TRIM_BYTES = 4 << 20
_IDLE_WORDS = 1 << 20
"""8 MiB."""
_MADE = "made"
"""How the keys of tables begin that are of code of no file: one process's alone, and its forked children's."""
_MOST_BARE = 1 << 12
"""Files without a table that are remembered when no process uses them."""


@dataclass(slots=True)
class Placed:
    """A table in the store: where its image is, what of that is the page index, and how many load maps lead to it.

    Without words: the file has no table, or there was no room for it.
    """

    start: int
    words: int
    pages: int
    first_page: int
    file: tuple[int, int] = (0, 0)
    """Device and inode."""
    users: int = 0

    @property
    def index(self) -> int:
        """Where its index is, as the unwinder wants to be told."""
        return self.start << 32 | self.pages


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the unwinder is told of one mapping, and the file of the table, if that is placed by now."""

    mapping: loadmap.Mapping
    words: bytes
    key: FileKey | None


@dataclass(slots=True)
class _List:
    """A load map in the store: where it is, and the tables that it leads to. Forked processes share their parent's."""

    index: int
    bytes: int
    keys: frozenset[FileKey]
    entries: dict[int, _Entry]
    """By the address of the mapping, those that are told in full: of the others the table is yet to come."""
    users: int = 1


class Placer:
    """Keeps the unwinder's view of all watched processes up to date."""

    def __init__(self, kernel: BpfKernel, builder: TableBuilder) -> None:
        """``builder`` makes the tables, or has them on disk."""
        self._kernel = kernel
        self._builder = builder
        self._placed: dict[FileKey, Placed] = {}
        self._waiting: dict[int, LoadMap] = {}
        self._lists: dict[int, _List] = {}
        self._passed_bytes = 0
        """Bytes of tables that went through our memory since it was trimmed."""
        self._idle: dict[FileKey, None] = {}
        """Tables that no process uses now: processes come and go, but run the same programs."""
        self._idle_words = 0
        self._bare: dict[FileKey, None] = {}
        """Files without a table that no process uses now."""
        self._made: dict[int, dict[int, FileKey]] = {}
        """By process: tables of code of no file, by the begin of its mapping."""
        self._made_numbers = count()
        self._by_file: dict[tuple[int, int], Dso] = {}
        """By device and inode: the files of which the kernel knows where their tables are."""
        self.refused = 0
        """Tables and load maps that found no room in the store."""

    @property
    def is_waiting(self) -> bool:
        """Whether there are tables to come: `pump` will show them to the unwinder."""
        return bool(self._waiting)

    def update(self, load_map: LoadMap, wait: bool) -> None:
        """Show the unwinder the present load map of a process.

        ``wait`` for tables that are not there yet; else they come later, with `pump`, and until then frame
        pointers have to do in those files.
        """
        missing = self._missing(load_map)
        self._builder.prefetch(missing)
        coming = set() if wait else {dso.key for dso in missing if self._builder.expected(dso)}
        self._waiting.pop(load_map.pid, None)
        if coming:
            self._waiting[load_map.pid] = load_map
        before = self._lists.pop(load_map.pid, None)
        entries, raw = self._entries(load_map, before.entries if before else {}, coming)
        used = frozenset(entry.key for entry in entries.values() if entry.key is not None)
        kept = before.keys & used if before is not None and before.users == 1 else frozenset()
        try:
            index = self._kernel.store.allocate(len(raw) // WORD)
        except StoreFull:
            self.refused += 1
            kept = frozenset()
            self._kernel.set_mapping_list(load_map.pid, 0, 0)
            for key in used:
                self._user(key, 0)
        else:
            for key in used - kept:
                self._user(key, 1)
            self._kernel.store.write(index, raw)
            self._lists[load_map.pid] = _List(index, len(raw), used, entries)
            self._show(load_map.pid)
        if before is not None:
            before.keys -= kept
            self._drop(before)
        if not self._waiting and self._passed_bytes > _TRIM_BYTES:
            self._passed_bytes = 0
            trim_heap()

    def _entries(
        self, load_map: LoadMap, known: dict[int, _Entry], coming: set[FileKey]
    ) -> tuple[dict[int, _Entry], bytes]:
        """What the unwinder is to be told, with what is ``known`` of mappings that are the same as before.

        A program that loads one library after another has hundreds of mappings, of which one or two are new.
        """
        entries: dict[int, _Entry] = {}
        told: list[bytes] = []
        made = self._made.get(load_map.pid, {})
        for mapping in load_map.mappings:
            if mapping.start >= _USER_END:
                break
            entry = known.get(mapping.start)
            key = made.get(mapping.start, mapping.dso.key)
            if key in self._placed and key[0] == _MADE:
                entry = self._entry(mapping, key, self._placed[key])
            elif entry is None or entry.mapping is not mapping or (entry.key and entry.key[0] == _MADE):
                placed = None if mapping.dso.key in coming else self._place(mapping.dso)
                entry = self._entry(mapping, mapping.dso.key, placed)
            if mapping.dso.key not in coming:
                entries[mapping.start] = entry
            told.append(entry.words)
        return entries, b"".join(told)

    @staticmethod
    def _entry(mapping: loadmap.Mapping, key: FileKey, placed: Placed | None) -> _Entry:
        if placed is None or not placed.words:
            told = _MAPPING.pack(mapping.start, mapping.end, 0, 0, 0)
            return _Entry(mapping, told, None if placed is None else key)
        begins_at = 0 if key[0] == _MADE else mapping.dso.vaddr(mapping.file_offset)
        bias = (mapping.start - begins_at) & (1 << 64) - 1
        told = _MAPPING.pack(mapping.start, mapping.end, bias, placed.index, placed.first_page)
        return _Entry(mapping, told, key)

    def show_made(self, load_map: LoadMap, tables: Mapping[int, UnwindTable]) -> None:
        """Show the unwinder the tables of a process's code of no file, by the begin of its mappings, from which their
        addresses count. Those of before go."""
        made: dict[int, FileKey] = {}
        for start, table in tables.items():
            placed = self._write_if_room(table) if table.image else Placed(0, 0, 0, 0)
            if placed.words:
                made[start] = key = (_MADE, next(self._made_numbers))
                self._placed[key] = placed
        self._made[load_map.pid] = made
        self.update(load_map, wait=False)
        for key in made.values():  # what is not mapped any more
            if key in self._placed and not self._placed[key].users:
                self._user(key, 0)

    def _show(self, pid: int) -> None:
        shown = self._lists[pid]
        self._kernel.set_mapping_list(pid, shown.index, shown.bytes // _MAPPING.size)

    def inherit(self, parent: int, child: int) -> None:
        """Show the unwinder the parent's load map for a process that was just forked."""
        shown = self._lists.get(parent)
        if shown is None or child in self._lists:
            return
        shown.users += 1
        self._lists[child] = shown
        if parent in self._made:
            self._made[child] = self._made[parent]
        self._show(child)
        if parent in self._waiting:
            self._waiting[child] = self._waiting[parent].of(child)

    def file_of(self, found: FoundMapping) -> Dso | None:
        """The file that the kernel found mapped."""
        return self._by_file.get((found.device, found.inode))

    def await_tables(self, pid: int, patient: Callable[[int], bool]) -> None:
        """Wait for the tables of a process as long as ``patient``, told for how many files, says so."""
        while (load_map := self._waiting.get(pid)) is not None:
            if not patient(sum(map(self._builder.expected, self._missing(load_map)))):
                return
            time.sleep(_TABLES_SECONDS)
            self.pump()

    def hurry(self, pid: int) -> None:
        """Tables of this process come before those of others, as far as they are still to come."""
        if (load_map := self._waiting.get(pid)) is not None:
            self._builder.hurry(self._missing(load_map))

    def pump(self) -> None:
        """Show the unwinder the tables that have become ready. Call a few times a second."""
        for load_map in list(self._waiting.values()):
            missing = self._missing(load_map)
            self._builder.go_on(missing)
            if not all(map(self._builder.expected, missing)):
                self.update(load_map, wait=False)

    def _missing(self, load_map: LoadMap) -> list[Dso]:
        """The files whose tables are not in place, first those that were loaded first: the executable, and libraries
        before what they need, which is mapped below them. Of the hundreds that come with a plug-in hardly any other is
        on a stack."""
        missing = [dso for dso in load_map.dsos() if dso.key not in self._placed]
        return [*missing[:1], *missing[:0:-1]]

    def forget(self, pid: int) -> None:
        """A process is gone or not watched any more."""
        self._waiting.pop(pid, None)
        self._made.pop(pid, None)
        before = self._lists.pop(pid, None)
        if before is not None:
            self._kernel.set_mapping_list(pid, 0, 0)
            self._drop(before)

    def _drop(self, shown: _List) -> None:
        shown.users -= 1
        if shown.users:
            return
        self._kernel.store.free(shown.index, shown.bytes // WORD)
        for key in shown.keys:
            self._user(key, -1)

    def _user(self, key: FileKey, change: int) -> None:
        """So many load maps more, or less, lead to what `_place` gave; none for a map that was not to be."""
        placed = self._placed[key]
        placed.users += change
        if placed.users:
            return
        if placed.words and key[0] == _MADE:
            del self._placed[key]
            self._kernel.store.free(placed.start, placed.words)
            return
        if placed.words:
            self._idle[key] = None
            self._idle_words += placed.words
            self._free_idle(_IDLE_WORDS)
            return
        self._bare[key] = None
        if len(self._bare) > _MOST_BARE:
            longest = next(iter(self._bare))
            del self._bare[longest], self._placed[longest]

    def free_idle(self) -> None:
        """Free the tables that no process uses now."""
        self._free_idle(0)

    def _free_idle(self, limit: int) -> None:
        """Free tables that no process uses, the longest unused first, until ``limit`` words of them are left."""
        while self._idle_words > limit:
            key = next(iter(self._idle))
            del self._idle[key]
            placed = self._placed.pop(key)
            self._idle_words -= placed.words
            published = self._by_file.get(placed.file)
            if published is not None and published.key == key:  # not a later version of the file
                del self._by_file[placed.file]
                self._kernel.file_tables.remove(*placed.file)
            self._kernel.store.free(placed.start, placed.words)

    def _place(self, dso: Dso) -> Placed:
        """Where a file's table is. It is not idle any more: not freed to make room for the next. Tell `_user` of it."""
        placed = self._placed.get(dso.key)
        if placed is not None:
            if dso.key in self._idle:
                del self._idle[dso.key]
                self._idle_words -= placed.words
            self._bare.pop(dso.key, None)
            return placed
        table = self._builder.table(dso)
        placed = Placed(0, 0, 0, 0)
        if table is not None and table.image:
            try:
                placed = self._write(table)
            except StoreFull:
                self._free_idle(0)
                placed = self._write_if_room(table)
        self._placed[dso.key] = placed
        if placed.words:
            self._publish(dso, placed)
        return placed

    def _publish(self, dso: Dso, placed: Placed) -> None:
        """Tell the kernel which file this is the table of, so that it can find it by itself."""
        delta = dso.code_delta()
        if delta is None or not dso.mapped_as[1]:
            return
        placed.file = dso.mapped_as
        self._by_file[placed.file] = dso
        self._kernel.file_tables.put(*placed.file, delta, placed.index, placed.first_page)

    def _write_if_room(self, table: UnwindTable) -> Placed:
        try:
            return self._write(table)
        except StoreFull:
            self.refused += 1
            return Placed(0, 0, 0, 0)

    def _write(self, table: UnwindTable) -> Placed:
        words = len(table.image) // WORD
        start = self._kernel.store.allocate(words)
        self._kernel.store.write(start, table.image)
        self._passed_bytes += len(table.image)
        return Placed(start, words, table.pages, table.first_page)
