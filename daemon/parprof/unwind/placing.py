"""Puts unwind tables and load maps where the unwinder in the kernel finds them.

A file's table is placed once for all processes that map it, and freed when the last of them is gone. Of a large one of
a process that ran before us those regions are placed that it has in its page tables, hence may execute: a process with
CUDA's libraries maps a gigabyte of code, of which it uses some percent. When it executes others, the unwinder says so.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from parprof.files.dso import Dso, FileKey
from parprof.kernel.engine import BpfKernel
from parprof.kernel.file_tables import FoundMapping
from parprof.kernel.store import StoreFull
from parprof.process import loadmap
from parprof.process.loadmap import LoadMap
from parprof.process.residence import present_pages
from parprof.resources import trim_heap
from parprof.unwind.builder import TableBuilder
from parprof.unwind.cache import LARGE_BYTES, StoredTable, Table, TableDamaged
from parprof.unwind.pages import REGION_SHIFT, WORD
from parprof.unwind.placed import Placed, add, nothing, place, release
from parprof.values import dataclass

MAPPING_WORDS = 5
_MAPPING = struct.Struct(f"={MAPPING_WORDS}Q")
"""Start, end, bias, the table's index, its first region."""
_TABLES_SECONDS = 0.01
_USER_END = 1 << 63
"""The search in the kernel compares by subtraction; [vsyscall] lies beyond."""
_TRIM_BYTES = 4 << 20
_MOST_MISSES = 8
"""So often a table is asked for what is not placed; then it is placed as a whole. Each time may cost a stack or two."""
_IDLE_WORDS = 1 << 20
"""8 MiB."""
_MADE = "made"
"""How the keys of tables begin that are of code of no file: one process's alone, and its forked children's."""
_REPLACED = "replaced"
"""And of tables in whose place there is a better one, as long as load maps lead to them."""
_PRIVATE = (_MADE, _REPLACED)
"""Tables that nobody can come to use any more when nobody does."""
_MOST_BARE = 1 << 12
"""Files without a table that are remembered when no process uses them."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the unwinder is told of one mapping, and the file of the table, if that is placed by now."""

    mapping: loadmap.Mapping
    words: bytes
    key: FileKey | None

    @property
    def is_replaced(self) -> bool:
        """Whether there is a better table in the place of this one."""
        return self.key is not None and self.key[0] == _REPLACED


