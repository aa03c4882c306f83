"""What all programs are told: one entry that Python alone writes."""

from __future__ import annotations

import struct
import threading
from typing import Any

from parprof.kernel.cpus import online_cpus, possible_cpus
from parprof.kernel.objects import LoadedObject
from parprof.kernel.records import Budget, Prices

_HOOK_RUNS = 1024
"""HOOK_RUNS of bpf/wire.h."""
_UINT32_MAX = 0xFFFF_FFFF
_HOOK_NS = 115
"""What a switch and a wake-up take from a program that is not watched (measured: a pipe's ping-pong, 113 ns)."""


class Settings:
    """Keeps the entry up to date; any thread may change it."""

    def __init__(
        self,
        loaded: LoadedObject,
        frequency_hz: int,
        budget: Budget,
        *,
        trace: bool,
        system_wide: bool,
        activations: bool = False,
    ) -> None:
        """``frequency_hz``: samples of the clock a second and CPU. Written at once."""
        self._object = loaded
        self._lock = threading.Lock()
        self._fixed = {"trace": trace, "system_wide": system_wide}
        self._compared_since = 1 if activations else 0
        self._frequency_hz = frequency_hz
        self._phase = 0
        self._ticks = False
        self._slices = 0, 0
        self._glimpse = 0, 0
        self.budget = budget
        self.prices = Prices()
        self.write()

    @property
    def period_ns(self) -> int:
        """CPU time from a sample of the clock to the next."""
        return round(1e9 / self._frequency_hz)

    def write(
        self,
        *,
        phase: int | None = None,
        slices: tuple[int, int] | None = None,
        ticks: bool | None = None,
        glimpse: tuple[int, int] | None = None,
        frequency_hz: int | None = None,
        budget: Budget | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Change some of it. ``slices``: since when the time is told apart (CLOCK_MONOTONIC), and by how much, ns.

        ``glimpse``: the number of the one that lasts, 0: none does; and since when what is seen in it counts.
        """
        with self._lock:
            self._phase = self._phase if phase is None else phase
            self._slices = slices or self._slices
            self._ticks = self._ticks if ticks is None else ticks
            self._glimpse = glimpse or self._glimpse
            self._frequency_hz = frequency_hz or self._frequency_hz
            self.budget = budget or self.budget
            self.prices = prices or self.prices
            self._put()

    def compare_anew(self) -> None:
        """No sample is taken for one in the calls of the one before whose stack was forgotten."""
        with self._lock:
            self._compared_since = self._compared_since % _UINT32_MAX + bool(self._compared_since)
            self._put()

    def _put(self) -> None:
        raw: Any = self._object.layouts["settings"]()
        raw.activations = self._compared_since
        for name, value in self._fixed.items():
            setattr(raw, name, value)
        raw.phase, raw.ticks = self._phase, self._ticks
        raw.slices_begin_ns, raw.slice_ns = self._slices
        raw.glimpse, raw.glimpse_since_ns = self._glimpse
        raw.refill_ns = int(self.budget.ratio * 1e9 / self._frequency_hz)
        raw.burst_ns = self.budget.burst_ns
        raw.hooks_ns = int(_HOOK_RUNS * _HOOK_NS / self.budget.ratio)
        raw.entry_ns, raw.dear_ns = self.prices.entry_ns, self.prices.dear_ns
        raw.return_ns, raw.interrupt_ns = self.prices.return_ns, self.prices.interrupt_ns
        raw.cpus, raw.possible_cpus = max(online_cpus(), default=0) + 1, possible_cpus()
        self._object.put("settings_map", struct.pack("<I", 0), raw)
