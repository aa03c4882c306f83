"""Work whose creation nobody saw, shared among the call paths that are known to create such work.

After an attach in the middle of a region, its workers run a function that other stacks show together with who
created it. Their samples are shared among those call paths in proportion to the samples of these, in whole
samples that add up.
"""

from __future__ import annotations

from collections.abc import Sequence


class Shares:
    """Shares whole numbers by fixed weights. What rounding takes from a share, a later one gets."""

    def __init__(self, weights: Sequence[int]) -> None:
        """``weights``: whole numbers, not negative; equal shares if all are 0."""
        self._weights = list(weights) if any(weights) else [1] * len(weights)
        self._whole = sum(self._weights)
        self._due = [0] * len(self._weights)
        """What each is owed, in units of 1/``_whole``; they add up to 0 between calls."""

    def reweigh(self, weights: Sequence[int]) -> None:
        """Go on with other weights: those of the known shares, and perhaps further ones behind them."""
        new = Shares(weights)
        new._due = [owed * new._whole // self._whole for owed in self._due]
        new._due += [0] * (len(new._weights) - len(new._due))
        new._due[0] -= sum(new._due)
        self._weights, self._whole, self._due = new._weights, new._whole, new._due

    def split(self, count: int) -> list[int]:
        """Shares of ``count``, which add up to it: largest remainder, the first of equals."""
        due = [owed + count * weight for owed, weight in zip(self._due, self._weights, strict=True)]
        out = [max(0, owed // self._whole) for owed in due]
        missing = count - sum(out)
        rest = [owed - share * self._whole for owed, share in zip(due, out, strict=True)]
        step = 1 if missing > 0 else -1
        while missing:
            order = sorted(range(len(out)), key=lambda index: (-step * rest[index], index))
            for index in [one for one in order if step > 0 or out[one]][: abs(missing)]:
                out[index] += step
                rest[index] -= step * self._whole
                missing -= step
        self._due = rest
        return out