@dataclass(slots=True)
class _List:
    """A load map in the store: where it is, and the tables that it leads to. Forked processes share their parent's."""

    index: int
    bytes: int
    keys: frozenset[FileKey]
    entries: dict[int, _Entry]
    """By the address of the mapping, those that are told in full: of the others the table is yet to come."""
    load_map: LoadMap
    """What it tells of, of the first process that was shown it."""
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
        self._numbers = count()
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
        is_lived_in = before is None and not wait
        entries, raw = self._entries(load_map, before.entries if before else {}, coming, is_lived_in)
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
            self._lists[load_map.pid] = _List(index, len(raw), used, entries, load_map)
            self._show(load_map.pid)
        if before is not None:
            before.keys -= kept
            self._drop(before)
        if not self._waiting and self._passed_bytes > _TRIM_BYTES:
            self._passed_bytes = 0
            trim_heap()

    def _entries(
        self, load_map: LoadMap, known: dict[int, _Entry], coming: set[FileKey], is_lived_in: bool
    ) -> tuple[dict[int, _Entry], bytes]:
        """What the unwinder is to be told, with what is ``known`` of mappings that are the same as before.

        A program that loads one library after another has hundreds of mappings, of which one or two are new.
        ``is_lived_in``: the process has executed what it needs of each file.
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
            elif entry is None or entry.mapping is not mapping or (entry.key and entry.key[0] in _PRIVATE):
                lived_in = is_lived_in or (entry is not None and entry.is_replaced)
                placed = None if mapping.dso.key in coming else self._place(mapping.dso, load_map, lived_in)
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
        told = _MAPPING.pack(mapping.start, mapping.end, bias, placed.index, placed.first_region)
        return _Entry(mapping, told, key)

    def show_made(self, load_map: LoadMap, tables: Mapping[int, Table]) -> None:
        """Show the unwinder the tables of a process's code of no file, by the begin of its mappings, from which their
        addresses count. Those of before go."""
        made: dict[int, FileKey] = {}
        for start, table in tables.items():
            placed = self._write_if_room(table, None)
            if placed.words:
                made[start] = key = (_MADE, next(self._numbers))
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
        """Show the unwinder the tables that have become ready, or better. Call a few times a second."""
        for key in self._builder.take_whole():
            self._replace(key)
        for load_map in list(self._waiting.values()):
            missing = self._missing(load_map)
            self._builder.go_on(missing)
            if not all(map(self._builder.expected, missing)):
                self.update(load_map, wait=False)

    def _replace(self, key: FileKey) -> None:
        """A file's table has become better: it takes the place of the one that processes are shown."""
        old = self._placed.get(key)
        if old is None:
            return
        if not old.users:
            self._free_unused(key)
            return
        sharing: dict[int, list[int]] = {}
        for pid, shown in self._lists.items():
            if key in shown.keys:
                sharing.setdefault(shown.index, []).append(pid)
        load_map = self._lists[next(iter(sharing.values()))[0]].load_map
        dso = next((dso for dso in load_map.dsos() if dso.key == key), None)
        if dso is None:
            return
        try:
            table = self._builder.at_hand(dso)
            wanted = None if old.here is None else self._used(dso, load_map)
            new = nothing() if table is None else self._write_if_room(table, wanted)
        except TableDamaged:
            return
        if not new.words:  # there is room for one of them, or it is gone: the old one is better than none
            return
        self._placed[key] = new
        self._publish(dso, new)
        replaced = (_REPLACED, next(self._numbers))
        self._placed[replaced] = old
        for pids in sharing.values():
            shown = self._lists[pids[0]]
            shown.keys = shown.keys - {key} | {replaced}
            for start, entry in shown.entries.items():
                if entry.key == key:
                    shown.entries[start] = _Entry(entry.mapping, entry.words, replaced)
            self._renew(shown, pids)

    def _renew(self, shown: _List, pids: list[int]) -> None:
        """Show the processes that share a list another one, which they share again."""
        first, *others = pids
        self.update(shown.load_map.of(first), wait=False)
        for pid in others:
            if first in self._lists:
                del self._lists[pid]
                self.inherit(first, pid)
                self._drop(shown)
            else:  # for which there was no room
                self.update(shown.load_map.of(pid), wait=False)

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
        if key[0] in _PRIVATE:
            del self._placed[key]
            if placed.words:
                release(self._kernel.store, placed)
            return
        if placed.words:
            self._idle[key] = None
            self._idle_words += placed.all_words
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
            self._free_unused(next(iter(self._idle)))

    def _free_unused(self, key: FileKey) -> None:
        """Of a file that no process uses."""
        placed = self._placed.pop(key)
        if not placed.words:
            del self._bare[key]
            return
        del self._idle[key]
        self._idle_words -= placed.all_words
        published = self._by_file.get(placed.file)
        if published is not None and published.key == key:  # not a later version of the file
            del self._by_file[placed.file]
            self._kernel.file_tables.remove(*placed.file)
        release(self._kernel.store, placed)

    def _place(self, dso: Dso, load_map: LoadMap, is_lived_in: bool) -> Placed:
        """Where a file's table is. It is not idle any more: not freed to make room for the next. Tell `_user` of it."""
        placed = self._placed.get(dso.key)
        if placed is not None:
            if dso.key in self._idle:
                del self._idle[dso.key]
                self._idle_words -= placed.all_words
            self._bare.pop(dso.key, None)
            if placed.here is not None:
                self._add(dso, placed, self._used(dso, load_map) if is_lived_in else None)
            return placed
        table = self._builder.table(dso)
        wanted = None
        if is_lived_in and isinstance(table, StoredTable) and table.offsets[-1] > LARGE_BYTES:
            wanted = self._used(dso, load_map)
        try:
            placed = nothing() if table is None else self._write_if_room(table, wanted)
        except TableDamaged:
            table = self._builder.table(dso)  # anew: what was on disk is gone
            placed = nothing() if table is None else self._write_if_room(table, None)
        self._placed[dso.key] = placed
        if placed.words:
            self._publish(dso, placed)
        return placed

    @staticmethod
    def _used(dso: Dso, load_map: LoadMap) -> set[int] | None:
        """The regions of a file's code that a process has in its page tables, by their numbers; None: nobody knows."""
        used: set[int] = set()
        try:
            for mapping in load_map.mappings:
                if mapping.dso is dso:
                    bias = dso.vaddr(mapping.file_offset) - mapping.start
                    step = 1 << REGION_SHIFT
                    for page in present_pages(load_map.pid, mapping.start, mapping.end, step):
                        last = min(page - page % step + step, mapping.end) - 1
                        used.update(range(page + bias >> REGION_SHIFT, (last + bias >> REGION_SHIFT) + 1))
        except OSError:
            return None
        return used

    def _add(self, dso: Dso, placed: Placed, used: Iterable[int] | None) -> None:
        """Place of a table what else is ``used``; None: all of it."""
        table = self._builder.at_hand(dso)
        if table is None:
            self._builder.prefetch([dso])  # the next one that misses it finds it there
            return
        if (table.regions, table.first_region) != (placed.regions, placed.first_region):
            return
        wanted = range(table.regions) if used is None else (region - table.first_region for region in used)
        is_idle = dso.key in self._idle
        before = placed.all_words
        try:
            add(self._kernel.store, placed, table, wanted)
        except (StoreFull, TableDamaged):
            self.refused += 1
        self._idle_words += (placed.all_words - before) * is_idle

    def missed(self, load_map: LoadMap, address: int) -> None:
        """A process has executed code of which the unwinder has no rows, although its file has a table."""
        found = load_map.find(address)
        placed = None if found is None else self._placed.get(found[0].key)
        if found is None or placed is None or placed.here is None:
            return
        dso, vaddr = found
        placed.misses += 1
        used = None if placed.misses > _MOST_MISSES else self._used(dso, load_map)
        self._add(dso, placed, None if used is None else [*used, vaddr >> REGION_SHIFT])

    def _publish(self, dso: Dso, placed: Placed) -> None:
        """Tell the kernel which file this is the table of, so that it can find it by itself."""
        delta = dso.code_delta()
        if delta is None or not dso.mapped_as[1]:
            return
        placed.file = dso.mapped_as
        self._by_file[placed.file] = dso
        self._kernel.file_tables.put(*placed.file, delta, placed.index, placed.first_region)

    def _write_if_room(self, table: Table, wanted: Iterable[int] | None) -> Placed:
        """``wanted``: the numbers of regions; None: all."""
        if not table.regions:
            return nothing()
        chosen = None if wanted is None else [region - table.first_region for region in wanted]
        for is_last in (False, True):
            try:
                placed = place(self._kernel.store, table, chosen)
            except StoreFull:
                if not is_last:
                    self._free_idle(0)
            else:
                self._passed_bytes += placed.all_words * WORD
                return placed
        self.refused += 1
        return nothing()
