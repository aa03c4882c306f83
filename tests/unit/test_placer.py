# SPDX-License-Identifier: Apache-2.0
"""Unwind tables in a store that is too small: nothing is freed that is used, nothing stays that nobody uses.

The kernel's memory is played by a list of words that are taken; tests/kernel/test_unwind.py has the real one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.files.dso import Dso, FileKey
from parprof.kernel.store import StoreFull
from parprof.process.loadmap import LoadMap, Mapping
from parprof.unwind.cache import TableCache
from parprof.unwind.pages import REGION_SHIFT, WORD
from parprof.unwind.placing import MAPPING_WORDS, Placer
from parprof.unwind.table import UnwindTable

TABLE = UnwindTable(bytes(8) + bytes([1]) + bytes(7))
TABLE_WORDS = 20
"""An index of one word, a head of 17, two rows."""


class Kernel:
    """Stands in for the unwinder's memory: runs of words, first fit."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.taken: dict[int, int] = {}
        self.lists: dict[int, tuple[int, int]] = {}
        self.store = SimpleNamespace(allocate=self.allocate, free=self.free, write=self.write)
        self.file_tables = SimpleNamespace(put=lambda *_: None, remove=lambda *_: None)

    def allocate(self, words: int) -> int:
        at = 0
        for start in sorted(self.taken):
            if start - at >= words:
                break
            at = start + self.taken[start]
        if at + words > self.words:
            raise StoreFull(f"{words} words")
        self.taken[at] = words
        return at

    def free(self, start: int, words: int) -> None:
        assert self.taken.pop(start) == words

    def write(self, start: int, raw: bytes) -> None:
        assert any(
            at <= start and start * WORD + len(raw) <= (at + words) * WORD for at, words in self.taken.items()
        )

    def set_mapping_list(self, pid: int, word: int, count: int) -> None:
        self.lists.pop(pid, None)
        if count:
            assert self.taken[word] == count * MAPPING_WORDS
            self.lists[pid] = word, count


def file(name: int) -> Any:
    """A library of which there is a table."""
    dso = Dso(("file", 1, name, 0, 0), f"/{name}")
    dso.code_delta = lambda: None  # type: ignore[method-assign]
    dso.vaddr = lambda offset: offset  # type: ignore[method-assign]
    return dso


def table(dso: Dso) -> Any:
    return TABLE


BUILDER: Any = SimpleNamespace(
    prefetch=lambda _: None, expected=lambda _: False, table=table, at_hand=table, take_whole=set
)
FILES = [file(number) for number in range(6)]


def load_map(pid: int, files: frozenset[int]) -> LoadMap:
    return LoadMap(
        pid, {at: Mapping(at << 12, (at << 12) + 16, 0, FILES[at]) for at in sorted(files)}
    )  # fmt: skip


def check(kernel: Kernel, placer: Placer) -> None:
    """The words that are taken are those of lists and of tables, and a table is used, or else waits to be."""
    lists = {shown.index: shown for shown in placer._lists.values()}
    users = {key: sum(key in shown.keys for shown in lists.values()) for key in placer._placed}
    placed = {key: where for key, where in placer._placed.items() if where.words}
    for key, where in placer._placed.items():
        assert where.users == users[key]
        assert (key in (placer._idle if where.words else placer._bare)) == (where.users == 0), key
    assert placer._idle_words == sum(placed[key].words for key in placer._idle)
    runs = [where.start for where in placed.values()] + list(lists)
    assert sorted(runs) == sorted(kernel.taken)


CHANGES = st.tuples(
    st.integers(1, 4),
    st.frozensets(st.integers(0, len(FILES) - 1), min_size=1, max_size=len(FILES)) | st.none(),
)


@given(st.integers(0, 7 * TABLE_WORDS), st.lists(CHANGES, max_size=30))
def test_processes_come_change_and_go(words: int, changes: list[tuple[int, frozenset[int] | None]]) -> None:
    kernel = Kernel(words)
    placer = Placer(kernel, BUILDER)  # type: ignore[arg-type]
    for pid, files in changes:
        if files is None:
            placer.forget(pid)
        else:
            placer.update(load_map(pid, files), wait=False)
        check(kernel, placer)
    for pid in range(1, 5):
        placer.forget(pid)
    placer.free_idle()
    assert not kernel.taken and not kernel.lists


STEPS = st.tuples(
    st.sampled_from(("update", "forget", "fork", "better")),
    st.integers(1, 4),
    st.integers(0, len(FILES) - 1),
    st.frozensets(st.integers(0, len(FILES) - 1), min_size=1),
)


