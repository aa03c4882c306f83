"""What an event costs its target on this machine beside our programs, measured on ourselves.

A probe's trap and a sample's interrupt take what the processor and a hypervisor make of them: from below a microsecond
to many. Measured once, in some 0.1 s, and kept until the machine starts anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from parprof.cache import DiskCache
from parprof.errors import ParprofError
from parprof.files.dso import Dso
from parprof.files.dso_cache import DsoCache
from parprof.files.maps_line import MapsLine
from parprof.kernel import perf_events
from parprof.kernel.engine import BpfKernel
from parprof.kernel.multilinks import place_of
from parprof.kernel.records import Prices
from parprof.kernel.uprobes import ProbeSet, Site
from parprof.plans import Edge
from parprof.probes.cheap_sites import is_emulated
from parprof.probes.facts_book import BOOK

_FUNCTIONS = ("btowc", "setlogmask", "ffs", "abs")
"""Harmless functions of libc, called with 0: the first two have a push early on, the others none."""
_LOOK_SECONDS = 5.0
_INTERRUPTS_HZ = 20_000
_CACHE_BYTES = 1 << 14
"""A file takes a block: those of the last few starts stay."""
_LEAST_NS, _MOST_NS = 100, 1_000_000
"""A trap that single-steps may take a hypervisor 30 us, on a busy machine a multiple of that."""


def machine_prices(kernel: BpfKernel) -> Prices:
    """The prices of this machine: as measured since it started, else now. Typical ones where that fails."""
    kept = _read()
    if kept is not None:
        return kept
    with suppress(OSError, ParprofError, StopIteration):
        measured = measure(kernel)
        if all(asdict(measured).values()):
            _write(measured)
        return _completed(measured)
    return Prices()


def _completed(measured: Prices) -> Prices:
    """Typical prices in place of those that could not be measured; the next run tries again."""
    typical = asdict(Prices())
    return Prices(**{name: ns or typical[name] for name, ns in asdict(measured).items()})


def measure(kernel: BpfKernel) -> Prices:
    """Measure them now; 0 for what came out as nothing that could be true.

    Raises:
        ParprofError, OSError, StopIteration: it cannot be done here.
    """
    entry = dear = both = 0.0
    path, _ = place_of(ctypes.cast(ctypes.CDLL(None)[_FUNCTIONS[0]], ctypes.c_void_p).value or 0)
    with DsoCache() as cache:
        dso = _opened(cache, path)
        elf = dso.elf
        if elf is None:
            raise OSError(0, dso.problem)
        for name, symbols in elf.lookup(_FUNCTIONS).items():
            start = symbols[0].value
            looked_at = BOOK.function(dso, start, symbols[0].size, _LOOK_SECONDS)
            place = looked_at.whole if looked_at is not None else None
            at, first = elf.file_offset(place.vaddr) if place else None, elf.file_offset(start)
            function = getattr(ctypes.CDLL(None), name)
            if place is not None and place.cheap and not entry and at is not None:
                bare = _call_ns(function)
                site = Site(path, at, int(Edge.LEARN))
                entry = _probed_ns(function, kernel.attach_probes(os.getpid(), [site])) - bare
                with suppress(OSError):
                    both = _probed_ns(function, kernel.prober.attach_return(site, os.getpid())) - bare
            if not dear and first is not None and not is_emulated(elf.read(start, 2)):
                probes = kernel.attach_probes(os.getpid(), [Site(path, first, int(Edge.LEARN))])
                dear = _probed_ns(function, probes)
    return Prices(
        _bounded(entry),
        _bounded(dear),
        _bounded(both - entry) or Prices().return_ns,
        _bounded(_interrupt_ns()),
    )


def _opened(cache: DsoCache, path: str) -> Dso:
    """A file that we ourselves map. Its code is ours, and yet a child disassembles it: so that we need not know how."""
    status = os.stat(path)
    line = MapsLine(0, 1, True, 0, status.st_dev, status.st_ino, os.fsencode(path))
    return cache.get(os.getpid(), line)


def _bounded(ns: float) -> int:
    """0 for what cannot be true."""
    return int(ns) if _LEAST_NS <= ns <= _MOST_NS else 0


def _probed_ns(function: Callable[[int], object], probes: ProbeSet) -> float:
    try:
        return _call_ns(function)
    finally:
        probes.close()


def _call_ns(function: Callable[[int], object], calls: int = 1000) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(calls):
            function(0)
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best


def _interrupt_ns() -> float:
    """How much longer a computation takes for each interrupt of the clock's event in our own thread."""
    work = bytes(1 << 20)

    def best_ns() -> int:
        out = []
        for _ in range(8):
            start = time.perf_counter_ns()
            hashlib.sha256(work).digest()
            out.append(time.perf_counter_ns() - start)
        return min(out)

    bare = best_ns()
    frequency_hz = min(_INTERRUPTS_HZ, perf_events.maximum_rate_hz())
    event = perf_events.open_on_self("cpu-clock", frequency_hz)
    try:
        sampled = best_ns()
    finally:
        os.close(event)
    return (sampled - bare) / (sampled * frequency_hz / 1e9)


def _cache() -> DiskCache:
    return DiskCache("prices", _CACHE_BYTES)


def _name() -> str:
    """Prices are those of one start of the machine: the next may have another processor, or none of its own."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + ".json"


def _read() -> Prices | None:
    try:
        kept = json.loads(_cache().read(_name()) or b"{}")
        prices = Prices(**{name: int(kept[name]) for name in asdict(Prices())})
        return prices if all(_LEAST_NS <= ns <= _MOST_NS for ns in asdict(prices).values()) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(prices: Prices) -> None:
    with suppress(OSError):  # measured anew the next time
        _cache().write(_name(), json.dumps(asdict(prices)).encode())
