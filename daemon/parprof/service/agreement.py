"""The daemon's check of itself: exact totals of idleness against sampled ones, in each process that has both."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parprof.attribution.agreement import TwoWays
from parprof.facts.scopes import ScopeTimes

WINDOW_SECONDS = 20.0
"""What is compared is of so much time at least: the two are read some milliseconds apart."""


class _Window:
    """What has come of one process since the last comparison."""

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self.elapsed_s = self.counted_s = self.sampled_s = self.ready_s = 0.0


class IdlenessChecks:
    """Compares window by window."""

    def __init__(self) -> None:
        """Nothing was compared yet."""
        self.made = self.failed = 0
        """Comparisons, and those in which the two parted by more than samples explain."""
        self._windows: dict[int, _Window] = {}
        self._told: dict[int, str] = {}

    def skip(self, image: int) -> None:
        """There are no exact totals of this interval, or not of this process alone."""
        self._windows.pop(image, None)

    def add(
        self,
        image: int,
        level_ns: Sequence[int],
        sampled_s: float,
        ready_s: float,
        cores: float,
        period_s: float,
    ) -> None:
        """One interval of a process whose every change of n_w was seen.

        ``level_ns``: for how long n_w was 0, 1, 2, ...; ``sampled_s``: idleness, and what was stolen of it. Where n
        changes the comparison begins anew.
        """
        window = self._windows.get(image)
        if window is None or window.cores != cores:
            window = self._windows[image] = _Window(cores)
        times = ScopeTimes(tuple(level_ns), 0, True)
        window.elapsed_s += times.elapsed_ns / 1e9
        window.counted_s += times.idleness_ns(cores) / 1e9
        window.sampled_s += sampled_s
        window.ready_s += ready_s
        if window.elapsed_s < WINDOW_SECONDS:
            return
        del self._windows[image]
        most_s = max(cores - 1, 0.0)
        found = TwoWays(window.counted_s, window.sampled_s, most_s * window.ready_s, most_s * period_s)
        self.made += 1
        self.failed += not found.agree
        self._told[image] = "" if found.agree else found.told()

    def note(self, image: int) -> str:
        """What its last comparison said; empty if all was well."""
        return self._told.get(image, "")

    def keep(self, images: Collection[int]) -> None:
        """Forget all other processes."""
        self._windows = {image: one for image, one in self._windows.items() if image in images}
        self._told = {image: one for image, one in self._told.items() if image in images}
