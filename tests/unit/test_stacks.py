"""Stacks as the kernel sends them."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof.kernel import stacks
from parprof.kernel.our_code import OurCode
from parprof.kernel.stacks import RECORD_CONTEXT, STACK_ENDS, STAND_IN_BITS, Context, StackTable
from parprof.logical import LogicalPaths
from parprof.logical.ourselves import is_handler
from parprof.model import Frame


def record(end: int, *words: int, digest: int = 7) -> bytes:
    return struct.pack("<IHHQIHHHxxxxxx", 1, len(words), end, digest, 1, 0, 0, 0) + struct.pack(
        f"<{len(words)}Q", *words
    )


def test_only_return_addresses_are_marked_as_such() -> None:
    table = StackTable()
    table.add([record(0, 0x1000, 0x2000, 0x3000 | 1 << 63, 0x4000)])
    stack = table.get(7)
    assert stack.frames == ((0x1000, False), (0x2000, True), (0x3000, False), (0x4000, True))
    assert stack.end == "complete"


def test_kernel_addresses_keep_their_highest_bit() -> None:
    table = StackTable()
    table.add([record(len(STACK_ENDS), 0xFFFFFFFF81000000, 0xFFFFFFFF81000100)])
    stack = table.get(7)
    assert stack.frames == ((0xFFFFFFFF81000000, False), (0xFFFFFFFF81000100, True))
    assert stack.end == ""


def test_a_stack_that_never_came_is_empty() -> None:
    assert StackTable().get(7).frames == ()


def created(identity: int, stack: int, parent: int = 0, image: int = 1) -> bytes:
    return struct.pack("<IIQQQ", RECORD_CONTEXT, image, identity, stack, parent)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> StackTable:
    """A table with room for 10 contexts, and 20 until it is trimmed."""
    monkeypatch.setattr(stacks, "MAX_CONTEXTS", 10)
    monkeypatch.setattr(stacks, "MAX_CONTEXTS_UNTRIMMED", 20)
    return StackTable()


def known(table: StackTable, identities: Iterable[int]) -> set[int]:
    return {identity for identity in identities if identity in table._contexts}


def test_contexts_that_no_sample_is_in_are_forgotten_oldest_first(few: StackTable) -> None:
    for number in range(1, 13):
        few.touch((), number)
        few.add([created(number, 100)])
    few.touch((), 20)
    assert few.context(1) is not None
    assert few.trim(14, 99) == [2, 3], "the kernel must send them again"
    assert known(few, range(1, 13)) == {1, *range(4, 13)}
    assert few.context(2) is None
    assert few.trim(14, 99) == [], "they are told once"


def test_few_contexts_stay_however_old(few: StackTable) -> None:
    few.add([created(number, 100) for number in range(1, 11)])
    few.touch((), 1000)
    assert few.trim(994, 0) == [] and known(few, range(1, 11)) == set(range(1, 11))


def test_what_a_context_in_use_lies_in_stays(few: StackTable) -> None:
    few.add([created(1, 100), created(2, 101, 1), created(3, 102, 2)])
    few.touch((), 5)
    few.add([created(number, 100) for number in range(11, 23)])
    few.touch((), 6)
    assert few.context(3) is not None  # nobody asks for those that it lies in
    gone = few.trim(0, 99)
    assert len(gone) == 5 and not {1, 2, 3} & set(gone)


def test_contexts_are_bounded_even_if_all_are_in_use(few: StackTable) -> None:
    few.add([created(number, 100, number - 1) for number in range(1, 16)])
    few.touch((), 1)
    assert all(few.context(number) for number in range(1, 16))
    assert sorted(few.trim(0, 99)) == [11, 12, 13, 14, 15], "the innermost go"


def test_contexts_are_bounded_between_two_trims(few: StackTable) -> None:
    few.touch((), 3)
    few.add([created(7, 100)])
    few.touch((), 4)
    assert few.context(7) is not None
    for number in range(1000, 6000):
        few.add([created(number, 100)])
        assert len(few._contexts) <= 20
    assert few.context(7) is not None, "a flood of new ones does not push out what was sampled"
    forgotten = few.trim(0, 99)
    assert set(forgotten).isdisjoint(few._contexts) and len(forgotten) == 5001 - len(few._contexts)


def test_ids_that_nobody_takes_are_bounded(few: StackTable) -> None:
    few._forgotten = deque(maxlen=8)
    few.add([created(number, 100) for number in range(1, 100)])
    assert len(few.trim(0, 99)) == 8
    assert StackTable()._forgotten.maxlen


def test_stacks_go_with_their_contexts(few: StackTable) -> None:
    few.add([record(0, 0x1000, digest=100 + number) for number in range(12)])
    few.add([created(1 + number, 100 + number) for number in range(12)])
    few.touch((), 20)
    assert all(few.context(identity) for identity in range(3, 13))
    assert sorted(few.trim(14, 5)) == [1, 2, 100, 101]
    assert 100 in few, "samples that were counted before may still mean it"
    few.trim(14, 5)
    assert [digest for digest in range(100, 112) if digest not in few] == [100, 101]


def test_a_stack_that_a_context_came_to_need_meanwhile_stays(few: StackTable) -> None:
    few.add([record(0, 0x1000, digest=100), record(0, 0x1000, digest=101)])
    few.touch((), 20)
    assert sorted(few.trim(14, 0)) == [100, 101]
    few.add([created(1, 100)])  # the kernel looked for its stack before it was told to send that again
    few.trim(14, 0)
    assert 100 in few and 101 not in few


def test_a_forgotten_context_comes_back(few: StackTable) -> None:
    few.add([created(number, 100) for number in range(1, 12)])
    (gone,) = few.trim(0, 99)
    few.add([created(gone, 100)])
    assert few.context(gone) == Context(100, 0, 1)


def test_samples_of_a_forgotten_context_begin_with_that(few: StackTable) -> None:
    few.add([record(0, 0x10, 0x20, digest=100), record(0, 0x30, digest=7)])
    few.add([created(1, 100), created(3, 100, 1)])
    few.touch((), 3)
    few.add([created(number, 100) for number in range(11, 21)])
    few.touch((), 4)
    for number in range(11, 21):
        few.context(number)
    assert sorted(few.trim(0, 99)) == [1, 3]
    paths = LogicalPaths(few.get, few.context, lambda a, _: (Frame(f"f{a:x}"),), lambda *_: ())
    for context in (1, 3):
        here = paths.locate(7, 0, context)
        assert here.unknown and not here.complete
        assert [frame.name for frame in here.path] == ["[unknown context]", "f30"]
    assert not paths.locate(7, 0, 11).unknown


def test_contexts_in_a_circle_end(few: StackTable) -> None:
    few.add([created(number, 100, number % 14 + 1) for number in range(1, 15)])
    few.trim(0, 99)
    assert len(few._contexts) == 10


def test_those_of_an_image_that_is_gone_need_no_room(few: StackTable) -> None:
    few.add([created(number, 100, image=number % 2) for number in range(1, 19)])
    few.forget({1})
    assert few.trim(0, 99) == [] and set(few._asked) == set(few._contexts) == set(range(2, 19, 2))


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 60), st.integers(0, 59)),
        st.tuples(st.just("ask"), st.integers(1, 60), st.just(0)),
        st.tuples(st.just("drain"), st.just(0), st.just(0)),
        st.tuples(st.just("trim"), st.just(0), st.just(0)),
    ),
    max_size=300,
)


@given(_STEPS)
def test_any_order_of_events_keeps_the_bound_and_the_chains(steps: list[tuple[str, int, int]]) -> None:
    """A context is created in one of lower number, so that there are no circles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "MAX_CONTEXTS", 10)
        patch.setattr(stacks, "MAX_CONTEXTS_UNTRIMMED", 20)
        table, now, parents = StackTable(), 0, {}
        sent: set[int] = set()
        """As the kernel remembers it: it sends each context once, until it is told otherwise."""
        for what, identity, parent in steps:
            match what:
                case "create" if identity not in sent:
                    parent = parents.setdefault(identity, parent % identity)
                    if parent == 0 or parent in parents:
                        sent.add(identity)
                        table.add([created(identity, 100, parent)])
                case "ask":
                    table.context(identity)
                case "drain":
                    now += 1
                    table.touch((), now)
                case "trim":
                    whole = _whole(table)
                    sent.difference_update(table.trim(now - 6, 99))
                    assert len(table._contexts) <= 10
                    assert whole & table._contexts.keys() <= _whole(table), "a chain was cut in its middle"
            assert len(table._contexts) <= 20
            assert table._asked.keys() == table._contexts.keys()
        sent.difference_update(table.trim(now - 6, 99))
        assert sent == table._contexts.keys(), "the kernel would never send these again"