@given(st.integers(0, 12 * TABLE_WORDS), st.lists(STEPS, max_size=40))
def test_tables_are_replaced_by_better_ones(
    words: int, steps: list[tuple[str, int, int, frozenset[int]]]
) -> None:
    kernel = Kernel(words)
    whole: set[FileKey] = set()
    builder: Any = SimpleNamespace(**vars(BUILDER))
    builder.take_whole = lambda: whole
    placer = Placer(kernel, builder)  # type: ignore[arg-type]
    for what, pid, number, files in steps:
        if what == "update":
            placer.update(load_map(pid, files), wait=False)
        elif what == "forget":
            placer.forget(pid)
        elif what == "fork":
            placer.inherit(pid, 5 + number)
        else:
            shown = set(kernel.lists)
            before = placer._placed.get(FILES[number].key)
            whole |= {FILES[number].key}
            placer.pump()
            whole.clear()
            after = placer._placed.get(FILES[number].key)
            assert set(kernel.lists) <= shown
            if before is not None and before.users and before.words:
                assert after is not None and after.words, "a good one is not lost for want of room"
                assert after is not before or kernel.words - sum(kernel.taken.values()) < 2 * TABLE_WORDS * 6
        check(kernel, placer)
    for pid in range(1, 5 + len(FILES)):
        placer.forget(pid)
    placer.free_idle()
    assert not kernel.taken and not kernel.lists and not placer._lists


def test_processes_are_shown_the_table_that_became_whole(tmp_path: Path) -> None:
    """OpenCV's, of which the first lacks most: the daemon watches a service for days. Forked ones share a list."""
    cache = TableCache(tmp_path)
    whole: set[FileKey] = set()
    load = lambda _: cache.load("name", "12")  # noqa: E731
    builder: Any = SimpleNamespace(
        prefetch=lambda _: None,
        expected=lambda _: False,
        table=load,
        at_hand=load,
        take_whole=lambda: {whole.pop()} if whole else set(),
    )
    kernel = Kernel(100_000)
    placer = Placer(kernel, builder)  # type: ignore[arg-type]
    for rows in (b"", LARGE.rows[:80]):  # it had none at all, or some
        assert cache.store("name", UnwindTable(rows, "12"))
        placer.update(map_of(1), wait=False)
        placer.inherit(1, 2)
        placer.update(map_of(3), wait=False)
        shown = dict(kernel.lists)
        assert cache.store("name", LARGE)
        placer.pump()
        assert kernel.lists == shown, "nothing was said yet"
        whole.add(FILES[0].key)
        placer.pump()
        placed = placer._placed[FILES[0].key]
        assert placed.regions == REGIONS
        told = {entry.words for one in placer._lists.values() for entry in one.entries.values()}
        assert [struct.unpack(f"={MAPPING_WORDS}Q", words)[3] for words in told] == [placed.index]
        assert kernel.lists[1] == kernel.lists[2] != kernel.lists[3]
        assert set(kernel.taken) == {placed.start, kernel.lists[1][0], kernel.lists[3][0]}
        whole.add(FILES[0].key)
        for pid in (1, 2, 3):
            placer.forget(pid)
        placer.pump()
        assert not kernel.taken and not placer._placed, "of an old one that nobody uses nothing is kept"


