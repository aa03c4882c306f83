"""Which law a routine's cost follows as its input grows, as far as its points tell: which of its sizes have one.

All sizes are tried first, with the laws of `parprof.input.laws`. There is no claim from few sizes, from sizes that
hardly differ, or from costs that the size does not explain.

Where no law fits, it may be that each call reads something however little it has to do (a statement, a header),
and then works on the rest: the larger half of the sizes is tried with laws of what is beyond such a fixed part.

A routine may do more than one thing with inputs of about one size: an interpreter joins tables or reads them, a lookup
finds its key at once or not. Then no law has the mean, and the worst costs may have one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from parprof.input.laws import CONSTANT, Candidate, Points, Size, about, choose, fitted_law, laws_for, r2_of
from parprof.values import dataclass

MIN_SIZES = 5
MIN_RANGE = 3.0
"""The largest size over the smallest, at least."""
_MIN_APART, _APART = 5, 0.1
"""So many sizes, at least, are apart by this part of the range: some beside each other tell no more than one."""
MAX_BINS = 60
NOISE = 0.35
"""A relative error beyond which a law explains nothing."""
MIN_R2 = 0.8
NOISY = "noise"
ALIKE = "sizes too alike"
EXPONENTIAL = "exponential"
_ABOUT = "about"
_SMALLEST = 0.1
"""The part of the sizes that may be left out, the smallest: what happens there is seldom the algorithm."""
_POOR, _CLOSE = 0.06, 0.03
"""A law's error from where on that of the larger sizes is looked for, and what error that one may have, at most."""
_CUTS = (0.25, 0.5, 0.6)
"""Where the larger sizes begin, as parts of the range on the logarithmic axis."""
_DEAR = 0.5
"""The part of a routine's cost that calls with the larger sizes have, at least: else they are accidents."""
_WIDE = 10.0
"""The largest over the smallest of the larger sizes, at least."""
_AS_GOOD = 1.05
"""How much worse the error of a law of what is beyond a fixed part may be, which is less steep."""
_PLAIN = (CONSTANT, "log n", "n^0.5", "n", "n^1.5", "n^2", "n^2.5", "n^3")
_TENFOLD_OF_LINEAR, _TENFOLD_OF_SQUARE = 10.5, 101.0
"""Laws by which ten times the input takes longer than so are steeper."""
_MIN_SIZES_BEYOND = 6
_BEYOND = (("n", 1.0), ("n^1.5", 1.5), ("n^2", 2.0), ("n^3", 3.0))
"""Laws of what is beyond a fixed part, which makes any curve fit better: these few, and only where they fit well."""
_MAX_FIXED = 0.98
"""The fixed part, of the smallest size."""
_MAX_ERROR_BEYOND, _MIN_R2_BEYOND = 0.15, 0.99
_MIN_R2_EXPONENTIAL = 0.995
_MIN_STEEPNESS = 50.0
"""The cost at the largest size over that at the smallest, at least, of an exponential growth."""

_MIN_SIZES_AT_WORST, _MIN_R2_AT_WORST, _MAX_ERROR_AT_WORST = 6, 0.99, 0.15
_DEAR_AT_WORST = 0.5
"""The part of a routine's cost that calls with the sizes of its worst costs have, at least: else they are accidents."""

_ABOUT_LINEAR = ("n", "n log n")
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True, slots=True)
class Fit:
    """A law, or why there is none."""

    model: str
    """Empty: none; ``reason`` says why."""
    reason: str = ""
    r2: float = 0.0
    """How much of the variation of the costs' logarithms it explains; 1 for a constant."""
    error: float = 0.0
    """Its typical relative error at a size."""
    exponent: float = 0.0
    """The power of n that the costs follow at the larger sizes."""
    exponent_error: float = 0.0
    """Half the width of its 95 % interval."""
    steepness: float = 0.0
    """The same power, by the law: beyond the interval the points say something else at their end."""
    n_sizes: int = 0
    smallest: float = 0.0
    largest: float = 0.0
    tenfold: float = 0.0
    """How many times the cost at the largest size is that of ten times the size, by the law; of ten times what is
    beyond the fixed part."""
    fixed: float = 0.0
    """Cells that each call reads whatever its size is: the law is of what is beyond them."""
    linear_error: float = 0.0
    """That of n or n log n, whichever fits better: 0 where these were not tried."""
    factor: float = 0.0
    """By how many times the cost grows with each cell, where it grows exponentially."""
    at_worst: bool = False
    """The law is of the worst costs: others of calls with as much input are below it."""

    @property
    def is_found(self) -> bool:
        """Whether there is a law."""
        return bool(self.model)


