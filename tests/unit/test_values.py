# SPDX-License-Identifier: Apache-2.0
"""Classes of values are what the standard library's decorator would have made of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parprof import values

Decorator = Callable[..., Callable[[type], type]]
MAKERS: tuple[Decorator, ...] = (dataclasses.dataclass, values.dataclass)


def spans(make: Decorator, **options: bool) -> type:
    """A class with every kind of field that ours have."""

    class Span:
        begin: int
        end: int = 7
        names: list[str] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)
        length: int = field(init=False, default=0)
        seen: dict[str, int] = field(init=False, default_factory=dict)

        def shifted(self) -> Any:
            return dataclasses.replace(self, begin=self.begin + 1)  # type: ignore[type-var]

    return make(**options)(Span)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or how it fails."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


OPTIONS = [{"frozen": frozen, "slots": slots} for frozen in (False, True) for slots in (False, True)]
ARGUMENTS = st.tuples(
    st.lists(st.integers(0, 2), max_size=4),
    st.dictionaries(
        st.sampled_from(["begin", "end", "names", "note", "length", "odd"]), st.integers(0, 2), max_size=3
    ),
)


@pytest.mark.parametrize("options", OPTIONS)
@given(ARGUMENTS, ARGUMENTS)
def test_they_are_made_shown_and_compared_alike(options: dict[str, bool], one: Any, other: Any) -> None:
    def tried(make: Decorator) -> list[Any]:
        cls = spans(make, **options)
        made = [outcome(lambda given=given: cls(*given[0], **given[1])) for given in (one, other)]
        if any(isinstance(each, tuple) for each in made):
            return [each if isinstance(each, tuple) else repr(each) for each in made]
        first, second = made
        return [
            repr(first),
            first == second,
            first != second,
            first == (first.begin, first.end),
            dataclasses.asdict(first),
            outcome(lambda: repr(first.shifted())),
            outcome(lambda: (hash(first) == hash(second)) >= (first == second)),
        ]

    theirs, ours = (tried(make) for make in MAKERS)
    assert ours == theirs


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("slots", [False, True])
def test_what_is_frozen_stays_as_it_is(make: Decorator, slots: bool) -> None:
    one = spans(make, frozen=True, slots=slots)(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'begin'"):
        one.begin = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'end'"):
        del one.end
    assert hasattr(one, "__dict__") != slots


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_copies_are_equal_and_apart(make: Decorator, options: dict[str, bool]) -> None:
    one = spans(make, **options)(1, 2, ["a"])
    other = copy.deepcopy(one)
    assert other == one and other.names is not one.names and other.seen is not one.seen
    assert copy.copy(one).names is one.names


@values.dataclass(frozen=True, slots=True)
class Kept:
    """At the top of a module, as `pickle` wants it."""

    name: str
    counts: tuple[int, ...] = ()


def test_they_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept("a", (1, 2)))) == Kept("a", (1, 2))


def test_match_takes_them_apart() -> None:
    match Kept("a", (1,)):
        case Kept(name, (first,)):
            assert (name, first) == ("a", 1)
        case _:
            pytest.fail("not matched")


@pytest.mark.parametrize("make", MAKERS)
def test_what_a_class_says_itself_is_kept(make: Decorator) -> None:
    class Own:
        size: int
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.size)

        def __repr__(self) -> str:
            return f"<{self.size}>"

        def __hash__(self) -> int:
            return 1

    cls = make(frozen=True, slots=True)(Own)
    assert repr(cls(3)) == "<3>" and hash(cls(3)) == 1 and cls(3).twice == 6


@pytest.mark.parametrize("make", MAKERS)
def test_a_class_of_another(make: Decorator) -> None:
    @make(frozen=True, slots=True)
    class Base:
        name: str

    @make(frozen=True, slots=True)
    class Derived(Base):
        size: int = 0

    assert Derived("a", 1) == Derived("a", 1) != Derived("a", 2)
    assert Base("a") != Derived("a") and repr(Derived("a")).endswith("Derived(name='a', size=0)")
    assert {Derived("a"): 1}[Derived("a")] == 1


@pytest.mark.parametrize("make", MAKERS)
def test_those_that_are_none_but_themselves(make: Decorator) -> None:
    @make(slots=True, eq=False)
    class Node:
        below: list[Any] = field(default_factory=list)

    one = Node()
    one.below.append(one)
    assert one != Node() and len({one, Node()}) == 2
    assert "..." in repr(one)