def test_files_without_a_table_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program that is made, run and removed has files of its own."""
    monkeypatch.setattr("parprof.unwind.placing._MOST_BARE", 3)
    monkeypatch.setattr(BUILDER, "table", lambda _: None)
    kernel = Kernel(100)
    placer = Placer(kernel, BUILDER)  # type: ignore[arg-type]
    for number in range(len(FILES)):
        placer.update(load_map(number, frozenset({number})), wait=False)
        placer.forget(number)
        check(kernel, placer)
    assert list(placer._placed) == list(placer._bare) == [one.key for one in FILES[3:]]


@pytest.mark.parametrize(("spare", "refused", "told"), [(0, 1, 2), (TABLE_WORDS // 2 - 1, 1, 2), (-1, 2, 0)])
def test_an_idle_table_is_not_freed_for_one_that_is_wanted_with_it(
    spare: int, refused: int, told: int
) -> None:
    """The process that had it is gone, another comes that has it too, and one more for which there is no room."""
    kernel = Kernel(TABLE_WORDS + 2 * MAPPING_WORDS + spare)
    placer = Placer(kernel, BUILDER)  # type: ignore[arg-type]
    placer.update(load_map(1, frozenset({0})), wait=False)
    placer.forget(1)
    placer.update(load_map(2, frozenset({0, 1})), wait=False)
    assert placer.refused == refused and kernel.lists.get(2, (0, 0))[1] == told
    check(kernel, placer)


def test_tables_of_what_a_program_calls_itself_come_first() -> None:
    """What a library needs is mapped after it, at a lower address."""
    asked: list[str] = []
    builder: Any = SimpleNamespace(**vars(BUILDER))
    builder.prefetch = lambda dsos: asked.extend(dso.path for dso in dsos)
    Placer(Kernel(1000), builder).update(load_map(7, frozenset(range(4))), wait=False)  # type: ignore[arg-type]
    assert asked == ["/0", "/3", "/2", "/1"]


REGIONS = 40
LARGE = UnwindTable(b"".join(struct.pack("<II", at << 12, at + 1) for at in range(4 * REGIONS)), "12")


@pytest.fixture
def partly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Kernel, Placer, dict[int, set[int]]]]:
    """A placer with one large table on disk, and the pages that processes have of its code."""
    monkeypatch.setattr("parprof.unwind.cache.LARGE_BYTES", 100)
    monkeypatch.setattr("parprof.unwind.placing.LARGE_BYTES", 100)
    cache = TableCache(tmp_path)
    assert cache.store("name", LARGE)
    present: dict[int, set[int]] = {}

    def pages(pid: int, start: int, end: int, step: int) -> Iterator[int]:
        if pid not in present:
            raise ProcessLookupError
        yield from (start + page for page in sorted(present[pid]) if start + page < end)

    monkeypatch.setattr("parprof.unwind.placing.present_pages", pages)
    kernel = Kernel(100_000)
    load = lambda _: cache.load("name", "12")  # noqa: E731
    builder: Any = SimpleNamespace(
        prefetch=lambda _: None, expected=lambda _: False, table=load, at_hand=load, take_whole=set
    )
    yield kernel, Placer(kernel, builder), present  # type: ignore[arg-type]


START = 5 << 12
"""Where the code is: not on the border of a region."""


def map_of(pid: int) -> LoadMap:
    return LoadMap(pid, {0: Mapping(START, START + (REGIONS << REGION_SHIFT), 0, FILES[0])})


def here(placer: Placer) -> set[int] | None:
    placed = placer._placed[FILES[0].key]
    return None if placed.here is None else {region for region, is_here in enumerate(placed.here) if is_here}


def test_of_a_process_that_ran_before_what_it_uses_is_placed(
    partly: tuple[Kernel, Placer, dict[int, set[int]]],
) -> None:
    """In ELF addresses a page and what is behind it, up to where the next page is asked for."""
    kernel, placer, present = partly
    present[1] = {3 << REGION_SHIFT, 20 << REGION_SHIFT}
    placer.update(map_of(1), wait=False)
    assert here(placer) == {3, 20}
    present[2] = {30 << REGION_SHIFT}
    placer.update(map_of(2), wait=False)
    assert here(placer) == {3, 20, 30}, "for both"
    placer.forget(1)
    assert here(placer) == {3, 20, 30}
    placer.forget(2)
    placer.free_idle()
    assert not kernel.taken


def test_of_a_better_table_is_placed_what_was_of_the_one_before(
    partly: tuple[Kernel, Placer, dict[int, set[int]]],
) -> None:
    kernel, placer, present = partly
    present[1] = {3 << REGION_SHIFT}
    present[2] = {20 << REGION_SHIFT}
    for pid in present:
        placer.update(map_of(pid), wait=False)
    before = placer._placed[FILES[0].key]
    placer._builder.take_whole = lambda: {FILES[0].key}  # type: ignore[method-assign]
    placer.pump()
    assert placer._placed[FILES[0].key] is not before and here(placer) == {3, 20}
    for pid in present:
        placer.forget(pid)
    placer.free_idle()
    assert not kernel.taken


def test_what_is_executed_later_is_placed_when_it_is_missed(
    partly: tuple[Kernel, Placer, dict[int, set[int]]],
) -> None:
    _, placer, present = partly
    present[1] = {0}
    placer.update(map_of(1), wait=False)
    present[1] |= {7 << REGION_SHIFT, 8 << REGION_SHIFT}
    placer.missed(map_of(1), START + (7 << REGION_SHIFT) + 5)
    assert here(placer) == {0, 7, 8}, "and what has come with it"
    placer.missed(map_of(1), START + (11 << REGION_SHIFT) + 5)
    assert here(placer) == {0, 7, 8, 11}, "though its page has gone again"
    placer.missed(map_of(1), START - 1)
    for region in range(12, 20):
        placer.missed(map_of(1), START + (region << REGION_SHIFT))
    assert here(placer) is None, "it roams about"
    placer.missed(map_of(1), START)


def test_of_a_program_that_only_just_starts_all_is_placed(
    partly: tuple[Kernel, Placer, dict[int, set[int]]],
) -> None:
    _, placer, present = partly
    present[1] = {0}
    placer.update(map_of(1), wait=False)
    assert here(placer) == {0}
    present[2] = {0}
    placer.update(map_of(2), wait=True)
    assert here(placer) is None


def test_where_nobody_knows_what_is_used_all_is_placed(
    partly: tuple[Kernel, Placer, dict[int, set[int]]],
) -> None:
    _, placer, _ = partly
    placer.update(map_of(1), wait=False)
    assert here(placer) is None


def test_a_table_that_was_damaged_meanwhile_is_had_anew(
    partly: tuple[Kernel, Placer, dict[int, set[int]]], tmp_path: Path
) -> None:
    kernel, placer, present = partly
    present[1] = {5 << REGION_SHIFT}
    (path,) = (tmp_path / "unwind").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    placer._builder.table = lambda _: TableCache(tmp_path).load("name", "12") or LARGE  # type: ignore[method-assign]
    placer.update(map_of(1), wait=False)
    assert here(placer) == {5}, "what is damaged is not needed"
    placer.missed(map_of(1), START + (REGIONS - 1 << REGION_SHIFT))
    assert here(placer) == {5} and placer.refused == 1
    assert not path.exists()
    placer.forget(1)
    placer.free_idle()
    placer.update(map_of(1), wait=False)
    assert here(placer) is None, "it was built again"
    assert kernel.taken
