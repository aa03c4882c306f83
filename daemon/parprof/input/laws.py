"""Laws that a routine's cost may follow, and which of them its points follow best.

They are tried from the simplest on: constant, log n, n, n log n, n^2, n^2 log n, n^3, and last any power of n. A law
may have the lower ones as terms beside its own (n^2 has n and a constant). None is negative but the constant, a
little: some cells that each activation reads have nothing to do with its cost. The fit is by least squares of
*relative* errors, because costs span decades. The simplest law whose error is about that of the best is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, repeat
from operator import add, mul, truediv
from typing import NamedTuple

CONSTANT = "constant"
_TOLERANCE, _SLACK = 1.3, 0.02
"""How much worse than the best law's a simpler one's error may be."""
_CONSTANT_SPREAD = 0.10
"""Costs that vary by so little are constant, whatever the rest is."""
_MIN_SHARE = 0.2
"""What a law's own term makes up of the cost at the largest size, at least."""
_BEND = 0.5
"""How much steeper a law may be over the decade beyond the points than it is at their end."""
_NEGATIVE = 0.6
"""The part of the cost at the smallest size that a negative constant may take away."""
_ROUND = (0.5, 1.5, 2.5)
"""Powers that are preferred to ones between them."""
_ROUND_POWERS = tuple(f"n^{exponent:g}" for exponent in _ROUND)
_ALONE, _CLEARLY_BETTER = 0.8, 3.0
"""What a law's own term makes up of the cost at the largest size where it is no sum of two; by what factor the error of
such a one is less, if it is to be taken instead of a simpler sum."""

Term = Callable[[float], float]
Terms = tuple[Term, ...]


def _one(_: float) -> float:
    return 1.0


def _log(n: float) -> float:
    return math.log2(n + 1)


def _linear(n: float) -> float:
    return n


def _n_log(n: float) -> float:
    return n * math.log2(n + 1)


def _square(n: float) -> float:
    return n * n


def _square_log(n: float) -> float:
    return n * n * math.log2(n + 1)


def _cube(n: float) -> float:
    return n**3


_LAWS: tuple[tuple[str, Terms], ...] = (
    (CONSTANT, (_one,)),
    ("log n", (_one, _log)),
    ("n", (_one, _linear)),
    ("n log n", (_one, _linear, _n_log)),
    ("n^2", (_one, _linear, _square)),
    ("n^2 log n", (_one, _linear, _square_log)),
    ("n^3", (_one, _square, _cube)),
)


class Size(NamedTuple):
    """Activations with one size of input."""

    n: float
    cost: float
    """The mean one."""
    calls: int = 1
    worst: float = 0.0
    outer: float | None = None
    """The mean cost without that of activations within others of the same routine, which have it in theirs; None: it
    is all."""


class Points:
    """Sizes, at least one, and what terms are at them: each is computed once for all laws, which share most terms."""

    def __init__(self, sizes: Sequence[Size]) -> None:
        self.ns = [size.n for size in sizes]
        self.costs = [size.cost for size in sizes]
        self.smallest, self.largest = min(self.ns), max(self.ns)
        self._values: dict[Term, list[float]] = {}
        self._relative: dict[Term, tuple[float, list[float]]] = {}
        self._products: dict[tuple[Term, Term], float] = {}
        self._totals: dict[Term, float] = {}

    def values(self, term: Term) -> list[float]:
        """What it is at each size."""
        found = self._values.get(term)
        if found is None:
            found = self._values[term] = list(map(term, self.ns))
        return found

    def scale(self, term: Term) -> float:
        """The largest that it is of a size's cost, in magnitude."""
        return self._relative_to_cost(term)[0]

    def product(self, one: Term, other: Term) -> float:
        """The sum over all sizes of two terms, each divided by the cost and its `scale`, which is not 0."""
        found = self._products.get((one, other))
        if found is None:
            found = sum(map(mul, self._relative_to_cost(one)[1], self._relative_to_cost(other)[1]))
            self._products[one, other] = self._products[other, one] = found
        return found

    def total(self, term: Term) -> float:
        """The sum over all sizes of a term, divided by the cost and its `scale`, which is not 0."""
        found = self._totals.get(term)
        if found is None:
            found = self._totals[term] = sum(self._relative_to_cost(term)[1])
        return found

    def _relative_to_cost(self, term: Term) -> tuple[float, list[float]]:
        found = self._relative.get(term)
        if found is None:
            parts = list(map(truediv, self.values(term), self.costs))
            scale = max(map(abs, parts))
            found = self._relative[term] = (scale, [part / scale for part in parts] if scale > 0 else parts)
        return found


class Candidate(NamedTuple):
    """A law with the factors that fit some sizes best."""

    model: str
    error: float
    """Its typical relative error at a size; infinite where no factors make sense."""
    own_share: float
    """What its own term makes up of the cost at the largest size."""
    predict: Callable[[float], float]
    """The cost at a size."""