def _whole(table: StackTable) -> set[int]:
    """Contexts that are known up to the root."""
    whole: set[int] = set()
    for identity in sorted(table._contexts):
        parent = table._contexts[identity].parent
        if parent == 0 or parent in whole:
            whole.add(identity)
    return whole


def test_our_programs_need_no_address() -> None:
    """A name stands for where they are, so that nobody has to look through all of the kernel's names for it."""
    own = OurCode()
    program = Frame("bpf_prog_0123456789abcdef_on_switch", module="[bpf]")
    own.add_places(program, [(0, 4096), (0xFFFFFFFFC0001000, 0x800), (0xFFFFFFFFC0003000, 0x20)])
    table = StackTable(own)
    inside, beside = 0xFFFFFFFFC0001010, 0xFFFFFFFFC0001800
    table.add([record(len(STACK_ENDS), 0xFFFFFFFF81000000, inside, beside, 0xFFFFFFFFC000301F)])
    places = table.get(7).frames
    assert [is_return for _, is_return in places] == [False, True, True, True]
    assert places[0][0] == 0xFFFFFFFF81000000 and places[2][0] == beside
    first, second = places[1][0], places[3][0]
    assert first - 0x10 == second - 0x1F and table.told == {first >> STAND_IN_BITS: program}
    assert is_handler(program.name)
    table.add([record(0, inside)])  # an address of the program's
    assert table.get(7).frames == ((inside & ~(1 << 63), False),)
