# SPDX-License-Identifier: Apache-2.0
"""The table of counted samples, read without a kernel: entries as the programs would have written them."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parprof.errors import KernelUnsupported
from parprof.kernel import bpf, counts
from parprof.kernel.counts import CountTable, SampleDecoder, together
from parprof.kernel.layout import flat_struct, make_structure
from parprof.model import Count, SampleKey, ThreadState, add_facts

WIRE = Path(__file__).resolve().parents[2] / "bpf/wire.h"


def fields_of(structure: str) -> list[list[Any]]:
    """The fields of a structure in wire.h, as the compiler child describes them."""
    body = re.search(rf"^struct {structure} {{\n(.*?)^}};", WIRE.read_text(), re.DOTALL | re.MULTILINE)
    assert body
    return [[name, kind] for kind, name in re.findall(r"^\t([us]\d+) (\w+);", body[1], re.MULTILINE)]


KEY = make_structure("sample_key", fields_of("sample_key"))
VALUE = make_structure("sample_value", fields_of("sample_value"))


class Table:
    """Stands for the BPF map, and for the stacks that have come."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        note_fresh: Callable[[int, SampleKey, int, int], None] = lambda at_ns, key, fresh, samples: None,
    ) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.stacks: set[int] = set()
        monkeypatch.setattr(bpf, "map_read_all", lambda *_: iter(list(self.entries.items())))
        monkeypatch.setattr(bpf, "map_delete_batch", self._delete)
        sizes = {"key_size": ctypes.sizeof(KEY), "value_size": ctypes.sizeof(VALUE)}
        loaded = SimpleNamespace(
            definitions={"counts": sizes},
            maps={"counts": 0},
            layouts={"sample_key": KEY, "sample_value": VALUE},
        )
        self.table = CountTable(
            cast(Any, loaded), lambda digest: digest == 0 or digest in self.stacks, note_fresh
        )

    def _delete(self, _: int, keys: list[bytes]) -> None:
        for key in keys:
            del self.entries[key]

    def count(self, samples: int, total: int = 0, **fields: int) -> None:
        self.entries[bytes(KEY(**fields))] = bytes(VALUE(count=samples, total=total))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_the_sample_key_is_that_of_the_header() -> None:
    assert {name for name, _ in fields_of("sample_key")} == {*SampleKey._fields, *counts._OWN_FIELDS}


def test_each_field_is_found_where_the_layout_has_it(table: Table) -> None:
    numbers = {name: number for number, name in enumerate(SampleKey._fields, 3)}
    numbers["state"] = ThreadState.SPINNING
    table.count(5, 11, **numbers, phase=1)
    (key,) = table.table.take(1)[0]
    assert key._asdict() == numbers and key.state is ThreadState.SPINNING


def test_a_layout_with_other_fields_is_refused() -> None:
    other = make_structure("sample_key", [*fields_of("sample_key"), ["more", "u64"]])
    with pytest.raises(KernelUnsupported, match="more"):
        SampleDecoder(other, VALUE)


def test_only_plain_integers_are_unpacked_flat() -> None:
    made = make_structure("some", [["a", "u8"], ["b", "s64"], ["c", "u16"]])
    value = made(a=200, b=-5, c=40_000)
    assert flat_struct(made).size == ctypes.sizeof(made)
    assert flat_struct(made).unpack(bytes(value)) == (200, -5, 40_000)
    with pytest.raises(KernelUnsupported, match="name"):
        flat_struct(make_structure("some", [["name", "char[8]"]]))


def test_a_phase_is_taken_once(table: Table) -> None:
    table.count(5, 11, image=1, user=0)
    table.count(7, 0, image=1, user=0, phase=1)
    key = SampleKey(1, 0, 0, ThreadState.WORKING, 0, 0, 0)
    assert table.table.take(0) == {0: {key: Count(5, 11)}}
    assert table.table.take(0) == {}
    assert table.table.take(1) == {0: {key: Count(7)}}


def test_sure_and_unsure_samples_are_one_row(table: Table) -> None:
    table.count(5, 50, image=1)
    table.count(2, 20, image=1, unsure=1)
    (count,) = table.table.take(0)[0].values()
    assert count == Count(samples=7, total=70, unsure=2)


def test_samples_with_new_frames_are_one_row_with_the_others_and_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int, int]] = []
    table = Table(monkeypatch, lambda _, key, fresh, samples: told.append((key.user, fresh, samples)))
    table.count(5, image=1, user=77)
    table.count(2, image=1, user=77, fresh=3)
    table.count(4, image=1, user=77, fresh=1, unsure=1)
    ((key, count),) = table.table.take(0)[0].items()
    assert (key.user, count.samples) == (77, 11)
    assert sorted(told) == [(77, 1, 4), (77, 3, 2)]


def drains(table: Table) -> Iterator[dict[SampleKey, Count]]:
    for number in itertools.count(1):
        yield together(table.table.ready(table.table.take(0), number))


def test_samples_wait_for_their_stack(table: Table) -> None:
    table.count(3, image=1, user=77)
    drain = drains(table)
    assert next(drain) == {}
    table.count(4, image=1, user=77)
    table.count(9, image=1, user=78)
    table.stacks.add(77)
    (key, count), *rest = next(drain).items()
    assert (key.user, count.samples, rest) == (77, 7, []), "what waited and what came are one row"
    table.stacks.add(78)
    assert [count.samples for count in next(drain).values()] == [9]
    assert table.table.without_stack == 0 and table.table.rest() == {}


def test_a_stack_that_never_comes_is_done_without(table: Table) -> None:
    table.stacks.add(5)
    table.count(3, image=1, user=77, kernel=5)
    table.count(4, image=1, user=78, kernel=5)
    drain = drains(table)
    given = [next(drain) for _ in range(12)]
    at = next(number for number, facts in enumerate(given) if facts)
    assert at == counts._PATIENCE
    ((key, count),) = given[at].items()
    assert (key.user, key.kernel, count.samples) == (0, 5, 7), "both are the same without their stacks"
    assert table.table.without_stack == 7 and not any(given[at + 1 :])


def test_the_rest_is_given_out_at_the_end(table: Table) -> None:
    table.count(3, image=1, user=77)
    next(drains(table))
    assert [(key.user, count.samples) for key, count in table.table.rest()[0].items()] == [(0, 3)]
    assert table.table.rest() == {} and table.table.without_stack == 3


def test_slices_of_the_time_are_told_apart(table: Table) -> None:
    table.count(3, image=1, user=77, slice=2)
    table.count(4, image=1, user=77, slice=3)
    table.count(5, image=1, user=77, slice=3, unsure=1)
    taken = table.table.take(0, 50)
    assert {at_ns: count.samples for at_ns, facts in taken.items() for count in facts.values()} == {
        100: 3,
        150: 9,
    }
    assert together(table.table.ready(taken, 1)) == {}
    table.stacks.add(77)
    ready = table.table.ready({}, 2)
    assert {at_ns: count.samples for at_ns, facts in ready.items() for count in facts.values()} == {
        100: 3,
        150: 9,
    }
    (count,) = together(ready).values()
    assert (count.samples, count.unsure) == (12, 5)
    assert [one.samples for one in ready[100].values()] == [3], "the slices stay as they are"


def test_facts_add_up() -> None:
    one, two = (SampleKey(1, tid, 0, ThreadState.WORKING, 1, 0, 0) for tid in (1, 2))
    facts = {one: Count(1, 2, 0)}
    add_facts(facts, {one: Count(3, 4, 1), two: Count(5)})
    assert facts == {one: Count(4, 6, 1), two: Count(5)}