def fit(sizes: Sequence[Size]) -> Fit:
    """The law that these follow; where there is none, the one that all but the smallest follow."""
    known = sorted(size for size in sizes if size.n > 0 and size.cost > 0)
    found = _law(known)
    if not found.is_found or found.at_worst or found.fixed:
        return found
    if found.error > _POOR:
        found = _of_the_larger(known) or found
    return _less_steep(known, found) or found


def _law(known: Sequence[Size]) -> Fit:
    found = _fit(known)
    if found.reason == NOISY or found.reason.startswith(_ABOUT):
        larger = _fit(known[math.ceil(len(known) * _SMALLEST) :])
        if larger.is_found:
            return larger
    if not found.is_found:
        larger = _beyond_a_fixed_part(known[len(known) // 2 :])
        if larger.is_found:
            return larger
    if found.reason == NOISY:
        larger_alone = _of_the_larger(known)
        if larger_alone is not None:
            return larger_alone
        worst = _at_worst(known)
        if worst is not None:
            return worst
    if found.reason in (NOISY, ALIKE):
        return _exponential(known) or found
    return found


def _of_the_larger(known: Sequence[Size]) -> Fit | None:
    """The law that the larger sizes follow closely where all together follow theirs poorly; None if there is none.

    Small calls read what has nothing to do with their size, do another thing, or, of a recursion that remembers, find
    all but a little in memory: that bends the law of all sizes.
    """
    smallest, largest = known[0].n, known[-1].n
    last_decade = max((size.n for size in known if size.n * _WIDE <= largest), default=largest)
    beginnings = dict.fromkeys((*(smallest ** (1 - cut) * largest**cut for cut in _CUTS), last_decade))
    for beginning in beginnings:
        larger = [size for size in known if size.n >= beginning]
        if not larger or larger[-1].n < _WIDE * larger[0].n or _cost(larger) < _DEAR * _cost(known):
            continue  # asked before the laws are tried, which takes long
        law = _fit(larger)
        if law.is_found and law.error <= _CLOSE:
            return law
    return None


def _less_steep(known: Sequence[Size], found: Fit) -> Fit | None:
    """A law of what is beyond a fixed part that is less steep; None if none fits the larger sizes as well.

    A few cells that each call reads make n^2 look like n^2 log n, or like n^2.05, most of all at the small sizes. A
    logarithm goes on at the large ones.
    """
    if found.tenfold <= _TENFOLD_OF_LINEAR or found.model in _PLAIN:
        return None
    sizes = [size for size in known if size.n >= found.smallest]
    larger = sizes[max(0, min(len(sizes) // 3, len(sizes) - _MIN_SIZES_BEYOND)) :]
    law, at_the_end, own = _beyond_a_fixed_part(sizes), _beyond_a_fixed_part(larger), _fit(larger)
    if not (law.is_found and own.is_found and at_the_end.model == law.model and law.tenfold < found.tenfold):
        return None
    is_as_good = at_the_end.error <= _AS_GOOD * own.error
    # few algorithms are between n^2 and n^3: what fits about as well is more likely
    is_likelier = found.tenfold > _TENFOLD_OF_SQUARE and at_the_end.error <= about(own.error)
    return law if is_as_good or is_likelier else None


def _at_worst(known: Sequence[Size]) -> Fit | None:
    """The law of the sizes that no smaller one is as dear as; None if there is none, or they are a minor matter.

    That of the largest alone, too: what is done with small inputs may be the other thing that the routine does.
    """
    worst: list[Size] = []
    for size in known:
        if not worst or size.worst > worst[-1].worst:
            worst.append(size)
    if _cost(worst[-_MIN_SIZES_AT_WORST:]) < _DEAR_AT_WORST * _cost(known):
        return None
    costs = [Size(size.n, size.worst) for size in worst]
    larger = costs[len(costs) // 2 :], costs[-_MIN_SIZES_AT_WORST:]
    for find, of in ((_fit, costs), *((_beyond_a_fixed_part, part) for part in larger)):
        if len(of) < _MIN_SIZES_AT_WORST:
            continue
        law = find(of)
        if law.is_found and law.r2 >= _MIN_R2_AT_WORST and law.error <= _MAX_ERROR_AT_WORST:
            return replace(law, at_worst=True)
    return None


def _cost(sizes: Sequence[Size]) -> float:
    """Counted once, where calls are within each other."""
    return sum((size.cost if size.outer is None else size.outer) * size.calls for size in sizes)


def _beyond_a_fixed_part(known: Sequence[Size]) -> Fit:
    """The law of the sizes less what each call reads anyway. No reason if there is none."""
    if len(known) < _MIN_SIZES_BEYOND:
        return Fit("")
    smallest, largest = known[0].n, known[-1].n
    parts = [smallest * step / 200 for step in range(1, int(200 * _MAX_FIXED) + 1)]
    binned = _binned(known) if largest > smallest else []
    if len(binned) < _MIN_SIZES_BEYOND:
        return Fit("")
    tried = []
    for model, power in _BEYOND:
        fixed = min(parts, key=lambda part: _error_beyond(binned, part, power)[0])
        error, factor = _error_beyond(binned, fixed, power)
        tried.append((error, model, power, factor, fixed))
    best = min(tried)[0]
    error, model, power, factor, fixed = next(one for one in tried if one[0] <= about(best))
    beyond = [Size(size.n - fixed, size.cost, size.calls) for size in binned]
    r2 = r2_of(beyond, Candidate(model, error, 1.0, lambda n: factor * n**power))
    if error > _MAX_ERROR_BEYOND or r2 < _MIN_R2_BEYOND or beyond[-1].n < MIN_RANGE * beyond[0].n:
        return Fit("")
    if _apart(_logs(beyond)) < _MIN_APART:
        return Fit("")
    exponent, exponent_error = slope(beyond)
    return Fit(
        model=model,
        r2=r2,
        error=error,
        exponent=exponent,
        exponent_error=exponent_error,
        steepness=power,
        n_sizes=len(known),
        smallest=smallest,
        largest=largest,
        tenfold=10.0**power,
        fixed=fixed,
    )


def _error_beyond(sizes: Sequence[Size], fixed: float, power: float) -> tuple[float, float]:
    """The typical relative error of ``factor * (n - fixed) ** power``, and the factor that makes it least."""
    logs = [math.log(size.cost) - power * math.log(size.n - fixed) for size in sizes]
    mean = sum(logs) / len(logs)
    return math.sqrt(sum([(value - mean) ** 2 for value in logs]) / len(logs)), math.exp(mean)


def _exponential(known: Sequence[Size]) -> Fit | None:
    """Not a law that could be extended by a decade, but a reason why there is none; None if it does not grow so."""
    larger = known[len(known) // 2 :] if len(known) >= 2 * _MIN_SIZES_BEYOND else known
    smallest, largest = larger[0], larger[-1]
    if len(larger) < _MIN_SIZES_BEYOND or largest.cost < _MIN_STEEPNESS * smallest.cost:
        return None
    if _apart([size.n for size in larger]) < MIN_SIZES:
        return None
    mean_n = sum(size.n for size in larger) / len(larger)
    logs = [math.log(size.cost) for size in larger]
    mean = sum(logs) / len(logs)
    spread = sum((size.n - mean_n) ** 2 for size in larger)
    total = sum((value - mean) ** 2 for value in logs)
    if spread <= 0 or total <= 0:
        return None
    rate = sum((size.n - mean_n) * (value - mean) for size, value in zip(larger, logs, strict=True)) / spread
    r2 = rate**2 * spread / total
    if rate <= 0 or r2 < _MIN_R2_EXPONENTIAL:
        return None
    return Fit(
        "",
        EXPONENTIAL,
        r2,
        n_sizes=len(larger),
        smallest=smallest.n,
        largest=largest.n,
        factor=math.exp(min(rate, 700.0)),
    )


def _fit(known: Sequence[Size]) -> Fit:
    if len(known) < 2:
        return Fit("", _count(len(known)), n_sizes=len(known))
    smallest, largest = min(size.n for size in known), max(size.n for size in known)

    def none(reason: str, r2: float = 0.0) -> Fit:
        return Fit("", reason, r2, n_sizes=len(known), smallest=smallest, largest=largest)

    if len(known) < MIN_SIZES:
        return none(_count(len(known)))
    if largest < MIN_RANGE * smallest:
        return none(ALIKE)
    binned = _binned(known)
    if len(binned) < MIN_SIZES:
        return none(ALIKE)
    points = Points(binned)
    fitted = [fitted_law(name, terms, points) for name, terms in laws_for(points.smallest)]
    best = choose(fitted, points)
    r2 = r2_of(binned, best)
    apart = _apart(_logs(binned))
    if apart < _MIN_APART and best.model != CONSTANT:
        return none(f"{_ABOUT} {_count(apart)}", r2)
    if best.error > NOISE or (best.model != CONSTANT and r2 < MIN_R2):
        return none(NOISY, r2)
    larger = [size for size in binned if size.n**2 >= smallest * largest] or binned
    exponent, exponent_error = slope(larger)
    steepness, _ = slope([Size(size.n, best.predict(size.n)) for size in larger])
    return Fit(
        model=best.model,
        r2=r2,
        error=best.error,
        exponent=exponent,
        exponent_error=exponent_error,
        steepness=steepness,
        n_sizes=len(known),
        smallest=smallest,
        largest=largest,
        tenfold=best.predict(10 * largest) / best.predict(largest),
        linear_error=min(one.error for one in fitted if one.model in _ABOUT_LINEAR),
    )


def _count(n: int) -> str:
    return "no input" if not n else "1 size" if n == 1 else f"{n} sizes"


def slope(sizes: Sequence[Size]) -> tuple[float, float]:
    """The slope of log cost over log n, and half the width of its 95 % interval."""
    xs = [math.log(size.n) for size in sizes]
    ys = [math.log(size.cost) for size in sizes]
    n = len(xs)
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    if n < 3 or spread <= 0:
        return 0.0, math.inf
    found = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean_y - found * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return found, _student(n - 2) * math.sqrt(rest / (n - 2) / spread)


def _student(freedom: int) -> float:
    """Student's t at 97.5 %, within 1 %, for so many degrees of freedom."""
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.5 / freedom


def _apart(places: Sequence[float]) -> int:
    """How many of these, in order, are apart: sizes in two groups are as good as two sizes, however many they are."""
    if not places:
        return 0
    step = _APART * (places[-1] - places[0])
    count, last = 1, places[0]
    for place in places:
        if place - last >= step > 0:
            count, last = count + 1, place
    return count


def _logs(sizes: Sequence[Size]) -> list[float]:
    return [math.log(size.n) for size in sizes]


def _binned(sizes: Sequence[Size]) -> list[Size]:
    """At most `MAX_BINS` sizes, evenly spread over the logarithm: where many are close, they count as one."""
    ordered = sorted(sizes)
    if len(ordered) <= MAX_BINS:
        return ordered
    low, high = math.log(ordered[0].n), math.log(ordered[-1].n)
    bins: dict[int, list[Size]] = {}
    for size in ordered:
        bins.setdefault(
            min(int((math.log(size.n) - low) / (high - low) * MAX_BINS), MAX_BINS - 1), []
        ).append(size)
    out = []
    for group in bins.values():
        calls = sum(size.calls for size in group)
        n = sum(size.n * size.calls for size in group) / calls
        out.append(Size(n, sum(size.cost * size.calls for size in group) / calls, calls))
    return out
