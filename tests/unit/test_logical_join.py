# SPDX-License-Identifier: Apache-2.0
"""Work of unknown context, shared among those who create such work."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from parprof.logical.join import Shares
from parprof.logical.owners import FunctionId
from parprof.model import Frame

F: FunctionId = ("f._omp_fn.0", "heat", "heat.c", 7)
A, B = (Frame("main"), Frame("a")), (Frame("main"), Frame("b"))

_weights = st.lists(st.integers(0, 10**6), min_size=1, max_size=8)
_counts = st.lists(st.integers(0, 10**5), max_size=30)


@given(_weights, _counts)
def test_shares_add_up_and_stay_fair(weights: list[int], counts: list[int]) -> None:
    shares = Shares(weights)
    given_out = [0] * len(weights)
    for number, count in enumerate(counts, 1):
        split = shares.split(count)
        assert sum(split) == count
        assert min(split) >= 0
        given_out = [a + b for a, b in zip(given_out, split, strict=True)]
        whole = sum(weights)
        for share, weight in zip(given_out, weights, strict=True):
            due = Fraction(sum(counts[:number]) * (weight if whole else 1), whole or len(weights))
            assert abs(share - due) < len(weights)
            assert share == 0 or weight or not whole


@given(
    _weights, _weights, st.lists(st.integers(0, 50), max_size=20), st.lists(st.integers(0, 50), max_size=20)
)
def test_other_weights_on_the_way(
    first: list[int], more: list[int], early: list[int], late: list[int]
) -> None:
    shares = Shares(first)
    for count in early:
        assert sum(shares.split(count)) == count
    shares.reweigh(first + more)
    for count in late:
        split = shares.split(count)
        assert sum(split) == count and len(split) == len(first + more) and min(split) >= 0


def test_what_rounding_took_is_not_forgotten() -> None:
    shares = Shares([2, 1])
    got = [0, 0]
    for number in range(300):
        shares.reweigh([2 * number + 2, number + 1])
        got = [a + b for a, b in zip(got, shares.split(1), strict=True)]
    assert abs(got[1] - 100) <= 2


@given(_weights, _counts)
def test_the_same_facts_give_the_same_shares(weights: list[int], counts: list[int]) -> None:
    one, two = Shares(weights), Shares(weights)
    assert [one.split(count) for count in counts] == [two.split(count) for count in counts]


def test_single_samples_alternate() -> None:
    shares = Shares([2, 1])
    assert [shares.split(1) for _ in range(6)] == [[1, 0], [0, 1], [1, 0]] * 2