def laws_for(smallest: float) -> tuple[tuple[str, Terms], ...]:
    """Those that are tried, of sizes from this one on."""

    def log_of_items(n: float) -> float:
        """Items may have many cells, and then the logarithm is of fewer than n."""
        return math.log2(1 + n / smallest)

    def items_log(n: float) -> float:
        return n * log_of_items(n)

    def items_square_log(n: float) -> float:
        return n * n * log_of_items(n)

    return (
        *_LAWS[:2],
        ("log n", (_one, log_of_items)),
        *_LAWS[2:4],
        ("n log n", (_one, _linear, items_log)),
        *_LAWS[4:6],
        ("n^2 log n", (_one, _linear, items_square_log)),
        *_LAWS[6:],
    )


def choose(fitted: Sequence[Candidate], points: Points) -> Candidate:
    """The law that these follow, of those of `laws_for`, the simplest first, and of powers."""
    if fitted[0].error <= _CONSTANT_SPREAD:
        return fitted[0]
    largest = points.largest
    candidates = [*fitted, *(_power(exponent, points) for exponent in _ROUND)]
    candidates = [one for one in candidates if not _bends(one, largest)]
    powers = (_power(step / 20, points) for step in range(4, 81))
    power = min((one for one in powers if not _bends(one, largest)), key=lambda one: one.error)
    candidates.append(power)
    best = min(one.error for one in candidates)
    simplest = next(
        one
        for one in candidates
        if one.error <= about(best) and (one.own_share >= _MIN_SHARE or one is power)
    )
    return _between(simplest, candidates)


def about(error: float) -> float:
    """The error that a simpler law may have."""
    return max(_TOLERANCE * error, error + _SLACK)


def _between(law: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """The round power that a sum of two terms is taken for: over a decade n and n^2 look like n^1.5."""
    powers = [one for one in candidates if one.model in _ROUND_POWERS and one.own_share >= _ALONE]
    power = min(powers, key=lambda one: one.error, default=law)
    return power if law.own_share < _ALONE and _CLEARLY_BETTER * power.error <= law.error else law


def _bends(law: Candidate, largest: float) -> bool:
    """Whether it says of larger sizes what the points do not show: a small term that will grow beyond the others."""
    if not math.isfinite(law.error):
        return False
    at_the_end = math.log2(law.predict(largest) / law.predict(largest / 2))
    return math.log10(law.predict(10 * largest) / law.predict(largest)) - at_the_end > _BEND


def _power(exponent: float, points: Points) -> Candidate:
    def own(n: float) -> float:
        return float(n**exponent)

    return fitted_law(f"n^{exponent:g}", (_one, _linear, own) if exponent > 1.2 else (_one, own), points)


def fitted_law(model: str, terms: Terms, points: Points) -> Candidate:
    """The law with the factors that fit best: none negative, and that of its last term positive."""
    best = Candidate(model, math.inf, 0.0, _one)
    for n_lower in range(len(terms)):
        for lower in combinations(terms[:-1], n_lower):
            used = (*lower, terms[-1])
            factors = _least_squares(used, points)
            if factors is None or not _is_sensible(used, factors, points):
                continue

            def predict(n: float, used: Terms = used, factors: Sequence[float] = factors) -> float:
                return sum(factor * term(n) for factor, term in zip(factors, used, strict=True))

            error = _error(points, used, factors)
            if error < best.error:
                top = points.largest
                best = Candidate(model, error, factors[-1] * terms[-1](top) / predict(top), predict)
    return best


def _error(points: Points, terms: Terms, factors: Sequence[float]) -> float:
    """The typical relative error of the sum of these terms, at a size."""
    costs: Iterable[float] = repeat(0.0)
    for factor, term in zip(factors, terms, strict=True):
        costs = map(add, costs, map(mul, repeat(factor), points.values(term)))
    ratios = map(truediv, points.costs, costs)
    return math.sqrt(sum([log * log for log in map(math.log, ratios)]) / len(points.costs))


def _is_sensible(terms: Terms, factors: Sequence[float], points: Points) -> bool:
    """Whether no term that grows has a negative factor, and a negative constant is a small one."""
    if min(factors) >= 0:
        return factors[-1] > 0
    if terms[0] is not _one or len(terms) == 1 or min(factors[1:]) < 0 or factors[-1] == 0:
        return False
    rest = sum(factor * term(points.smallest) for factor, term in zip(factors[1:], terms[1:], strict=True))
    return -factors[0] <= _NEGATIVE * rest


def _least_squares(terms: Terms, points: Points) -> list[float] | None:
    """The factors with the least sum of squared relative errors; None if the terms cannot be told apart."""
    n = len(terms)
    scale = [points.scale(term) for term in terms]
    if min(scale) <= 0:
        return None
    matrix = [[*(points.product(one, other) for other in terms), points.total(one)] for one in terms]
    for i in range(n):
        pivot = max(range(i, n), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:
            return None
        for j in range(n):
            if j != i:
                factor = matrix[j][i] / matrix[i][i]
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
    return [matrix[i][n] / matrix[i][i] / scale[i] for i in range(n)]


def r2_of(sizes: Sequence[Size], law: Candidate) -> float:
    """How much of the variation of the costs' logarithms a law explains; 1 for a constant."""
    logs = [math.log(size.cost) for size in sizes]
    mean = sum(logs) / len(logs)
    total = sum((value - mean) ** 2 for value in logs)
    if law.model == CONSTANT or total == 0:
        return 1.0
    rest = sum((value - math.log(law.predict(size.n))) ** 2 for value, size in zip(logs, sizes, strict=True))
    return max(0.0, 1 - rest / total)
